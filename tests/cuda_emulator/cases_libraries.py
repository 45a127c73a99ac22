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

pytestmark = pytest.mark.gpu


class OnGpu(GpuTensor):
    """An array of float32 in the GPU's memory, which the host can read here."""

    def __init__(self, gpu: Gpu, value: np.ndarray[Any, Any]) -> None:
        address = gpu.allocate(value.nbytes)
        memory = (ctypes.c_float * value.size).from_address(address)
        self.array = np.frombuffer(memory, np.float32).reshape(value.shape)
        self.array[...] = value
        super().__init__(address, 0, FLOAT32, value.shape)


def test_a_convolution_on_the_default_stream() -> None:
    """The driver refuses to capture the legacy one: algorithms are timed without graphs."""
    gpu, random = Gpu(), np.random.default_rng(1)
    extents = {"input": [1, 4, 7, 7], "weights": [6, 4, 3, 3], "output": [1, 6, 5, 5]}
    kernel = {
        "kind": "conv2d", "dtype": "float32", "tf32": False, **extents, "padding": [0, 0], "strides": [1, 1],
        "dilation": [1, 1], "groups": 1, "layout": "NCHW", "residual": False, "bias": False, "activation": "",
    }  # fmt: skip
    module = get_library("nvidia").make_module({"k": kernel}, None, None)
    x, w = (random.standard_normal(extents[name]).astype("float32") for name in ("input", "weights"))
    on_gpu = [OnGpu(gpu, value) for value in (x, w, np.zeros(extents["output"], "float32"))]
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), 0):
        module["k"](*(tvm_ffi.from_dlpack(tensor) for tensor in on_gpu))
    gpu.call("cuStreamSynchronize", None)
    windows = np.lib.stride_tricks.sliding_window_view(x[0], (3, 3), axis=(1, 2))
    np.testing.assert_allclose(on_gpu[2].array[0], np.einsum("cijkl,ockl->oij", windows, w), rtol=1e-4, atol=1e-4)
