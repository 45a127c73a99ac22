"""The passes from a Relax module to a scheduled executable, and the order in which they run.

Each pass is usable alone in ``tvm.transform.Sequential``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import tvm
from tvm import relax
from tvm.s_tir import meta_schedule

from tvm_sched_runtime.errors import InfeasibleError, InputError, did_you_mean
from tvm_sched_runtime.pipeline import PipelinePlan
from tvm_sched_runtime.schedule import Schedule

from ..cost_model import default_cost_model
from ..cost_model.occupancy_model import BY_LAUNCHES
from ..progress import Progress, report_to
from ..schedulers import get
from ..schedulers.common.milp import ProgramOptions
from ..streams import BEST
from .codegen.apply_schedules import ApplySchedules, open_database
from .codegen.cuda import compile_image
from .codegen.describe_launches import DescribeLaunches
from .codegen.prepare_kernels import PrepareKernels
from .emit.any_shape import Template
from .emit.emit_executor import EmitExecutor
from .emit.emit_pipeline import EmitPipeline
from .emit.executor import same_results
from .emit.segments import Segments
from .emit.shared_values import SharedValues
from .emit.write_vdevices import WriteVDevices
from .ir.attributes import TAIL, SetCompileTarget, get_compile_target, get_problem, get_schedule
from .lower.lower_to_kernels import LowerToKernels, names_of
from .lower.split_tail import SplitTail
from .options import CompileOptions
from .place.partition_pipeline import PartitionPipeline
from .place.place import Place
from .place.restrict_devices import RestrictDevices
from .place.split_by_dominators import SplitByDominators
from .place.streams_and_launches import AllocateStreams, OrderLaunches
from .problem.estimate_latencies import EstimateLatencies
from .profiling.calibration import KernelTimer
from .profiling.measured_choice import MeasureSchedules
from .toolchain.compile_target import CompileTarget
from .toolchain.nvcc import has_nvcc
from .variants.choose_row_parts import ChooseRowParts
from .variants.offer_variants import OfferVariants, pieces_for
from .variants.split_rows import SplitRows

__all__ = [
    "AllocateStreams", "ApplySchedules", "ChooseRowParts", "DescribeLaunches", "EmitExecutor", "EmitPipeline",
    "EstimateLatencies", "LowerToKernels", "MeasureSchedules", "OfferVariants", "OrderLaunches", "PartitionPipeline",
    "Place", "PrepareKernels", "RestrictDevices", "SetCompileTarget", "SplitByDominators", "SplitRows", "SplitTail",
    "ToSchedule", "WriteVDevices",
    "build_functions", "compile_modules", "compile_target", "decision_passes", "emit_passes", "pass_list",
    "problem_passes", "schedule_modules",
]  # fmt: skip


@dataclass(frozen=True)
class ToSchedule:
    """A model with one set of input shapes, and what is decided before the passes run.

    Examples
    --------
    >>> import tvm_frontends
    >>> from tvm_sched.relax.passes import ToSchedule
    >>> ToSchedule(tvm_frontends.load_model("model.onnx", {"x": (2, 3)}).with_parameters(), devices=["cpu1"]).devices
    ['cpu1']
    """

    mod: tvm.IRModule
    schedule: Schedule | None = None
    """A schedule to take instead of calling the scheduler."""
    plan: PipelinePlan | None = None
    """A pipeline plan to take instead of calling the partitioner."""
    devices: Sequence[str] = ()
    """Names of the only devices that may compute the model; none: all."""
    homes: Mapping[str, Collection[str]] = field(default_factory=dict)
    """For some parameters and states, the devices of the operators that read them."""
    progress: Progress | None = None
    """Called with the current task, the number of finished parts, and the number of parts."""


def schedule_modules(models: Iterable[ToSchedule], options: CompileOptions) -> list[tvm.IRModule]:
    """Run the passes before emission on each model; equal values of parameters are held once.

    Examples
    --------
    >>> import tvm_frontends
    >>> from tvm_sched.relax import get_schedule
    >>> from tvm_sched.relax.passes import ToSchedule, schedule_modules
    >>> model = ToSchedule(tvm_frontends.load_model("model.onnx", {"x": (2, 3)}).with_parameters(), devices=["cpu1"])
    >>> [scheduled] = schedule_modules([model], options)
    >>> [placement.device for placement in get_schedule(scheduled).placements]
    ['cpu1']
    """
    values, mods = SharedValues(), list[tvm.IRModule]()
    for model in models:

        def scheduled(homes: Mapping[str, Collection[str]], model: ToSchedule = model) -> tvm.IRModule:
            passes = pass_list(
                options,
                model.progress,
                schedule=model.schedule,
                plan=model.plan,
                devices=model.devices,
                homes=homes,
            )[:-1]
            with report_to(model.progress) if model.progress else nullcontext():
                return tvm.transform.Sequential(passes)(model.mod)

        # Later plans of states compute where the first one keeps parameters and states, so that neither lies twice.
        first = homes_of(mods[0]) if mods and options.states and options.backend == "cuda" else {}
        try:
            mod = scheduled({**first, **model.homes})
        except InfeasibleError:  # it needs more memory beside them
            if not first:
                raise
            mod = scheduled(model.homes)
        mods.append(values.share(mod))
    return mods


def homes_of(mod: tvm.IRModule) -> dict[str, set[str]]:
    """Return for each parameter and state of a scheduled module the devices of the operators that read it."""
    graph, homes = get_problem(mod).graph, dict[str, set[str]]()
    kept = {tensor.name for tensor in graph.tensors if tensor.kind == "parameter"}
    device_of = {placement.operator: placement.device for placement in get_schedule(mod).placements}
    for operator in graph.operators:
        for tensor in kept.intersection(operator.inputs):
            homes.setdefault(tensor, set()).add(device_of[operator.name])
    return homes


def compile_modules(
    models: Iterable[ToSchedule],
    options: CompileOptions,
    template: Callable[[], Template] | None = None,
    segments: Callable[[tvm.IRModule], Segments | None] | None = None,
    finish: Callable[[tvm.IRModule], tvm.IRModule] = lambda mod: mod,
    **emission: Any,
) -> tuple[list[tvm.IRModule], tvm.IRModule]:
    """Run `pass_list` and TVM's build pipeline: the one way to an executable, for `compile`, targets and the command line.

    The models are one model with different input shapes. ``template`` is called when they are scheduled, and makes what runs
    for sizes that no plan takes; its anchor is the only plan if there are no models. ``segments`` schedules the dynamic
    tail of a single model. ``finish`` changes the module that calls the plans. ``emission`` are arguments of `emit_passes`.

    Returns
    -------
    list of tvm.IRModule
        The scheduled modules.
    tvm.IRModule
        What ``tvm.relax.build`` turns into the executable.

    Examples
    --------
    >>> import tvm_frontends
    >>> from tvm_sched.relax.passes import ToSchedule, compile_modules
    >>> model = ToSchedule(tvm_frontends.load_model("model.onnx", {"x": (2, 3)}).with_parameters())
    >>> scheduled, mod = compile_modules([model], options)
    >>> len(scheduled), [module.kind for module in mod.attrs["external_mods"]]
    (1, ['tvm_sched'])
    """
    mods = schedule_modules(models, options)
    open_sizes = template and template()
    if (
        open_sizes
    ):  # a size may make an operator vanish (a reshape to the same shape), so that another tensor is returned
        mods = [mod if same_results(mod, open_sizes.placed) else open_sizes.at(mod) for mod in mods]
        if not mods:
            open_sizes = replace(open_sizes, has_plan=True)
            mods = [open_sizes.largest.placed]
    later = segments(mods[0]) if segments and len(mods) == 1 and TAIL in mods[0].attrs else None
    (emit,) = emit_passes(options, mods[1:], template=open_sizes, segments=later, **emission)
    return mods, build_functions(finish(emit(mods[0])))


def pass_list(
    options: CompileOptions,
    progress: Progress | None = None,
    stop_after: str | None = None,
    *,
    schedule: Schedule | None = None,
    plan: PipelinePlan | None = None,
    devices: Sequence[str] = (),
    homes: Mapping[str, Collection[str]] | None = None,
) -> list[tvm.transform.Pass]:
    """Return the passes that run for these options, in order; the last one emits, with all parameters' values.

    Parameters
    ----------
    progress : callable, optional
        Called with the current task, the number of finished parts, and the number of parts.
    stop_after : str, optional
        Name of the last pass (``"Place"``), or of a step of `LowerToKernels`. Default: all passes. ``"WriteVDevices"``
        stands in place of emission.
    schedule, plan, devices, homes
        As in `ToSchedule`.

    Raises
    ------
    InputError
        No pass of that name runs for these options.

    Examples
    --------
    >>> from tvm_sched.relax.passes import pass_list
    >>> [each.info.name.removeprefix("tvm_sched.") for each in pass_list(options, stop_after="Place")]
    ['SetCompileTarget', 'LowerToKernels', 'PrepareKernels', 'EstimateLatencies', 'Place']
    """
    passes = [
        # What is measured is made of problems without joined parameters; a schedule that exists may have some.
        *problem_passes(options, progress, joinable=schedule is not None or not options.measuring),
        *([RestrictDevices(devices, homes)] if devices or homes else []),
        *decision_passes(options, progress, schedule=schedule, plan=plan),
        *emit_passes(options, parameters="embed"),
    ]
    if stop_after is None:
        return passes
    if stop_after == "WriteVDevices" and options.objective == "latency":
        return [*passes[:-1], WriteVDevices()]
    names = names_of(passes)
    if stop_after in names:
        return passes[: names.index(stop_after) + 1]
    steps = [name for each in passes if isinstance(each, LowerToKernels) for name in names_of(each.steps())]
    if stop_after in steps:
        return problem_passes(options, progress, stop_after)[: names.index("LowerToKernels") + 1]
    hint = did_you_mean(stop_after, [*names, *steps])
    within = f"; within LowerToKernels, {', '.join(steps)}" if steps else ""
    raise InputError(
        f"no pass {stop_after!r} runs for these options{hint}; in order, there run {', '.join(names)}{within}"
    )


def compile_target(options: CompileOptions) -> CompileTarget:
    """Return the target of kernels; raise `InputError` if this machine cannot compile for it.

    Examples
    --------
    >>> from tvm_sched.relax.passes import compile_target
    >>> compile_target(options).precision
    'float32'
    """
    return CompileTarget.of(options.processor, options.threads, options.precision, options.cache)


def offers_variants(options: CompileOptions) -> bool:
    """Whether alternatives are offered: only to a scheduler of several devices, without measuring."""
    several = len(options.topology.devices) > 1
    return options.variants and several and options.objective == "latency" and not options.measuring


def emulates_gpus(options: CompileOptions) -> bool:
    """Whether GPUs are emulated; their kernels are then those that TVM fuses for GPUs, not this CPU's libraries."""
    return options.backend in (None, "emulated") and any(device.kind != "cpu" for device in options.topology.devices)


