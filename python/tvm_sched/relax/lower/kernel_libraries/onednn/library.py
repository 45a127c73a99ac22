"""oneDNN as a kernel library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import tvm

from tvm_sched_runtime.core_library import function as library_function

from ....ir.attributes import get_compile_target
from ..kernel_library import Cores, KernelLibrary, KernelSet, Names
from .attention import OneDnnAttention
from .byte_functions import WithoutRoundTrips
from .claim import Claimer
from .fastest import choose_implementations
from .layout import ChannelsLast
from .products import VERSION
from .recombine import Simplifier
from .reshapes import WithoutReshapes
from .transpositions import WithoutTranspositions


@cache
def _unavailable_reason() -> str | None:
    return str(library_function("tvm_sched.why_not_onednn")()) or None


def _claim(mod: tvm.IRModule, kernels: KernelSet, names: Names) -> tvm.IRModule:
    changed = WithoutRoundTrips(Simplifier(mod).run()).run()
    changed = ChannelsLast(changed, kernels, names).run()
    changed = OneDnnAttention(WithoutTranspositions(changed).run(), kernels).run()
    changed = WithoutReshapes(Claimer(changed, kernels, names).run(), kernels).run()
    choose_implementations(kernels, get_compile_target(mod))
    return changed if kernels.documents else mod


def _make_module(kernels: Mapping[str, dict[str, Any]], cores: Cores, threads: int | None) -> tvm.runtime.Module:
    described = {name: {**kernel, "cores": cores.get(name, (1, 1))} for name, kernel in kernels.items()}
    document = {"version": VERSION, "kernels": described, **({"threads": threads} if threads else {})}
    return library_function("tvm_sched.make_onednn_module")(json.dumps(document))


LIBRARY = KernelLibrary("onednn", "cpu", _unavailable_reason, _claim, _make_module)
