"""Latency matrices."""

import numpy as np
import pytest

from tvm_sched_runtime.errors import CostsError
from tvm_sched_runtime.problem import FORBIDDEN, Costs


def test_seconds_become_nanoseconds():
    costs = Costs.from_seconds([[1e-9, float("inf")]], source="here")
    assert costs.operator_ns.tolist() == [[1, FORBIDDEN]]
    assert costs.direct_ns.tolist() == [[FORBIDDEN, FORBIDDEN]]
    assert costs.to_builtins() == {"source": "here", "operator_ns": [[1, None]], "direct_ns": [[None, None]]}


def test_costs_are_read_only_copies():
    mine = np.array([[1, 2]])
    costs = Costs(mine)
    mine[0, 0] = 5
    assert costs.operator_ns[0, 0] == 1
    with pytest.raises(ValueError, match="read-only"):
        costs.operator_ns[0, 0] = 3


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Costs([[1, -2]]), r"operator_ns\[0\]\[1\] is -2 ns"),
        (lambda: Costs([1, 2]), "1 dimensions"),
        (lambda: Costs([[1, 2]], [[1]]), "must agree"),
        (lambda: Costs.from_seconds([[float("nan")]]), "not a number"),
        (lambda: Costs.from_seconds([[1, 1e300]]), r"operator\[0\]\[1\] is 1e\+300 s; at most"),
    ],
)
def test_errors(make, said):
    with pytest.raises(CostsError, match=said):
        make()