def problem_passes(
    options: CompileOptions, progress: Progress | None = None, last_step: str | None = None, joinable: bool = True
) -> list[tvm.transform.Pass]:
    """Return the passes up to a scheduling problem; ``last_step`` is the last step of `LowerToKernels` that runs.

    ``joinable``: as in `EstimateLatencies`.

    Examples
    --------
    >>> from tvm_sched.relax.passes import problem_passes
    >>> [each.info.name.removeprefix("tvm_sched.") for each in problem_passes(options)]
    ['SetCompileTarget', 'LowerToKernels', 'PrepareKernels', 'EstimateLatencies']
    """
    if options.row_parts == "auto":
        passes_of = lambda parts: problem_passes(replace(options, row_parts=parts), progress, None, joinable)  # noqa: E731
        return [ChooseRowParts(passes_of, len(options.topology.devices), progress)]
    cost_model = options.cost_model
    if options.measuring and cost_model is None and len(options.topology.devices) == 1:
        cost_model = "roofline"  # one device leaves no choice, and measuring gives all latencies
    elif cost_model is None and options.streams:
        cost_model = default_cost_model(options.topology, together=True)
    compiles = options.backend == "cuda" and options.objective == "latency" and has_nvcc()
    variants = [OfferVariants(pieces_for(options.topology), rows=options.offers_rows)]
    archs = [] if compiles else _archs_to_describe(options, cost_model)
    gpus = sorted({device.arch for device in options.topology.devices if device.arch})
    schedules = open_database(options.tuned) if options.tuned is not None else meta_schedule.Database.current()
    return [
        SetCompileTarget(compile_target(options)),
        LowerToKernels(
            device_kind="cuda" if options.backend == "cuda" else "cpu",
            libraries=() if emulates_gpus(options) else None,
            archs=gpus,
            after_fusion=variants if offers_variants(options) else (),
            before_fusion=[SplitRows(options.row_parts)],
            stop_after=last_step,
        ),
        *([ApplySchedules(schedules, gpus)] if schedules is not None else []),
        *([DescribeLaunches(archs)] if archs else []),
        PrepareKernels(),
        EstimateLatencies(
            options.topology,
            cost_model,
            measure=KernelTimer(progress),
            compile_image=compile_image if compiles else None,
            joinable=joinable,
        ),
    ]


