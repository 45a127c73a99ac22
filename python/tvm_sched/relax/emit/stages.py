"""The runtime modules of a pipeline's stages: one for each, which computes on its device alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm

from ...planning import KernelCall
from ...problem import OpGraph, Problem
from ...runtime import ScheduledModule
from ...schedulers import solve
from ..graph import Extraction
from .runnable import link_kernels, make_runnable


@dataclass(frozen=True)
class StageCalls:
    """The kernels of a stage; arguments and parameters are tensors of its graph."""

    graph: OpGraph
    calls: Sequence[KernelCall]
    arguments: tuple[str, ...]
    parameters: tuple[str, ...]


def make_stage(
    mod: tvm.IRModule, extraction: Extraction, problem: Problem, device: str, backend: str
) -> ScheduledModule:
    """Compile a stage.

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
    return make_runnable(mod, calls, problem, schedule, backend, link_kernels(mod, calls))


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
