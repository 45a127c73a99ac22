"""`CompiledPipeline`: a plan, a runtime module for each stage, and the executor of batches."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from ..problem import Problem
from ..runtime import ScheduledModule, open_library, scheduled_modules
from ..runtime.tensors import numpy_dtype
from .pipeline_executor import BatchResult, PipelineExecutor, StageProgram, emulation_scale
from .pipeline_plan import PipelinePlan
from .pipeline_simulator import PipelineRun, simulate
from .pipeline_verifier import verify
from .wiring import wire

_MOST_INSTANCES = 3


@dataclass(frozen=True)
class CompiledPipeline:
    """A model in stages, ready to run.

    Examples
    --------
    >>> import numpy
    >>> from tvm_sched.pipeline import load
    >>> [output.shape for output in load("model.pipeline").run([[numpy.ones((2, 3), "float32")]])[0].value()]
    [(2, 2)]
    """

    problem: Problem
    plan: PipelinePlan
    stages: tuple[ScheduledModule, ...]
    """One for each stage; its inputs come from earlier stages and the caller."""
    executor: PipelineExecutor
    output_names: tuple[str, ...]
    """The model's names of what it returns."""

    def arguments(self) -> list[dict[str, Any]]:
        """Return name, shape and dtype of each of the model's inputs."""
        tensors = {tensor.name: tensor for tensor in self.problem.graph.tensors}
        return [
            {"name": name, "shape": tensors[name].shape, "dtype": tensors[name].dtype} for name in self.executor.inputs
        ]

    def outputs(self) -> list[dict[str, Any]]:
        """Return name, shape and dtype of each of the model's outputs; the names are the model's."""
        tensors = {tensor.name: tensor for tensor in self.problem.graph.tensors}
        return [
            {"name": name, "shape": tensors[tensor].shape, "dtype": tensors[tensor].dtype}
            for name, tensor in zip(self.output_names, self.executor.outputs, strict=True)
        ]

    def run(self, batches: Iterable[Any]) -> list[BatchResult]:
        """Run batches, see `PipelineExecutor.stream`; a batch that fails has an error in its result."""
        return self.executor.run(batches)

    def stream(self, batches: Iterable[Any]) -> Iterator[BatchResult]:
        """Run batches as they come and yield their results in order, see `PipelineExecutor.stream`."""
        return self.executor.stream(batches)

    def trace(self, batches: Iterable[Any]) -> tuple[list[BatchResult], PipelineRun]:
        """Run batches; return their results, and when each stage and hop worked. `predict` gives the plan's times."""
        return self.executor.trace(batches)

    def predict(self, batches: int = 0) -> PipelineRun:
        """Simulate a number of batches."""
        return simulate(self.problem, self.plan, batches)


def assemble(
    problem: Problem,
    plan: PipelinePlan,
    stages: Sequence[ScheduledModule],
    times_only: bool = False,
    gpus: Mapping[str, int] | None = None,
    output_names: Sequence[str] = (),
) -> CompiledPipeline:
    """Put the compiled stages of a verified plan together.

    Parameters
    ----------
    stages : sequence of ScheduledModule
        In the plan's order, all compiled for one backend. Emulated stages are slowed down until the threads' own time
        does not matter.
    times_only : bool
        Emulated stages compute no values: batches take their time and have no outputs.
    gpus : mapping of str to int, optional
        Number of the GPU for each of the plan's devices; default: the topology's order. Devices may share a GPU.
    output_names : sequence of str
        The model's names of its outputs; default: ``output_0``, ``output_1``, ...
    """
    backends = {stage.plans()[0]["backend"] for stage in stages}
    emulated = "emulated" in backends
    if times_only and not emulated:
        raise InputError("times_only is for emulated devices; these are real, and take their times by computing")
    scale = emulation_scale(wire(problem, plan)) if emulated else 1.0
    if emulated:
        for stage in stages:
            stage.configure(times_only=times_only, emulation_scale=scale)
    if "cuda" in backends:
        instances = [_configure_gpu(problem, plan, s, stage, gpus) for s, stage in enumerate(stages)]
    else:
        instances = [1] * len(stages)
    make = _times_of if times_only else _program
    programs = [make(stage, count) for stage, count in zip(stages, instances, strict=True)]
    executor = PipelineExecutor(problem, plan, programs, emulated, scale, times_only)
    names = tuple(output_names) or tuple(f"output_{k}" for k in range(len(executor.outputs)))
    return CompiledPipeline(problem, plan, tuple(stages), executor, names)


