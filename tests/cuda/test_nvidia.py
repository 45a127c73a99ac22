"""What cuBLASLt and cuDNN are given: their kernels by description. Their values are tested on a GPU (`test_gpu`)."""

import json

import numpy as np
import pytest
from tvm import relax

from cuda.nvidia_cases import claimed, constant
from gpu_models import model
from tvm_sched.relax import passes
from tvm_sched.relax.options import CompileOptions
from tvm_sched.relax.toolchain.compile_target import CompileTarget
from tvm_sched_runtime import core_library
from tvm_sched_runtime.errors import InputError

op = relax.op


def rows(stride, batch_stride=0):
    """A matrix, or a batch of them, in rows."""
    return {"transposed": False, "stride": stride, "batch_stride": batch_stride}


def test_a_product_with_bias_and_activation():
    w, b = constant(64, 96), constant(96)
    (kernel,), (document,), parameters = claimed(
        lambda emit, x: op.nn.relu(emit(op.add(emit(op.matmul(x, w)), b))), (2, 16, 64)
    )
    assert kernel == {
        "kind": "matmul", "dtype": "float32", "result_dtype": "float32", "tf32": False,
        "batch": 1, "m": 32, "n": 96, "k": 64,
        "a": rows(64), "b": rows(96), "bias": True, "activation": "relu",
    }  # fmt: skip
    assert document["flops"] == 2 * 16 * 96 * (2 * 64 + 2)
    values = sorted((value.numpy() for value in parameters.values()), key=np.size)
    np.testing.assert_array_equal(values[0], b.value.numpy())
    np.testing.assert_array_equal(values[1], w.value.numpy())


def test_a_batched_product_of_activations():
    (kernel,), *_ = claimed(lambda emit, x, y: op.matmul(x, y), (2, 3, 8, 16), (2, 3, 16, 4))
    assert (kernel["batch"], kernel["m"], kernel["n"], kernel["k"]) == (6, 8, 4, 16)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(dtype):
    w, b = constant(64, 96, dtype=dtype), constant(96, dtype=dtype)
    (kernel,), _, parameters = claimed(lambda emit, x: op.add(emit(op.matmul(x, w)), b), (16, 64), dtype=dtype)
    assert (kernel["dtype"], kernel["result_dtype"], kernel["bias"]) == (dtype, dtype, True)
    assert {str(value.dtype) for value in parameters.values()} == {dtype}
    (kernel,), *_ = claimed(lambda emit, x: op.matmul(x, w, out_dtype="float32"), (16, 64), dtype=dtype)
    assert (kernel["dtype"], kernel["result_dtype"]) == (dtype, "float32")
    filters = constant(8, 1, 3, 3, dtype=dtype)
    (kernel,), *_ = claimed(lambda emit, x: op.nn.conv2d(x, filters, groups=8), (1, 8, 9, 9), dtype=dtype)
    assert (kernel["kind"], kernel["dtype"], kernel["groups"]) == ("conv2d", dtype, 8)


def test_transposed_operands_are_read_where_they_lie():
    (kernel,), *_ = claimed(
        lambda emit, x, y: op.matmul(x, emit(op.permute_dims(y, [0, 2, 1]))), (6, 8, 16), (6, 4, 16)
    )
    assert kernel["a"] == rows(16, 128)
    assert kernel["b"] == {"transposed": True, "stride": 16, "batch_stride": 64}
    (kernel,), *_ = claimed(lambda emit, x, y: op.matmul(emit(op.permute_dims(x)), y), (16, 8), (16, 4))
    assert (kernel["a"], kernel["b"]) == ({"transposed": True, "stride": 8, "batch_stride": 0}, rows(4))


@pytest.mark.parametrize(("columns", "taken"), [(12, 1), (10, 0)])
def test_integers_in_rows_of_whole_words(columns, taken):
    kernels, *_ = claimed(lambda emit, x, y: op.matmul(x, y, out_dtype="int32"), (3, 8), (8, columns), dtype="int8")
    assert [kernel["result_dtype"] for kernel in kernels] == ["int32"] * taken


