"""Kernels of NVIDIA's libraries by their description, called without a plan; `test_emulated_gpu` runs this."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from gpu import Gpu
from gpu_tensor import FLOAT32, GpuTensor

from tvm_sched.relax.lower.kernel_libraries import get_library
from tvm_sched_runtime.core_library import function

pytestmark = pytest.mark.gpu


class OnGpu(GpuTensor):
    """An array of float32 in the GPU's memory, which the host can read here."""

    def __init__(self, gpu: Gpu, value: np.ndarray[Any, Any]) -> None:
        address = gpu.allocate(value.nbytes)
        memory = (ctypes.c_float * value.size).from_address(address)
        self.array = np.frombuffer(memory, np.float32).reshape(value.shape)
        self.array[...] = value
        super().__init__(address, 0, FLOAT32, value.shape)


def dense(rows: int, columns: int, transposed: bool = False) -> dict[str, Any]:
    """The layout of one matrix; if it is transposed it lies in memory as (columns, rows)."""
    return {"transposed": transposed, "stride": rows if transposed else columns, "batch_stride": 0}


def call(gpu: Gpu, kernel: dict[str, Any], values: list[Any], shape: tuple[int, ...], default: bool = False) -> Any:
    """Run a kernel of NVIDIA's libraries on the GPU's stream, or the default one, and return its result."""
    stream = 0 if default else gpu.stream.value or 0
    module = get_library("nvidia").make_module({"k": kernel}, None, None)
    tensors = [OnGpu(gpu, value) for value in (*values, np.zeros(shape, "float32"))]
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), stream):
        module["k"](*(tvm_ffi.from_dlpack(tensor) for tensor in tensors))
    gpu.call("cuStreamSynchronize", ctypes.c_void_p(stream))
    return tensors[-1].array


def whole(random: np.random.Generator, *shape: int) -> Any:
    """Small whole numbers, whose products and sums are exact in float32."""
    return random.integers(-4, 5, shape).astype("float32")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("transposed", ["", "a", "b", "ab"])
def test_a_product(transposed: str, bias: bool) -> None:
    """Rows, columns and terms differ, rows begin at odd multiples of four bytes, and so many terms take a workspace."""
    gpu, random, (m, k, n) = Gpu(), np.random.default_rng(1), (5, 67, 3)
    a, b, shift = whole(random, m, k), whole(random, k, n), whole(random, n)
    kernel = {
        "kind": "matmul", "dtype": "float32", "tf32": False, "result_dtype": "float32", "batch": 1, "m": m, "n": n, "k": k,
        "a": dense(m, k, "a" in transposed), "b": dense(k, n, "b" in transposed), "bias": bias, "activation": "",
    }  # fmt: skip
    given = [a.T.copy() if "a" in transposed else a, b.T.copy() if "b" in transposed else b]
    found = call(gpu, kernel, given + [shift] * bias, (m, n))
    np.testing.assert_array_equal(found, a @ b + shift * bias)


