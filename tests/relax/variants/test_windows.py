"""Windows of kernels: whatever rows a part makes, from what it says that it needs, all parts together are the whole."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from relax.variants.slicing_cases import kernel, run
from thorough import examples
from tvm_sched.relax.variants.kernel_parts import Interval
from tvm_sched.relax.variants.row_windows import window

nn = relax.op.nn


def check(shapes, compute, axis, ends, slack=0):
    """What the parts up to each end need; ``slack``: how many rows more are given than needed, on both sides."""
    function = kernel(shapes, compute)
    rng = np.random.default_rng(0)
    arguments = [rng.standard_normal(shape).astype("float32") for shape in shapes]
    made, needs = [], []
    for begin, end in zip((0, *ends), ends, strict=False):
        part = window(function, Interval(axis, begin, end))
        given_ = tuple(
            n and Interval(n.axis, max(n.begin - slack, 0), min(n.end + slack, shape[n.axis]))
            for n, shape in zip(part.needs, shapes, strict=True)
        )
        taken = [
            a if n is None else a.take(range(n.begin, n.end), n.axis) for a, n in zip(arguments, given_, strict=True)
        ]
        made.append(run(part.kernel(given_), taken))
        needs.append(part.needs)
    np.testing.assert_allclose(np.concatenate(made, axis), run(function, arguments), rtol=1e-4, atol=1e-5)
    return needs


def convolution(**options):
    return lambda b, a, w: nn.relu(b.emit(nn.conv2d(a, w, **options)))


@pytest.mark.parametrize("slack", [0, 1])
def test_rows_of_a_convolution_need_those_beside_them_and_no_padding(slack):
    needs = check([(2, 4, 7, 6), (8, 4, 3, 3)], convolution(padding=1), 2, (3, 5, 7), slack)
    assert needs == [((2, 0, 4), None), ((2, 2, 6), None), ((2, 4, 7), None)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("shapes", "options", "axis", "ends"),
    [
        ([(2, 4, 9, 9), (8, 4, 3, 3)], {"padding": 1, "strides": 2}, 2, (2, 5)),
        ([(3, 4, 9, 9), (8, 4, 3, 3)], {"padding": 2, "dilation": 2}, 0, (2, 3)),
        ([(1, 4, 9, 9), (4, 1, 3, 3)], {"padding": 1, "groups": 4}, 2, (5, 9)),
        ([(1, 4, 9, 9), (8, 2, 3, 3)], {"padding": 1, "groups": 2}, 1, (3, 8)),
    ],
)
def test_convolutions_with_strides_dilation_and_groups(shapes, options, axis, ends):
    check(shapes, convolution(**options), axis, ends)


def test_rows_of_a_product_need_those_of_its_input_and_all_weights():
    assert check([(5, 6), (6, 8)], lambda _, a, b: relax.op.matmul(a, b), 0, (2, 5)) == [
        ((0, 0, 2), None),
        ((0, 2, 5), None),
    ]


@pytest.mark.parametrize("pool", [nn.max_pool2d, nn.avg_pool2d])
def test_pooling(pool):
    needs = check([(1, 4, 8, 8)], lambda _, a: pool(a, (3, 3), strides=2, padding=1), 2, (1, 4))
    assert needs == [((2, 0, 2),), ((2, 1, 8),)]


def test_what_reads_along_both_axes_needs_all():
    """A softmax along its axis, and the sum of a matrix and its transpose."""
    assert check([(4, 6)], lambda _, a: nn.softmax(a, axis=-1), 1, (1, 6)) == [(None,), (None,)]
    twice = check([(4, 4)], lambda b, a: relax.op.add(a, b.emit(relax.op.permute_dims(a))), 0, (1, 4))
    assert twice == [(None,), (None,)]


def test_a_mask_knows_where_its_rows_lie():
    check([(4, 4)], lambda _, a: relax.op.tril(a), 0, (1, 4))


@settings(max_examples=examples(8), deadline=None)
@given(
    st.integers(1, 9), st.integers(1, 3), st.integers(1, 2), st.integers(0, 2), st.integers(1, 2), st.integers(0, 10)
)  # fmt: skip
def test_any_rows_of_any_convolution(height, size, strides, padding, dilation, cut):
    reach = dilation * (size - 1) + 1
    rows = (height + 2 * padding - reach) // strides + 1
    if height + 2 * padding < reach or rows < 2:
        return
    options = {"strides": strides, "padding": [padding, 0, padding, 0], "dilation": (dilation, 1)}
    check([(1, 2, height, 3), (2, 2, size, 1)], convolution(**options), 2, (1 + cut % (rows - 1), rows))
