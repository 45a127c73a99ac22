"""Kernels in CUDA C++ as a kernel library."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tvm

from tvm_sched_runtime.core_library import function as library_function
from tvm_sched_runtime.errors import InputError

from .....cost_model.cubin import CompiledKernel
from ....toolchain.nvcc import architectures, compile_source, find_nvcc
from ..kernel_library import Cores, KernelLibrary, KernelSet, Names
from . import attention_source, depthwise, language_kernels
from . import normalizations as rows
from . import sorts_and_scans as lines
from .attention import CudaAttention
from .depthwise import DepthwiseClaimer
from .language_kernels import claim_language_kernels
from .normalizations import RowClaimer
from .sorts_and_scans import LineClaimer

_WRITERS = {
    "attention": attention_source,
    depthwise.KIND: depthwise,
    language_kernels.KIND: language_kernels,
    **dict.fromkeys(("layer_norm", "rms_norm", "softmax"), rows),
}
"""Modules that write the source of each kind of kernel; `lines` writes all others."""


def _unavailable_reason() -> str | None:
    try:
        find_nvcc()
    except InputError as error:
        return str(error)
    return None


def _claim(mod: tvm.IRModule, kernels: KernelSet, names: Names) -> tvm.IRModule:
    settings = {"archs": list(kernels.archs)}
    changed = CudaAttention(mod, kernels, settings).run()
    for claimer in (RowClaimer, LineClaimer):
        changed = claimer(changed, kernels, settings).run()
    changed = DepthwiseClaimer(changed, kernels, names, settings).run()
    claim_language_kernels(mod, kernels, settings)
    return changed if kernels.documents else mod


def _make_module(kernels: Mapping[str, dict[str, Any]], cores: Cores, threads: int | None) -> tvm.runtime.Module:
    functions, binary, _ = compile_sources(kernels)
    return library_function("tvm_sched.make_cuda_module")(json.dumps({"version": 3, "functions": functions}), binary)


def compile_sources(
    kernels: Mapping[str, Mapping[str, Any]],
) -> tuple[dict[str, Any], bytes, dict[str, CompiledKernel]]:
    """Compile kernels; return their launches by name, a fat binary, and their resources by symbol.

    Raises the errors of `compile_source`.
    """
    functions, headers, sources = {}, dict[str, str](), list[str]()
    written: dict[str, dict[str, Any]] = {}  # the layers of a model have the same kernels
    for position, (name, kernel) in enumerate(kernels.items()):
        writer: Any = _WRITERS.get(kernel["kind"], lines)
        headers[writer.HEADER] = ""
        key = json.dumps(kernel, sort_keys=True)
        if key not in written:
            source, written[key] = writer.render(f"{kernel['kind']}{position}", kernel)
            sources.append(source)
        functions[name] = written[key]
    included = set[str]()
    headers = {name: header(name, included) for name in headers}
    archs = {arch for kernel in kernels.values() for arch in kernel["archs"]}
    return functions, *compile_source("\n".join([*headers.values(), *sources]), architectures(archs))


def header(name: str, included: set[str] | None = None) -> str:
    """Return a header of this folder with its includes inlined, but those in ``included``, to which it adds what it has."""
    known = set[str]() if included is None else included
    if name in known:
        return ""
    known.add(name)
    text = (Path(__file__).parent / name).read_text().replace("#pragma once\n", "")
    return re.sub(r'#include "(.*)"\n', lambda match: header(match[1], known), text)


LIBRARY = KernelLibrary("handwritten_cuda", "cuda", _unavailable_reason, _claim, _make_module)
