"""An emulated GPU by hand, for tests of the emulator: CUDA source, arrays in, arrays out."""

from __future__ import annotations

import ctypes
from typing import Any

import build
import numpy as np
from nvcc_stand_in import compile_image

_POINTER = ctypes.c_uint64


class GpuError(RuntimeError):
    """A function of the driver failed: its status, and the driver's words."""


class Gpu:
    """Functions of the driver on the calling thread, one stream."""

    def __init__(self, device: int = 0) -> None:
        self.driver = ctypes.CDLL(str(build.driver()))
        self.driver.fake_cuda_configure.argtypes = [ctypes.c_int, ctypes.c_longlong, ctypes.c_int]
        self.context, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        self.enter()
        self.call("cuStreamCreateWithPriority", ctypes.byref(self.stream), 1, 0)

    @staticmethod
    def configure(devices: int = 1, memory: int = 1 << 28, peers: bool = True) -> None:
        """``devices`` GPUs, and no faults of former tests."""
        ctypes.CDLL(str(build.driver())).fake_cuda_configure(devices, ctypes.c_longlong(memory), int(peers))

    def enter(self) -> None:
        """Make this GPU's context the current one."""
        self.call("cuCtxSetCurrent", self.context)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver; `GpuError` unless it returns 0."""
        status = getattr(self.driver, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self.driver.cuGetErrorString(status, ctypes.byref(text))
            raise GpuError(f"{name}: {status} {(text.value or b'').decode()}".strip())

    def function(self, source: str, name: str, targets: tuple[str, ...] = ("sm_90",)) -> ctypes.c_void_p:
        """A kernel of CUDA source."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), compile_image(source, list(targets)))
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        return function

    def allocate(self, size: int) -> int:
        """Memory of this GPU."""
        address = _POINTER()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return int(address.value)

    def launch(self, function: ctypes.c_void_p, grid: Any, block: Any, *arguments: int, shared: int = 0) -> None:
        """Launch with extents (numbers or tuples) and addresses, without waiting."""
        extents = [((e,) if isinstance(e, int) else tuple(e)) for e in (grid, block)]
        given = [*(extents[0] + (1, 1))[:3], *(extents[1] + (1, 1))[:3]]
        values = [_POINTER(a) for a in arguments]
        addresses = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        self.call("cuLaunchKernel", function, *given, shared, self.stream, addresses, None)

    def synchronize(self) -> None:
        """Wait for the stream; faults of kernels are told here."""
        self.call("cuStreamSynchronize", self.stream)

    def run(self, source: str, *arrays: Any, grid: Any = 1, block: Any = 32, shared: int = 0) -> list[Any]:
        """The arrays after the source's only kernel ``k`` had pointers to copies of them."""
        function = self.function(source, "k")
        addresses = [self.allocate(array.nbytes) for array in arrays]
        for address, array in zip(addresses, arrays, strict=True):
            ctypes.memmove(address, array.ctypes.data, array.nbytes)
        self.launch(function, grid, block, *addresses, shared=shared)
        self.synchronize()
        after = [np.empty_like(array) for array in arrays]
        for address, array in zip(addresses, after, strict=True):
            ctypes.memmove(array.ctypes.data, address, array.nbytes)
        return after
