"""The runtime module that executes plans, and the function ``main`` that calls it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import tvm
from tvm import relax

from tvm_sched_runtime.core_library import function as library_function
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import Problem
from tvm_sched_runtime.runtime.machine import EMULATED, EmulationWarning
from tvm_sched_runtime.schedule import Schedule
from tvm_sched_runtime.schedule.verifier import verify

from ...cost_model.roofline_model import memory_ns
from ...cost_model.uncertainty import latency_interval
from ...execution_plan import check_states, output_tensors
from ...streams import core_shares
from ..codegen.cpu.kernels import compile_kernels
from ..ir.attributes import OUTPUT_NAMES, PARAMETERS, TAIL, get_compile_target, get_problem, get_schedule
from ..ir.kernel_table import KernelTable, kernel_names
from ..ir.runtime_calls import emit_call
from ..lower.dynamic_tail import ENTRY as TAIL_ENTRY
from ..lower.dynamic_tail import refuse_tail, tail_operators
from ..lower.kernel_libraries import claimed_functions
from ..problem.operator_graph import Extraction, extract
from .any_shape import Template
from .backend_kernels import Compiler, compile_for, description
from .pack_parameters import pack_parameters
from .runtime_module import lower, make_runtime_module
from .segments import Branch, Loop, Part, Segment, Segments, Size
from .shared_values import same_bits

ENTRY = "tvm_sched.main"
"""Name under which the virtual machine finds the module's main function, which returns the plan's outputs."""
TEMPLATE = "any"
"""Suffix of the plan template's name; further templates have a number behind it."""
RESULTS = "tvm_sched.results"
"""Name of the function that returns the model's results in their order, each in memory of its own."""


@dataclass(frozen=True)
class Variant:
    """A scheduled module for one set of input shapes, with its parts; ``name`` is the plan's name."""

    name: str
    mod: tvm.IRModule
    extraction: Extraction
    problem: Problem
    schedule: Schedule
    states: Mapping[str, str]

    @property
    def arguments(self) -> list[str]:
        """Inputs that the caller passes."""
        return [name for name in self.extraction.arguments if name not in self.states]

    @property
    def outputs(self) -> list[str]:
        """Tensors that a run computes for its caller."""
        return output_tensors(self.extraction, self.states)

    @property
    def result(self) -> Any:
        """The results of ``main``, as names of tensors in nested tuples, without states."""
        return _without_names(self.extraction.result, set(self.states.values()))


@dataclass(frozen=True)
class Executor:
    """The runtime module of an executable, with the function that calls it."""

    module: tvm.runtime.Module  # of kind ``tvm_sched``, imports the kernels; not called if nothing is left to compute
    main: relax.Function  # takes the inputs and the parameters without values
    parameters: dict[str, Any]  # tensors that the module needs but does not hold; empty if they are embedded
    plans: list[dict[str, Any]]  # as in docs/formats/plan.md


