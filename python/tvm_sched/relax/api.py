"""`compile`: make a scheduled executable of a model and a topology, in one call."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, islice, product
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import tvm

from tvm_frontends import ImportedModel
from tvm_frontends.constants import Constants
from tvm_frontends.errors import ModelWarning, first_line
from tvm_frontends.onnx.branches import running_branches
from tvm_frontends.relax_modules import has_open_sizes
from tvm_frontends.shapes import InputShapes, StaticShapes
from tvm_sched_runtime.checks import require_kind, shown
from tvm_sched_runtime.errors import ExecutionError, InfeasibleError, InputError, UnsupportedModelError
from tvm_sched_runtime.problem import Problem, Topology
from tvm_sched_runtime.runtime import ScheduledModule, to_numpy
from tvm_sched_runtime.runtime.virtual_machine import ForkSafeExclusive
from tvm_sched_runtime.schedule import Schedule

from ..cost_model.roofline_model import SlowKernel
from ..progress import Progress, report_to
from ..size_ranges import same_order, schedule_range
from .emit.any_shape import AnyShape, Template, lower_any_shape
from .emit.export import export
from .emit.segments import Segments, has_flow, make_segments
from .ir.attributes import NAME, PARAMETERS, get_compile_target, get_problem, get_schedule, model_name
from .lower.tensor_inputs import tensor_inputs
from .model_loading import OpenModel, load_model, open_model
from .options import DEFAULTS, CompileOptions, check_names
from .passes import (
    ToSchedule,
    compile_modules,
    compile_target,
    decision_passes,
    pass_list,
    problem_passes,
    schedule_modules,
)
from .profiling.measured_choice import compare_with_one_device
from .profiling.paired_runs import Comparison
from .profiling.slow_kernels import slow_kernels
from .targets import check_embeds, read_target
from .toolchain.failures import explained
from .toolchain.linking import load_executable
from .toolchain.nvcc import architectures, check_architectures


@dataclass(frozen=True)
class CompiledModel:
    """A scheduled model.

    Examples
    --------
    >>> import numpy
    >>> compiled.schedule.scheduler, compiled.problem.topology.name
    ('heft', 'cpu2')
    >>> [output.shape for output in compiled.run(numpy.ones((2, 3), "float32"))]
    [(2,), (2,)]
    """

    executable: Any
    """For ``relax.VirtualMachine`` and ``export_library``. If `parameters` is not empty, they must be loaded before a
    run; `run` and `module` do that."""
    problems: tuple[Problem, ...]
    schedules: tuple[Schedule, ...]
    """One for each set of input shapes."""
    parameters: dict[str, Any]
    """Values that are not in the executable; `export` writes them beside it."""
    slow_kernels: tuple[SlowKernel, ...] = ()
    """Generated CPU kernels that are far from their roofline."""
    threads: int | None = None
    """Threads of all CPU devices together in this process."""
    comparisons: tuple[Comparison | None, ...] = ()
    """For each set of input shapes, the schedule measured beside one device, if `compile` was asked to do so."""

    @property
    def problem(self) -> Problem:
        """The problem of the first set of input shapes."""
        return self.problems[0]

    @property
    def schedule(self) -> Schedule:
        """The schedule of the first set of input shapes."""
        return self.schedules[0]

    @cached_property
    def module(self) -> ScheduledModule:
        """The runtime module, with its options, timelines and parameters."""
        module = ScheduledModule(self._linked)
        for name, value in self.parameters.items():
            module.set_parameter(name, value)
        return module

    @cached_property
    def _linked(self) -> Any:
        linked = load_executable(self.executable)
        if self.threads is not None:
            ScheduledModule(linked).set_threads(self.threads)
        return linked

    @cached_property
    def _machine(self) -> ForkSafeExclusive[Any]:
        return ForkSafeExclusive(lambda: tvm.relax.VirtualMachine(self._linked, tvm.cpu()))

    def run(self, *inputs: Any) -> Any:
        """Run once with arrays; return arrays in the structure of ``main``'s result (nested lists for tuples).

        Calls of several threads run one after another, as TVM's virtual machine requires.

        Raises
        ------
        InputError, ExecutionError
            As for `tvm_sched_runtime.runtime.ScheduledModule.run`.
        """
        tensors = self.module.check_inputs(*inputs)
        with self._machine.acquire() as machine:
            try:
                return _arrays(machine["main"](*tensors))
            except Exception as error:
                raise ExecutionError(str(error)) from error

    def export(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write the artifact and return its files, see `tvm_sched.relax.emit.export.export`."""
        return export(self.executable, self.parameters, path)

    def __repr__(self) -> str:
        inside = "; ".join(
            f"{problem!r}, {schedule.scheduler or 'schedule'}"
            for problem, schedule in zip(self.problems, self.schedules, strict=True)
        )
        return f"CompiledModel({inside}; {len(self.parameters)} external parameters)"


