"""Shared parts of the readers of cluster and service files: quantities, and errors that name the file and the position."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tvm_sched_runtime.errors import FormatError, InputError
from tvm_sched_runtime.problem.quantity import parse_quantity

Quantity = float | str
T = TypeVar("T")


class RecordReader:
    """Convert the quantities of a file's records to numbers."""

    def __init__(self, where: str) -> None:
        self.where = where

    def number(self, value: Quantity, kind: str, place: str) -> float:
        """Return a quantity in its base unit."""
        return float(parse_quantity(value, kind, f"{self.where}: `{place}`"))

    def whole(self, value: Quantity, place: str) -> int:
        """Return a number of bytes; it must be whole."""
        number = parse_quantity(value, "bytes", f"{self.where}: `{place}`")
        if number != int(number):
            raise FormatError(f"{self.where}: {value!r} is not a whole number of bytes - at `{place}`")
        return int(number)

    def count(self, value: int, most: int, place: str) -> None:
        """Refuse a number of equal records that is below 1, or above what a program can hold."""
        if not 1 <= value <= most:
            raise FormatError(f"{self.where}: {value} is out of range; 1 to {most} are allowed - at `{place}`")

    def named(self, make: Callable[[], T]) -> T:
        """Return what ``make`` returns; put the file's name in front of its errors."""
        try:
            return make()
        except FormatError:
            raise
        except InputError as error:
            raise type(error)(f"{self.where}: {error}") from None
