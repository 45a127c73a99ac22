"""Import TVM without listing all of its global functions for fifty of its modules (docs/results/compile_time_similar.md)."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from .._library import ffi

LISTING = "list_global_func_names"
"""Name of tvm_ffi's function."""


def import_tvm() -> Any:
    """Import TVM, fifty modules of which ask for the list of global functions: it is made anew only if it has grown."""
    if "tvm" in sys.modules:
        return sys.modules["tvm"]
    ffi()
    registry = import_module("tvm_ffi.registry")
    make_functor = registry.get_global_func("ffi.FunctionListGlobalNamesFunctor", allow_missing=True)
    original = getattr(registry, LISTING, None)
    if make_functor is None or original is None:  # of another version
        return import_module("tvm")
    kept: list[str] = []

    def names() -> list[str]:
        functor = make_functor()
        count = functor(-1)
        if count != len(kept):
            kept[:] = [functor(k) for k in range(count)]
        return list(kept)

    setattr(registry, LISTING, names)
    try:
        return import_module("tvm")
    finally:
        setattr(registry, LISTING, original)
