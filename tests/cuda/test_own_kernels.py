"""What our own kernels for GPUs take: descriptions of attention, normalisations, sorts. Values: ``tests/cuda_emulator``."""

import json

import numpy as np
import pytest
from tvm import relax

from cuda.nvidia_cases import constant
from gpu_models import model
from tvm_sched.relax import passes
from tvm_sched.relax.codegen.cuda import compile_image, find_nvcc
from tvm_sched.relax.lower.kernel_libraries import KERNELS
from tvm_sched.relax.lower.kernel_libraries.handwritten_cuda import depthwise
from tvm_sched.relax.lower.kernel_libraries.handwritten_cuda.library import compile_sources
from tvm_sched.relax.problem.operator_graph import extract
from tvm_sched_runtime.errors import InputError

op = relax.op

try:
    find_nvcc()
    NVCC = None
except InputError as error:
    NVCC = str(error)


OURS = ("handwritten_cuda",)
BOTH = (*OURS, "nvidia")
"""With NVIDIA's libraries, convolutions of half precision have channels last."""


def lowered(function, *shapes, dtype="float16", libraries=OURS):
    lower = passes.LowerToKernels(libraries=libraries, device_kind="cuda", archs=["sm_90"])
    return lower(model(function, *shapes, dtype=dtype))


def taken(function, *shapes, dtype="float16", libraries=OURS):
    """The descriptions of the kernels, and the kinds of all."""
    mod = lowered(function, *shapes, dtype=dtype, libraries=libraries)
    documents = dict(mod.attrs.items()).get(KERNELS, {})
    kinds = [operator.kind for operator in extract(mod).graph.operators]
    return [json.loads(str(document))["kernel"] for document in documents.values()], kinds


def written_out(emit, q, k, v, mask=None, softmax="float32"):
    """Attention as models write it: softmax in float32."""
    scores = emit(op.multiply(emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2])))), relax.const(0.25, "float16")))
    scores = scores if mask is None else emit(op.add(scores, mask))
    scores = emit(op.nn.softmax(emit(op.astype(scores, softmax)), -1))
    return op.matmul(emit(op.astype(scores, "float16")), v)


def test_attention_with_casts_is_one_kernel():
    (kernel,), kinds = taken(written_out, (2, 3, 9, 16), (2, 3, 11, 16), (2, 3, 11, 8))
    assert kinds == ["handwritten_cuda.attention"]
    assert (kernel["dtype"], kernel["result_dtype"], kernel["scale"]) == ("float16", "float16", 0.25)
    assert [kernel[n] for n in ("batch", "groups", "heads", "rows", "keys", "width", "out")] == [2, 3, 1, 9, 11, 16, 8]
    assert kernel["key"] == [0, 3 * 11 * 16, 11 * 16, 11 * 16, 16, 1]


def test_heads_are_read_where_projections_leave_them():
    def heads(emit, x):
        return emit(op.permute_dims(emit(op.reshape(x, (2, 9, 3, 16))), [0, 2, 1, 3]))

    def layer(emit, *given):
        mixed = emit(written_out(emit, *(heads(emit, x) for x in given)))
        return op.reshape(emit(op.permute_dims(mixed, [0, 2, 1, 3])), (2, 9, 48))

    (kernel,), kinds = taken(layer, *[(2, 9, 48)] * 3)
    assert kinds == ["handwritten_cuda.attention"]
    for name in ("query", "result"):  # with one head in a group, the stride of heads says nothing
        assert [kernel[name][k] for k in (0, 1, 2, 4, 5)] == [0, 9 * 48, 16, 48, 1]


def test_heads_that_share_keys_and_values():
    def repeated(emit, x):
        return emit(op.reshape(emit(op.broadcast_to(emit(op.expand_dims(x, 2)), (2, 2, 3, 9, 16))), (2, 6, 9, 16)))

    def layer(emit, q, k, v):
        return written_out(emit, q, repeated(emit, k), repeated(emit, v))

    (kernel,), kinds = taken(layer, (2, 6, 5, 16), (2, 2, 9, 16), (2, 2, 9, 16))
    assert kinds == ["handwritten_cuda.attention"]
    assert (kernel["groups"], kernel["heads"]) == (2, 3)
    assert kernel["key"][3] == kernel["value"][3] == 0