@pytest.mark.parametrize(("padding", "groups"), [([2, 1], 1), ([0, 0], 2)], ids=["paddings differ", "groups"])
def test_a_convolution(padding: list[int], groups: int) -> None:
    gpu, random = Gpu(), np.random.default_rng(1)
    x, w = whole(random, 1, 4, 7, 6), whole(random, 6, 4 // groups, 3, 3)
    padded = np.pad(x[0], [(0, 0), *((each, each) for each in padding)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    parts = zip(np.split(windows, groups), np.split(w, groups), strict=True)
    right = np.concatenate([np.einsum("cijkl,ockl->oij", part, filters) for part, filters in parts])[None]
    extents = {"input": list(x.shape), "weights": list(w.shape), "output": list(right.shape)}
    kernel = {
        "kind": "conv2d", "dtype": "float32", "tf32": False, **extents, "padding": padding, "strides": [1, 1],
        "dilation": [1, 1], "groups": groups, "layout": "NCHW", "residual": False, "bias": False, "activation": "",
    }  # fmt: skip
    np.testing.assert_array_equal(call(gpu, kernel, [x, w], right.shape), right)


def test_a_product_waits_for_a_convolution_on_its_stream() -> None:
    """The stream does not wait for the default one, so what is launched there by mistake has no order with the product."""
    gpu, random = Gpu(), np.random.default_rng(1)
    x, w, b = whole(random, 1, 4, 5, 6), whole(random, 3, 4, 1, 1), whole(random, 30, 2)
    convolution = {
        "kind": "conv2d", "dtype": "float32", "tf32": False, "input": [1, 4, 5, 6], "weights": [3, 4, 1, 1],
        "output": [1, 3, 5, 6], "padding": [0, 0], "strides": [1, 1], "dilation": [1, 1], "groups": 1, "layout": "NCHW",
        "residual": False, "bias": False, "activation": "",
    }  # fmt: skip
    product = {
        "kind": "matmul", "dtype": "float32", "tf32": False, "result_dtype": "float32", "batch": 1, "m": 3, "n": 2, "k": 30,
        "a": dense(3, 30), "b": dense(30, 2), "bias": False, "activation": "",
    }  # fmt: skip
    module = get_library("nvidia").make_module({"convolution": convolution, "product": product}, None, None)
    empty = [np.zeros((1, 3, 5, 6), "float32"), np.zeros((3, 2), "float32")]
    image, weights, factor, middle, result = (OnGpu(gpu, value) for value in (x, w, b, *empty))
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), gpu.stream.value or 0):
        module["convolution"](*map(tvm_ffi.from_dlpack, (image, weights, middle)))
        module["product"](*map(tvm_ffi.from_dlpack, (middle, factor, result)))
    gpu.call("cuStreamSynchronize", gpu.stream)
    told = ctypes.create_string_buffer(1000)
    assert gpu.driver.fake_cuda_conflicts(told, len(told)) == 0, told.value.decode()
    np.testing.assert_array_equal(result.array, np.einsum("oc,cyx->oyx", w[:, :, 0, 0], x[0]).reshape(3, 30) @ b)


def test_a_convolution_on_the_default_stream() -> None:
    """The driver refuses to capture the legacy one: algorithms are timed without graphs."""
    gpu, random = Gpu(), np.random.default_rng(1)
    extents = {"input": [1, 4, 7, 7], "weights": [6, 4, 3, 3], "output": [1, 6, 5, 5]}
    kernel = {
        "kind": "conv2d", "dtype": "float32", "tf32": False, **extents, "padding": [0, 0], "strides": [1, 1],
        "dilation": [1, 1], "groups": 1, "layout": "NCHW", "residual": False, "bias": False, "activation": "",
    }  # fmt: skip
    x, w = (random.standard_normal(extents[name]).astype("float32") for name in ("input", "weights"))
    found = call(gpu, kernel, [x, w], tuple(extents["output"]), default=True)
    windows = np.lib.stride_tricks.sliding_window_view(x[0], (3, 3), axis=(1, 2))
    np.testing.assert_allclose(found[0], np.einsum("cijkl,ockl->oij", windows, w), rtol=1e-4, atol=1e-4)


def product(m: int, n: int, k: int, dtype: str = "float32") -> dict[str, Any]:
    """A product without a bias as the compiler describes it."""
    return {
        "kind": "matmul", "dtype": dtype, "tf32": False, "result_dtype": dtype, "batch": 1, "m": m, "n": n, "k": k,
        "a": dense(m, k), "b": dense(k, n), "bias": False, "activation": "",
    }  # fmt: skip


def convolution(channels: int) -> dict[str, Any]:
    """A convolution of four channels with a window of 3 x 3."""
    return {
        "kind": "conv2d", "dtype": "float32", "tf32": False, "input": [1, 4, 7, 7], "weights": [channels, 4, 3, 3],
        "output": [1, channels, 5, 5], "padding": [0, 0], "strides": [1, 1], "dilation": [1, 1], "groups": 1,
        "layout": "NCHW", "residual": False, "bias": False, "activation": "",
    }  # fmt: skip


def found_wrong() -> list[str]:
    return [str(each) for each in function("tvm_sched.nvidia_found_wrong")()]


def test_an_algorithm_of_wrong_values_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one computes the product, on each stream, and what was found is remembered."""
    gpu, random = Gpu(), np.random.default_rng(1)
    a, b = whole(random, 6, 13), whole(random, 13, 9)
    known = found_wrong()
    monkeypatch.setenv("FAKE_CUDA_WRONG", "cublaslt:0")
    np.testing.assert_array_equal(call(gpu, product(6, 9, 13), [a, b], (6, 9)), a @ b)
    (finding,) = (each for each in found_wrong() if each not in known)
    assert finding.startswith("cuBLASLt's algorithm ")
    assert "computed" in finding
    assert "of product float32 float32 1 6 9 13 " in finding
    before = function("tvm_sched.nvidia_checks_run")()
    np.testing.assert_array_equal(call(Gpu(), product(6, 9, 13), [a, b], (6, 9)), a @ b)
    assert function("tvm_sched.nvidia_checks_run")() == before


def test_a_kernel_first_used_in_a_capture_is_compared_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be waited for in a capture; the next call finds the wrong algorithm, and takes another."""
    gpu, random = Gpu(), np.random.default_rng(1)
    a, b = whole(random, 6, 15), whole(random, 15, 9)
    monkeypatch.setenv("FAKE_CUDA_WRONG", "cublaslt:0")
    module = get_library("nvidia").make_module({"k": product(6, 9, 15)}, None, None)
    tensors = [OnGpu(gpu, value) for value in (a, b, np.zeros((6, 9), "float32"))]
    known, checks = found_wrong(), function("tvm_sched.nvidia_checks_run")
    before, graph = checks(), ctypes.c_void_p()
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), gpu.stream.value or 0):
        gpu.call("cuStreamBeginCapture_v2", gpu.stream, 2)
        for _ in range(2):
            module["k"](*map(tvm_ffi.from_dlpack, tensors))
        gpu.call("cuStreamEndCapture", gpu.stream, ctypes.byref(graph))
        assert checks() == before
        module["k"](*map(tvm_ffi.from_dlpack, tensors))
        gpu.call("cuStreamSynchronize", gpu.stream)
        np.testing.assert_array_equal(tensors[-1].array, a @ b)
        assert (checks() - before, len(found_wrong()) - len(known)) == (2, 1)
        module["k"](*map(tvm_ffi.from_dlpack, tensors))
    assert checks() - before == 2


