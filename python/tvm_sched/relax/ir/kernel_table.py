"""`KernelTable`: the kernels of an artifact. A kernel that several plans or operators call is compiled once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import tvm
import tvm_ffi
from tvm import tirx

from ...execution_plan import KernelCall


class KernelTable:
    """PrimFuncs (``kernels``) by their name in the artifact; kernels that differ only in their name are stored once."""

    def __init__(self) -> None:
        self.kernels: dict[str, tirx.PrimFunc] = {}
        self._by_hash: dict[int, list[str]] = {}

    def add(self, mod: tvm.IRModule, functions: Mapping[str, str], claimed: Collection[str]) -> dict[str, str]:
        """Add functions of a module and return the name in the artifact of each.

        Parameters
        ----------
        functions : mapping of str to str
            Requested name in the artifact of each function.
        claimed : collection of str
            Functions that kernel libraries compute. They get the requested names and are not added.
        """
        return {
            original: name if original in claimed else self._add(name, mod[original])
            for original, name in functions.items()
        }

    def _add(self, name: str, function: tirx.PrimFunc) -> str:
        bare = function.without_attr("global_symbol")
        same = self._by_hash.setdefault(tvm_ffi.structural_hash(bare), [])
        for known in same:
            if tvm_ffi.structural_equal(self.kernels[known], bare):
                return known
        self.kernels[name] = bare
        same.append(name)
        return name


def kernel_names(calls: Sequence[KernelCall], claimed: Collection[str], suffix: str = "") -> dict[str, str]:
    """Return the name in the artifact of each called function that the artifact holds.

    ``claimed`` are the functions that kernel libraries compute. ``suffix`` is appended to each name.
    """
    used = dict.fromkeys(call.function for call in calls if not call.external or call.function in claimed)
    return {function: f"tvm_sched_{function}{suffix}" for function in used}
