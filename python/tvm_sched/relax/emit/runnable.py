"""A schedule as a runtime module that runs in this process, without the way through an executable."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import tvm

from ..._library import function as library_function
from ...planning import Calls, emit_plan
from ...problem import Problem
from ...runtime import ScheduledModule
from ...schedule import Schedule
from ..attributes import PARAMETERS
from ..kernel_libraries import make_modules
from ..kernels import compile_kernels, host_target
from .executor import claimed_functions, function_cores, kernel_names


def link_kernels(mod: tvm.IRModule, calls: Calls) -> tvm.runtime.Module | None:
    """TVM's kernels of some calls, compiled and linked; None where kernel libraries compute all of them."""
    claimed = claimed_functions(mod)
    functions = kernel_names(mod, calls.calls)
    kernels = {name: mod[original] for original, name in functions.items() if original not in claimed}
    return tvm.runtime.Executable(compile_kernels(kernels, host_target())).jit() if kernels else None


def make_runnable(
    mod: tvm.IRModule,
    calls: Calls,
    problem: Problem,
    schedule: Schedule,
    backend: str,
    kernels: tvm.runtime.Module | None,
    cores: Mapping[str, tuple[int, int]] | None = None,
) -> ScheduledModule:
    """The module that executes one schedule.

    Parameters
    ----------
    mod : tvm.IRModule
        The model, lowered to kernels.
    calls : Calls
        The kernels that are called; their graph is the problem's.
    problem, schedule
    backend : {"cpu", "emulated"}
    kernels : tvm.runtime.Module or None
        What `link_kernels` gives; several schedules of the same calls may share it.
    cores : mapping of str to (int, int), optional
        Share of the machine's cores of each function; default: by the schedule.
    """
    functions = kernel_names(mod, calls.calls)
    values = dict(mod.attrs[PARAMETERS]) if PARAMETERS in mod.attrs else {}
    held = {name: values[name] for name in calls.parameters if name in values}
    plan = emit_plan(
        problem, schedule, calls, name=problem.graph.name, backend=backend, functions=functions, values=tuple(held)
    )
    used = {spec["name"] for spec in plan["parameters"]}
    module: Any = library_function("tvm_sched.make_module")(
        json.dumps([plan]),
        json.dumps({"name": problem.graph.name}),
        {name: value for name, value in held.items() if name in used},
    )
    if kernels is not None:
        module.import_module(kernels)
    for library in make_modules(mod, functions, cores or function_cores(calls.calls, problem, schedule)):
        module.import_module(library)
    return ScheduledModule(module)
