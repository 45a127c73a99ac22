"""`compile_pipeline`: from a model and a topology to a pipeline that runs batches, in one call."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tvm

from ..errors import InputError
from ..pipeline import PipelinePlan
from ..pipeline.artifact import new_artifact, write_manifest
from ..pipeline.compiled import CompiledPipeline, assemble
from ..problem import Topology
from .attributes import PIPELINE, get_pipeline_plan, get_problem, leave
from .build import model_with_name
from .cuda import find_nvcc
from .emit.stages import CompiledStage, make_stages
from .export import export
from .importers import load_model
from .importers.constants import Constants
from .importers.shapes import InputShapes
from .passes import PartitionPipeline
from .pipelines import problem_passes
from .targets import BACKENDS


@dataclass(frozen=True)
class ExportablePipeline(CompiledPipeline):
    """A pipeline that was compiled here, and can be exported.

    Attributes
    ----------
    compiled : tuple of CompiledStage
    times_only : bool
        Whether emulated stages compute no values.
    """

    compiled: tuple[CompiledStage, ...]
    times_only: bool

    def export(self, folder: str | os.PathLike[str]) -> Path:
        """Write the artifact, see ``docs/formats/pipeline_artifact.md``; `tvm_sched.pipeline.load` reads it.

        It is made beside its place and moved there when it is whole.

        Raises
        ------
        InputError
            There is something else of that name, or it cannot be written.
        """
        with new_artifact(folder) as made:
            files = [
                export(part.executable, part.parameters, made / f"stage{s}.so") for s, part in enumerate(self.compiled)
            ]
            write_manifest(made, self, [[file.name for file in of] for of in files], self.times_only)
        return Path(folder)


def compile_pipeline(
    model: Any,
    topology: Topology | str | os.PathLike[str],
    stages: int | Literal["auto"] = "auto",
    partitioner: str = "pipeline-exact",
    options: Mapping[str, Any] | None = None,
    *,
    input_shapes: InputShapes | None = None,
    constants: Constants | None = None,
    cost_model: Any = None,
    backend: str | None = None,
    times_only: bool = False,
    gpus: Mapping[str, int] | None = None,
    plan: PipelinePlan | None = None,
    name: str | None = None,
    progress: Any = None,
    **limits: Any,
) -> ExportablePipeline:
    """Import a model, cut it into stages and compile each.

    Parameters
    ----------
    model, topology, input_shapes, constants, cost_model, name
        As for `compile`; one set of shapes.
    stages, partitioner, options, limits
        As for `tvm_sched.pipeline.plan_pipeline`.
    backend : {"cpu", "emulated", "cuda"}, optional
        Default: ``"cpu"`` where all devices of the topology are CPUs, else ``"emulated"``: stages and transfers take
        the plan's time, slowed down so far that the threads' own time does not matter. ``"cuda"`` compiles for GPUs.
    times_only, gpus
        As for `tvm_sched.pipeline.compiled.assemble`.
    plan : PipelinePlan, optional
        Take this plan, made for the same problem.

    Raises
    ------
    TvmSchedError
        `InputError` where what is given is wrong, others where the work fails.
    """
    if backend not in (None, *BACKENDS):
        raise InputError(f"backend is {backend!r}; allowed are {', '.join(map(repr, BACKENDS))}")
    if backend == "cuda":
        find_nvcc()  # before the long work
    passes = problem_passes(topology, cost_model, backend)
    if plan is None:
        passes.append(PartitionPipeline(stages, partitioner, options, progress=progress, **limits))
    mod = tvm.transform.Sequential(passes)(model_with_name(load_model(model, input_shapes, name, constants)))
    if plan is not None:
        mod = leave(mod, PIPELINE, plan)
    problem, plan, compiled = get_problem(mod), get_pipeline_plan(mod), tuple(make_stages(mod, backend))
    ready = assemble(problem, plan, [stage.link() for stage in compiled], times_only, gpus)
    return ExportablePipeline(problem, plan, ready.stages, ready.executor, compiled, times_only)
