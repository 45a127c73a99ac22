"""Reductions and elementwise loops as vectors: values against numpy, for sizes that vectors do not divide."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from relax.codegen.kernels_cases import call, single_kernel
from thorough import examples
from tvm_sched.relax.codegen.cpu.kernels import prepare_kernel

op = relax.op


def found(emit, *inputs):
    function, shape, dtype = single_kernel(emit, *(x.shape for x in inputs))
    order = [int(parameter.name.removeprefix("x")) for parameter in function.params[:-1]]
    return call(prepare_kernel(function), [inputs[k] for k in order], shape, dtype)


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def close(actual, wanted):
    np.testing.assert_allclose(actual, wanted, rtol=2e-5, atol=2e-5)


@settings(max_examples=examples(12), deadline=None)
@given(
    shape=st.tuples(st.integers(1, 5), st.integers(1, 9), st.sampled_from([1, 3, 16, 17, 63, 64, 65, 100, 130, 197])),
    axes=st.sampled_from([[0], [1], [2], [1, 2], [0, 2], [0, 1], [0, 1, 2]]),
    kind=st.sampled_from(["sum", "max", "min", "mean"]),
)
def test_reductions(shape, axes, kind):
    x = values(*shape)
    close(found(lambda a: getattr(op, kind)(a, axes), x), getattr(np, kind)(x, axis=tuple(axes)))


@pytest.mark.parametrize("size", [5, 64, 77, 197])
def test_normalisations(size):
    x, ones = values(7, size), np.ones(size, np.float32)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(1, keepdims=True)
    close(found(lambda a, b: op.nn.layer_norm(a, b, b, [-1], 1e-5), x, ones),
          centred / np.sqrt(wide.var(1, keepdims=True) + 1e-5) + 1)  # fmt: skip
    e = np.exp(wide - wide.max(1, keepdims=True))
    close(found(lambda a: op.nn.softmax(a, -1), x), e / e.sum(1, keepdims=True))
    mean_square = (wide * wide).mean(1, keepdims=True)
    close(found(lambda a, b: op.nn.rms_norm(a, b, [-1], 1e-5), x, ones), wide / np.sqrt(mean_square + 1e-5))


def test_group_norm():
    x, ones = values(2, 6, 7, 9), np.ones(6, np.float32)
    groups = x.reshape(2, 3, -1).astype(np.float64)
    wanted = (groups - groups.mean(-1, keepdims=True)) / np.sqrt(groups.var(-1, keepdims=True) + 1e-5) + 1
    close(found(lambda a, b: op.nn.group_norm(a, b, b, 3, 1, [2, 3], 1e-5), x, ones), wanted.reshape(x.shape))


@pytest.mark.parametrize("size", [1, 15, 16, 33, 1000])
def test_chains(size):
    x, y = values(3, size) * 5, values(3, 1)
    sigmoid = 1 / (1 + np.exp(-x.astype(np.float64)))
    close(found(lambda a: op.nn.silu(a), x), x * sigmoid)
    close(found(lambda a, b: op.tanh(op.add(op.exp(b), a)), x, y), np.tanh(np.exp(y.astype(np.float64)) + x))
    close(found(lambda a: op.exp(op.nn.pad(a, (0, 0, 2, 3))), x), np.exp(np.pad(x, ((0, 0), (2, 3)))))
    close(found(lambda a: op.exp(op.permute_dims(a)), x), np.exp(x.T))


def test_steps_that_read_each_other_stay_in_order():
    x = values(3, 100) * 0.1
    close(found(lambda a: op.cumsum(a, 1), x), np.cumsum(x, 1))
    close(found(lambda a: op.cumprod(a, 1), x + 1), np.cumprod(x + 1, 1))


def test_infinities_and_nan_reach_the_result():
    x = values(4, 70)
    x[0, 3], x[1, 5], x[2, 69] = np.inf, -np.inf, np.nan
    total = found(lambda a: op.sum(a, 1), x)
    assert total[0] == np.inf
    assert total[1] == -np.inf
    assert np.isnan(total[2])
    assert np.isfinite(total[3])
    assert found(lambda a: op.max(a, 1), x)[0] == np.inf
    assert found(lambda a: op.min(a, 1), x)[1] == -np.inf
