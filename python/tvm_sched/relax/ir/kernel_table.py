"""`KernelTable`: the kernels of an artifact; one that several plans or operators call is compiled once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import tvm
import tvm_ffi
from tvm import tirx

from ...execution_plan import KernelCall


class KernelTable:
    """Kernels by their name in the artifact; equal ones, apart from their name, are one.

    Attributes
    ----------
    kernels : dict of str to PrimFunc
    """

    def __init__(self) -> None:
        self.kernels: dict[str, tirx.PrimFunc] = {}
        self._by_hash: dict[int, list[str]] = {}

    def add(self, mod: tvm.IRModule, functions: Mapping[str, str], claimed: Collection[str]) -> dict[str, str]:
        """Add functions of a module.

        Parameters
        ----------
        mod : tvm.IRModule
        functions : mapping of str to str
            Name that each function is to have in the artifact.
        claimed : collection of str
            Functions that kernel libraries compute: they keep their names, and are not added.

        Returns
        -------
        dict of str to str
            The name that each function has.
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
    """Return the name in the artifact of each function that is called and that the artifact holds.

    ``claimed`` are the functions that kernel libraries compute; ``suffix`` is appended to all names.
    """
    used = dict.fromkeys(call.function for call in calls if not call.external or call.function in claimed)
    return {function: f"tvm_sched_{function}{suffix}" for function in used}
