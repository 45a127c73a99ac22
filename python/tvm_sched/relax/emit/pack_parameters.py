"""Lay out parameters as oneDNN's kernels read them when a model is compiled, so that loading copies nothing."""

from __future__ import annotations

import json
from math import prod
from typing import Any

import tvm

from tvm_sched_runtime.core_library import function as library_function

from ...progress import report_progress
from ..ir.attributes import PARAMETERS, get_compile_target
from ..lower.kernel_libraries import KERNELS, kernel_document
from ..lower.kernel_libraries.onednn.fastest import PRIMITIVES
from ..lower.kernel_libraries.onednn.products import VERSION
from ..problem.operator_graph import Extraction

_Use = tuple[str, int]
"""A function and the position of an operand."""


def pack_parameters(mod: tvm.IRModule, calls: Extraction, shares: dict[str, tuple[int, int]]) -> tvm.IRModule:
    """Return the module with packed values, and descriptions of kernels that say so.

    A parameter is packed if all kernels that read it are oneDNN's and want it in one layout, which has a name. If the layout
    has padding, the value becomes a vector with it. On another machine, where a kernel may want another layout, it is laid
    out anew when the kernel first runs.

    Parameters
    ----------
    calls : Extraction
        The calls of the module's functions.
    shares : dict of str to (int, int)
        Each function's share of the cores, as in `make_modules`.
    """
    values = dict(mod.attrs[PARAMETERS]) if PARAMETERS in mod.attrs else {}
    documents = dict(mod.attrs[KERNELS]) if KERNELS in mod.attrs else {}
    wanted: dict[_Use, str] = {}
    described: dict[str, str] = {}
    for function in documents:
        library, kernel = kernel_document(mod, str(function))
        if library != "onednn" or kernel["primitive"] not in PRIMITIVES:
            continue
        alone = {"kernel": {**kernel, "cores": shares.get(str(function), (1, 1))}}
        document = json.dumps({"version": VERSION, "kernels": alone, **get_compile_target(mod).in_artifact()})
        described[str(function)] = document
        for operand, layout in enumerate(library_function("tvm_sched.onednn_layouts")(document)):
            if layout:
                wanted[str(function), operand] = str(layout)
    chosen = _agreed(calls, wanted, set(values))
    changed: dict[str, dict[str, Any]] = {}
    for count, (name, (function, operand)) in enumerate(sorted(chosen.items())):
        report_progress("packing parameters", count, len(chosen))
        use = described[function], operand, wanted[function, operand]
        shape = tuple(int(size) for size in values[name].shape)
        elements = int(library_function("tvm_sched.onednn_packed_elements")(*use))
        packed = tvm.runtime.empty(shape if elements == prod(shape) else (elements,), values[name].dtype)
        library_function("tvm_sched.onednn_pack")(*use, values[name], packed)
        values[name] = packed
    for call in calls.calls:
        for operand, name in enumerate(call.inputs):
            if name in chosen:
                content = changed.setdefault(call.function, json.loads(str(documents[call.function])))
                content["kernel"]["operands"][operand]["layout"] = wanted[call.function, operand]
    documents |= {function: json.dumps(content) for function, content in changed.items()}
    return mod.with_attr(PARAMETERS, values).with_attr(KERNELS, documents) if chosen else mod


def _agreed(calls: Extraction, wanted: dict[_Use, str], known: set[str]) -> dict[str, _Use]:
    """Return the parameters that can be packed, each with one of its uses.

    All uses of a parameter must want one layout, and in all calls of a function the same operands must be packed.
    """
    uses: dict[str, set[_Use]] = {}
    names: dict[_Use, set[str]] = {}
    for call in calls.calls:
        for operand, name in enumerate(call.inputs):
            uses.setdefault(name, set()).add((call.function, operand))
            names.setdefault((call.function, operand), set()).add(name)
    good = {name for name in uses if name in known and len({wanted.get(use, "") for use in uses[name]} - {""}) == 1}
    good = {name for name in good if all(use in wanted for use in uses[name])} - set(calls.graph.outputs)
    while bad := {name for name in good if not all(names[use] <= good for use in uses[name])}:
        good -= bad
    return {name: min(uses[name]) for name in good}
