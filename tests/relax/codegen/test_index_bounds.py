"""Indices outside of their tensors: the nearest row is read or written, and no foreign memory."""

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from thorough import examples
from tvm_sched.relax import compile, get_graph, passes
from tvm_sched.relax.codegen.cpu.index_bounds import bound_indices
from tvm_sched_runtime.errors import UnsupportedModelError

FAR = 10**12


def module(make, *shapes, dtype="int64"):
    """``main`` of ``indices`` and float32 tensors with these shapes."""
    builder = relax.BlockBuilder()
    indices = relax.Var("indices", relax.TensorType(shapes[0], dtype))
    tensors = [relax.Var(f"x{i}", relax.TensorType(shape, "float32")) for i, shape in enumerate(shapes[1:])]
    with builder.function("main", [indices, *tensors]):
        with builder.dataflow():
            result = builder.emit_output(make(indices, *tensors))
        builder.emit_func_output(result)
    return builder.get()


X = np.arange(12, dtype=np.float32).reshape(4, 3)
CASES = {
    "gather_elements": (lambda i, x: relax.op.gather_elements(x, i, axis=0), [[1, 0, 2], [FAR, -FAR, 3]], (X,),
                        [[3, 1, 8], [9, 1, 11]]),
    "gather_nd": (lambda i, x: relax.op.gather_nd(x, i), [[2, 1], [FAR, 0], [-FAR, FAR]], (X,), [7, 9, 2]),
    "scatter_elements": (lambda i, x, u: relax.op.scatter_elements(x, i, u, axis=0), [[1, FAR, -FAR]],
                         (X, np.full((1, 3), -1, np.float32)), [[0, 1, -1], [-1, 4, 5], [6, 7, 8], [9, -1, 11]]),
    "scatter_nd": (lambda i, x, u: relax.op.scatter_nd(x, i, u), [[FAR], [1]],
                   (X, np.array([[-1, -2, -3], [-4, -5, -6]], np.float32)),
                   [[0, 1, 2], [-4, -5, -6], [6, 7, 8], [-1, -2, -3]]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_nearest_row(name):
    make, indices, tensors, expected = CASES[name]
    indices = np.array(indices, np.int64)
    compiled = compile(module(make, indices.shape, *(each.shape for each in tensors)), "cpu1", "single")
    np.testing.assert_array_equal(compiled.run(indices, *tensors), np.array(expected, np.float32))


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_indices_of_a_type_that_does_not_hold_the_number_of_rows(dtype):
    table = np.arange(300, dtype=np.float32).reshape(300, 1)
    indices = np.array([np.iinfo(dtype).max, 5], dtype)
    compiled = compile(module(lambda i, x: relax.op.take(x, i, axis=0), (2,), (300, 1), dtype=dtype), "cpu1", "single")
    np.testing.assert_array_equal(compiled.run(indices, table)[:, 0], indices)


def test_an_empty_table_gives_zeros():
    compiled = compile(module(lambda i, x: relax.op.gather_nd(x, i), (2, 1), (0, 3)), "cpu1", "single")
    np.testing.assert_array_equal(
        compiled.run(np.zeros((2, 1), np.int64), np.zeros((0, 3), np.float32)), np.zeros((2, 3))
    )


def test_empty_parts_of_a_concatenation_are_left_out():
    parts = [np.full((rows, 3), k, np.float32) for k, rows in enumerate((0, 2, 0, 1))]
    shapes = [part.shape for part in parts[1:]]
    compiled = compile(
        module(lambda *x: relax.op.concat(x, 0), parts[0].shape, *shapes, dtype="float32"), "cpu1", "single"
    )
    np.testing.assert_array_equal(compiled.run(*parts)[:, 0], [1, 1, 3])


def test_kernels_without_such_indices_stay():
    mod = module(lambda i, x: relax.op.add(x, x), (1,), (4, 3))
    lowered = relax.transform.LegalizeOps()(mod)
    (kernel,) = [f for f in lowered.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    assert bound_indices(kernel).same_as(kernel)
    assert get_graph(passes.LowerToKernels(libraries=())(mod)).operators


def kernel_of(make, *shapes):
    """The PrimFunc of a float32 operator as TVM lowers it."""
    lowered = relax.transform.LegalizeOps()(module(lambda i, *x: make(*x), (1,), *shapes))
    (kernel,) = [f for f in lowered.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    return kernel


IMAGE = (1, 3, 9, 8)
PROVEN = {
    "padded convolution": (lambda x, w: relax.op.nn.conv2d(x, w, strides=2, padding=(2, 1, 0, 3)), IMAGE, (4, 3, 3, 3)),
    "transposed convolution": (
        lambda x, w: relax.op.nn.conv2d_transpose(x, w, strides=2, padding=1),
        IMAGE,
        (3, 4, 3, 3),
    ),
    "pool": (lambda x: relax.op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1), ceil_mode=True), IMAGE),
    "reflection": (lambda x: relax.op.nn.pad(x, (0, 0, 0, 0, 8, 1, 0, 7), "reflect"), IMAGE),
    "circular": (lambda x: relax.op.nn.pad(x, (0, 0, 0, 0, 9, 20, 1, 3), "circular"), IMAGE),
    "slice": (lambda x: relax.op.strided_slice(x, [2, 3], [8, 1], [-10, 8], [-2, 3]), IMAGE),
    "concatenation": (lambda x, y: relax.op.concat([x, y], 2), IMAGE, (1, 3, 5, 8)),
}


@pytest.mark.parametrize("name", PROVEN)
def test_indices_computed_from_attributes_are_proven(name):
    make, *shapes = PROVEN[name]
    kernel = kernel_of(make, *shapes)
    assert bound_indices(kernel).same_as(kernel)


def test_a_kernel_that_would_reach_beyond_its_tensor_is_refused():
    wide = module(lambda i, x: relax.op.nn.pad(x, (0, 0, 6, 0), "reflect"), (1,), (2, 3))
    with pytest.raises(
        UnsupportedModelError, match=r"reach beyond its tensor .* from -2 to 2 for a dimension of size 3"
    ):
        compile(wide, "cpu1", "single")


def pad(draw, mode):
    widths = draw(st.lists(st.integers(0, 20), min_size=4, max_size=4))
    return lambda x: relax.op.nn.pad(x, (0, 0, 0, 0, *widths), mode)


def window(draw, pool):
    strides, padding = (draw(st.lists(st.integers(low, 3), min_size=2, max_size=2)) for low in (1, 0))
    dilation, up = draw(st.integers(1, 2)), draw(st.booleans())
    return lambda x: pool(x, (3, 2), strides, padding, dilation, up)


def convolution(draw, transposed):
    strides, padding = draw(st.integers(1, 3)), draw(st.lists(st.integers(0, 2), min_size=4, max_size=4))
    weight = relax.const(np.ones((4, 4, 3, 3), np.float32))
    function = relax.op.nn.conv2d_transpose if transposed else relax.op.nn.conv2d
    return lambda x: function(x, weight, strides=strides, padding=padding, dilation=1 if transposed else 2)


def cut(draw, step):
    first, last = draw(st.integers(-12, 12)), draw(st.integers(-12, 12))
    return lambda x: relax.op.strided_slice(x, [2], [first], [last], [step])


def resized(draw, method):
    size = draw(st.lists(st.integers(1, 20), min_size=2, max_size=2))
    mode = draw(st.sampled_from(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]))
    return lambda x: relax.op.image.resize2d(
        x, relax.ShapeExpr(size), layout="NCHW", method=method, coordinate_transformation_mode=mode
    )


MADE = [
    *((pad, mode) for mode in ("constant", "reflect", "replicate", "circular")),
    (window, relax.op.nn.max_pool2d), (window, relax.op.nn.avg_pool2d), (convolution, False), (convolution, True),
    (cut, 1), (cut, -1), (cut, 3), (cut, -2),
    (resized, "nearest_neighbor"), (resized, "linear"), (resized, "cubic"),
]  # fmt: skip


@settings(max_examples=examples(20), deadline=None)
@given(st.data())
def test_random_attributes_are_proven_or_refused(data):
    """An index is clamped only if neither can be proven, which no kernel of these operators needs."""
    make, option = data.draw(st.sampled_from(MADE))
    shape = (1, 4, data.draw(st.integers(1, 10)), data.draw(st.integers(1, 10)))
    try:
        kernel = kernel_of(make(data.draw, option), shape)
    except Exception:  # TVM refuses windows and slices that hold nothing
        return
    try:
        assert bound_indices(kernel).same_as(kernel)
    except UnsupportedModelError:
        assert option == "reflect"
