"""Run TVM's virtual machine for artifacts with operators outside the schedule; needs only tvm_ffi and TVM's runtime."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from ..errors import ExecutionError, InputError
from .tensors import aligned_tensor

_CPU, _FIRST, _POOLED = 1, 0, 2
"""Device type, number and allocator, as the machine's initialisation takes them."""

Value = TypeVar("Value")


class ForkSafeExclusive(Generic[Value]):
    """What `make` returns, for one thread at a time.

    After a fork, a child has the lock as it was, held for ever if another thread of the parent used the value, which is then
    in the middle of something; so the child begins with neither.

    Examples
    --------
    >>> letters = ForkSafeExclusive(list)
    >>> with letters.acquire() as value:
    ...     value.append("a")
    >>> with letters.acquire() as value:
    ...     print(value)
    ['a']
    """

    def __init__(self, make: Callable[[], Value]) -> None:
        self._make = make
        self._begin()
        _ALL.add(self)

    def _begin(self) -> None:
        self._lock, self._made = Lock(), list[Value]()

    @contextmanager
    def acquire(self) -> Iterator[Value]:
        """Give the value to this thread, which waits for others; it is made at the first time."""
        with self._lock:
            if not self._made:
                self._made.append(self._make())
            yield self._made[0]


_ALL = WeakSet[ForkSafeExclusive[Any]]()


def _begin_all() -> None:
    for each in list(_ALL):
        each._begin()


os.register_at_fork(after_in_child=_begin_all)


class VirtualMachine:
    """Runner of an executable's ``main``; threads that call it take turns.

    Parameters
    ----------
    module
        A module that `tvm_ffi` loaded, or a linked executable.

    Raises
    ------
    InputError
        TVM's runtime is missing.
    """

    def __init__(self, module: Any) -> None:
        def made() -> Any:
            machine = module["vm_load_executable"]()
            machine["vm_initialization"](_CPU, _FIRST, _POOLED)
            return machine

        self._machine = ForkSafeExclusive(made)
        try:
            with self._machine.acquire():
                pass
        except AttributeError as error:
            raise InputError(
                "a part of the model has sizes that are known only when it runs; TVM's virtual machine runs it, and TVM's "
                f"runtime is not there ({error}): install apache-tvm, or load the file and not its inner module"
            ) from None

    def run(self, *tensors: Any) -> list[Any]:
        """Call ``main``; return the leaves of its result.

        Inputs may be strided or unaligned; they are copied, since TVM's kernels refuse the former and crash on the latter.

        Raises
        ------
        ExecutionError
        """
        with self._machine.acquire() as machine:
            try:
                return _leaves(machine["main"](*map(aligned_tensor, tensors)))
            except Exception as error:
                raise ExecutionError(str(error)) from error


def _leaves(result: Any) -> list[Any]:
    return [result] if hasattr(result, "dtype") else [leaf for part in result for leaf in _leaves(part)]