def make_executor(
    mods: Sequence[tvm.IRModule],
    *,
    backend: str | None = None,
    embed: bool = True,
    run_options: Mapping[str, Any] | None = None,
    compiler: Compiler = compile_kernels,
    states: Mapping[str, int] | None = None,
    about: Mapping[str, Any] | None = None,
    template: Template | None = None,
    segments: Segments | None = None,
) -> Executor:
    """Emit the plans of one or more scheduled modules, which are one model with different input shapes.

    Parameters
    ----------
    mods : sequence of tvm.IRModule
        Each with problem and schedule in its attributes.
    backend : str, optional
        As in `CompileOptions`.
    embed : bool
        Whether the module holds the values of the parameters.
    run_options : mapping, optional
        Initial settings, as for `tvm_sched_runtime.runtime.ScheduledModule.configure`.
    compiler : callable
        Compiles the CPU's kernels, as for `compile_for`.
    states : mapping of str to int, optional
        Inputs that the executor keeps from run to run, each with the position of the result that replaces it.
    about : mapping, optional
        The entry ``generation`` of the metadata (``docs/formats/language_model.md``).
    template : Template, optional
        The model for sizes that no plan takes.
    segments : Segments, optional
        What follows the only module, in place of its dynamic tail; each with a template.
    """
    library_function("tvm_sched.make_module")  # fail before the long work if the library is missing
    if len(mods) > 1:
        refuse_tail(mods, "an artifact for several input shapes")
    if states:
        refuse_tail(mods, "a model with states")
    variants = [_variant(mod, k, len(mods), states or {}) for k, mod in enumerate(mods)]
    backend = backend or default_backend(variants[0].problem)
    if backend == "cpu" and len(variants) == 1 and variants[0].problem.topology.storage:
        variants = [_packed(variants[0])]
    if backend != "cpu":
        refuse_tail(mods, f"the backend {backend!r}")
    static = len(variants)
    templates = [] if template is None else [template, *template.others]
    for k, each in enumerate(templates):
        name = f"{variants[0].extraction.graph.name}#{TEMPLATE}{k + 1 if k else ''}"
        variants.append(replace(_variant(each.placed, 0, 1, {}), name=name))
    _check_alike(variants)
    first_plans = len(variants)
    later_segments = segments.segments() if segments else []
    for number, segment in enumerate(later_segments, 1):
        verify(get_problem(segment.placed), get_schedule(segment.placed))
        later = _variant(segment.placed, 0, 1, {})
        variants.append(replace(later, name=f"{variants[0].extraction.graph.name}#segment{number}"))
    places = _Places(segments) if segments is not None else None
    if backend == "cuda":
        for variant in variants:
            check_runs_on_gpus(variant.mod, variant.problem, variant.extraction)
    plans: list[dict[str, Any]] = []
    table = KernelTable()
    parameters: dict[str, Any] = {}
    libraries: list[tvm.runtime.Module] = []
    for position, variant in enumerate(variants):
        # A linker reads the kernels' names: nothing of the model's own name may be in them.
        which = variant.name.removeprefix(variants[0].extraction.graph.name).removeprefix("#")
        suffix = f"__{which}" if which else ""
        claimed = claimed_functions(variant.mod)
        functions = kernel_names(variant.extraction.calls, claimed, suffix)
        part = later_segments[position - first_plans] if position >= first_plans else None
        open_sizes = part.template if part else templates[position - static] if position >= static else None
        own = template.largest if template is not None and template.has_plan and position < static else None
        if own is not None:
            functions |= own.add_kernels(table, functions)
        elif open_sizes is None:
            functions = table.add(variant.mod, functions, claimed)
        else:
            functions |= open_sizes.add_kernels(table, functions)
        values = dict(variant.mod.attrs[PARAMETERS]) if PARAMETERS in variant.mod.attrs else {}
        plan, called = lower(
            variant.mod,
            variant.extraction,
            variant.problem,
            variant.schedule,
            functions,
            name=variant.name,
            backend=backend,
            values=tuple(values),
            states=variant.states,
        )
        libraries += called
        if open_sizes is not None:
            plan = open_sizes.model.template(plan, variant.extraction, open_sizes.anchor)
        elif own is not None:
            plan = own.model.plan_with_kernels(plan, variant.extraction)
        _resize_parameters(plan, values)
        _rename_parameters(plan, values, parameters)
        if places is not None:
            places.add(plan, _results(variant, plan), part)
        plans.append(plan)
    main = _main_function(variants[:first_plans], template is not None, segments)
    targets = get_compile_target(variants[0].mod).hosts
    described = _metadata(variants[:static], plans[:static], targets, segments is not None)
    if segments is not None and places is not None:
        described["plans"][0]["results"] = [{"value": places.of[leaf]} for leaf in leaves(segments.results)]
        described["program"] = {"steps": places.program(segments.parts)}
        described["segments"] = [
            {"name": variant.name, "operators": len(variant.problem.graph.operators)}
            for variant in variants[first_plans:]
        ]
    if template is not None and template.certified:
        described["range"] = dict(template.certified)
    if about is not None:
        described["generation"] = dict(about)
    if run_options:
        described["run"] = dict(run_options)
    compiled = compile_for(backend, table.kernels, variants[0].problem.topology, targets, compiler)
    module = make_runtime_module(plans, described, parameters if embed else {}, [*compiled, *libraries])
    return Executor(module, main, {} if embed else parameters, plans)


