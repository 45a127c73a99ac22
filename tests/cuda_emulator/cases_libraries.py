"""Kernels of NVIDIA's libraries by their description, called without a plan; `test_emulated_gpu` runs this."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from gpu import Gpu

from tvm_sched.relax.kernel_libraries import get_library

pytestmark = pytest.mark.gpu


class Tensor(ctypes.Structure):
    """``DLManagedTensor`` of DLPack."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )  # fmt: skip


class OnGpu:
    """An array of float32 in the GPU's memory, which the host can read here."""

    def __init__(self, gpu: Gpu, value: np.ndarray[Any, Any]) -> None:
        address = gpu.allocate(value.nbytes)
        memory = (ctypes.c_float * value.size).from_address(address)
        self.array = np.frombuffer(memory, np.float32).reshape(value.shape)
        self.array[...] = value
        self.shape = (ctypes.c_int64 * value.ndim)(*value.shape)
        kind, bits, shape = 2, 32, ctypes.addressof(self.shape)
        self.tensor = Tensor(address, 2, 0, value.ndim, kind, bits, 1, shape, None, 0, None, None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, **_: Any) -> Any:
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self.tensor), b"dltensor", None)


def test_a_convolution_on_the_default_stream() -> None:
    """The driver refuses to capture the legacy one: algorithms are timed without graphs."""
    gpu, random = Gpu(), np.random.default_rng(1)
    extents = {"input": [1, 4, 7, 7], "weights": [6, 4, 3, 3], "output": [1, 6, 5, 5]}
    kernel = {
        "kind": "conv2d", "dtype": "float32", "tf32": False, **extents, "padding": [0, 0], "strides": [1, 1],
        "dilation": [1, 1], "groups": 1, "bias": False, "activation": "",
    }  # fmt: skip
    module = get_library("nvidia").make_module({"k": kernel}, None)
    x, w = (random.standard_normal(extents[name]).astype("float32") for name in ("input", "weights"))
    on_gpu = [OnGpu(gpu, value) for value in (x, w, np.zeros(extents["output"], "float32"))]
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), 0):
        module["k"](*(tvm_ffi.from_dlpack(tensor) for tensor in on_gpu))
    gpu.call("cuStreamSynchronize", None)
    windows = np.lib.stride_tricks.sliding_window_view(x[0], (3, 3), axis=(1, 2))
    np.testing.assert_allclose(on_gpu[2].array[0], np.einsum("cijkl,ockl->oij", windows, w), rtol=1e-4, atol=1e-4)
