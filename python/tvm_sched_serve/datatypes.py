"""Tensors of the protocol: names of data types, checks of inputs, and aligned memory for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tvm_sched.runtime.tensors import ALIGNMENT, numpy_dtype

from .failures import RequestError

Array = np.ndarray[Any, Any]
DATATYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "int8": "INT8",
    "int16": "INT16", "int32": "INT32", "int64": "INT64", "float16": "FP16", "bfloat16": "BF16", "float32": "FP32",
    "float64": "FP64",
}  # fmt: skip
"""The protocol's name of each data type of an artifact."""
_SMALL_BYTES = 16 << 10


@dataclass(frozen=True)
class TensorType:
    """An input or output of a model; a size of -1 differs between the artifact's plans."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @cached_property
    def datatype(self) -> str:
        """The protocol's name of the data type; language models alone have ``bytes``, which is text."""
        return "BYTES" if self.dtype == "bytes" else DATATYPES[self.dtype]

    @cached_property
    def _numpy_dtype(self) -> np.dtype[Any]:
        return numpy_dtype(self.dtype)

    @cached_property
    def _bytes(self) -> int:
        """Bytes of a value, if no size differs between the plans."""
        return math.prod(self.shape) * self._numpy_dtype.itemsize

    def check(self, datatype: str, shape: Sequence[int]) -> int:
        """Return the bytes of a value of that type and shape.

        Raises
        ------
        RequestError
            The input has another type or shape.
        """
        if datatype != self.datatype:
            raise RequestError(f"input {self.name!r} is {datatype[:32]}; expected {self.datatype}")
        if tuple(shape) == self.shape and -1 not in self.shape:
            return self._bytes
        if len(shape) != len(self.shape) or not all(
            size == own if own >= 0 else 0 <= size < 1 << 40 for size, own in zip(shape, self.shape, strict=True)
        ):
            raise RequestError(f"input {self.name!r} has shape {list(shape)[:16]}; expected {list(self.shape)}")
        return math.prod(shape) * self._numpy_dtype.itemsize

    def of_bytes(self, content: memoryview, shape: Sequence[int]) -> Array:
        """Return bytes as an array: a view if they are writable and aligned, else a copy.

        The executor aligns small arrays itself, which costs less.
        """
        if self.dtype == "bool":  # a byte that is neither 0 nor 1 is no value that kernels know
            return np.frombuffer(content, np.uint8).reshape(shape) != 0
        flat = np.frombuffer(content, np.uint8)
        if content.nbytes <= _SMALL_BYTES:
            return (flat.copy() if content.readonly else flat).view(self._numpy_dtype).reshape(shape)
        if content.readonly or flat.ctypes.data % ALIGNMENT:
            copy = aligned_bytes(content.nbytes)
            copy[:] = flat
            flat = copy
        return flat.view(self._numpy_dtype).reshape(shape)

    def of_values(self, values: Any, shape: Sequence[int]) -> Array:
        """Return numbers of a JSON document or of gRPC's typed fields as an array; they may be nested.

        Raises
        ------
        RequestError
            They are no numbers of the type, or of another number.
        """
        dtype = self._numpy_dtype
        try:
            array = np.asarray(values)
            if array.size == 0:
                array = array.astype(dtype)
            kinds = {"b": "b", "u": "iu", "i": "iu"}.get(dtype.kind, "iuf")
            if array.dtype.kind not in kinds:
                raise RequestError(f"input {self.name!r}: the values are not of the type {self.datatype}")
            if (
                dtype.kind in "iu"
                and array.size
                and (int(array.min()) < np.iinfo(dtype).min or int(array.max()) > np.iinfo(dtype).max)
            ):
                raise RequestError(f"input {self.name!r}: a value is out of the range of {self.datatype}")
            with np.errstate(over="ignore"):
                return array.astype(dtype).reshape(shape)
        except (ValueError, TypeError, OverflowError):
            count = math.prod(shape)
            raise RequestError(f"input {self.name!r}: expected {count} values of the type {self.datatype}") from None


def aligned_bytes(size: int, before: int = 0) -> Array:
    """Return uninitialised memory in which byte ``before`` is aligned as kernels need it."""
    memory = np.empty(size + ALIGNMENT, np.uint8)
    begin = -(memory.ctypes.data + before) % ALIGNMENT
    return memory[begin : begin + size]


def raw_bytes(value: Array) -> memoryview:
    """Return the bytes of an array, without a copy if it is compact."""
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
