"""cuDNN builds plans for every kind of kernel that we give it, for an H100 and without a GPU."""

import ctypes
import json
from pathlib import Path

import pytest
from tvm import relax

from cuda.nvidia_cases import claimed, constant
from tvm_sched.relax.lower.kernel_libraries.handwritten_cuda.attention_source import describe_for_cudnn
from tvm_sched_runtime import core_library

op = relax.op
PROPERTIES = (Path(__file__).parents[1] / "data" / "cudnn_h100_properties.json").read_text()
"""As cuDNN 9.19 reads them from an NVIDIA H100 80GB HBM3."""
FIRST = 90800  # the first version that takes properties instead of a GPU


@pytest.fixture(scope="module")
def plans():
    version = core_library.function("tvm_sched.cudnn_version")()
    if version < FIRST:
        pytest.skip(f"cuDNN 9.8 or later is needed, found {version or 'none'}; TVM_SCHED_CUDNN names its file")
    build = core_library.function("tvm_sched.cudnn_plans")
    return lambda description: list(build(json.dumps(description), PROPERTIES))


def can_compile():
    """Whether cuDNN can compile kernels: it loads them into the driver."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("fused", ["nothing", "bias", "bias and relu", "bias, addition and relu"])
@pytest.mark.parametrize(("window", "stride", "groups"), [(1, 1, 1), (3, 1, 1), (3, 2, 1), (3, 1, 4)])
def test_convolutions(plans, dtype, fused, window, stride, groups):
    weights = constant(32, 32 // groups, window, window, dtype=dtype)
    bias = constant(1, 32, 1, 1, dtype=dtype)
    extent = (14 - 1) // stride + 1

    def layer(emit, x, y):
        z = emit(op.nn.conv2d(x, weights, strides=stride, padding=window // 2, groups=groups))
        z = emit(op.add(z, bias)) if "bias" in fused else z
        z = emit(op.add(z, y)) if "addition" in fused else z
        return op.nn.relu(z) if "relu" in fused else z

    (kernel,), *_ = claimed(layer, (1, 32, 14, 14), (1, 32, extent, extent), dtype=dtype)
    assert (kernel["bias"], kernel["residual"]) == ("bias" in fused, "addition" in fused)
    assert plans(kernel)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("rows", "keys", "heads", "shared", "width", "causal"),
    [(384, 384, 4, 4, 64, False), (100, 100, 8, 2, 80, True), (16, 512, 8, 8, 128, True), (1, 1000, 8, 2, 128, False)],
)
def test_attention(plans, dtype, rows, keys, heads, shared, width, causal):
    if not can_compile():
        pytest.skip("cuDNN compiles attention, and needs libcuda.so.1 for that")
    description = describe_for_cudnn(attention(dtype, rows, keys, heads, shared, width, causal))
    assert (description["heads"], description["shared_heads"]) == (heads, shared)
    assert plans(description)


def attention(dtype, rows, keys, heads, shared, width, causal):
    """Attention over (batch, rows, heads, width), as `attention_source.render` takes it."""
    each = heads // shared

    def strides(count, of_query):
        own = heads if of_query else shared
        group = each * width if of_query else width
        return [0, count * own * width, group, width if of_query else 0, own * width, 1]

    return {
        "dtype": dtype, "result_dtype": dtype, "mask_dtype": None, "safe": False,
        "batch": 2, "groups": shared, "heads": each, "rows": rows, "keys": keys, "width": width, "out": width,
        "scale": width**-0.5, "causal": causal, "shift": keys - rows if causal else 0,
        "query": strides(rows, True), "key": strides(keys, False), "value": strides(keys, False),
        "result": strides(rows, True),
    }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"result_dtype": "float32"},
        {"dtype": "float32", "result_dtype": "float32"},
        {"mask_dtype": "float16"},
        {"safe": True},
        {"width": 68},
        {"query": [0, 2, 1, 1, 1, 64]},
        {"query": [4, 8, 8, 8, 8, 1]},
    ],
)
def test_attention_that_only_our_kernel_computes(change):
    kernel = attention("float16", 16, 16, 4, 2, 64, False)
    assert describe_for_cudnn(kernel) is not None
    assert describe_for_cudnn({**kernel, **change}) is None
