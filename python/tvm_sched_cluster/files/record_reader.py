"""Shared parts of the readers of cluster and service files: quantities, and errors that name the file and the position."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tvm_sched.errors import FormatError, InputError
from tvm_sched.problem.quantity import parse_quantity

Quantity = float | str
T = TypeVar("T")


class RecordReader:
    """Makes numbers of the quantities of a file's records."""

    def __init__(self, where: str) -> None:
        self.where = where

    def number(self, value: Quantity, kind: str, place: str) -> float:
        """A quantity in its base unit."""
        return float(parse_quantity(value, kind, f"{self.where}: `{place}`"))

    def whole(self, value: Quantity, place: str) -> int:
        """Bytes: a whole number."""
        number = parse_quantity(value, "bytes", f"{self.where}: `{place}`")
        if number != int(number):
            raise FormatError(f"{self.where}: {value!r} is not a whole number of bytes - at `{place}`")
        return int(number)

    def named(self, make: Callable[[], T]) -> T:
        """What ``make`` gives; an error of the data says the file first."""
        try:
            return make()
        except FormatError:
            raise
        except InputError as error:
            raise type(error)(f"{self.where}: {error}") from None