def _archs_to_describe(options: CompileOptions, cost_model: Any) -> list[str]:
    """Return the GPUs for which launches are described; streams, launch orders and some cost models need launches."""
    needed = options.backend == "cuda" or options.streams or options.launch_order or cost_model in BY_LAUNCHES
    return [device.arch for device in options.topology.devices if device.kind == "cuda"] if needed else []


def decision_passes(
    options: CompileOptions,
    progress: Progress | None = None,
    *,
    schedule: Schedule | None = None,
    plan: PipelinePlan | None = None,
) -> list[tvm.transform.Pass]:
    """Return the passes from a problem to a schedule or a pipeline plan; an existing one replaces the method.

    Examples
    --------
    >>> from tvm_sched.relax.passes import decision_passes
    >>> [each.info.name.removeprefix("tvm_sched.") for each in decision_passes(options)]
    ['Place', 'AllocateStreams', 'OrderLaunches']
    """
    if options.objective == "throughput":
        return [
            PartitionPipeline(
                options.stages,
                options.partitioner,
                options.options,
                devices=options.devices,
                latency_ceiling=options.latency_ceiling,
                throughput_floor=options.throughput_floor,
                plan=plan,
                progress=progress,
            )
        ]
    last: list[tvm.transform.Pass] = []
    if options.measuring:
        last = [MeasureSchedules(progress=progress, streams=options.streams, launch_order=options.launch_order)]
    else:
        default = BEST if schedule is None else None  # an existing schedule has streams and an order
        if streams := options.streams or default:
            last.append(AllocateStreams(streams))
        if order := options.launch_order or default:
            last.append(OrderLaunches(order))
    if schedule is not None:
        return [Place(schedule=schedule), *last]
    return [*_splitting(options), Place(options.scheduler, options.options, progress, resident=options.resident), *last]


