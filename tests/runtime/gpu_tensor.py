"""Tensors in GPUs' memory by DLPack, as another library would hand them out."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

ON_GPU = 2  # kDLCUDA
FLOAT32, UINT8 = (2, 32), (1, 8)
"""Kinds of numbers: code and bits."""


class _Tensor(ctypes.Structure):
    """``DLManagedTensor`` of DLPack."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )  # fmt: skip


class GpuTensor:
    """What lies at an address of a GPU, without owning it; strides are in elements, and by default without gaps."""

    def __init__(
        self, address: int, gpu: int, kind: tuple[int, int], shape: Sequence[int], strides: Sequence[int] | None = None
    ) -> None:
        self.gpu = gpu
        self._sizes = [None if each is None else (ctypes.c_int64 * len(each))(*each) for each in (shape, strides)]
        places = (None if each is None else ctypes.addressof(each) for each in self._sizes)
        self._tensor = _Tensor(address, ON_GPU, gpu, len(shape), *kind, 1, *places, 0, None, None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return ON_GPU, self.gpu

    def __dlpack__(self, **_: Any) -> Any:
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self._tensor), b"dltensor", None)