@runtime_checkable
class ModelWithPlans(Protocol):
    """A model that determines the plans of its artifact, such as a language model with its weights."""

    name: str
    about: Mapping[str, Any]  # the entry ``generation`` of the artifact's metadata

    def combinations(self, shapes: Any = None, constants: Any = None) -> list[tuple[Any, Any]]:
        """Return the arguments of `import_with` for each plan."""
        ...

    def import_with(self, shapes: Any, constants: Any) -> ImportedModel:
        """Make the module of a plan."""
        ...

    def devices_of(self, shapes: Any) -> Sequence[str]:
        """Return the names of the devices that may compute a plan; none: all."""
        ...

    def homes_of(self, shapes: Any) -> Mapping[str, Sequence[str]]:
        """Return for some parameters and states the devices of the operators that read them."""
        ...


def compile(
    model: Any,
    topology: CompileOptions | Topology | str | os.PathLike[str],
    scheduler: str | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    input_shapes: InputShapes | Sequence[InputShapes] | None = None,
    constants: Constants | None = None,
    schedule: Schedule | None = None,
    name: str | None = None,
    progress: Any = None,
    compare: bool = False,
    **settings: Any,
) -> CompiledModel:
    """Import a model, schedule it for a topology and compile it.

    Parameters
    ----------
    model
        As for `load_model`.
    topology, scheduler, options, settings
        As in `CompileOptions` (``cost_model``, ``backend``, ``measure``, ``streams``, ``parameters``, ``processor``, ...);
        ``topology`` may be `CompileOptions`.
    input_shapes : mapping or sequence of mappings, optional
        Shapes of inputs, and sizes of the model's symbols, by name. A set of sizes in place of one size gives a plan for
        each: ``{"x": ({1, 8}, 3, {224, 320})}`` has four plans, ``{"batch": {1, 8}}`` two, with the same batch in all
        inputs. A sequence gives the plans of all its mappings. ``main`` picks the plan by the shapes of its inputs. Plans
        share equal parameters and kernels.
    constants : mapping, optional
        Values of inputs that are frozen, as for `load_model`.
    schedule : Schedule, optional
        Schedule of the same problem to use instead of calling the scheduler.
    name : str, optional
        Name of the model.
    progress : callable, optional
        Called with the current task, the number of finished parts, and the number of parts.
    compare : bool, optional
        Measure each schedule over several logical devices beside one device
        (`tvm_sched.relax.profiling.measured_choice.compare_with_one_device`), for `CompiledModel.comparisons`. The schedule
        does not depend on it; with ``measure`` it does.

    Raises
    ------
    TvmSchedError
        `InputError` for wrong arguments, other errors if the work fails.

    Examples
    --------
    >>> import numpy
    >>> from tvm_sched.relax import compile
    >>> compiled = compile("model.onnx", options, input_shapes={"x": (2, 3)})
    >>> [output.round(3).tolist() for output in compiled.run(numpy.ones((2, 3), "float32") / 10)]
    [[0.7160000205039978, 0.8339999914169312], [0.7160000205039978, 0.8339999914169312]]
    >>> compiled.export("model.so")
    [PosixPath('model.so')]
    """
    chosen = CompileOptions.of(topology, scheduler=scheduler, options=options, **settings)
    check_before(chosen, "latency")
    shapes: list[Any] = list(input_shapes) if isinstance(input_shapes, (list, tuple)) else [input_shapes]
    if schedule is not None:
        require_kind("schedule", schedule, Schedule, "a Schedule or None")
    if progress is not None and not callable(progress):
        raise InputError(f"progress is {shown(progress)}; a function or None is allowed")
    if not shapes:
        raise InputError("input_shapes is an empty list; give one mapping for each plan, or None")
    report = progress or (lambda *_: None)
    report("reading the model", 0, 0)
    source = model if isinstance(model, ModelWithPlans) else open_model(model, name)
    with report_to(progress), explained(f"model {source.name!r}"):
        about = source.about if isinstance(source, ModelWithPlans) else None
        mods, mod = _compile_source(source, shapes, constants, chosen, schedule, report, about=about, for_export=True)
        executable = tvm.relax.build(mod, get_compile_target(mod).host, relax_pipeline=None)
        measured = mods if compare and chosen.backend in (None, "cpu") else ()
        beside = tuple(compare_with_one_device(each, progress) for each in measured)
    external = {str(key): value.numpy() for key, value in mod.attrs.get(PARAMETERS, {}).items()}
    problems, schedules = tuple(map(get_problem, mods)), tuple(map(get_schedule, mods))
    slow = () if chosen.backend == "cuda" else tuple(dict.fromkeys(k for mod in mods for k in slow_kernels(mod)))
    return CompiledModel(executable, problems, schedules, external, slow, chosen.threads, beside)