@pytest.mark.parametrize("shift", [0, 3])
def test_a_constant_mask_of_the_keys_before_is_causal(shift):
    seen = np.tri(8, 8 + shift, shift, dtype=bool)
    shapes = ((1, 2, 8, 16), (1, 2, 8 + shift, 16), (1, 2, 8 + shift, 16))
    mask = relax.const(np.where(seen, 0, np.finfo("float16").min).astype("float16"))
    (kernel,), _ = taken(lambda emit, *x: written_out(emit, *x, mask), *shapes)
    assert (kernel["causal"], kernel["shift"], kernel["mask"]) == (True, shift, None)
    mask = relax.const(np.where(seen, 0, -1).astype("float16"))
    (kernel,), _ = taken(lambda emit, *x: written_out(emit, *x, mask), *shapes)
    assert (kernel["causal"], kernel["mask_dtype"]) == (False, "float16")
    assert kernel["mask"] == [0, 0, 0, 0, 8 + shift, 1], "the same for each head"


def test_the_operator():
    def layer(emit, q, k, v):
        return op.nn.attention(q, k, v, causal_mask="BottomRight")

    (kernel,), kinds = taken(layer, (2, 5, 6, 16), (2, 9, 2, 16), (2, 9, 2, 8))
    assert kinds == ["handwritten_cuda.attention"]
    assert (kernel["groups"], kernel["heads"], kernel["shift"]) == (2, 3, 4)
    assert kernel["query"] == [0, 5 * 6 * 16, 3 * 16, 16, 6 * 16, 1]


def test_a_head_too_wide_stays_as_it_is():
    kernels, kinds = taken(written_out, *[(1, 1, 4, 300)] * 3)
    assert "attention" not in {kernel["kind"] for kernel in kernels}
    assert sum("matmul" in kind for kind in kinds) == 2


def rms_norm(emit, x, weight):
    wide = emit(op.astype(x, "float32"))
    mean = emit(op.mean(emit(op.multiply(wide, wide)), [-1], True))
    factor = emit(op.rsqrt(emit(op.add(mean, relax.const(1e-6, "float32")))))
    return emit(op.multiply(weight, emit(op.astype(emit(op.multiply(wide, factor)), "float16"))))


def test_an_rms_norm_written_out_is_one_kernel():
    weight = constant(16, dtype="float16")
    (kernel,), kinds = taken(lambda emit, x: rms_norm(emit, x, weight), (2, 3, 16))
    assert kinds == ["handwritten_cuda.rms_norm"]
    assert (kernel["rows"], kernel["width"], kernel["vectors"], kernel["dtype"]) == (6, 16, 1, "float16")
    assert kernel["epsilon"] == pytest.approx(1e-6)


def test_a_value_inside_that_is_used_elsewhere_is_kept():
    weight = constant(16, dtype="float16")

    def both(emit, x):
        y = rms_norm(emit, x, weight)
        return op.add(y, emit(op.multiply(y, y)))

    _, kinds = taken(both, (3, 16))
    assert kinds[0] == "handwritten_cuda.rms_norm"
    assert len(kinds) > 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_statistics_of_half_precision_are_in_one_kernel(dtype):
    vectors = [constant(16, dtype=dtype), constant(16, dtype=dtype, seed=1)]
    assert taken(lambda emit, x: op.nn.layer_norm(x, *vectors, axes=[-1]), (4, 16), dtype=dtype)[1] == [
        "handwritten_cuda.layer_norm"
    ]
    assert taken(lambda emit, x: op.nn.softmax(x), (4, 16), dtype=dtype)[1] == ["handwritten_cuda.softmax"]
    assert taken(lambda emit, x: op.nn.softmax(x, axis=0), (4, 16), dtype=dtype)[1] != ["handwritten_cuda.softmax"]


def test_sorts_and_running_sums():
    assert taken(lambda emit, x: op.argsort(x, 1), (4, 16))[1] == ["handwritten_cuda.argsort"]
    (kernel,), _ = taken(lambda emit, x: op.topk(x, 3, ret_type="indices"), (4, 16))
    assert (kernel["kept"], kernel["descending"]) == (3, True)
    (kernel,), _ = taken(lambda emit, x: op.cumsum(x, 0), (4, 16))
    assert (kernel["outer"], kernel["length"], kernel["inner"]) == (1, 4, 16)


