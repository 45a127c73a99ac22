"""Run TVM's virtual machine for artifacts with operators outside the schedule; needs only tvm_ffi and TVM's runtime."""

from __future__ import annotations

from threading import Lock
from typing import Any

from ..errors import ExecutionError, InputError
from .tensors import aligned_tensor

_CPU, _FIRST, _POOLED = 1, 0, 2
"""Device type, number and allocator, as the machine's initialisation takes them."""


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
        try:
            self._machine = module["vm_load_executable"]()
            self._machine["vm_initialization"](_CPU, _FIRST, _POOLED)
        except AttributeError as error:
            raise InputError(
                "a part of the model has sizes that are known only when it runs; TVM's virtual machine runs it, and TVM's "
                f"runtime is not there ({error}): install apache-tvm, or load the file and not its inner module"
            ) from None
        self._turn = Lock()

    def run(self, *tensors: Any) -> list[Any]:
        """Call ``main``; return the leaves of its result.

        Inputs may be strided or unaligned; they are copied, since TVM's kernels refuse the former and crash on the latter.

        Raises
        ------
        ExecutionError
        """
        with self._turn:
            try:
                return _leaves(self._machine["main"](*map(aligned_tensor, tensors)))
            except Exception as error:
                raise ExecutionError(str(error)) from error


def _leaves(result: Any) -> list[Any]:
    return [result] if hasattr(result, "dtype") else [leaf for part in result for leaf in _leaves(part)]
