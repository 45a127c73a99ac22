"""The runtime modules of a pipeline's stages: one for each, which computes on its device alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm

from ...planning import KernelCall
from ...problem import OpGraph, Problem
from ...runtime import ScheduledModule
from ...schedulers import solve
from ..export import EMBED_LIMIT
from ..graph import Extraction
from .runnable import compile_calls, make_plan_module


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
    schedule = solve(problem, "single", {"device": device})
    kernels = compile_calls(mod, calls)
    module, external = make_plan_module(mod, calls, problem, schedule, backend, kernels, embed_limit=EMBED_LIMIT)
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