def test_tf32_is_asked_for():
    (kernel,), *_ = claimed(lambda emit, x, y: op.matmul(x, y), (8, 8), (8, 8), precision="tf32")
    assert kernel["tf32"]
    mod = passes.SetCompileTarget(CompileTarget.of(precision="tf32"))(model(lambda emit, x: op.nn.relu(x), (8, 8)))
    with pytest.raises(InputError, match="takes the kernel library 'nvidia'"):
        passes.LowerToKernels(libraries=(), device_kind="cuda")(mod)
    with pytest.raises(InputError, match="give backend='cuda', too"):
        CompileOptions.of("v100-server", precision="tf32")
    assert CompileOptions.of("v100-server", precision="tf32", backend="cuda").precision == "tf32"


def test_only_the_gelu_that_the_library_has():
    w = constant(8, 8)
    (kernel,), *_ = claimed(lambda emit, x: op.nn.gelu_tanh(emit(op.matmul(x, w))), (4, 8))
    assert kernel["activation"] == "gelu_tanh"
    (kernel,), *_ = claimed(lambda emit, x: op.nn.gelu(emit(op.matmul(x, w))), (4, 8))
    assert kernel["activation"] == ""


def test_a_convolution_takes_factor_bias_and_activation():
    w, scale, shift = constant(8, 3, 3, 3), constant(1, 8, 1, 1, seed=1), constant(8, 1, 1, seed=2)

    def layer(emit, x):
        y = emit(op.nn.conv2d(x, w, strides=(1, 2), padding=1, dilation=(1, 1)))
        return op.nn.relu(emit(op.add(emit(op.multiply(y, scale)), shift)))

    (kernel,), _, parameters = claimed(layer, (1, 3, 9, 12))
    assert kernel == {
        "kind": "conv2d", "dtype": "float32", "tf32": False, "layout": "NCHW",
        "input": [1, 3, 9, 12], "weights": [8, 3, 3, 3], "output": [1, 8, 9, 6],
        "padding": [1, 1], "strides": [1, 2], "dilation": [1, 1], "groups": 1, "residual": False,
        "bias": True, "activation": "relu",
    }  # fmt: skip
    bias, weights = sorted((value.numpy() for value in parameters.values()), key=np.size)
    np.testing.assert_array_equal(bias, shift.value.numpy().reshape(-1))
    np.testing.assert_allclose(weights, w.value.numpy() * scale.value.numpy().reshape(-1, 1, 1, 1), rtol=1e-6)


def test_a_batch_norm_written_out_and_an_addition_are_fused():
    w = constant(8, 3, 3, 3)
    mean, deviation, scale, shift = (constant(1, 8, 1, 1, seed=seed) for seed in range(1, 5))

    def layer(emit, x, y):
        z = emit(op.subtract(emit(op.nn.conv2d(x, w, padding=1)), mean))
        z = emit(op.add(emit(op.multiply(emit(op.divide(z, deviation)), scale)), shift))
        return op.nn.relu(emit(op.add(y, z)))

    (kernel,), (document,), parameters = claimed(layer, (1, 3, 9, 9), (1, 8, 9, 9))
    assert (kernel["bias"], kernel["residual"], kernel["activation"]) == (True, True, "relu")
    assert document["flops"] == 8 * 81 * (2 * 27 + 3)
    bias, weights = sorted((value.numpy() for value in parameters.values()), key=np.size)
    m, d, a, b = (each.value.numpy().reshape(-1) for each in (mean, deviation, scale, shift))
    np.testing.assert_allclose(bias, b - m * a / d, rtol=1e-5)
    np.testing.assert_allclose(weights, w.value.numpy() * (a / d).reshape(-1, 1, 1, 1), rtol=1e-5)