def _compile_source(
    source: Any,
    shapes: Sequence[Any],
    constants: Any,
    options: CompileOptions,
    schedule: Schedule | None = None,
    report: Progress = lambda *_: None,
    **emission: Any,
) -> tuple[list[tvm.IRModule], tvm.IRModule]:
    """Import a model with all its sizes, and for any size where it leaves some open; then as `compile_modules`."""
    asked, (shapes, ranges, is_open) = shapes, _open_sizes(source, shapes, constants, options)
    combinations = [each for mapping in shapes for each in source.combinations(mapping, constants)]
    _check_different(combinations)
    template, spare, taken = None, False, list[StaticShapes]()
    if is_open and isinstance(source, OpenModel):
        report("lowering for any size", 0, 0)
        warnings.warn(
            f"{source.where}: it has open dimensions, so it takes any size. Sizes without a plan of their own run with "
            "kernels for every size, which are slower: list those that matter (--shape, input_shapes)",
            ModelWarning,
            stacklevel=2,
        )
        any_shape = _lower_any_shape(source, asked, constants, combinations[0][1], ranges, options)
        spare = not any(asked) and any(map(any_shape.admits, _anchors(any_shape)))
        unmeasured = replace(options, measure=False, variants=False, rows=None, row_parts=1)
        template = partial(_schedule_template, any_shape, source, taken, unmeasured)
        if _only_ranges(asked) and not options.measuring and schedule is None:
            # No size matters more than others, so the largest needs no kernels of its own, nor an import.
            taken += [static for static, _ in combinations]
            combinations = []
    models = _imported(source, combinations, is_open, schedule, report, spare, taken, options.takes_open_sizes)
    later = partial(_segments, source, options) if options.takes_open_sizes else None
    return compile_modules(models, options, template, later, **emission)


def _only_ranges(asked: Sequence[Any]) -> bool:
    """Return whether the caller gave ranges, and no single sizes."""
    sizes = [size for mapping in asked for size in (mapping.values() if isinstance(mapping, Mapping) else (mapping,))]
    return bool(sizes) and all(isinstance(size, range) for size in sizes)


def _segments(source: Any, options: CompileOptions, mod: tvm.IRModule) -> Segments | None:
    """Schedule the segments of a model in which data decide; None if TVM's virtual machine has to run sizes."""
    unmeasured = replace(options, measure=False, variants=False, rows=None, row_parts=1)
    equal = [(size,) for size in _EQUAL_ANCHORS]
    try:
        with explained("segments"):
            return make_segments(
                mod,
                lambda model: _schedule_template(model, source, (), unmeasured, equal),
                lambda model: schedule_modules([ToSchedule(model)], unmeasured)[0],
            )
    except (InputError, UnsupportedModelError) as error:
        if has_flow(mod):
            raise
        warnings.warn(
            f"TVM's virtual machine runs the operators whose sizes data decide, unscheduled: {first_line(error)}",
            ModelWarning,
            stacklevel=2,
        )
        return None


