"""Kernels of ``cpp/kernels/language`` as a library: it claims products with packed weights.

Other calls of its kernels are in a language model's module from the start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import tvm

from tvm_sched_runtime.core_library import function as library_function

from .kernel_library import Cores, KernelLibrary
from .packed_products import claim_packed_products

VERSION = 4


def _make_module(kernels: Mapping[str, dict[str, Any]], cores: Cores, threads: int | None) -> tvm.runtime.Module:
    return library_function("tvm_sched.make_language_module")(json.dumps({"version": VERSION, "kernels": kernels}))


LIBRARY = KernelLibrary("language", "cpu", lambda: None, claim_packed_products, _make_module)
