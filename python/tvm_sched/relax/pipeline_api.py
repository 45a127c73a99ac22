"""`compile_pipeline`: make a pipeline that runs batches of a model and a topology, in one call."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tvm_frontends.constants import Constants
from tvm_frontends.shapes import InputShapes
from tvm_sched_runtime.pipeline import PipelinePlan
from tvm_sched_runtime.pipeline.compiled_pipeline import CompiledPipeline, assemble
from tvm_sched_runtime.pipeline.pipeline_artifact import new_artifact, write_manifest
from tvm_sched_runtime.problem import Topology

from .api import check_before, model_with_name
from .emit.emit_pipeline import CompiledStage, make_stages
from .emit.executor import names_of_outputs
from .emit.export import export
from .ir.attributes import get_pipeline_plan, get_problem
from .model_loading import load_model
from .options import CompileOptions
from .passes import ToSchedule, schedule_modules
from .problem.operator_graph import extract
from .toolchain.failures import explained


@dataclass(frozen=True)
class ExportablePipeline(CompiledPipeline):
    """A pipeline that was compiled here, and can be exported.

    Examples
    --------
    >>> batches.plan.stages[0].operators, [tensor.name for tensor in batches.problem.graph.tensors]
    (('onednn.matmul_tanh',), ['x', 'w', 'onednn.matmul_tanh:0'])
    """

    compiled: tuple[CompiledStage, ...]
    times_only: bool
    """Whether emulated stages compute no values."""

    def export(self, folder: str | os.PathLike[str]) -> Path:
        """Write the artifact (``docs/formats/pipeline_artifact.md``), which `tvm_sched.pipeline.load` reads.

        The folder is written under another name and moved when it is complete.

        Raises
        ------
        InputError
            Something else has that name, or the folder cannot be written.
        """
        with new_artifact(folder) as target:
            files = [
                export(part.executable, part.parameters, target / f"stage{s}.so")
                for s, part in enumerate(self.compiled)
            ]
            write_manifest(target, self, [[file.name for file in of] for of in files], self.times_only)
        return Path(folder)


def compile_pipeline(
    model: Any,
    topology: CompileOptions | Topology | str | os.PathLike[str],
    stages: int | Literal["auto"] | None = None,
    partitioner: str | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    input_shapes: InputShapes | None = None,
    constants: Constants | None = None,
    times_only: bool = False,
    gpus: Mapping[str, int] | None = None,
    plan: PipelinePlan | None = None,
    name: str | None = None,
    progress: Any = None,
    **settings: Any,
) -> ExportablePipeline:
    """Import a model, cut it into stages and compile each.

    Parameters
    ----------
    model, input_shapes, constants, name
        As for `compile`; one set of shapes.
    topology, stages, partitioner, options, settings
        As in `CompileOptions`; ``topology`` may be `CompileOptions`. Emulated stages and transfers take the plan's time,
        slowed down until the threads' own time does not matter.
    times_only, gpus
        As for `tvm_sched_runtime.pipeline.compiled_pipeline.assemble`.
    plan : PipelinePlan, optional
        Plan of the same problem to use instead of calling the partitioner.

    Raises
    ------
    TvmSchedError
        `InputError` for wrong arguments, other errors if the work fails.

    Examples
    --------
    >>> import numpy
    >>> from tvm_sched.relax import compile_pipeline
    >>> batches = compile_pipeline("model.onnx", "cpu2", 1, input_shapes={"x": (2, 3)}, cost_model="roofline")
    >>> [output.shape for output in batches.run([[numpy.ones((2, 3), "float32")]])[0].value()]
    [(2, 2)]
    """
    if not isinstance(topology, CompileOptions):
        settings["objective"] = "throughput"
    chosen = CompileOptions.of(topology, stages=stages, partitioner=partitioner, options=options, **settings)
    check_before(chosen, "throughput")
    imported = load_model(model, input_shapes, name, constants)
    with explained(f"model {imported.name!r}"):
        (mod,) = schedule_modules([ToSchedule(model_with_name(imported), plan=plan, progress=progress)], chosen)
        problem, plan = get_problem(mod), get_pipeline_plan(mod)
        compiled = tuple(make_stages(mod, chosen.backend, parameters=chosen.parameters))
        names = names_of_outputs(mod, extract(mod).result, problem.graph.outputs)
    ready = assemble(problem, plan, [stage.link() for stage in compiled], times_only, gpus, names)
    return ExportablePipeline(problem, plan, ready.stages, ready.executor, names, compiled, times_only)