def _imported(
    source: Any,
    combinations: Sequence[tuple[StaticShapes, Any]],
    is_open: bool,
    schedule: Schedule | None,
    report: Progress,
    spare: bool,
    taken: list[StaticShapes],
    segments: bool,
) -> Iterator[ToSchedule]:
    """Import the model with each combination of shapes, when it is needed, and note it in ``taken``.

    ``spare``: whether the shapes are examples, which are left out if they do not fit the model. ``segments``: whether the
    executor can run branches and loops.
    """
    for position, (static, frozen) in enumerate(combinations):
        own = _numbered(report, position, len(combinations))
        own("importing", 0, 0)
        try:
            with running_branches(segments and len(combinations) == 1 and not is_open):
                imported = source.import_with(static, frozen)
        except InputError as error:
            if spare:
                continue
            if not is_open:
                raise
            sizes = ", ".join(f"{name}{list(shape)}" for name, shape in static.items())
            raise InputError(
                f"{error}; tried with {sizes}, which stands for sizes that are not given: give some that fit "
                "(--shape, input_shapes)"
            ) from error
        taken.append(static)
        own("lowering to kernels", 0, 0)
        kept = isinstance(source, ModelWithPlans)
        devices, homes = (source.devices_of(static), source.homes_of(static)) if kept else ((), {})
        fixed = schedule if len(combinations) == 1 else None
        yield ToSchedule(model_with_name(imported), fixed, devices=devices, homes=homes, progress=own)


