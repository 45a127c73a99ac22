"""Sizes of operands that TVM does not compare are stated, or the model is refused."""

import numpy as np
import pytest
from tvm import relax, tirx
from tvm.sym import Analyzer

from tvm_sched.relax import compile
from tvm_sched.relax.emit.operand_sizes import PROVED, operand_sizes
from tvm_sched_runtime.errors import InputError

N, M = tirx.Var("n", "int64"), tirx.Var("m", "int64")
op = relax.op


def tensor(*shape, dtype="float32"):
    return relax.Var(
        "x", relax.TensorType([tirx.IntImm("int64", s) if isinstance(s, int) else s for s in shape], dtype)
    )


def stated(call):
    """The pairs of sizes of a call that are not equal anyhow, as text."""
    call = relax.BlockBuilder().normalize(call)
    found, analyzer = [], Analyzer()
    assert call.op.name not in PROVED

    def text(size):
        return str(int(size) if isinstance(size, tirx.IntImm) else size)

    operand_sizes("it", call, lambda _, a, b: analyzer.can_prove_equal(a, b) or found.append(f"{text(a)}={text(b)}"))
    return found


ATTENTION = [tensor(1, N, 2, 4), tensor(1, M, 2, 4), tensor(1, N, 2, 4)]


@pytest.mark.parametrize(
    ("make", "pairs"),
    [
        (lambda: op.nn.conv1d(tensor(1, N, 5), tensor(2, 3, 1)), ["n=3"]),
        (lambda: op.nn.conv2d(tensor(1, N, 5, 5), tensor(4, 3, 1, 1), groups=2), ["n=6"]),
        (lambda: op.nn.conv2d(tensor(N, 3, M, M), tensor(4, 3, 1, 1)), []),
        (lambda: op.nn.conv2d(tensor(1, 5, 5, N), tensor(4, 3, 1, 1), data_layout="NHWC"), ["n=3"]),
        (lambda: op.nn.conv2d_transpose(tensor(1, N, 5, 5), tensor(6, 2, 1, 1), groups=2), ["n=6"]),
        (lambda: op.squeeze(tensor(3, N), [1]), ["n=1"]),
        (lambda: op.nn.group_norm(tensor(2, N, 5), tensor(4), tensor(4), 2, 1, [2]), ["n=4"]),
        (lambda: op.nn.instance_norm(tensor(2, N, 5), tensor(4), tensor(4), 1, [2]), ["n=4"]),
        (lambda: op.nn.attention(*ATTENTION), ["m=n"]),
        (lambda: op.scatter_elements(tensor(N), tensor(M, dtype="int64"), tensor(4)), ["m=4"]),
        (lambda: op.gather_elements(tensor(N, 3), tensor(M, 2, dtype="int64"), axis=1), ["n=m"]),
        (lambda: op.einsum((tensor(N, 3), tensor(M, 4)), "ij,ik->jk"), ["n=m"]),
    ],
)
def test_sizes_that_must_be_equal(make, pairs):
    assert stated(make()) == pairs


def test_an_operator_that_is_not_known_is_refused_with_open_dimensions():
    call = op.scatter_nd(tensor(N), tensor(M, 1, dtype="int64"), tensor(M))
    with pytest.raises(InputError, match="which sizes of its operands must agree"):
        stated(call)
    stated(op.scatter_nd(tensor(5), tensor(2, 1, dtype="int64"), tensor(2)))


@pytest.mark.filterwarnings("ignore:.*it has open dimensions")
def test_a_convolution_of_other_channels_is_an_error():
    x = relax.Var("x", relax.TensorType([1, N, 2, 2], "float32"))
    weights = relax.const(np.float32([1, 10, 100]).reshape(1, 3, 1, 1))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(op.nn.conv2d(x, weights))
        builder.emit_func_output(result)
    compiled = compile(
        builder.get(), "cpu1", "single", cost_model="roofline", cache=False, input_shapes={"n": range(4)}
    )
    assert (compiled.run(np.ones((1, 3, 2, 2), np.float32)) == 111).all()
    for channels in (1, 2):
        with pytest.raises(InputError, match=f"number of channels.* is {channels}"):
            compiled.run(np.ones((1, channels, 2, 2), np.float32))
