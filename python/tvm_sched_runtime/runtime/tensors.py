"""Convert NumPy arrays to tvm_ffi tensors and back, without a copy if the types allow it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from .. import core_library
from ..errors import InputError

ALIGNMENT = 64
"""Alignment in bytes: kernels access vectors of this size at multiples of it."""


def _numpy_knows(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biufc" and dtype.isbuiltin == 1  # ml_dtypes gives some of its types the kind f


def to_tensor(value: Any) -> Any:
    """Return a ``tvm_ffi.Tensor`` of an array, a tensor of any DLPack library, or a number.

    Memory is shared, except with arrays that are read-only or of another byte order. The executor copies strided and
    unaligned tensors itself.

    Raises
    ------
    InputError
        The value is none of these, or of a data type that tensors do not have: text, objects, dates, structures, float128.

    Examples
    --------
    >>> import numpy
    >>> from tvm_sched_runtime.runtime import to_tensor
    >>> to_tensor(numpy.ones((2, 3), "float32")).shape
    (2, 3)
    """
    import tvm_ffi

    if isinstance(value, tvm_ffi.Tensor):
        return value
    try:
        if (
            isinstance(value, np.ndarray) and value.dtype in _PLAIN and value.flags.writeable
        ):  # usual; saves a microsecond
            return tvm_ffi.from_dlpack(value)
        return tvm_ffi.from_dlpack(value) if _exports(value) else _array_tensor(np.asarray(value))
    except Exception as error:  # other libraries raise what they like
        raise InputError(
            f"a value of type {type(value).__name__} cannot be taken as a tensor ({error}); pass an array of numbers, or a "
            "tensor of a DLPack library"
        ) from None


_PLAIN = frozenset(map(np.dtype, "?bBhHiIlLqQefdFD"))
"""Data types that NumPy's interface to DLPack has, in the machine's byte order."""


def _exports(value: Any) -> bool:
    return not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__")


def _array_tensor(array: np.ndarray[Any, Any]) -> Any:
    import tvm_ffi

    if not array.dtype.isnative:
        array = array.astype(array.dtype.type)
    known = _numpy_knows(array.dtype)
    if not known and array.dtype.type.__module__ != "ml_dtypes":
        raise TypeError(f"its data type is {array.dtype}")
    if not array.flags.writeable:
        array = array.copy()
    if known:
        return tvm_ffi.from_dlpack(array)
    # DLPack has bfloat16 and float8 of ml_dtypes, but NumPy's interface to it has not.
    raw = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").reshape(array.shape)
    return core_library.function("tvm_sched.reinterpret")(tvm_ffi.from_dlpack(raw), array.dtype.name)


def aligned_tensor(tensor: Any) -> Any:
    """Return a CPU ``tvm_ffi.Tensor`` that kernels accept: itself if it is compact and aligned, else a copy."""
    empty = 0 in tuple(tensor.shape)
    if tensor.is_contiguous() and tensor.data_ptr() % ALIGNMENT == 0 and not empty:
        return tensor
    array = to_numpy(tensor)
    if empty:  # NumPy counts an empty dimension as 1 in strides, TVM's kernels as 0
        strides = [array.itemsize * math.prod(array.shape[axis + 1 :]) for axis in range(array.ndim)]
        return to_tensor(np.ndarray(array.shape, array.dtype, np.empty(ALIGNMENT, np.uint8), 0, strides))
    memory = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT
    copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return to_tensor(copy)


def to_numpy(tensor: Any) -> np.ndarray[Any, Any]:
    """Return the array of a CPU tensor; it shares the tensor's memory.

    Examples
    --------
    >>> import numpy
    >>> from tvm_sched_runtime.runtime import to_numpy, to_tensor
    >>> to_numpy(to_tensor(numpy.arange(3)))
    array([0, 1, 2])
    """
    try:
        return np.from_dlpack(tensor)
    except (BufferError, RuntimeError):
        name = str(tensor.dtype)
        if _is_numpy_name(name):
            raise
    import ml_dtypes

    dtype = np.dtype(getattr(ml_dtypes, name))
    raw = core_library.function("tvm_sched.reinterpret")(tensor, f"uint{8 * dtype.itemsize}")
    return np.from_dlpack(raw).view(dtype)


@cache
def _is_numpy_name(name: str) -> bool:
    try:
        return _numpy_knows(np.dtype(name))
    except TypeError:
        return False


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of a name; ml_dtypes has those that NumPy lacks (bfloat16, float8)."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


def tensor_bytes(argument: Mapping[str, Any]) -> int:
    """Return the bytes of an argument or parameter of a plan."""
    return math.prod(argument["shape"]) * int(numpy_dtype(str(argument["dtype"])).itemsize)


def random_value(rng: np.random.Generator, argument: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Draw random values for an argument of a plan.

    They are normal numbers, booleans, or integers 0 and 1, which also serve as masks and as indices into small tables.
    """
    shape, dtype = tuple(argument["shape"]), str(argument["dtype"])
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if "int" in dtype:
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.startswith(("bfloat", "float8")):
        import ml_dtypes

        return np.asarray(rng.standard_normal(shape), np.float32).astype(getattr(ml_dtypes, dtype))
    return np.asarray(rng.standard_normal(shape)).astype(dtype)
