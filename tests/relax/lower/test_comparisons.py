"""Comparisons and their negations where an operand is NaN, alone and fused with what reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax

import tvm_sched.relax

op = relax.op
NAN = float("nan")
X = np.array([2, NAN, -1, NAN, 3, 0])
Y = np.array([2, 1, NAN, NAN, 1, 5])
CASES: dict[str, tuple[Callable[..., relax.Expr], Callable[..., Any]]] = {
    "not_equal": (op.not_equal, np.not_equal),
    "not_equal_to_itself": (lambda x, _: op.not_equal(x, x), lambda x, _: np.isnan(x)),
    "equal_to_itself": (
        lambda x, y: op.logical_xor(op.less(x, y), op.equal(x, x)), lambda x, y: (x < y) ^ (x == x)
    ),
    "equal_after_fusion": (lambda x, _: op.equal(op.negative(x), op.negative(x)), lambda x, _: ~np.isnan(x)),
    "not_equal_after_fusion": (lambda x, _: op.not_equal(op.negative(x), op.negative(x)), lambda x, _: np.isnan(x)),
    "not_of_equal": (lambda x, y: op.logical_not(op.equal(x, y)), lambda x, y: ~(x == y)),
    "not_of_less": (lambda x, y: op.logical_not(op.less(x, y)), lambda x, y: ~(x < y)),
    "not_of_greater_equal": (lambda x, y: op.logical_not(op.greater_equal(x, y)), lambda x, y: ~(x >= y)),
    "not_of_not_equal": (lambda x, y: op.logical_not(op.not_equal(x, y)), lambda x, y: x == y),
    "not_of_or": (
        lambda x, y: op.logical_not(op.logical_or(op.less(x, y), op.greater(x, y))), lambda x, y: ~((x < y) | (x > y))
    ),
    "chosen": (
        lambda x, y: op.where(op.logical_not(op.greater(x, y)), x, y), lambda x, y: np.where(~(x > y), x, y)
    ),
    "nan_to_zero": (
        lambda x, _: op.where(op.not_equal(x, x), op.zeros_like(x), x), lambda x, _: np.where(np.isnan(x), 0, x)
    ),
    "is_true": (lambda x, _: op.not_equal(x, op.zeros_like(x)), lambda x, _: x != 0),
}  # fmt: skip


@pytest.fixture(scope="module", params=["float32", "float16", "float64"])
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The results of all cases, computed by one module of a type."""
    kind = request.param
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType((6,), kind)) for name in "xy")
    with builder.function("main", [x, y]):
        with builder.dataflow():
            made = [builder.emit(compute(x, y)) for compute, _ in CASES.values()]
            made = builder.emit_output(relax.Tuple(made))
        builder.emit_func_output(made)
    compiled = tvm_sched.relax.compile(builder.get(), "cpu1", "heft", cost_model="roofline")
    return {"kind": kind, **dict(zip(CASES, compiled.run(X.astype(kind), Y.astype(kind)), strict=True))}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(9)
def test_as_numpy(found: dict[str, Any], name: str) -> None:
    right = CASES[name][1](X.astype(found["kind"]), Y.astype(found["kind"]))
    np.testing.assert_array_equal(found[name], right)


def test_the_second_operand_may_be_of_another_shape() -> None:
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((2, 3), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            made = builder.emit_output(op.not_equal(x, relax.const(1.0)))
        builder.emit_func_output(made)
    given = X.astype("float32").reshape(2, 3)
    result = tvm_sched.relax.compile(builder.get(), "cpu1", "heft", cost_model="roofline").run(given)
    np.testing.assert_array_equal(result, given != 1)
