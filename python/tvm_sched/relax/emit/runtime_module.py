"""`make_runtime_module`: make the runtime modules that execute plans."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tvm

from tvm_sched_runtime.core_library import function as library_function
from tvm_sched_runtime.problem import Problem
from tvm_sched_runtime.schedule import Schedule

from ...execution_plan import Calls, emit_plan
from ...streams import core_shares
from ..ir.attributes import get_compile_target
from ..lower.kernel_libraries import KERNELS, claimed_functions, kernel_document, make_modules
from ..lower.kernel_libraries.nvidia.library import LIBRARY as NVIDIA

Shares = Mapping[str, tuple[int, int]]
"""Share of the machine's cores by function, or by operator."""


def make_runtime_module(
    plans: Sequence[Mapping[str, Any]],
    about: Mapping[str, Any],
    values: Mapping[str, Any],
    kernels: Iterable[tvm.runtime.Module],
) -> tvm.runtime.Module:
    """Make the module of kind ``tvm_sched`` for some plans.

    Parameters
    ----------
    plans : sequence of mappings
        As in ``docs/formats/plan.md``.
    about : mapping
        Metadata that the module's function ``info`` returns; the entry ``run`` holds initial settings.
    values : mapping
        Parameters that the module holds.
    kernels : iterable of tvm.runtime.Module
        Modules with the functions of the plans.
    """
    module = library_function("tvm_sched.make_module")(json.dumps(plans), json.dumps(about), dict(values))
    for library in kernels:
        module.import_module(library)
    return module


def lower(
    mod: tvm.IRModule,
    calls: Calls,
    problem: Problem,
    schedule: Schedule,
    functions: Mapping[str, str],
    *,
    name: str,
    backend: str,
    values: Sequence[str],
    cores: Shares | None = None,
    states: Mapping[str, str] | None = None,
) -> tuple[dict[str, Any], list[tvm.runtime.Module]]:
    """Lower a schedule to an execution plan; return it with the modules whose functions it calls.

    They are those of kernel libraries, and those of other code generators, which the model has in ``external_mods``.

    Parameters
    ----------
    mod : tvm.IRModule
        The model, lowered to kernels.
    calls : Calls
        The kernel calls; their graph is the problem's.
    functions : mapping of str to str
        Each function's name in the artifact.
    name : str
        Name of the plan.
    backend : {"cpu", "emulated", "cuda"}
    values : sequence of str
        Parameters whose values the artifact or its file of parameters holds.
    cores : mapping of str to (int, int), optional
        Each function's share of the machine's cores. Default: by the schedule.
    states : mapping of str to str, optional
        As for `emit_plan`.
    """
    shares = core_shares(problem, schedule)
    if cores:
        shares = {call.operator: cores.get(call.function, (1, 1)) for call in calls.calls}
    if backend == "cpu":
        mod = number_values(mod, calls)
    libraries = make_modules(mod, functions, {call.function: shares[call.operator] for call in calls.calls})
    plan = emit_plan(
        problem,
        schedule,
        calls,
        name=name,
        backend=backend,
        functions=functions,
        values=tuple(values),
        cores=shares,
        states=states,
        workspaces=_with_workspaces(mod, calls) if backend == "cuda" else (),
    )
    return {**plan, **get_compile_target(mod).in_artifact()}, [*libraries, *modules_of_others(mod, calls)]


def number_values(mod: tvm.IRModule, calls: Calls) -> tvm.IRModule:
    """Number the tensors that oneDNN's kernels hand to each other, so that each knows bounds of what it reads.

    Return the module with the numbers of values (``docs/formats/kernels.md``) in the descriptions of oneDNN's kernels.

    A number stands for one tensor, so kernels that are called several times have none.

    Parameters
    ----------
    calls : Calls
        All calls of the plan that is emitted.
    """
    documents = dict(mod.attrs[KERNELS]) if mod.attrs and KERNELS in mod.attrs else {}
    times = Counter(call.function for call in calls.calls)
    alone = [call for call in calls.calls if call.function in documents and times[call.function] == 1]
    found = {call.function: call for call in alone if kernel_document(mod, call.function)[0] == "onednn"}
    made = Counter(name for call in calls.calls for name in call.outputs)
    read = {name for call in found.values() for name in call.inputs}
    outputs = (name for call in found.values() for name in call.outputs if name in read and made[name] == 1)
    numbers = {name: number for number, name in enumerate(outputs)}
    for function, call in found.items():
        content = json.loads(str(documents[function]))
        for operand, name in zip(content["kernel"]["operands"], (*call.inputs, *call.outputs), strict=True):
            if name in numbers:
                operand["value"] = numbers[name]
        documents[function] = json.dumps(content)
    return mod.with_attr(KERNELS, documents) if found else mod


def modules_of_others(mod: tvm.IRModule, calls: Calls) -> list[tvm.runtime.Module]:
    """Return the modules of other code generators (``external_mods``) that hold functions which operators call."""
    others = {call.function for call in calls.calls if call.external and not call.packed} - claimed_functions(mod)
    modules = mod.attrs["external_mods"] if mod.attrs and "external_mods" in mod.attrs else ()
    return [module for module in modules if any(module.implements_function(name, True) for name in others)]


def _with_workspaces(mod: tvm.IRModule, calls: Calls) -> list[str]:
    """Return the operators that cuBLASLt and cuDNN compute."""
    known = mod.attrs[KERNELS] if mod.attrs and KERNELS in mod.attrs else {}
    claimed = (call for call in calls.calls if call.function in known)
    return [call.operator for call in claimed if kernel_document(mod, call.function)[0] == NVIDIA.name]