@pytest.mark.skipif(NVCC is not None, reason=f"nothing can be compiled for GPUs here: {NVCC}")
def test_all_compile(monkeypatch):
    monkeypatch.setenv("TVM_SCHED_CUDA_ARCHS", "sm_80,sm_90")

    def layer(emit, q, k, v):
        mixed = emit(op.reshape(emit(written_out(emit, q, k, v)), (2, 144)))
        return op.cumsum(emit(op.sort(emit(op.nn.softmax(mixed)), 1)), 1)

    kernels, _ = taken(layer, *[(2, 1, 9, 16)] * 3)
    functions, binary, _ = compile_sources({f"k{i}": kernel for i, kernel in enumerate(kernels)})
    assert {kernel["kind"] for kernel in kernels} == {"attention", "softmax", "argsort", "cumsum"}
    assert all(launch["symbol"].encode() in binary for f in functions.values() for launch in f["launches"])


def test_depthwise_convolutions_with_channels_last():
    weights, bias = constant(16, 1, 3, 5, dtype="float16"), constant(1, 16, 1, 1, dtype="float16")

    def layer(emit, x, factor=None):
        y = emit(op.nn.conv2d(x, weights, strides=(2, 1), padding=(1, 2), groups=16))
        y = y if factor is None else emit(op.multiply(y, factor))
        return op.nn.relu(emit(op.add(y, bias)))

    (kernel,), kinds = taken(layer, (2, 16, 9, 12), libraries=BOTH)
    assert "handwritten_cuda.depthwise_conv2d_bias_relu" in kinds
    assert (kernel["layout"], kernel["bias"], kernel["activation"]) == ("NHWC", True, "relu")
    assert kernel["input"] == [2, 16, 9, 12]
    assert kernel["output"] == [2, 16, 5, 12]
    _, function = depthwise.render("k", kernel)
    assert function["tensors"] == 4
    assert function["launches"][0]["grid"] == [-(-2 * 5 * 3 * 2 // 128), 1, 1], "a thread for 4 pixels and 8 channels"
    assert "archs" not in function["convolution"]
    factor = constant(1, 16, 1, 1, dtype="float16")
    (kernel,), _ = taken(lambda emit, x: layer(emit, x, factor), (2, 16, 9, 12), libraries=BOTH)
    assert kernel["bias"], "the factor is folded into the weights"


@pytest.mark.parametrize(
    ("channels", "groups", "dtype"), [(12, 12, "float16"), (16, 16, "float32"), (16, 4, "float16"), (16, 1, "float16")]
)
def test_convolutions_that_are_left_to_others(channels, groups, dtype):
    weights = constant(channels, channels // groups, 3, 3, dtype=dtype)
    layer = lambda emit, x: op.nn.conv2d(x, weights, groups=groups)  # noqa: E731
    _, kinds = taken(layer, (1, channels, 6, 6), dtype=dtype, libraries=BOTH)
    assert not any("depthwise" in kind for kind in kinds)


@pytest.mark.skipif(NVCC is not None, reason=f"nothing can be compiled for GPUs here: {NVCC}")
@pytest.mark.parametrize("mode", ["update", "add"])
def test_scatters_are_launched(mode):
    def layer(emit, x, updates):
        return op.scatter_elements(x, relax.const(np.zeros((2, 5), "int64")), updates, 0, mode)

    mod = lowered(layer, (4, 5), (2, 5), dtype="float32")
    functions = {v.name_hint: f for v, f in mod.functions_items() if v.name_hint != "main"}
    described = compile_image(functions).functions
    assert any(launch["grid"] for function in described.values() for launch in function["launches"])


def test_functions_of_the_host_are_refused():
    mod = lowered(lambda emit, x: op.median(x, [1]), (4, 16), dtype="float32")
    functions = {v.name_hint: f for v, f in mod.functions_items() if v.name_hint != "main"}
    with pytest.raises(InputError, match=r"calls \"tvm.contrib.sort.argsort\", a function of the host"):
        compile_image(functions)
