"""Operators of Relax in each element type on an emulated GPU, many in one model; `test_emulated_gpu` runs this."""

from __future__ import annotations

from functools import partial

import ml_dtypes
import numpy as np
import pytest
from tvm import relax

from tvm_frontends.kernels.trees import Forest, forest_kernel
from tvm_sched.relax import compile
from tvm_sched.relax.autoload import register

pytestmark = pytest.mark.gpu
TYPES = {"float32": 1e-4, "float16": 1.5e-2, "bfloat16": 8e-2}
"""How far a result may be from the float32 of the CPU's kernels, over the largest magnitude."""
op, nn = relax.op, relax.op.nn
ELEMENTS = {
    **{name: getattr(op, name) for name in (
        "abs", "acos", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp", "floor", "isfinite", "isinf",
        "isnan", "negative", "round", "sigmoid", "sign", "sin", "sinh", "square", "tan", "tanh",
    )},
    "acosh": lambda x: op.acosh(op.exp(op.abs(x))), "log": lambda x: op.log(op.abs(x)),
    "sqrt": lambda x: op.sqrt(op.abs(x)), "rsqrt": lambda x: op.rsqrt(op.abs(x)), "relu": nn.relu, "gelu": nn.gelu,
    "silu": nn.silu, "power": lambda x: op.power(op.abs(x), x), "softplus": nn.softplus,
    "mod": lambda x: op.mod(x, op.add(op.abs(x), op.square(x))),
}  # fmt: skip
REDUCTIONS = {
    **{name: partial(getattr(op, name), axis=[-1]) for name in (
        "sum", "mean", "max", "min", "prod", "variance", "std",
    )},
    "argmax": lambda x: op.argmax(x, 2), "argmin": lambda x: op.argmin(x, 2), "softmax": nn.softmax,
    "log_softmax": nn.log_softmax, "cumsum": lambda x: op.cumsum(x, 2), "cumprod": lambda x: op.cumprod(x, 2),
    "sort": lambda x: op.sort(x, 2), "argsort": lambda x: op.argsort(x, 2), "topk": lambda x: op.topk(x, 3, 2, "values"),
    "matmul": lambda x: op.matmul(x, op.permute_dims(x, [0, 2, 1])),
    "max_pool": lambda x: nn.max_pool1d(x, [3], [2]), "avg_pool": lambda x: nn.avg_pool1d(x, [3], [2], [1, 1]),
}  # fmt: skip
FAMILIES = {"elements": ELEMENTS, "reductions": REDUCTIONS}
CASES = [
    pytest.param(family, dtype, marks=[] if dtype == "bfloat16" else pytest.mark.thorough)
    for family in FAMILIES
    for dtype in TYPES
]


def model(functions, dtype):
    """All of them of one input."""
    x = relax.Var("x", relax.TensorType((2, 8, 12), dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            made = [builder.emit(builder.normalize(function(x))) for function in functions]
            results = builder.emit_output(relax.Tuple(made))
        builder.emit_func_output(results)
    return builder.get()


@pytest.mark.parametrize(("family", "dtype"), CASES)
def test_like_the_cpus_float32(family, dtype):
    register()
    functions = FAMILIES[family]
    random = np.random.default_rng(1)
    x = random.uniform(0.15, 0.9, (2, 8, 12)) * np.where(random.random((2, 8, 12)) < 0.3, -1, 1)
    x = x.astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))
    options = {"cost_model": "roofline", "variants": False}
    expected = compile(model(functions.values(), "float32"), "cpu1", "single", **options).run(x.astype("float32"))
    made = compile(model(functions.values(), dtype), "v100-server", "single", backend="cuda", **options).module
    made.configure(devices=[0, 0, 0, 0])
    wrong = {}
    for name, found, right in zip(functions, made.run(x), expected, strict=True):
        a, b = (np.asarray(value).astype("float64") for value in (found, right))
        far = float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-6))
        if not far <= TYPES[dtype]:
            wrong[name] = far
    assert not wrong


def test_trees_have_a_thread_for_each_row():
    """Three blocks, of which the last is not full; a forest of two trees of depth two and one, with exact sums."""
    register()
    rows = 300
    ints, floats = partial(np.array, dtype="int32"), partial(np.array, dtype="float32")
    forest = Forest(
        ints([0, 3]), ints([0, 1, 1, 2]), ints([0] * 4), ints([0] * 4), floats([0, 4, -3, 2]),
        ints([[1, 2], [4, 5], [6, 7], [8, 9]]), ints([[0], [1]] * 3), floats([[1], [2], [4], [8], [16], [32]]), 2,
    )  # fmt: skip
    x = np.random.default_rng(1).integers(-9, 9, (rows, 3)).astype("float32")
    right = np.zeros((rows, 2), "float32")
    for row, (a, b, c) in enumerate(x):
        for leaf in (2 * (a <= 0) + (b <= (-3 if a <= 0 else 4)), 4 + (c <= 2)):
            right[row, leaf % 2] += 2**leaf
    builder = relax.BlockBuilder()
    features = relax.Var("x", relax.TensorType(x.shape, "float32"))
    with builder.function("main", [features]):
        with builder.dataflow():
            kernel = builder.add_func(forest_kernel(forest, *x.shape), "trees")
            tables = [relax.const(table, str(table.dtype)) for table in forest.tables()]
            call = relax.call_tir(kernel, [features, *tables], relax.TensorType(right.shape, "float32"))
            result = builder.emit_output(call)
        builder.emit_func_output(result)
    made = compile(builder.get(), "v100-server", "single", backend="cuda", cost_model="roofline", variants=False).module
    made.configure(devices=[0, 0, 0, 0])
    np.testing.assert_array_equal(made.run(x)[0], right)
