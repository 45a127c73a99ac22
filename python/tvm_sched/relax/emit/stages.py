"""The runtime modules of a pipeline's stages: one for each, which computes on its device alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm

from ..._library import function as library_function
from ...planning import KernelCall, emit_plan
from ...problem import OpGraph, Problem
from ...runtime import ScheduledModule
from ...runtime.machine import describe
from ...schedulers import solve
from ..attributes import PARAMETERS
from ..export import EMBED_LIMIT
from ..graph import Extraction
from ..kernel_libraries import make_modules
from ..kernels import compile_kernels, host_target
from .executor import claimed_functions, kernel_names


@dataclass(frozen=True)
class StageCalls:
    """The kernels of a stage; arguments and parameters are tensors of its graph."""

    graph: OpGraph
    calls: Sequence[KernelCall]
    arguments: tuple[str, ...]
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class CompiledStage:
    """A stage's executable.

    Attributes
    ----------
    executable : tvm.runtime.Executable
    parameters : dict of str to numpy.ndarray
        Values that it needs and does not hold.
    """

    executable: Any
    parameters: dict[str, Any]

    def link(self) -> ScheduledModule:
        """The stage as loaded code with its parameters: kernels are linked first, which makes another module of it."""
        module = ScheduledModule(self.executable.jit())
        for name, value in self.parameters.items():
            module.set_parameter(name, value)
        return module


def make_stage(mod: tvm.IRModule, extraction: Extraction, problem: Problem, device: str, backend: str) -> CompiledStage:
    """Compile a stage; parameters of more than `EMBED_LIMIT` bytes stay outside.

    Parameters
    ----------
    mod : tvm.IRModule
        The whole model, lowered to kernels.
    extraction : Extraction
        Of that module.
    problem : Problem
        Of the stage, see `tvm_sched.pipeline.stage_problem`.
    device : str
    backend : {"cpu", "emulated"}

    Raises
    ------
    InfeasibleError
        The stage's activations do not fit into its device.
    """
    calls = _calls(extraction, problem.graph)
    functions = kernel_names(mod, calls.calls)
    claimed = claimed_functions(mod)
    kernels = {name: mod[original] for original, name in functions.items() if original not in claimed}
    values = dict(mod.attrs[PARAMETERS]) if PARAMETERS in mod.attrs else {}
    held = {name: values[name] for name in calls.parameters if name in values}
    plan = emit_plan(
        problem,
        solve(problem, "single", {"device": device}),
        calls,
        name=problem.graph.name,
        backend=backend,
        functions=functions,
        values=tuple(held),
    )
    used = {spec["name"]: held[spec["name"]] for spec in plan["parameters"] if spec["name"] in held}
    size = sum(tensor.size for tensor in problem.graph.tensors if tensor.name in used)
    about = {"name": problem.graph.name, **describe(backend, plan["devices"], str(host_target()))}
    embedded = used if size <= EMBED_LIMIT else {}
    module = library_function("tvm_sched.make_module")(json.dumps([plan]), json.dumps(about), embedded)
    if kernels:
        module.import_module(compile_kernels(kernels, host_target()))
    for library in make_modules(mod, functions, len(problem.topology.devices)):
        module.import_module(library)
    external = {} if embedded else {name: value.numpy() for name, value in used.items()}
    return CompiledStage(tvm.runtime.Executable(module), external)


def _calls(extraction: Extraction, graph: OpGraph) -> StageCalls:
    known = {call.operator: call for call in extraction.calls}
    kinds = {tensor.name: tensor.kind for tensor in graph.tensors}
    # A model's parameter without a value is an argument of every call, which a pipeline has not.
    return StageCalls(
        graph,
        [known[operator.name] for operator in graph.operators],
        tuple(name for name, kind in kinds.items() if kind == "input"),
        tuple(name for name, kind in kinds.items() if kind == "parameter"),
    )