def test_an_addition_without_a_bias_or_before_a_factor_is_left():
    w, scale = constant(3, 3, 1, 1), constant(1, 3, 1, 1, seed=1)
    shapes = [(1, 3, 4, 4)] * 2
    (kernel,), *_ = claimed(lambda emit, x, y: op.add(emit(op.nn.conv2d(x, w)), y), *shapes)
    assert not kernel["residual"]

    def scaled(emit, x, y):
        return op.multiply(emit(op.add(emit(op.add(emit(op.nn.conv2d(x, w)), scale)), y)), scale)

    (kernel,), *_ = claimed(scaled, *shapes)
    assert (kernel["bias"], kernel["residual"]) == (True, True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_casts_around_a_convolution_are_undone_and_channels_go_last(dtype):
    """As PyTorch's convolutions of half precision are imported."""
    w, b = (constant(*shape, dtype=dtype).value.numpy().astype("float32") for shape in ((8, 3, 3, 3), (1, 8, 1, 1)))

    def layer(emit, x, weights=w):
        y = emit(op.nn.conv2d(emit(op.astype(x, "float32")), relax.const(weights)))
        return op.astype(emit(op.add(y, relax.const(b))), dtype)

    (kernel,), _, parameters = claimed(layer, (1, 3, 9, 12), dtype=dtype)
    assert (kernel["dtype"], kernel["layout"], kernel["bias"]) == (dtype, "NHWC", True)
    assert (kernel["input"], kernel["output"]) == ([1, 3, 9, 12], [1, 8, 7, 10])
    weights = max((value.numpy() for value in parameters.values()), key=np.size)
    np.testing.assert_array_equal(weights.astype("float32"), w.transpose(0, 2, 3, 1))
    (kernel,), *_ = claimed(lambda emit, x: layer(emit, x, w * np.float32(1.0001)), (1, 3, 9, 12), dtype=dtype)
    assert (kernel["dtype"], kernel["layout"]) == ("float32", "NCHW"), "the weights are no numbers of half precision"


def test_a_convolution_without_bias_leaves_the_activation():
    (kernel,), *_ = claimed(lambda emit, x: op.nn.relu(emit(op.nn.conv2d(x, constant(4, 3, 3, 3)))), (1, 3, 8, 8))
    assert (kernel["bias"], kernel["activation"]) == (False, "")


@pytest.mark.parametrize(
    "function",
    [
        lambda emit, x: op.nn.conv2d(x, constant(4, 3, 3, 3), padding=(0, 1, 1, 0)),
        lambda emit, x: op.nn.conv2d(
            emit(op.permute_dims(x, [0, 2, 3, 1])), constant(3, 3, 3, 4), data_layout="NHWC", kernel_layout="HWIO"
        ),
        lambda emit, x: op.nn.conv2d(x, constant(3, 1, 3, 3), groups=3),
        lambda emit, x: op.nn.max_pool2d(x, (2, 2)),
    ],
)
def test_what_it_leaves(function):
    assert claimed(function, (1, 3, 8, 8))[0] == []


def test_a_value_that_is_used_twice_is_kept():
    w, b = constant(8, 8), constant(8)

    def twice(emit, x):
        y = emit(op.matmul(x, w))
        return op.add(emit(op.nn.relu(emit(op.add(y, b)))), y)

    (kernel,), *_ = claimed(twice, (4, 8))
    assert (kernel["bias"], kernel["activation"]) == (False, "")


def test_descriptions_are_checked_when_read():
    make = core_library.function("tvm_sched.make_nvidia_module")
    matmul = {
        "kind": "matmul", "dtype": "float32", "result_dtype": "float32", "tf32": False, "batch": 1, "m": 1, "n": 1, "k": 1,
        "a": rows(1), "b": rows(1), "bias": False,
    }  # fmt: skip
    make(json.dumps({"version": 3, "kernels": {"f": {**matmul, "activation": ""}}}))
    with pytest.raises(ValueError, match="newer tvm_sched"):
        make(json.dumps({"version": 4, "kernels": {}}))
    with pytest.raises(ValueError, match="older tvm_sched; compile it again"):
        make(json.dumps({"version": 2, "kernels": {}}))
    with pytest.raises(ValueError, match=r"kernels\.f\.activation"):
        make(json.dumps({"version": 3, "kernels": {"f": {**matmul, "activation": "sine"}}}))


def test_a_missing_library_says_what_to_install(monkeypatch):
    monkeypatch.setenv("TVM_SCHED_CUBLASLT", "/nowhere/libcublasLt.so")
    why = core_library.function("tvm_sched.why_not_nvidia")()
    if why:  # where the library was opened before, it stays
        assert "cuBLASLt cannot be loaded" in why
        assert "pip install nvidia-cublas" in why
