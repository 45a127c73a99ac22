"""EmitPipeline: each stage of a plan becomes a runtime module, which computes on the stage's device only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.pipeline import verify
from tvm_sched_runtime.pipeline.compiled_pipeline import describe_stage
from tvm_sched_runtime.problem import OpGraph, Problem
from tvm_sched_runtime.runtime import ScheduledModule

from ...execution_plan import KernelCall
from ...pipeline.stage_problem import stage_problem
from ...schedulers import solve
from ..ir.attributes import PARAMETERS, get_pipeline_plan, get_problem
from ..ir.runtime_calls import emit_call, emit_copy
from ..lower.dynamic_tail import refuse_tail
from ..problem.operator_graph import Extraction, extract
from ..toolchain.linking import load_executable
from .emit_executor import attach_executor
from .executor import ENTRY, check_runs_on_gpus, default_backend, element, leaves, open_type, rebuild
from .export import EMBED_LIMIT
from .runnable import compile_calls, make_plan_module


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.EmitPipeline")
class EmitPipeline:
    """Compile the stages of ``tvm_sched.pipeline`` and put their modules into the attribute ``external_mods``.

    ``main`` takes one batch through all stages, one after the other. `tvm_sched.pipeline.open_pipeline` finds the stages in
    the executable and runs many batches through them at once. Run TVM's default build pipeline after this pass.

    Parameters
    ----------
    backend : str, optional
        As in `CompileOptions`.

    Examples
    --------
    >>> from tvm_sched.relax.passes import EmitPipeline, EstimateLatencies, PartitionPipeline
    >>> cut = PartitionPipeline(stages=1)(EstimateLatencies("cpu2", "roofline")(lowered))
    >>> [module.kind for module in EmitPipeline()(cut).attrs["external_mods"]]
    ['tvm_sched']
    """

    def __init__(self, backend: str | None = None) -> None:
        self.backend = backend

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        stages = [stage.module for stage in make_stages(mod, self.backend, together=True)]
        return attach_executor(mod, stages, pipeline_main(mod, stages))


@dataclass(frozen=True)
class StageCalls:
    """The kernels of a stage; arguments and parameters are tensors of its graph."""

    graph: OpGraph
    calls: Sequence[KernelCall]
    arguments: tuple[str, ...]
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class CompiledStage:
    """A stage, compiled."""

    module: tvm.runtime.Module  # kernels of different stages have different names, so one library can link all stages
    parameters: dict[str, Any]  # arrays that the module needs but does not hold

    @property
    def executable(self) -> tvm.runtime.Executable:
        """The executable of this stage alone, for export."""
        return tvm.runtime.Executable(self.module)

    def link(self) -> ScheduledModule:
        """Load the stage's code and set its parameters."""
        module = ScheduledModule(load_executable(self.executable))
        for name, value in self.parameters.items():
            module.set_parameter(name, value)
        return module


def make_stages(
    mod: tvm.IRModule, backend: str | None = None, together: bool = False, parameters: str = "auto"
) -> list[CompiledStage]:
    """Compile the stages of a module's pipeline plan.

    Parameters
    ----------
    mod : tvm.IRModule
        The whole model, lowered to kernels, with problem and plan in its attributes.
    backend : str, optional
        As in `CompileOptions`.
    together : bool
        Whether all stages go into one executable. Then each holds its parameters' values, and the metadata hold what
        `tvm_sched.pipeline.open_pipeline` needs.
    parameters : {"auto", "embed", "external"}
        Where the values go if stages are separate: into the stage (``"auto"``: up to `EMBED_LIMIT` bytes), or beside it.

    Raises
    ------
    InputError
        A parameter has no value or is a result of the model.
    InfeasibleError
        A stage's activations do not fit into its device.
    """
    refuse_tail([mod], "a pipeline")
    problem, plan, extraction = get_problem(mod), get_pipeline_plan(mod), extract(mod)
    verify(problem, plan)
    _check_parameters(mod, problem)
    kind = backend or default_backend(problem)
    if kind == "cuda":
        check_runs_on_gpus(mod, problem, extraction)
    compiled, limit = [], None if together else {"auto": EMBED_LIMIT, "embed": None, "external": 0}[parameters]
    for s, stage in enumerate(plan.stages):
        part = stage_problem(problem, plan, s, apart=kind == "cuda")
        about = describe_stage(problem, plan, s) if together else {}
        compiled.append(_compile_stage(mod, extraction, part, stage.device, kind, s, about, limit))
    return compiled


def pipeline_main(mod: tvm.IRModule, stages: Sequence[tvm.runtime.Module]) -> relax.Function:
    """Make ``main``, which takes one batch through the stages, one after the other."""
    extraction, held = extract(mod), set(mod.attrs[PARAMETERS]) if PARAMETERS in mod.attrs else set()
    kept = [variable for variable in mod["main"].params if variable.name not in held]
    plans = [json.loads(stage["plans"]())[0] for stage in stages]
    read = {spec["name"] for plan in plans for spec in plan["arguments"]}
    # No stage checks an argument that is only returned.
    unread = {variable for name, (variable, _) in extraction.arguments.items() if name not in read}
    new = {v: relax.Var(v.name, v.ty if v in unread else open_type(v.ty)) for v in kept}
    builder = relax.BlockBuilder()
    with builder.function("main", list(new.values())):
        values = {
            name: element(builder, new[variable], path) for name, (variable, path) in extraction.arguments.items()
        }
        for plan in plans:
            types = [relax.TensorType(spec["shape"], spec["dtype"]) for spec in plan["outputs"]]
            if types:  # else nothing reads its results
                arguments = [values[spec["name"]] for spec in plan["arguments"]]
                results = emit_call(builder, f"{ENTRY}:{plan['name']}", arguments, types)
                values.update((spec["name"], value) for spec, value in zip(plan["outputs"], results, strict=True))
        taken = set(extraction.arguments)
        results = []
        for name in leaves(extraction.result):
            results.append(emit_copy(builder, values[name]) if name in taken else values[name])
            taken.add(name)
        builder.emit_func_output(rebuild(extraction.result, iter(results)))
    return builder.get()["main"].with_attr("num_input", len(kept))


def _check_parameters(mod: tvm.IRModule, problem: Problem) -> None:
    known = mod.attrs.get(PARAMETERS, {})
    for tensor in problem.graph.tensors:
        if tensor.kind != "parameter":
            continue
        if tensor.name not in known:
            raise InputError(f"parameter {tensor.name!r} has no value; bind it before the model is cut into stages")
        if tensor.name in problem.graph.outputs:
            raise InputError(f"the model returns its parameter {tensor.name!r}, which no stage of a pipeline sends")


def _compile_stage(
    mod: tvm.IRModule,
    extraction: Extraction,
    problem: Problem,
    device: str,
    backend: str,
    number: int,
    about: Mapping[str, Any],
    embed_limit: int | None,
) -> CompiledStage:
    """Compile stage ``number``; ``about`` is its metadata in an executable of several stages."""
    calls, suffix = _calls(extraction, problem.graph), f"__stage{number}"
    module, parameters = make_plan_module(
        mod,
        calls,
        problem,
        solve(problem, method="single", options={"device": device}),
        backend,
        compile_calls(mod, calls, problem.topology, backend, suffix),
        suffix=suffix,
        about=about,
        embed_limit=embed_limit,
    )
    return CompiledStage(module, parameters)


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