def test_the_one_right_algorithm_of_a_convolution_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, random = Gpu(), np.random.default_rng(1)
    x, w = whole(random, 1, 4, 7, 7), whole(random, 11, 4, 3, 3)
    known = found_wrong()
    monkeypatch.setenv("FAKE_CUDA_WRONG", " ".join(f"cudnn:{number}" for number in (0, 2, 3, 4, 5, 6, 7)))
    windows = np.lib.stride_tricks.sliding_window_view(x[0], (3, 3), axis=(1, 2))
    right = np.einsum("cijkl,ockl->oij", windows, w)[None]
    np.testing.assert_array_equal(call(gpu, convolution(11), [x, w], right.shape), right)
    assert len([each for each in found_wrong() if each not in known]) == 7


@pytest.mark.parametrize("library", ["cublaslt", "cudnn"])
def test_a_kernel_that_no_algorithm_computes_right_is_refused(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CUDA_WRONG", library)
    kernel, shapes = product(5, 8, 12), [(5, 12), (12, 8), (5, 8)]
    if library == "cudnn":
        kernel, shapes = convolution(13), [(1, 4, 7, 7), (13, 4, 3, 3), (1, 13, 5, 5)]
    zeros = [np.zeros(shape, "float32") for shape in shapes[:2]]
    with pytest.raises(RuntimeError, match=r"whose values are right on this GPU.*compile the model again"):
        call(Gpu(), kernel, zeros, shapes[2])


def test_patterns_of_tvm_compute_on_the_current_context_and_stream() -> None:
    """`RunCodegen` gives functions that a build of TVM's own calls with tensors of a GPU: here they are called so."""
    from tvm import relax
    from tvm.relax.backend import get_patterns_with_prefix

    from tvm_sched.relax.lower.kernel_libraries import register_patterns

    gpu, random = Gpu(), np.random.default_rng(1)
    values = {"x": whole(random, 5, 8), "w": whole(random, 8, 6), "b": whole(random, 6)}
    image = {"c": whole(random, 1, 4, 5, 5), "k": whole(random, 6, 4, 1, 1), "s": whole(random, 1, 6, 1, 1)}
    builder = relax.BlockBuilder()
    arguments = [relax.Var(n, relax.TensorType(v.shape, "float32")) for n, v in (values | image).items()]
    x, w, b, c, k, s = arguments
    with builder.function("main", arguments):
        with builder.dataflow():
            product = builder.emit(relax.op.nn.relu(relax.op.add(relax.op.matmul(x, w), b)))
            picture = builder.emit(relax.op.nn.relu(relax.op.add(relax.op.nn.conv2d(c, k), s)))
            result = builder.emit_output(relax.Tuple([product, picture]))
        builder.emit_func_output(result)
    register_patterns()
    patterns = get_patterns_with_prefix("tvm_sched_nvidia")
    mod = relax.transform.FuseOpsByPattern(patterns, bind_constants=False, annotate_codegen=True)(builder.get())
    mod = relax.transform.RunCodegen()(mod)
    calls = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    names = [str(call.args[0].global_symbol) for call in calls if isinstance(call, relax.Call)]
    (module,) = mod.attrs["external_mods"]
    right = [
        np.maximum(values["x"] @ values["w"] + values["b"], 0),
        np.maximum(np.einsum("oc,cyx->oyx", image["k"][:, :, 0, 0], image["c"][0]) + image["s"][0], 0)[None],
    ]
    for name, given, wanted in zip(names, (values, image), right, strict=True):
        tensors = [OnGpu(gpu, value) for value in (*given.values(), np.zeros(wanted.shape, "float32"))]
        with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), gpu.stream.value or 0):
            module[name](*map(tvm_ffi.from_dlpack, tensors))
        gpu.call("cuStreamSynchronize", gpu.stream)
        np.testing.assert_array_equal(tensors[-1].array, wanted)
