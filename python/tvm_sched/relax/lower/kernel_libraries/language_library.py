"""Kernels of language models (``cpp/kernels/language``) as a library, whose calls are in the module from the start."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import tvm

from ...._library import function as library_function
from .kernel_library import Cores, KernelLibrary, KernelSet, Names

VERSION = 2


def _claim(mod: tvm.IRModule, kernels: KernelSet, names: Names) -> tvm.IRModule:
    return mod


def _make_module(kernels: Mapping[str, dict[str, Any]], cores: Cores, threads: int | None) -> tvm.runtime.Module:
    return library_function("tvm_sched.make_language_module")(json.dumps({"version": VERSION, "kernels": kernels}))


LIBRARY = KernelLibrary("language", "cpu", lambda: None, _claim, _make_module)
