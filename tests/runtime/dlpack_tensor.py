"""An array in a GPU's memory, as another library hands it out by DLPack."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

ON_GPU = 2  # kDLCUDA
_CODES = {"f": 2, "u": 1}  # kDLFloat, kDLUInt


class _Managed(ctypes.Structure):
    """``DLManagedTensor`` of DLPack."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )  # fmt: skip


class DLPackTensor:
    """Memory of a fake or emulated GPU, which the host can read as ``array``.

    Parameters
    ----------
    address : int
        Of at least ``step`` elements for each of the value's.
    value : array of float32 or uint8
        What is put there.
    gpu : int
    step : int
        Elements from one of the value's to the next.
    """

    def __init__(self, address: int, value: np.ndarray[Any, Any], gpu: int = 0, step: int = 1) -> None:
        assert step == 1 or value.ndim == 1
        memory = (ctypes.c_uint8 * max(step * value.nbytes, 1)).from_address(address)
        self.gpu = gpu
        self.array = np.frombuffer(memory, value.dtype)[: step * value.size : step].reshape(value.shape)
        self.array[...] = value
        self.shape = (ctypes.c_int64 * value.ndim)(*value.shape)
        self.strides = (ctypes.c_int64 * value.ndim)(*(n // value.itemsize for n in self.array.strides))
        code, bits = _CODES[value.dtype.kind], 8 * value.itemsize
        places = ctypes.addressof(self.shape), ctypes.addressof(self.strides)
        self.tensor = _Managed(address, ON_GPU, gpu, value.ndim, code, bits, 1, *places, 0, None, None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return ON_GPU, self.gpu

    def __dlpack__(self, **_: Any) -> Any:
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self.tensor), b"dltensor", None)