@dataclass
class _Places:
    """Where the values of a call are (``docs/formats/plan.md``): its arguments, then what is computed."""

    segments: Segments
    of: dict[relax.Var, int] = field(default_factory=dict)
    runs: dict[int, dict[str, Any]] = field(default_factory=dict)  # by identity of a segment: its step of the program
    count: int = 0

    def add(self, plan: dict[str, Any], results: Sequence[Mapping[str, int]], part: Segment | None) -> None:
        """Note the outputs of a segment; a later one's plan gets what it takes. ``part`` is None for the first."""
        if part is None:
            taken, variables = list(range(len(plan["arguments"]))), self.segments.arguments
            self.count = len(taken)
        else:
            sizes = [each if isinstance(each, Size) else None for each in part.takes]
            taken = [self.of[size.tensor if size else each] for size, each in zip(sizes, part.takes, strict=True)]
            plan["takes"] = [
                {"value": value, **(size.place() if size else {})} for value, size in zip(taken, sizes, strict=True)
            ]
            variables = part.results
        outputs = [self._new() for _ in plan["outputs"]]
        if part is None:
            self._make_places(self.segments.parts)
        else:
            self.runs[id(part)] = {"run": plan["name"], "to": outputs}
        for variable, place in zip(variables, results, strict=True):
            self.of[variable] = outputs[place["output"]] if "output" in place else taken[place["argument"]]

    def _new(self) -> int:
        self.count += 1
        return self.count - 1

    def _make_places(self, parts: Sequence[Part]) -> None:
        """Give the results of branches and loops, and what the iterations find, their places."""
        for part in parts:
            if isinstance(part, Segment):
                continue
            new = (part.iteration, *part.carried, *part.collected) if isinstance(part, Loop) else part.results
            self.of |= {variable: self._new() for variable in new}
            if isinstance(part, Loop):
                self.of |= {result: self.of[carried] for result, carried in part.finals.items()}
            for block in part.blocks:
                self._make_places(block.parts)

    def program(self, parts: Sequence[Part]) -> list[dict[str, Any]]:
        """Return the steps of the artifact's program."""
        return [
            self.runs[id(part)]
            if isinstance(part, Segment)
            else self._loop(part)
            if isinstance(part, Loop)
            else self._branch(part)
            for part in parts
        ]

    def _branch(self, part: Branch) -> dict[str, Any]:
        then, other = (
            {"steps": self.program(block.parts), "moves": self._moves(block.results, part.results)}
            for block in part.blocks
        )
        return {"if": self.of[part.condition], "then": then, "else": other}

    def _loop(self, part: Loop) -> dict[str, Any]:
        count = len(part.carried)
        values = {"most": part.most, "while": part.going, "again": part.again, "iteration": part.iteration}
        parts = part.block.results[count + (part.again is not None) :]
        return {
            "loop": {
                "steps": self.program(part.block.parts),
                "moves": self._moves(part.block.results[:count], part.carried),
            },
            **({} if part.trips is None else {"trips": part.trips}),
            **{name: self.of[variable] for name, variable in values.items() if variable is not None},
            "start": self._moves(part.start, part.carried),
            "stack": [
                {"value": self.of[each], "to": self.of[to], **_part_type(each.ty)}
                for each, to in zip(parts, part.collected, strict=True)
            ],
        }

    def _moves(self, sources: Sequence[relax.Var], targets: Sequence[relax.Var]) -> list[list[int]]:
        return [[self.of[source], self.of[target]] for source, target in zip(sources, targets, strict=True)]


def _part_type(ty: Any) -> dict[str, Any]:
    """Return the type of a part that a loop collects; 0 stands for a size that is known when it runs."""
    return {
        "shape": [int(size) if isinstance(size, tvm.tirx.IntImm) else 0 for size in ty.shape.values],
        "dtype": str(ty.dtype.dtype),
    }