def emit_passes(
    options: CompileOptions,
    others: Sequence[tvm.IRModule] = (),
    about: Mapping[str, Any] | None = None,
    template: Template | None = None,
    for_export: bool = False,
    parameters: str | None = None,
    segments: Segments | None = None,
) -> list[tvm.transform.Pass]:
    """Return the pass that puts schedules or a pipeline into an executable; arguments as in `EmitExecutor`.

    Without ``parameters`` they are kept as the options say.

    Examples
    --------
    >>> from tvm_sched.relax.passes import emit_passes
    >>> [each.info.name for each in emit_passes(options)]
    ['tvm_sched.EmitExecutor']
    """
    if options.objective == "throughput":
        return [EmitPipeline(options.backend)]
    return [
        EmitExecutor(
            options.backend,
            options.run_options,
            options.states,
            parameters or options.parameters,
            others,
            about,
            template,
            for_export,
            segments,
        )
    ]


def _splitting(options: CompileOptions) -> list[tvm.transform.Pass]:
    """Return `SplitByDominators` with the scheduler's sizes of submodels, if it solves submodels."""
    method = get(options.scheduler).read_options(options.options)
    return [SplitByDominators(method.dominators, method.operators)] if isinstance(method, ProgramOptions) else []


def build_functions(mod: tvm.IRModule) -> tvm.IRModule:
    """Run TVM's build pipeline on the function that calls the executor, and on all other functions.

    Examples
    --------
    >>> from tvm_sched.relax.passes import EmitExecutor, build_functions
    >>> emitted = EmitExecutor()(placed)
    >>> "main" in [variable.name_hint for variable in build_functions(emitted).functions]
    True
    """
    host = get_compile_target(mod).host
    with host:
        mod = relax.get_pipeline("default_build")(mod)
    result = mod.clone()
    for variable, function in mod.functions_items():
        if isinstance(function, tvm.tirx.PrimFunc) and "target" not in function.attrs:
            result.update_func(variable, function.with_attr("target", host))
    return result
