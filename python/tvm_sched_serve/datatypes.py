"""Tensors of the protocol: names of data types, checks of inputs, and aligned memory for them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import msgspec
import numpy as np

from tvm_sched_runtime.runtime.tensors import ALIGNMENT, numpy_dtype

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

    def of_document(self, document: msgspec.Raw, shape: Sequence[int]) -> Array:
        """Return the numbers of a part of a JSON document as an array; they may be nested.

        Raises
        ------
        RequestError
            A value is not of the type, or the type cannot hold it, or there are too many or too few.
        """
        text = memoryview(document)
        kind = {"b": bool, "u": int, "i": int}.get(self._numpy_dtype.kind, float)
        try:
            array = self._converted(_reader(kind, _depth(text)).decode(text), shape)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            array = None
        if array is None:
            raise self._misfit(_numbers_as_written(text), shape)
        return array

    def of_values(self, values: Any, shape: Sequence[int]) -> Array:
        """Return Python's numbers, or those of gRPC's typed fields, as an array; they may be nested.

        Raises
        ------
        RequestError
            As for `of_document`.
        """
        array = self._converted(values, shape)
        if array is None:
            raise self._misfit(values, shape)
        return array

    def _converted(self, values: Any, shape: Sequence[int]) -> Array | None:
        dtype = self._numpy_dtype
        try:
            array = np.asarray(values)
            if array.size == 0:
                array = array.astype(dtype)
            if (
                dtype.kind in "iu" and array.dtype.kind in "fO"
            ):  # as which NumPy reads whole numbers from 2**63 with others
                array = np.asarray(values, object)
                if all(map(self._holds, array.flat)):
                    return array.astype(dtype).reshape(shape)
            kinds = {"b": "b", "u": "iu", "i": "iu"}.get(dtype.kind, "iuf")
            fits = array.dtype.kind in kinds
            if fits and dtype.kind in "iu" and array.size:
                range_ = np.iinfo(dtype)
                fits = range_.min <= int(array.min()) and int(array.max()) <= range_.max
            if fits:
                with np.errstate(over="raise"):  # no number may become infinity; one that gRPC brings stays one
                    converted = array.astype(dtype)
                if dtype.kind in "biuf" or not (np.isinf(converted) & np.isfinite(array)).any():
                    return converted.reshape(shape)
        except (ArithmeticError, ValueError, TypeError):  # NumPy's OverflowError and FloatingPointError
            pass
        return None

    def _misfit(self, values: Any, shape: Sequence[int]) -> RequestError:
        """Say which value is not of the type, or that their number is wrong."""
        for place, value in enumerate(_flat(values)):
            if not self._holds(value):
                told = str(value) if isinstance(value, _Float) else json.dumps(value)
                return RequestError(
                    f"input {self.name!r}: value {told[:64]} at position {place} does not fit {self.datatype}, which holds "
                    f"{self._range()}"
                )
        return RequestError(f"input {self.name!r}: expected {math.prod(shape)} values of the type {self.datatype}")

    def _range(self) -> str:
        dtype = self._numpy_dtype
        if dtype.kind == "b":
            return "true and false"
        if dtype.kind in "iu":
            return f"whole numbers from {np.iinfo(dtype).min} to {np.iinfo(dtype).max}"
        return f"numbers of {8 * dtype.itemsize} bits"

    def _holds(self, value: Any) -> bool:
        dtype = self._numpy_dtype
        if dtype.kind == "b" or isinstance(value, bool):
            return dtype.kind == "b" and isinstance(value, bool)
        if dtype.kind in "iu":
            return type(value) is int and np.iinfo(dtype).min <= value <= np.iinfo(dtype).max
        if isinstance(value, float) and not math.isfinite(value):
            return True
        if not isinstance(value, int | float | _Float):
            return False
        try:
            with np.errstate(over="ignore"):
                return math.isfinite(float(np.float64(float(value)).astype(dtype)))
        except OverflowError:
            return False


class _Float(str):
    """A number of a JSON document with a point or an exponent, as it is written there."""


_DEEPEST = 32
"""Most levels of lists of a tensor's numbers."""


@cache
def _reader(kind: type, depth: int) -> msgspec.json.Decoder[Any]:
    """Return a decoder of lists of lists of numbers."""
    for _ in range(depth):
        kind = list[kind]  # type: ignore[valid-type]
    return msgspec.json.Decoder(kind)


def _depth(text: memoryview) -> int:
    """Return how many lists a JSON text opens before its first value."""
    head = bytes(text[:256])
    opened = head[: len(head) - len(head.lstrip(b"[ \t\r\n"))].count(b"[")
    return min(opened, _DEEPEST)


def _numbers_as_written(text: memoryview) -> Any:
    try:
        return msgspec.json.Decoder(float_hook=_Float).decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ()


def _flat(values: Any) -> Iterator[Any]:
    """Yield the values of nested lists in order."""
    levels = [iter((values,))]
    while levels:
        value = next(levels[-1], levels)
        if value is levels:
            levels.pop()
        elif isinstance(value, Iterable) and not isinstance(value, str | bytes | dict):
            levels.append(iter(value))
        else:
            yield value


def aligned_bytes(size: int, before: int = 0) -> Array:
    """Return uninitialised memory in which byte ``before`` is aligned as kernels need it."""
    memory = np.empty(size + ALIGNMENT, np.uint8)
    begin = -(memory.ctypes.data + before) % ALIGNMENT
    return memory[begin : begin + size]


def raw_bytes(value: Array) -> memoryview:
    """Return the bytes of an array, without a copy if it is compact."""
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
