"""Kernels of a part of another's work: what is proved to be cut, along what, and what is refused."""

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from relax.variants.slicing_cases import kernel, run
from thorough import examples
from tvm_sched.relax.variants.cut_products import addition
from tvm_sched.relax.variants.kernel_slicing import share_axis, slice_result, slice_sum


def parts(arguments, cut, k, count):
    return [a if axis is None else np.split(a, count, axis)[k] for a, axis in zip(arguments, cut.axes, strict=True)]


def check(function, shapes, axis, count):
    """All parts together are the whole."""
    rng = np.random.default_rng(0)
    arguments = [rng.standard_normal(shape).astype("float32") for shape in shapes]
    cut = slice_result(function, axis, count) if axis is not None else slice_sum(function, count)
    made = [run(cut.kernel, parts(arguments, cut, k, count)) for k in range(count)]
    together = np.concatenate(made, axis) if axis is not None else sum(made)
    np.testing.assert_allclose(together, run(function, arguments), rtol=1e-4, atol=1e-4)
    return cut


@pytest.mark.parametrize(("axis", "axes"), [(0, (0, None)), (1, (None, 1)), (None, (1, 0))])
def test_a_product_by_rows_columns_and_terms(axis, axes):
    shapes = [(4, 6), (6, 8)]
    function = kernel(shapes, lambda _, a, b: relax.op.matmul(a, b))
    assert check(function, shapes, axis, 2).axes == axes


@pytest.mark.parametrize(("axis", "axes"), [(0, (0, None)), (1, (None, 0)), (None, (1, 1))])
def test_a_convolution_by_batch_output_and_input_channels(axis, axes):
    shapes = [(2, 4, 6, 6), (8, 4, 3, 3)]
    function = kernel(shapes, lambda _, a, b: relax.op.nn.conv2d(a, b, padding=1))
    assert check(function, shapes, axis, 2).axes == axes


def test_rows_of_a_convolution_overlap_and_are_refused():
    function = kernel([(1, 4, 6, 6), (8, 4, 3, 3)], lambda _, a, b: relax.op.nn.conv2d(a, b, padding=1))
    assert slice_result(function, 2, 2) is None


def test_heads_through_reshapes_and_transposes():
    shapes = [(2, 5, 32)]
    function = kernel(
        shapes,
        lambda b, a: relax.op.permute_dims(b.emit(relax.op.reshape(a, (2, 5, 4, 8))), [0, 2, 1, 3]),
    )
    assert check(function, shapes, 1, 4).axes == (2,)
    assert slice_result(function, 1, 3) is None


def test_a_softmax_is_not_cut_along_its_axis():
    shapes = [(4, 6)]
    function = kernel(shapes, lambda _, a: relax.op.nn.softmax(a, axis=-1))
    assert check(function, shapes, 0, 2).axes == (0,)
    assert slice_result(function, 1, 2) is None
    assert slice_sum(function, 2) is None


@pytest.mark.parametrize("axis", [1, None])
def test_parts_that_follow_each_other_are_a_part(axis):
    """Five heads in parts of two and three: of keys by heads, and of the product that merges them."""
    shapes = [(2, 3, 15)] if axis is not None else [(4, 15), (15, 6)]
    if axis is None:
        function = kernel(shapes, lambda _, a, b: relax.op.matmul(a, b))
        cut = slice_sum(function, 5)
    else:
        function = kernel(
            shapes, lambda b, a: relax.op.permute_dims(b.emit(relax.op.reshape(a, (2, 3, 5, 3))), [0, 2, 1, 3])
        )
        cut = slice_result(function, axis, 5)
    rng = np.random.default_rng(0)
    arguments = [rng.standard_normal(shape).astype("float32") for shape in shapes]
    made = []
    for first, width in ((0, 2), (2, 3)):
        given = [
            a if axis is None else np.take(a, range(first * 3, (first + width) * 3), axis)
            for a, axis in zip(arguments, cut.axes, strict=True)
        ]
        made.append(run(cut.of(width), given))
    together = sum(made) if axis is None else np.concatenate(made, axis)
    np.testing.assert_allclose(together, run(function, arguments), rtol=1e-4, atol=1e-4)


def divided(compute):
    """The kernel of a computation with several results of a tensor of 4 x 6."""
    builder = relax.BlockBuilder()
    a = relax.Var("a", relax.TensorType((4, 6), "float32"))
    with builder.function("main", [a]):
        with builder.dataflow():
            result = builder.emit_output(compute(a))
        builder.emit_func_output(result)
    made = relax.transform.LegalizeOps()(builder.get())
    (function,) = (f for _, f in made.functions_items() if isinstance(f, tvm.tirx.PrimFunc))
    return function


@pytest.mark.parametrize(
    ("parts", "axis", "expected"), [(3, 1, 1), (2, 0, 0), ([2, 4], 1, 1), ([1, 3], 1, None), ([1, 5], 1, None)]
)
def test_equal_shares_of_a_tensor(parts, axis, expected):
    assert share_axis(divided(lambda a: relax.op.split(a, parts, axis))) == expected


def test_shares_in_another_order_are_none():
    function = divided(lambda a: relax.op.split(a, 2, 1))
    whole, first, second = function.params
    swapped = tvm.tirx.PrimFunc([whole, second, first], function.body, function.ret_type, function.attrs)
    assert share_axis(swapped) is None


def test_a_maximum_is_no_sum():
    function = kernel([(4, 6)], lambda _, a: relax.op.max(a, axis=1))
    assert slice_sum(function, 2) is None


def test_two_parts_of_one_operand_that_differ_are_refused():
    """``x + x.T`` needs rows and columns of the same tensor."""
    function = kernel([(4, 4)], lambda b, a: relax.op.add(a, b.emit(relax.op.permute_dims(a))))
    assert slice_result(function, 0, 2) is None


def test_kernels_that_read_at_an_offset_are_refused():
    function = kernel([(4, 8)], lambda _, a: relax.op.strided_slice(a, [1], [4], [8]))
    assert slice_result(function, 1, 2) is None
    assert slice_result(function, 0, 2).axes == (0,)


def test_parts_are_added_in_order():
    kinds = [relax.TensorType((2, 3), "float32")] * 3
    values = [np.full((2, 3), n, "float32") for n in (1, 2, 4)]
    assert run(addition(kinds), values).tolist() == np.full((2, 3), 7.0).tolist()


@settings(max_examples=examples(12), deadline=None)
@given(
    st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=3, max_size=3),
    st.permutations(range(3)),
    st.integers(0, 2),
    st.data(),
)
def test_whatever_is_cut_of_reshapes_and_transposes_is_right(shape, order, axis, data):
    """Reshaped into other sizes with the same number of elements, transposed, added to its own exponential."""
    total = int(np.prod(shape))
    first = data.draw(st.sampled_from([n for n in range(1, total + 1) if total % n == 0]))
    second = data.draw(st.sampled_from([n for n in range(1, total // first + 1) if total // first % n == 0]))
    target = (first, second, total // first // second)
    function = kernel(
        [shape],
        lambda b, a: relax.op.exp(b.emit(relax.op.permute_dims(b.emit(relax.op.reshape(a, target)), list(order)))),
    )
    extent = int(function.params[-1].shape[axis])
    count = data.draw(st.sampled_from([n for n in range(1, extent + 1) if extent % n == 0]))
    if count > 1 and slice_result(function, axis, count) is not None:
        check(function, [tuple(shape)], axis, count)