def _variant(mod: tvm.IRModule, position: int, count: int, states: Mapping[str, int]) -> Variant:
    extraction = extract(mod)
    problem, schedule = get_problem(mod), get_schedule(mod)
    if problem.graph.without_demands() != extraction.graph:
        raise InputError(
            f"the problem in the module's attributes is for another graph ({problem.graph.name!r}, "
            f"{len(problem.graph.operators)} operators) than main has ({extraction.graph.name!r}, "
            f"{len(extraction.graph.operators)} operators); run EstimateLatencies and Place again"
        )
    name = extraction.graph.name if count == 1 else f"{extraction.graph.name}#{position}"
    kept = check_states(extraction.graph, list(extraction.arguments), list(leaves(extraction.result)), states)
    return Variant(name, mod, extraction, problem, schedule, kept)


def _packed(variant: Variant) -> Variant:
    """Return a variant whose parameters lie in the file as its kernels read them."""
    shares = core_shares(variant.problem, variant.schedule)
    of_functions = {call.function: shares[call.operator] for call in variant.extraction.calls}
    return replace(variant, mod=pack_parameters(variant.mod, variant.extraction, of_functions))


def leaves(result: Any) -> Iterator[str]:
    """Yield the names of tensors in a nested result."""
    for part in result if isinstance(result, tuple) else (result,):
        yield from leaves(part) if isinstance(part, tuple) else (part,)


def _without_names(result: Any, names: set[str]) -> Any:
    if not isinstance(result, tuple):
        return result
    return tuple(_without_names(part, names) for part in result if isinstance(part, tuple) or part not in names)


def _check_alike(variants: Sequence[Variant]) -> None:
    first = variants[0]
    for other in variants[1:]:
        if list(other.extraction.arguments) != list(first.extraction.arguments):
            raise InputError(
                f"plans of one artifact take the same inputs, found {list(first.extraction.arguments)} "
                f"and {list(other.extraction.arguments)}"
            )
        if _structure(other) != _structure(first):
            raise InputError(
                "plans of one artifact return the same structure, but the results differ with the input shapes"
            )


def same_results(mod: tvm.IRModule, other: tvm.IRModule) -> bool:
    """Return whether results that are inputs, or equal to others, are the same in two scheduled modules."""
    return bool(_structure(_variant(mod, 0, 1, {})) == _structure(_variant(other, 0, 1, {})))


def _structure(variant: Variant) -> Any:
    """Return the nested result with each leaf replaced by its position among the plan's inputs or outputs."""
    outputs = {tensor: ("output", k) for k, tensor in enumerate(variant.outputs)}
    places = {tensor: ("argument", k) for k, tensor in enumerate(variant.arguments)} | outputs

    def visit(value: Any) -> Any:
        return tuple(visit(part) for part in value) if isinstance(value, tuple) else list(places[value])

    return visit(variant.result)


def default_backend(problem: Problem) -> str:
    """Return the backend for a problem's devices: ``"cpu"`` if all are CPUs, else ``"emulated"``, with a warning."""
    gpus = [device.name for device in problem.topology.devices if device.kind != "cpu"]
    if not gpus:
        return "cpu"
    warnings.warn(
        f"{len(gpus)} GPUs of the topology {problem.topology.name!r} are emulated: {EMULATED}. The backend 'cuda' compiles "
        "for real GPUs; the backend 'emulated' asks for this, without the warning",
        EmulationWarning,
        stacklevel=2,
    )
    return "emulated"


def check_runs_on_gpus(mod: tvm.IRModule, problem: Problem, extraction: Extraction) -> None:
    """Raise `InputError` for devices other than GPUs, and for kernels that exist only on the host."""
    others = [device.name for device in problem.topology.devices if device.kind != "cuda"]
    if others:
        raise InputError(
            f"the backend 'cuda' runs on GPUs, and {', '.join(map(repr, others))} of the topology "
            f"{problem.topology.name!r} are CPUs; compile for a topology of GPUs, or for the backend 'cpu'"
        )
    claimed = claimed_functions(mod)
    for call in extraction.calls:
        if call.packed or (call.external and call.function not in claimed):
            raise InputError(
                f"operator {call.operator!r} calls {call.function!r}, a function of the host, which has no kernel for GPUs; "
                "compile for a topology of CPUs, or leave it out of the model"
            )


def _resize_parameters(plan: dict[str, Any], values: dict[str, Any]) -> None:
    """Give the plan's parameters the shapes of their values, which `pack_parameters` may have padded."""
    for index, spec in enumerate(plan["parameters"]):
        shape = [int(size) for size in values[spec["name"]].shape]
        if shape == spec["shape"]:
            continue
        spec["shape"] = shape
        for buffer in plan["buffers"]:
            if buffer["source"] == {"kind": "parameter", "index": index}:
                buffer["shape"] = shape


