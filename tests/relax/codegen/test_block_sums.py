"""Long sums: what one float32 accumulator loses, exactly as many ones as follow a 2^24, several accumulators keep."""

import numpy as np
import pytest
from tvm import relax

from relax.codegen.kernels_cases import call, single_kernel
from tvm_sched.relax import compile
from tvm_sched.relax.codegen.cpu.kernels import prepare_kernel

op = relax.op
LARGE = 2.0**24
LENGTH = 1 << 15


def compiled(make, *inputs, parameters=()):
    """The float32 result of an operator on arrays, of which the last ones are constants."""
    builder = relax.BlockBuilder()
    variables = [relax.Var(f"x{k}", relax.TensorType(x.shape, str(x.dtype))) for k, x in enumerate(inputs)]
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(make(*variables, *(relax.const(each) for each in parameters))))
        builder.emit_func_output(result)
    return np.asarray(compile(builder.get(), "cpu1", "single").run(*inputs))


def ones(*shape):
    """Ones behind a 2^24 that is the first element: its accumulator loses each one that is added to it."""
    values = np.ones(shape, np.float32)
    values.flat[0] = LARGE
    return values


EXACT = LARGE + LENGTH - 1
CASES = {
    "sum along memory": (lambda x: op.sum(x), [ones(LENGTH)], (), EXACT),
    "sum over loops": (lambda x: op.sum(x, [0, 2]), [ones(LENGTH // 8, 1, 8)], (), EXACT),
    "columns": (lambda x: op.max(op.sum(x, [0])), [ones(LENGTH, 3)], (), EXACT),
    "many columns": (lambda x: op.max(op.sum(x, [0])), [ones(LENGTH, 64)], (), EXACT),
    "mean of an image": (lambda x: op.mean(x, [2, 3], True), [ones(1, 1, 256, LENGTH // 256)], (), EXACT / LENGTH),
    "average pool": (
        lambda x: op.nn.avg_pool2d(x, (256, LENGTH // 256)), [ones(1, 1, 256, LENGTH // 256)], (), EXACT / LENGTH,
    ),
    "row times column": (op.matmul, [ones(1, LENGTH), np.ones((LENGTH, 1), np.float32)], (), EXACT),
    "row times matrix": (
        lambda x, y: op.max(op.matmul(x, y)), [ones(1, LENGTH), np.ones((LENGTH, 64), np.float32)], (), EXACT,
    ),
    "convolution of many channels": (
        lambda x, w: op.max(op.nn.conv2d(x, w)),
        [ones(1, 2 * LENGTH, 1, 2), np.ones((8, 2 * LENGTH, 1, 1), np.float32)],
        (),
        LARGE + 2 * LENGTH - 1,
    ),
    "row times constant column": (
        op.matmul, [ones(1, 8 * LENGTH)], [np.ones((8 * LENGTH, 1), np.float32)], LARGE + 8 * LENGTH - 1,
    ),
    "running sum": (lambda x: op.max(op.cumsum(x, 0)), [ones(LENGTH)], (), EXACT),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_long_sums(name):
    make, inputs, parameters, exact = CASES[name]
    lost = exact - float(compiled(make, *inputs, parameters=parameters).reshape(()))
    # A block of 1024 additions may lose what follows the large number in it; one accumulator loses all 32,767 ones.
    assert abs(lost) <= 1100 * exact / LARGE


@pytest.mark.parametrize("channels", [64, 3])  # vectors of accumulators, and one accumulator
def test_a_generated_convolution_of_many_channels(channels):
    """The loop over 700 input channels is cut, and contains those over 3 x 3 places."""
    x, weight = ones(1, 700, 5, 3), np.ones((channels, 700, 3, 3), np.float32)
    function, shape, dtype = single_kernel(op.nn.conv2d, x.shape, weight.shape)
    found = call(prepare_kernel(function), [x, weight], shape, dtype)
    assert LARGE + 6299 - 1100 <= found[0, 0, 0, 0] <= LARGE + 6299
    assert (found[:, :, 1:] == 6300).all()


def test_softmax_of_a_long_column():
    """exp(16.6) is 1.6e7, so of the 2^16 further terms, all 1, one accumulator would lose all."""
    values = np.zeros((1 << 16, 3), np.float32)
    values[0] = np.log(LARGE)
    share = compiled(lambda x: op.nn.softmax(x, 0), values)[1, 0]
    exact = 1 / (np.exp(values[0, 0].astype(np.float64)) + len(values) - 1)
    assert abs(share / exact - 1) < 5e-4


@pytest.mark.parametrize("kind", ["float16", "float32"])
def test_einstein_sums(kind):
    """5,000 float16 ones that are added in float16 give 2,048."""
    x = np.ones((1, 5000), kind)
    assert compiled(lambda a: op.einsum((a, a), "ij,kj->ik"), x).item() == 5000


@pytest.mark.thorough
@pytest.mark.slow
def test_layer_normalisation_of_a_very_long_row():
    """The values of oneDNN are refused where rows are that long, so a generated kernel computes it."""
    row = np.tile(np.array([1, 3], np.float32), 20 << 20)
    scale, shift = np.ones_like(row), np.zeros_like(row)
    found = compiled(lambda x, a, b: op.nn.layer_norm(x, a, b, [-1]), row[None], scale, shift)
    np.testing.assert_allclose(found[0, [0, 1, -2, -1]], [-1, 1, -1, 1], rtol=1e-4)
