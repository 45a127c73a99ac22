"""`compile_pipeline`: from a model and a topology to a pipeline that runs batches, in one call."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tvm

from ..errors import InputError
from ..pipeline import PipelinePlan, plan_pipeline, verify
from ..pipeline.artifact import new_artifact, write_manifest
from ..pipeline.compiled import CompiledPipeline, assemble
from ..pipeline.stage_problem import stage_problem
from ..problem import Problem, Topology
from .attributes import PARAMETERS, get_problem
from .build import model_with_name
from .emit.executor import choose_backend
from .emit.stages import CompiledStage, make_stage
from .export import export
from .graph import extract
from .importers import load_model
from .importers.shapes import InputShapes
from .pipelines import schedule_passes


@dataclass(frozen=True)
class ExportablePipeline(CompiledPipeline):
    """A pipeline that was compiled here, and can be exported.

    Attributes
    ----------
    compiled : tuple of CompiledStage
    emulate_values : bool
        Whether emulated stages compute the values, too.
    """

    compiled: tuple[CompiledStage, ...]
    emulate_values: bool

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
            write_manifest(made, self, [[file.name for file in of] for of in files], self.emulate_values)
        return Path(folder)


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
) -> ExportablePipeline:
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
    compiled = tuple(
        make_stage(mod, extraction, stage_problem(problem, plan, s), stage.device, kind)
        for s, stage in enumerate(plan.stages)
    )
    ready = assemble(problem, plan, [stage.link() for stage in compiled], emulate_values)
    return ExportablePipeline(problem, plan, ready.stages, ready.executor, compiled, emulate_values)


def _check_parameters(mod: tvm.IRModule, problem: Problem) -> None:
    known = mod.attrs.get(PARAMETERS, {})
    for tensor in problem.graph.tensors:
        if tensor.kind == "parameter" and tensor.name not in known:
            raise InputError(f"parameter {tensor.name!r} has no value; bind it before the model is cut into stages")
