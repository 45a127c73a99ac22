"""A pipeline that is ready to run: its plan, a runtime module for each stage, and the executor of batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..problem import Problem
from ..runtime import ScheduledModule
from .execute import BatchResult, PipelineExecutor, StageProgram, emulation_scale
from .plan import PipelinePlan
from .simulate import PipelineRun, simulate
from .wiring import wire


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


def assemble(
    problem: Problem, plan: PipelinePlan, stages: Sequence[ScheduledModule], emulate_values: bool = True
) -> CompiledPipeline:
    """Put the compiled stages of a verified plan together.

    Parameters
    ----------
    stages : sequence of ScheduledModule
        In the plan's order, all compiled for one backend. Emulated ones are slowed down so far that the threads' own
        time does not matter.
    emulate_values : bool
        Whether emulated stages compute the values, too; otherwise they are zeros.
    """
    emulated = any(stage.plans()[0]["backend"] == "emulated" for stage in stages)
    scale = emulation_scale(wire(problem, plan)) if emulated else 1.0
    if emulated:
        for stage in stages:
            stage.configure(emulate_values=emulate_values, emulation_scale=scale)
    executor = PipelineExecutor(problem, plan, [_program(stage) for stage in stages], emulated, scale)
    return CompiledPipeline(problem, plan, tuple(stages), executor)


def _program(module: ScheduledModule) -> StageProgram:
    plan = module.plans()[0]

    def run(inputs: Sequence[Any]) -> Sequence[Any]:
        return module.run(*inputs)

    names = [tuple(spec["name"] for spec in plan[kind]) for kind in ("arguments", "outputs")]
    return StageProgram(names[0], names[1], run)
