"""`compile_pipeline`: from a model and a topology to a pipeline that runs batches, in one call."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tvm

from ..errors import InputError
from ..pipeline import PipelinePlan, plan_pipeline, verify
from ..pipeline.execute import BatchResult, PipelineExecutor, StageProgram, emulation_scale
from ..pipeline.simulate import PipelineRun, simulate
from ..pipeline.stage_problem import stage_problem
from ..pipeline.wiring import wire
from ..problem import Problem, Topology
from ..runtime import ScheduledModule
from .attributes import PARAMETERS, get_problem
from .build import model_with_name
from .emit.executor import choose_backend
from .emit.stages import make_stage
from .graph import extract
from .importers import load_model
from .importers.shapes import InputShapes
from .pipelines import schedule_passes


@dataclass(frozen=True)
class CompiledPipeline:
    """A model in stages, ready to run.

    Attributes
    ----------
    problem : Problem
    plan : PipelinePlan
    stages : tuple of ScheduledModule
        One for each stage; its inputs are what earlier stages and the caller give.
    executor : PipelineExecutor
    """

    problem: Problem
    plan: PipelinePlan
    stages: tuple[ScheduledModule, ...]
    executor: PipelineExecutor

    def run(self, batches: Iterable[Any]) -> list[BatchResult]:
        """Run batches, see `PipelineExecutor.stream`; a batch that fails has an error in its result."""
        return self.executor.run(batches)

    def trace(self, batches: Iterable[Any]) -> tuple[list[BatchResult], PipelineRun]:
        """Run batches, and say when each stage and hop worked; `predict` gives the plan's times."""
        return self.executor.trace(batches)

    def predict(self, batches: int = 0) -> PipelineRun:
        """Simulate as many batches."""
        return simulate(self.problem, self.plan, batches)


def compile_pipeline(
    model: Any,
    topology: Topology | str | os.PathLike[str],
    stages: int | Literal["auto"] = "auto",
    partitioner: str = "pipeline-exact",
    options: Mapping[str, Any] | None = None,
    *,
    input_shapes: InputShapes | None = None,
    cost_model: Any = "roofline",
    backend: str | None = None,
    emulate_values: bool = True,
    plan: PipelinePlan | None = None,
    name: str | None = None,
    progress: Any = None,
    **limits: Any,
) -> CompiledPipeline:
    """Import a model, cut it into stages and compile each.

    Parameters
    ----------
    model, topology, input_shapes, cost_model, name
        As for `compile`; one set of shapes.
    stages, partitioner, options, limits
        As for `tvm_sched.pipeline.plan_pipeline`.
    backend : {"cpu", "emulated"}, optional
        Default: ``"cpu"`` where all devices of the topology are CPUs, else ``"emulated"``: stages and transfers take
        the plan's time, slowed down so far that the threads' own time does not matter.
    emulate_values : bool
        Whether emulated stages compute the values, too; otherwise they are zeros.
    plan : PipelinePlan, optional
        Take this plan, made for the same problem.

    Raises
    ------
    TvmSchedError
        `InputError` where what is given is wrong, others where the work fails.
    """
    if backend not in (None, "cpu", "emulated"):
        raise InputError(f"backend is {backend!r}; 'cpu' or 'emulated' is allowed")
    mod = tvm.transform.Sequential(schedule_passes(topology, cost_model=cost_model)[:2])(
        model_with_name(load_model(model, input_shapes, name))
    )
    problem, extraction = get_problem(mod), extract(mod)
    _check_parameters(mod, problem)
    if plan is None:
        plan = plan_pipeline(problem, stages, partitioner, options, progress=progress, **limits)
    verify(problem, plan)
    kind = backend or choose_backend(problem)
    modules = []
    for s, stage in enumerate(plan.stages):
        modules.append(make_stage(mod, extraction, stage_problem(problem, plan, s), stage.device, kind))
    scale = emulation_scale(wire(problem, plan)) if kind == "emulated" else 1.0
    if kind == "emulated":
        for module in modules:
            module.configure(emulate_values=emulate_values, emulation_scale=scale)
    programs = [_program(module) for module in modules]
    executor = PipelineExecutor(problem, plan, programs, kind == "emulated", scale)
    return CompiledPipeline(problem, plan, tuple(modules), executor)


def _check_parameters(mod: tvm.IRModule, problem: Problem) -> None:
    known = mod.attrs.get(PARAMETERS, {})
    for tensor in problem.graph.tensors:
        if tensor.kind == "parameter" and tensor.name not in known:
            raise InputError(f"parameter {tensor.name!r} has no value; bind it before the model is cut into stages")


def _program(module: ScheduledModule) -> StageProgram:
    plan = module.plans()[0]

    def run(inputs: Sequence[Any]) -> Sequence[Any]:
        return module.run(*inputs)

    names = [tuple(spec["name"] for spec in plan[kind]) for kind in ("arguments", "outputs")]
    return StageProgram(names[0], names[1], run)
