"""Relative error of long float32 sums against float64, by operator and length; positive random numbers.

Cases are compiled as models are, so that libraries compute what they compute elsewhere. A float32 sum with one accumulator
has a relative error around ``sqrt(length) * 3e-8`` for such numbers, and stops at 2^24 for ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from _common import parser
from _result_page import Row, report
from tvm import relax

from tvm_sched.relax import compile

op = relax.op
Case = tuple[Callable[..., Any], tuple[tuple[int, ...], ...], Callable[..., Any]]


def cases(n: int) -> dict[str, Case]:
    """Return for each operator its Relax form, the shapes of its inputs, and NumPy's form; sums have ``n`` terms."""

    def softmax(x: Any, axis: int) -> Any:
        powers = np.exp(x)
        return powers / powers.sum(axis, keepdims=True)

    def layer_norm(x: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) + 4

    one = np.ones(n, "float32")
    return {
        "sum along memory": (lambda x: op.sum(x, [1]), ((2, n),), lambda x: x.sum(1)),
        "sum of 2 columns": (lambda x: op.sum(x, [0]), ((n, 2),), lambda x: x.sum(0)),
        "sum of 64 columns": (lambda x: op.sum(x, [0]), ((n, 64),), lambda x: x.sum(0)),
        "mean of an image": (lambda x: op.mean(x, [2, 3]), ((1, 4, n // 64, 64),), lambda x: x.mean((2, 3))),
        "variance": (lambda x: op.variance(x, [1]), ((2, n),), lambda x: x.var(1)),
        "softmax of a row": (lambda x: op.nn.softmax(x, 1), ((2, n),), lambda x: softmax(x, 1)),
        "softmax of columns": (lambda x: op.nn.softmax(x, 0), ((n, 3),), lambda x: softmax(x, 0)),
        "layer normalisation": (
            lambda x: op.nn.layer_norm(x, relax.const(one), relax.const(4 * one), [-1]), ((2, n),), layer_norm,
        ),
        "running sum": (lambda x: op.cumsum(x, 0), ((n,),), np.cumsum),
        "product, 1 row, 1 column": (op.matmul, ((1, n), (n, 1)), np.matmul),
        "product, 1 row, 32 columns": (op.matmul, ((1, n), (n, 32)), np.matmul),
        "product, 8 rows, 32 columns": (op.matmul, ((8, n), (n, 32)), np.matmul),
        "convolution, 1 x 1": (
            op.nn.conv2d, ((1, n, 1, 2), (8, n, 1, 1)), lambda x, w: np.einsum("nchw,ockl->nohw", x, w),
        ),
    }  # fmt: skip


def error(case: Case, random: np.random.Generator) -> float:
    """Return the largest relative error of a case's results."""
    emit, shapes, exact = case
    inputs = [random.random(shape, dtype="float32") for shape in shapes]
    builder = relax.BlockBuilder()
    variables = [relax.Var(f"x{k}", relax.TensorType(shape, "float32")) for k, shape in enumerate(shapes)]
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(emit(*variables)))
        builder.emit_func_output(result)
    found = np.asarray(compile(builder.get(), "cpu1", "single").run(*inputs)).astype("float64")
    right = exact(*(x.astype("float64") for x in inputs))
    return float(np.max(np.abs(found - right) / np.abs(right)))


def main() -> None:
    """Measure all cases."""
    options = parser(__doc__).parse_args()
    random = np.random.default_rng(0)
    rows = []
    for exponent in (12, 16) if options.quick else (10, 12, 14, 16, 18, 20):
        for name, case in cases(1 << exponent).items():
            rows.append(Row(name, f"2^{exponent} terms", error(case, random), "relative error of float32"))
    report("errors of long sums", rows, options.json, options.markdown)


if __name__ == "__main__":
    main()