def pipeline(
    topology: CompileOptions | Topology | str | os.PathLike[str] | None = None,
    scheduler: str | None = None,
    options: Mapping[str, Any] | None = None,
    cost_model: str | None = None,
    backend: str | None = None,
    measure: bool | None = None,
    **settings: Any,
) -> tvm.transform.Pass:
    """Make the pass that turns a Relax module into the module of a scheduled executable.

    Parameters
    ----------
    topology, scheduler, options, cost_model, backend, measure, settings
        As in `CompileOptions`. The current target gives the defaults. Its method's options and its ``measure`` count only
        if no other method or topology is named.

    Examples
    --------
    >>> from tvm_sched.relax import pipeline
    >>> pipeline(options).info.name
    'tvm_sched'
    """
    arguments = {
        "scheduler": scheduler, "options": options, "cost_model": cost_model, "backend": backend, "measure": measure,
        **settings,
    }  # fmt: skip
    check_names(arguments)

    @tvm.transform.module_pass(opt_level=0, name="tvm_sched")
    def run(mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        chosen = _chosen(tvm.target.Target.current(allow_none=True), topology, arguments)
        check_embeds(chosen)
        chosen = replace(chosen, parameters="embed")
        with explained(f"model {model_name(mod)!r}"):
            if chosen.objective != "latency":
                return compile_modules([ToSchedule(mod)], chosen)[1]
            tensors, finish = tensor_inputs(mod)
            if chosen.takes_open_sizes and has_open_sizes(tensors):
                return _compile_source(open_model(tensors, model_name(mod)), [None], None, chosen, finish=finish)[1]
            return compile_modules([ToSchedule(tensors)], chosen, finish=finish)[1]

    return run


def _chosen(current: Any, topology: Any, arguments: Mapping[str, Any]) -> CompileOptions:
    """Return the options of the current target, overridden by the arguments."""
    if isinstance(topology, CompileOptions) or (current is not None and "tvm_sched" not in current.keys and topology):
        return CompileOptions.of(topology, **arguments)
    if current is None:
        return CompileOptions.of(topology or "cpu1", **arguments)
    target_options = read_target(current)
    if arguments.get("scheduler") or arguments.get("partitioner"):
        target_options = replace(target_options, options={})
    if topology is None:
        return CompileOptions.of(target_options, **arguments)
    kept = {name: getattr(target_options, name) for name in DEFAULTS if name != "measure"}
    return CompileOptions.of(topology, **kept | {k: v for k, v in arguments.items() if v is not None})


def make_problem(
    model: Any,
    topology: CompileOptions | Topology | str | os.PathLike[str],
    *,
    input_shapes: InputShapes | None = None,
    constants: Constants | None = None,
    name: str | None = None,
    **settings: Any,
) -> Problem:
    """Make the scheduling problem of a model on a topology; parameters as in `compile`.

    Examples
    --------
    >>> from tvm_sched.relax import make_problem
    >>> problem = make_problem("model.onnx", "v100-server", input_shapes={"x": (2, 3)}, cost_model="roofline")
    >>> problem.graph.operators[0].inputs, len(problem.topology.devices)
    (('x', 'w'), 4)
    """
    chosen = CompileOptions.of(topology, **settings)
    with running_branches(chosen.takes_open_sizes):
        imported = load_model(model, input_shapes, name, constants)
    with explained(f"model {imported.name!r}"):
        passes = problem_passes(replace(chosen, measure=False))
        return get_problem(tvm.transform.Sequential(passes)(model_with_name(imported)))


def run_passes(
    model: Any,
    topology: CompileOptions | Topology | str | os.PathLike[str],
    stop_after: str | None = None,
    *,
    input_shapes: InputShapes | None = None,
    constants: Constants | None = None,
    name: str | None = None,
    progress: Any = None,
    **settings: Any,
) -> tvm.IRModule:
    """Run the compiler's passes on a model up to one of them, to look at the module there.

    Parameters
    ----------
    model, topology, input_shapes, constants, name, progress, settings
        As in `compile`; one set of shapes.
    stop_after : str, optional
        Name of the last pass that runs, such as ``"Place"``, or of a step of `LowerToKernels`, such as ``"FuseOperators"``
        (`tvm_sched.relax.passes.pass_list`). Default: all passes.

    Returns
    -------
    tvm.IRModule
        ``module.script()`` shows it; `tvm_sched.relax.get_problem` and similar functions read its attributes.

    Raises
    ------
    InputError
        No pass of that name runs for these options, or another argument is wrong.

    Examples
    --------
    >>> from tvm_sched.relax import get_schedule
    >>> placed = run_passes("model.onnx", options, "Place", input_shapes={"x": (2, 3)})
    >>> get_schedule(placed).scheduler
    'heft'
    """
    chosen = CompileOptions.of(topology, **settings)
    passes = pass_list(chosen, progress, stop_after)
    with running_branches(chosen.takes_open_sizes):
        imported = load_model(model, input_shapes, name, constants)
    with explained(f"model {imported.name!r}"):
        return tvm.transform.Sequential(passes)(model_with_name(imported))


def check_before(options: CompileOptions, objective: str) -> None:
    """Raise `InputError` for the other objective, a wrong processor, or CUDA without nvcc."""
    compile_target(options)
    if options.objective != objective:
        other = {"latency": "compile", "throughput": "compile_pipeline"}[options.objective]
        raise InputError(f"the options have objective={options.objective!r}; call `tvm_sched.relax.{other}` for it")
    if options.backend == "cuda":
        check_architectures(architectures(device.arch for device in options.topology.devices))


def model_with_name(imported: ImportedModel) -> tvm.IRModule:
    """Return a model's module with its name and the values of its parameters."""
    return imported.with_parameters().with_attr(NAME, imported.name)


def _check_different(combinations: Sequence[tuple[StaticShapes, Any]]) -> None:
    """Raise if two combinations have the same shapes, among which ``main`` cannot choose."""
    seen: set[str] = set()
    for static, _ in combinations:
        inputs = ", ".join(f"{name}: {list(shape)}" for name, shape in static.items())
        if inputs in seen:
            raise InputError(f"two sets of input shapes are the same ({inputs}); `main` picks the plan by its shapes")
        seen.add(inputs)


def _open_sizes(
    source: Any, shapes: Sequence[Any], constants: Any, options: CompileOptions
) -> tuple[list[Any], dict[str, tuple[int, int | None]], bool]:
    """Return the shapes of the plans, the ranges of symbols, and whether the model is to take other sizes, too.

    A range's plan is that of its largest size; what is open gets an example's size.
    """
    ranges: dict[str, tuple[int, int | None]] = {}
    plain: list[Any] = []
    for mapping in shapes:
        pairs = dict(mapping) if isinstance(mapping, Mapping) else {}
        found = {name: sizes for name, sizes in pairs.items() if isinstance(sizes, range)}
        for name, sizes in found.items():
            if not sizes or sizes.step != 1 or sizes.start < 0:
                raise InputError(
                    f"symbol {name!r}: {sizes} is given; a range from 0 or more, ascending by 1, is allowed"
                )
            least, most = ranges.get(name, (sizes[0], sizes[-1]))
            ranges[name] = min(least, sizes[0]), max(most or 0, sizes[-1])
        plain.append({**pairs, **{name: sizes[-1] for name, sizes in found.items()}} if found else mapping)
    free = isinstance(source, OpenModel) and source.source.symbolic is not None
    if ranges and not (options.takes_open_sizes and free):
        why = "on devices other than CPUs" if free else "of models of this kind"
        raise InputError(
            f"--shape: ranges {why} are not supported; list the sizes, such as {next(iter(ranges))}={{1,8}}"
        )
    if not options.takes_open_sizes or not free:
        return plain, ranges, False
    completed = [source.with_examples(mapping, constants) for mapping in plain]
    return [mapping for mapping, _ in completed], ranges, bool(ranges) or any(was_open for _, was_open in completed)


def _lower_any_shape(
    source: OpenModel,
    asked: Sequence[Any],
    constants: Any,
    frozen: Any,
    ranges: Mapping[str, tuple[int, int | None]],
    options: CompileOptions,
) -> AnyShape:
    """Lower a model for any size; ``asked`` are the shapes as the caller gave them."""
    limits = dict(source.source.ranges)
    for name, (least, most) in ranges.items():
        lower, upper = limits.get(name, (0, None))
        low, high = max(least, lower), min((size for size in (upper, most) if size is not None), default=None)
        if high is not None and low > high:
            allowed = f"{lower} or more" if upper is None else f"{lower} to {upper}"
            raise InputError(f"symbol {name!r}: sizes from {least} to {most} are given; the model allows {allowed}")
        limits[name] = low, high
    inputs = tuple(item for item in source.inputs if item.name not in frozen)
    try:
        return lower_any_shape(source.import_symbolic(frozen), inputs, limits, compile_target(options))
    except Exception as error:  # front ends and TVM raise unrelated classes
        reason = f"the model cannot be compiled for any size: {first_line(error)}"
        try:
            for mapping in asked:
                source.combinations({k: v for k, v in (mapping or {}).items() if not isinstance(v, range)}, constants)
        except InputError as refused:
            raise InputError(f"{refused}; {reason}") from error
        raise InputError(f"{source.where}: {reason}; {_LIST_SIZES}") from error


_LIST_SIZES = "list the sizes (--shape, input_shapes; before tvm.compile, relax.transform.BindSymbolicVars)"
_EQUAL_ANCHORS = (16, 4, 1, 12, 60, 840)
_MOST_ANCHORS = 400


def _anchors(model: AnyShape) -> Iterator[tuple[int, ...]]:
    """Return sizes of the symbols at which a template is scheduled if no plan's sizes serve: equal ones first."""
    yield from zip(_EQUAL_ANCHORS)
    yield from islice(product((4, 8, 1, 2, 16, 3), repeat=len(model.symbols())), _MOST_ANCHORS)


def _passes_after_lowering(options: CompileOptions) -> list[tvm.transform.Pass]:
    passes = problem_passes(options)
    return passes[[each.info.name for each in passes].index("tvm_sched.LowerToKernels") + 1 :]


def range_problems(
    model: Any, topology: Any, limits: Mapping[str, tuple[int, int]], constants: Constants | None, **settings: Any
) -> Callable[[Mapping[str, int]], Problem] | None:
    """Return a function of the sizes of a model's symbols that makes its problem, without alternatives.

    All sizes have the kernels of one lowering: a library that takes an operator at one size alone would change the graph.

    Parameters
    ----------
    limits : mapping of str to tuple of int
        Least and largest size of each symbol.
    model, topology, constants, settings
        As in `make_problem`.

    Returns
    -------
    callable or None
        None for devices other than CPUs, and if ``limits`` are not those of all open dimensions.
    """
    chosen = replace(CompileOptions.of(topology, **settings), measure=False, variants=False)
    source = open_model(model)
    sizes = {size for item in source.inputs if item.name not in (constants or {}) for size in item.shape or (None,)}
    is_open = {size for size in sizes if not isinstance(size, int)} == set(limits)
    if not (chosen.takes_open_sizes and is_open and source.source.symbolic is not None):
        return None
    _, frozen = source.combinations({name: high for name, (_, high) in limits.items()}, constants)[0]
    asked = [{name: range(low, high + 1) for name, (low, high) in limits.items()}]
    any_shape = _lower_any_shape(source, asked, constants, frozen, limits, chosen)
    price = tvm.transform.Sequential(_passes_after_lowering(chosen))
    return lambda sizes: get_problem(price(any_shape.bind_symbols(sizes)[0]))


def _schedule_template(
    model: AnyShape,
    source: OpenModel,
    plans: Sequence[StaticShapes],
    options: CompileOptions,
    others: Iterable[tuple[int, ...]] | None = None,
) -> Template:
    """Schedule a model for any size at its anchor, the largest sizes of ``plans``; ``options`` neither measure nor split.

    Smaller sizes (``others``, or `_anchors`) stand in for it if it is not admissible, or if a kernel would then read beyond
    a tensor, such as a table of 12 rows.
    """
    priced = _passes_after_lowering(options)
    schedule = tvm.transform.Sequential([*priced, *decision_passes(options)])
    try:
        ranged = plans and _schedule_anchors(model, tvm.transform.Sequential(priced), schedule, options)
        if ranged:
            return ranged
    except (InputError, InfeasibleError) as error:
        text = f"{source.where}: one schedule is for all sizes: {first_line(error)}"
        warnings.warn(text, ModelWarning, stacklevel=2)
    largest = [max(plans, key=lambda shapes: sum(map(math.prod, shapes.values())))] if plans else []
    tried: Iterable[StaticShapes | tuple[int, ...]] = chain(largest, map(model.repaired, others or _anchors(model)))
    anchors = islice((sizes for sizes in tried if model.admits(sizes)), 1 + len(_EQUAL_ANCHORS))
    refused = [InputError("no sizes that were tried are admissible")]
    for anchor in anchors:
        try:
            bound, functions = model.bind(anchor)
            return Template(model, schedule(bound), functions, schedule)
        except InputError as error:
            refused.append(error)
    raise InputError(f"{source.where}: the model cannot be compiled for any size: {refused[:2][-1]}; {_LIST_SIZES}")


def _schedule_anchors(
    model: AnyShape,
    price: Callable[[tvm.IRModule], tvm.IRModule],
    schedule: Callable[[tvm.IRModule], tvm.IRModule],
    options: CompileOptions,
) -> Template | None:
    """Schedule a model at a few sizes of its ranges, and certify these; None if one schedule is enough, or sizes are open.

    ``price`` makes a module's problem, ``schedule`` also its schedule.

    Raises
    ------
    InputError, InfeasibleError
        As `schedule_range`; or a kernel cannot have one of these sizes.
    """
    names = model.symbols()
    limits = {names[v]: (max(low, 1), high) for v, (low, high) in model.limits().items() if high is not None}
    topology = options.topology
    several = options.anchors > 1 and len(topology.devices) > 1 and not topology.storage
    if not several or len(limits) < len(names) or all(low >= high for low, high in limits.values()):
        return None
    priced: dict[tuple[int, ...], tuple[tvm.IRModule, dict[str, str]]] = {}

    def problem_at(sizes: dict[str, int]) -> Problem:
        bound, functions = model.bind_symbols(sizes)
        priced[tuple(sizes.values())] = price(bound), functions
        return get_problem(priced[tuple(sizes.values())][0])

    found = schedule_range(problem_at, limits, method=options.scheduler, options=options.options, most=options.anchors)
    templates: list[Template] = []
    entries = []
    for anchor, larger in zip(found.anchors, (*found.anchors[1:], None), strict=True):
        shared = larger and same_order(anchor.schedule, larger.schedule)
        if not (larger and shared and all(a <= b for a, b in zip(anchor.sizes, larger.sizes, strict=True))):
            mod, functions = priced[anchor.sizes]
            given = anchor.schedule.replace(problem=get_problem(mod).digest, certificate=None)
            placed = tvm.transform.Sequential(decision_passes(options, schedule=given))(mod)
            sizes = dict(zip(limits, anchor.sizes, strict=True))
            templates.append(Template(model, placed, functions, schedule, sizes))
        entries.append(
            {
                "sizes": list(anchor.sizes), "latency_ns": anchor.latency_ns, "lower_bound_ns": anchor.bound_ns,
            }
        )  # fmt: skip
    symbols = [{"name": name, "low": low, "high": high} for name, (low, high) in limits.items()]
    certified = {"symbols": symbols, "factor": found.factor, "adjusted": found.adjusted, "anchors": entries}
    return replace(templates[0], others=templates[1:], certified=certified)


def _numbered(progress: Any, position: int, count: int) -> Any:
    """Make a progress function that names the current one of several shapes."""
    if count == 1:
        return progress
    return lambda what, done, total: progress(f"shape {position + 1} of {count}: {what}", done, total)


def _arrays(result: Any) -> Any:
    if not hasattr(result, "dtype"):
        return [_arrays(part) for part in result]
    return result if result.device.type == "cuda" else to_numpy(result)