def _configure_gpu(
    problem: Problem, plan: PipelinePlan, s: int, module: ScheduledModule, gpus: Mapping[str, int] | None
) -> int:
    """Give a stage its GPU; return how many batches it may have at once.

    One batch arrives, one is computed and one leaves; fewer if memory is short. Parameters lie on the GPU once,
    activations once for each batch.
    """
    stage, numbers = plan.stages[s], gpus or problem.topology.device_id
    device = problem.topology.devices[problem.topology.device_id[stage.device]]
    arena = module.plans()[0]["devices"][0]["arena_bytes"]
    sharing = sum(numbers[other.device] == numbers[stage.device] for other in plan.stages)
    free, each = device.memory // sharing - arena, max(arena - stage.parameter_bytes, 1)
    instances = min(_MOST_INSTANCES, 1 + max(free, 0) // each)
    module.configure(devices=[numbers[stage.device]], resident=1.0, instances=instances, in_turn=True)
    return instances


def open_pipeline(source: Any, times_only: bool = False, gpus: Mapping[str, int] | None = None) -> CompiledPipeline:
    """Return the pipeline in an executable that was compiled for throughput.

    Parameters
    ----------
    source
        The result of ``tvm.compile`` for a target with ``objective="throughput"`` or of ``tvm.runtime.load_module``, or
        the path of a file that ``export_library`` wrote.
    times_only, gpus
        As for `assemble`.

    Raises
    ------
    InputError
        ``source`` holds no pipeline.
    """
    if isinstance(source, (str, os.PathLike)):
        source = open_library(Path(source))
    root = source.jit() if hasattr(source, "jit") else source  # an executable's kernels are not linked yet
    stages = [ScheduledModule(module, root) for module in scheduled_modules(root)]
    about = {number: stage for stage in stages if (number := stage.info().get("stage")) is not None}
    documents = about[0].info() if 0 in about else {}
    if "pipeline" not in documents:
        raise InputError(
            "there is no pipeline in it: compile for throughput, with tvm_sched.relax.target(..., objective='throughput') "
            "or a tag such as 'tvm_sched/cpu2/throughput'"
        )
    problem, plan = Problem.from_json(documents["problem"]), PipelinePlan.from_json(documents["pipeline"])
    if sorted(about) != list(range(len(plan.stages))):
        raise InputError(f"the plan has {len(plan.stages)} stages, but modules are there for {sorted(about)}")
    verify(problem, plan)
    return assemble(problem, plan, [about[s] for s in range(len(plan.stages))], times_only, gpus)


def describe_stage(problem: Problem, plan: PipelinePlan, s: int) -> Mapping[str, Any]:
    """Return the metadata of a stage's module for `open_pipeline`; the first stage's holds problem and plan."""
    documents = {"problem": problem.to_json().decode(), "pipeline": plan.to_json().decode()} if s == 0 else {}
    return {"stage": s, **documents}


def _program(module: ScheduledModule, instances: int) -> StageProgram:
    def run(inputs: Sequence[Any]) -> Sequence[Any]:
        return module.run(*inputs)

    return StageProgram(*_names(module), run, instances)


def _times_of(module: ScheduledModule, instances: int) -> StageProgram:
    """Return a stage that takes its time and passes on no values."""
    inputs, outputs = _names(module)
    arguments = module.plans()[0]["arguments"]
    stand_ins = [np.zeros(argument["shape"], numpy_dtype(argument["dtype"])) for argument in arguments]

    def run(_: Sequence[Any]) -> Sequence[Any]:
        module.run_times(*stand_ins)
        return [None] * len(outputs)

    return StageProgram(inputs, outputs, run, instances)


def _names(module: ScheduledModule) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of a stage's inputs and outputs."""
    inputs, outputs = (tuple(spec["name"] for spec in module.plans()[0][kind]) for kind in ("arguments", "outputs"))
    return inputs, outputs
