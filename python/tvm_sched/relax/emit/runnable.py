"""Make a runtime module of one schedule, without ``main`` and the other parts of an executable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import tvm

from tvm_sched_runtime.problem import Problem, Topology
from tvm_sched_runtime.runtime import ScheduledModule
from tvm_sched_runtime.schedule import Schedule

from ...execution_plan import Calls
from ..codegen.cpu.kernel_objects import load_kernels
from ..codegen.cpu.kernels import compile_kernels
from ..ir.attributes import PARAMETERS, get_compile_target
from ..ir.kernel_table import kernel_names
from ..lower.kernel_libraries import claimed_functions
from .backend_kernels import Compiler, compile_for, description
from .runtime_module import Shares, lower, make_runtime_module


def compile_calls(
    mod: tvm.IRModule,
    calls: Calls,
    topology: Topology,
    backend: str = "cpu",
    suffix: str = "",
    compiler: Compiler = compile_kernels,
) -> list[tvm.runtime.Module]:
    """Compile TVM's kernels of some calls; none where kernel libraries compute all of them.

    ``suffix``: appended to the kernels' names, to tell them from those of other modules.
    """
    claimed = claimed_functions(mod)
    functions = kernel_names(calls.calls, claimed, suffix)
    kernels = {name: mod[original] for original, name in functions.items() if original not in claimed}
    return compile_for(backend, kernels, topology, get_compile_target(mod).hosts, compiler)


def link_calls(mod: tvm.IRModule, calls: Calls, topology: Topology) -> list[tvm.runtime.Module]:
    """Compile as `compile_calls` and load the code, which several runnable modules of the same calls may share."""
    return compile_calls(mod, calls, topology, compiler=partial(load_kernels, cache=get_compile_target(mod).cache))


def make_plan_module(
    mod: tvm.IRModule,
    calls: Calls,
    problem: Problem,
    schedule: Schedule,
    backend: str,
    kernels: Sequence[tvm.runtime.Module],
    cores: Shares | None = None,
    *,
    suffix: str = "",
    about: Mapping[str, Any] | None = None,
    embed_limit: int | None = None,
    states: Mapping[str, str] | None = None,
) -> tuple[tvm.runtime.Module, dict[str, Any]]:
    """Make the module that executes one schedule; return it with the values of parameters that it does not hold.

    Parameters
    ----------
    mod, calls, problem, schedule, backend, cores
        As for `lower`.
    kernels : sequence of tvm.runtime.Module
        TVM's kernels, compiled (`compile_calls`) or linked.
    suffix : str
        Suffix of the kernels' names.
    about : mapping, optional
        Metadata besides name and machine.
    embed_limit : int, optional
        Values of more bytes than this in all stay outside. Default: all are embedded.
    states : mapping of str to str, optional
        As for `lower`.
    """
    functions = kernel_names(calls.calls, claimed_functions(mod), suffix)
    values = dict(mod.attrs[PARAMETERS]) if PARAMETERS in mod.attrs else {}
    held = {name: values[name] for name in calls.parameters if name in values}
    name = problem.graph.name
    plan, libraries = lower(
        mod,
        calls,
        problem,
        schedule,
        functions,
        name=name,
        backend=backend,
        values=tuple(held),
        cores=cores,
        states=states,
    )
    used = {spec["name"]: held[spec["name"]] for spec in plan["parameters"] if spec["name"] in held}
    size = sum(tensor.size for tensor in problem.graph.tensors if tensor.name in used)
    targets = get_compile_target(mod).hosts
    metadata = {"name": name, **description(backend, plan["devices"], targets, problem.topology), **(about or {})}
    embedded = used if embed_limit is None or size <= embed_limit else {}
    module = make_runtime_module([plan], metadata, embedded, [*kernels, *libraries])
    return module, {} if embedded else {key: value.numpy() for key, value in used.items()}


def make_runnable(
    mod: tvm.IRModule,
    calls: Calls,
    problem: Problem,
    schedule: Schedule,
    kernels: Sequence[tvm.runtime.Module],
    cores: Shares | None = None,
) -> ScheduledModule:
    """Make the module of one schedule for this machine's cores, with all values; ``kernels`` are linked (`link_calls`).

    Inputs that kernels update in place are states.
    """
    states = {call.inputs[k]: call.outputs[output] for call in calls.calls for output, k in call.in_place.items()}
    module = ScheduledModule(make_plan_module(mod, calls, problem, schedule, "cpu", kernels, cores, states=states)[0])
    if (threads := get_compile_target(mod).threads) is not None:
        module.set_threads(threads)
    return module
