"""Sorts and running sums of small types, which TVM's functions for CPUs spoil or refuse."""

import ml_dtypes
import numpy as np
import pytest
from tvm import relax

from tvm_sched.relax import compile

op = relax.op
ROWS, COUNT = 3, 700
KINDS = {"float16": "float16", "bfloat16": ml_dtypes.bfloat16, "int8": "int8", "uint8": "uint8", "int16": "int16"}


def run(kind, function, x):
    builder = relax.BlockBuilder()
    variable = relax.Var("x", relax.TensorType(x.shape, kind))
    with builder.function("main", [variable]):
        with builder.dataflow():
            result = builder.emit_output(function(builder, variable))
        builder.emit_func_output(result)
    return [
        np.asarray(value) for value in compile(builder.get(), "cpu1", "single", cost_model="roofline").module.run(x)
    ]


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def numbers(kind):
    return (20 * np.abs(np.random.default_rng(0).standard_normal((ROWS, COUNT)))).astype(KINDS[kind])


@pytest.mark.parametrize("descending", [False, True])
def test_sort(kind, numbers, descending):
    (found,) = run(kind, lambda b, x: op.sort(x, -1, descending), numbers)
    expected = np.sort(numbers.astype("float32"), -1)
    np.testing.assert_array_equal(found.astype("float32"), expected[:, ::-1] if descending else expected)
    assert found.dtype == numbers.dtype


def test_argsort(kind, numbers):
    (places,) = run(kind, lambda b, x: op.argsort(x, -1), numbers)
    wide = numbers.astype("float32")
    np.testing.assert_array_equal(np.take_along_axis(wide, places.astype("int64"), -1), np.sort(wide, -1))


def test_topk(kind, numbers):
    values, places = run(kind, lambda b, x: b.emit(op.topk(x, 5, -1)), numbers)
    wide = numbers.astype("float32")
    np.testing.assert_array_equal(values.astype("float32"), np.sort(wide, -1)[:, :-6:-1])
    np.testing.assert_array_equal(np.take_along_axis(wide, places.astype("int64"), -1), values.astype("float32"))


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_running_sums_are_added_up_in_float32(half):
    x = np.full((1, 3000), 0.01).astype(KINDS[half])
    (found,) = run(half, lambda b, x: op.cumsum(x, 1), x)
    expected = np.cumsum(x.astype("float64"), 1)
    assert found.dtype == x.dtype
    np.testing.assert_allclose(
        found.astype("float64"), expected, rtol=2.0**-8 if half == "bfloat16" else 2.0**-11 * 1.01
    )