def _rename_parameters(plan: dict[str, Any], values: dict[str, Any], known: dict[str, Any]) -> None:
    """Rename the plan's parameters as the artifact holds them, and add their values to ``known``.

    Equal parameters of several plans are stored once. Different parameters of one name get different names.
    """
    for spec in plan["parameters"]:
        value, name, count = values[spec["name"]], spec["name"], 1
        while name in known and not same_bits(known[name], value):
            count += 1
            name = f"{spec['name']}#{count}"
        known[name] = value
        spec["name"] = name


def _metadata(
    variants: Sequence[Variant],
    plans: Sequence[dict[str, Any]],
    targets: Mapping[str, tvm.target.Target],
    segmented: bool,
) -> dict[str, Any]:
    """Return the artifact's metadata, with an entry for each plan, its versions, targets, machine and topology."""
    first = variants[0]
    backend, topology = plans[0]["backend"], first.problem.topology
    entries = []
    for variant, plan in zip(variants, plans, strict=True):
        certificate = variant.schedule.certificate
        interval = latency_interval(variant.problem, variant.schedule)
        homes = {placement.operator: placement.device for placement in variant.schedule.placements}
        # The resources of a GPU that each operator's kernels occupy.
        demands = {operator.name: operator.demand for operator in variant.problem.graph.operators if operator.demand}
        entries.append(
            {
                "name": variant.name,
                "problem": variant.problem.digest,
                "operators": len(variant.problem.graph.operators),
                "inputs": plan["arguments"],
                "outputs": plan["outputs"],
                "results": _results(variant, plan),
                "latency_ns": certificate.latency_ns if certificate else None,
                **({"interval_ns": interval} if interval else {}),
                **({"memory_ns": memory_ns(variant.problem.graph, topology, homes)} if backend == "cuda" else {}),
                "lower_bound_ns": certificate.lower_bound_ns if certificate else None,
                "bound": certificate.bound if certificate else "",
                "status": certificate.status if certificate else "",
                **({"demands": msgspec.to_builtins(demands)} if demands else {}),
                **({"measured": variant.schedule.notes["measured"]} if "measured" in variant.schedule.notes else {}),
            }
        )
    tail = tail_operators(first.mod)
    return {
        **({"tail": tail} if tail and not segmented else {}),
        "name": first.extraction.graph.name,
        "output_names": _output_names(first.mod, first.result, bool(tail)),
        "topology": topology.name,
        "scheduler": first.schedule.scheduler,
        "options": first.schedule.options,
        "plans": entries,
        **description(backend, plans[0]["devices"], targets, topology),
        "topology_description": msgspec.to_builtins(topology),
    }


def names_of_outputs(mod: tvm.IRModule, result: Any, tensors: Sequence[str]) -> tuple[str, ...]:
    """Return the model's names of tensors that it returns; ``result`` is the extraction's."""
    names = dict(reversed(list(zip(leaves(result), _output_names(mod, result, False), strict=True))))
    return tuple(names[tensor] for tensor in tensors)


def _output_names(mod: tvm.IRModule, result: Any, has_tail: bool) -> list[str]:
    """Return the model's names of its results; each is unique, even if the model returns a tensor twice.

    With a tail, the results of the schedule are the tail's arguments, and get the model's names only if it names as many.
    """
    attributes = mod.attrs
    model_names = list(map(str, attributes[OUTPUT_NAMES])) if attributes and OUTPUT_NAMES in attributes else []
    count = len(model_names) if has_tail else sum(1 for _ in leaves(result))
    names: list[str] = []
    for position, name in enumerate(
        model_names if len(model_names) == count else [f"output_{k}" for k in range(count)]
    ):
        names.append(name if name and name not in names else f"{name}:{position}")
    return names


def _results(variant: Variant, plan: dict[str, Any]) -> list[dict[str, int]]:
    """Return, for each leaf of the model's result, its position among the plan's outputs or arguments."""
    places = {spec["name"]: {kind: k} for kind in ("argument", "output") for k, spec in enumerate(plan[f"{kind}s"])}
    return [places[name] for name in leaves(variant.result)]


