"""Tables of latencies of one's own."""

import numpy as np
import pytest

from tvm_sched.cost_model import costs, get_cost_model
from tvm_sched_runtime.errors import CostsError, InputError
from tvm_sched_runtime.problem import FORBIDDEN, Operator, OpGraph, Tensor, load_topology

GRAPH = OpGraph(
    "g",
    (Operator("a", "k", ("x",), ("y",)), Operator("b", "k", ("y",), ("z",))),
    (Tensor("x", 8, "input"), Tensor("y", 8), Tensor("z", 8)),
    ("z",),
)
TOPOLOGY = load_topology("a40x2")


def read(tmp_path, text):
    (tmp_path / "t.csv").write_text(text)
    return costs(GRAPH, TOPOLOGY, str(tmp_path / "t.csv"))


def test_exact_rows_go_before_stars(tmp_path):
    names = [device.name for device in TOPOLOGY.devices]
    found = read(
        tmp_path, f"operator,device,seconds\na,{names[0]},1e-3\na,*,2e-3\n*,{names[1]},3e-3\nb,*,inf\n*,*,5e-3\n"
    )
    assert found.operator_ns.tolist() == [[1_000_000, 2_000_000], [FORBIDDEN, FORBIDDEN]]
    assert (found.direct_ns == FORBIDDEN).all()
    assert found.source == "t.csv"


def test_direct_host_access(tmp_path):
    found = read(tmp_path, "operator,device,seconds,direct_seconds\na,*,1e-3,4e-3\nb,*,1e-3,\n")
    assert np.array_equal(found.direct_ns, [[4_000_000] * 2, [FORBIDDEN] * 2])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("operator,seconds\n", "columns are operator, seconds; expected"),
        ("operator,device,seconds\nc,*,1\n", "line 2: there is no operator 'c'; there are a, b"),
        ("operator,device,seconds\na,gpu9,1\n", "there is no device 'gpu9'"),
        ("operator,device,seconds\na,*,nan\n", "'nan' is not a latency"),
        ("operator,device,seconds\na,*,0\n", "'0' is not a latency"),
        ("operator,device,seconds\na,*,fast\n", "'fast' is not a latency"),
        ("operator,device,seconds\na,*,1\na,*,2\n", "has a time already"),
        ("operator,device,seconds\na,*,1\n", "2 latencies are missing: b on"),
        ("", "columns are none"),
    ],
)
def test_wrong_tables(tmp_path, text, message):
    with pytest.raises(CostsError, match=message):
        read(tmp_path, text)


def test_files_that_are_not_there():
    with pytest.raises(InputError, match="no such file"):
        get_cost_model("none.csv")
