"""NVIDIA's libraries as a kernel library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import tvm

from tvm_sched_runtime.core_library import function as library_function

from ..kernel_library import Cores, KernelLibrary, KernelSet, Names
from .claim import Claimer

VERSION = 3
"""Version of the descriptions that ``cpp/kernels/cuda/library_kernel.cc`` reads."""


@cache
def _unavailable_reason() -> str | None:
    return str(library_function("tvm_sched.why_not_nvidia")()) or None


def _claim(mod: tvm.IRModule, kernels: KernelSet, names: Names) -> tvm.IRModule:
    changed = Claimer(mod, kernels, names).run()
    return changed if kernels.documents else mod


def _make_module(kernels: Mapping[str, dict[str, Any]], cores: Cores, threads: int | None) -> tvm.runtime.Module:
    document = {"version": VERSION, "kernels": dict(kernels)}
    return library_function("tvm_sched.make_nvidia_module")(json.dumps(document))


LIBRARY = KernelLibrary("nvidia", "cuda", _unavailable_reason, _claim, _make_module)