def _main_function(variants: Sequence[Variant], any_shape: bool, segments: Segments | None) -> relax.Function:
    """Make ``main``, which calls the module and assembles the results; ``any_shape``: which may have any size."""
    first = variants[0]
    old = first.mod["main"]
    held = set(first.mod.attrs[PARAMETERS]) if PARAMETERS in first.mod.attrs else set()
    held |= {first.extraction.arguments[name][0].name for name in first.states}
    kept = [k for k, variable in enumerate(old.params) if variable.name not in held]
    new = {old.params[k]: relax.Var(old.params[k].name, open_type(old.params[k].ty)) for k in kept}
    params = list(new.values())
    unset = {name: (variable, ()) for name, variable in first.extraction.parameters.items() if variable in new}
    arguments = [
        (new[variable], path)
        for name, (variable, path) in {**first.extraction.arguments, **unset}.items()
        if name not in first.states
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        values = [element(builder, variable, path) for variable, path in arguments]
        if segments is None:
            model_result, result_types = first.result, _result_types(variants, any_shape)
        else:
            model_result = segments.results
            tensors: list[Any] = list(leaves(model_result))
            result_types = [relax.TensorType(dtype=leaf.ty.dtype, ndim=leaf.ty.ndim) for leaf in tensors]
        results = emit_call(builder, RESULTS, values, result_types) if result_types else []
        result = rebuild(model_result, iter(results))
        if TAIL in first.mod.attrs and segments is None:
            tail = first.mod.attrs[TAIL]
            result = builder.emit(relax.Call(tail.get_global_var(TAIL_ENTRY), list(result.fields)))
        builder.emit_func_output(result)
    return builder.get()["main"]  # without num_input: TVM's VMShapeLower ends the process for parameters of open types


def element(builder: relax.BlockBuilder, variable: relax.Var, path: tuple[int, ...]) -> relax.Expr:
    """Emit an element of a (nested) tuple argument of ``main``; an empty path is the argument itself."""
    value = variable
    for position in path:
        value = builder.emit(relax.TupleGetItem(value, position))
    return value


def rebuild(result: Any, tensors: Iterator[relax.Expr]) -> relax.Expr:
    """Make the nested result of ``main`` from its leaves, in their order."""
    if isinstance(result, tuple):
        return relax.Tuple([rebuild(part, tensors) for part in result])
    return next(tensors)


def open_type(ty: Any) -> Any:
    """Return the type of a parameter of ``main`` whose values the runtime module checks.

    It leaves shape and data type open. The module's error names what is allowed; TVM's virtual machine would end the
    process for a complex input, whose type it cannot print.
    """
    if isinstance(ty, relax.TupleType):
        return relax.TupleType([open_type(part) for part in ty.fields])
    return relax.TensorType(dtype="") if isinstance(ty, relax.TensorType) else ty


def _result_types(variants: Sequence[Variant], any_shape: bool) -> list[Any]:
    """Return the type of each leaf of the result; it leaves open what differs between the plans."""
    types = []
    for names in zip(*(leaves(variant.result) for variant in variants), strict=True):
        tensors = [_shape_and_dtype(variant, name) for variant, name in zip(variants, names, strict=True)]
        shapes, (shape, dtype) = {shape for shape, _ in tensors}, tensors[0]
        if len(shapes) == 1 and not any_shape:
            types.append(relax.TensorType(shape, dtype))
        else:
            ndim = len(shape) if len({len(each) for each in shapes}) == 1 else -1
            types.append(relax.TensorType(dtype=dtype, ndim=ndim))
    return types


def _shape_and_dtype(variant: Variant, name: str) -> tuple[tuple[int, ...], str]:
    if name not in variant.extraction.arguments:
        graph = variant.problem.graph
        tensor = graph.tensors[graph.index.tensor_id[name]]
        return tensor.shape, tensor.dtype
    variable, path = variant.extraction.arguments[name]
    ty = variable.ty
    for position in path:
        ty = ty.fields[position]
    return tuple(int(extent) for extent in ty.shape.values), ty.dtype.dtype
