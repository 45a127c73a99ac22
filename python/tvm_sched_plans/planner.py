"""Make a plan for a model, a machine and a runtime: search, bound, and compare with the runtime's default split."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tvm_sched_runtime.errors import InfeasibleError, InputError
from tvm_sched_runtime.files import write_atomically
from tvm_sched_runtime.problem import DecoderConfig, Topology, load_topology

from .language import read_architecture
from .operators import OperatorModel
from .places import ASSUMED_HOST, gpus, is_assumed_host, within_free
from .runtimes import Case, PlanRequest, Runtime, Split, get_runtime
from .token_workload import TokenWorkload
from .unit_bound import NAME as BOUND
from .unit_bound import lower_bound
from .unit_pricing import PricedPlacement


class Row(msgspec.Struct, frozen=True):
    """A split with its time and memory.

    Examples
    --------
    >>> from tvm_sched_plans import export_plan
    >>> plan = export_plan("llama-3-8b", "a6000-server", "llama.cpp")
    >>> plan.ours.fits, plan.ours.label
    (True, 'ours')
    """

    label: str
    total_ns: int
    """Time of the request, or of the graph's one run: see `PlanFacts.measure`."""
    phase_ns: dict[str, int]
    """Time of the phases ``prefill`` and ``decode``, or of ``run``, once."""
    held: dict[str, int]
    limit: dict[str, int]
    """Bytes in use at each place, and available bytes."""
    fits: bool
    intervals_ns: dict[str, tuple[int, int]] = {}
    """Nanoseconds between which 80 % of the times lie by the errors of the prices, by phase, and of ``total_ns`` by the name
    ``""``; empty if the prices have no intervals."""


class PlanFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A plan's price, its lower bound and the runtime's default splits."""

    runtime: str
    model: str
    topology: str
    costs: str
    measure: str
    """Work that `Row.total_ns` and the bound are the time of."""
    ours: Row
    defaults: tuple[Row, ...]
    """The runtime's default splits."""
    given: tuple[Row, ...] = ()
    """The splits that the user gave."""
    lower_bound_ns: int
    """No placement that fits and that the runtime supports takes less; 0 if nothing is known."""
    bound: str
    """Name of the bound's argument."""
    on_gpus: bool
    """Whether all units, except an embedding, are on GPUs."""
    settings: dict[str, Any]
    """The plan as data."""
    notes: tuple[str, ...]
    """Limits of the runtime, and assumed figures."""
    environment: dict[str, str] = {}
    """Environment variables under which the runtime counts the GPUs as the plan does; its scripts set them."""


class RuntimePlan(PlanFacts, frozen=True, kw_only=True):
    """A plan for a runtime.

    Examples
    --------
    >>> from tvm_sched_plans import export_plan
    >>> plan = export_plan("llama-3-8b", "a6000-server", "llama.cpp")
    >>> plan.on_gpus, plan.bound, sorted(plan.files)
    (True, 'linear program over units and places', ['llama.sh'])
    """

    files: dict[str, bytes]
    """The plan's files, the main one first."""

    def __repr__(self) -> str:
        """Name the files without their content, which may be a whole model."""
        return f"RuntimePlan({self.model} on {self.topology} for {self.runtime}: {', '.join(self.files)})"

    @property
    def gap(self) -> float:
        """Largest possible distance of the plan from the best one, as a fraction of its time."""
        return 0.0 if self.ours.total_ns == 0 else 1 - self.lower_bound_ns / self.ours.total_ns

    def save(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write the plan to a file, and further files next to it; returns all paths."""
        main = Path(path)
        written = []
        for number, (name, content) in enumerate(self.files.items()):
            to = main if number == 0 else main.parent / name
            write_atomically(to, content)
            written.append(to)
        return written


def export_plan(
    model: str | os.PathLike[str],
    topology: str | os.PathLike[str] | Topology,
    runtime: str,
    output: str | os.PathLike[str] | None = None,
    *,
    workload: TokenWorkload | Mapping[str, Any] | None = None,
    shapes: Mapping[str, Any] | None = None,
    costs: str = "",
    overhead: int | None = None,
    given: Sequence[Sequence[int]] = (),
    free: bool = False,
) -> RuntimePlan:
    """Plan a model on a machine for another runtime.

    Parameters
    ----------
    model
        A preset's name, a ``config.json`` or a folder of Hugging Face (no weights needed), an ONNX file, or a program that
        `torch.export.save` wrote.
    topology
        A preset's name, a TOML file, or a `Topology`.
    runtime : str
        ``"accelerate"``, ``"exo"``, ``"vllm"``, ``"llama.cpp"``, ``"onnxruntime"``, ``"openvino"`` or ``"torch"``.
    output : path, optional
        Where to write the plan.
    workload : TokenWorkload or mapping, optional
        Context, batch and number formats of a language model.
    shapes : mapping, optional
        Sizes of an ONNX file's symbols and inputs: ``{"batch": 1}``.
    costs : str
        A cost model, see ``docs/cost_model.md``. Empty: `default_cost_model`.
    overhead : int, optional
        Bytes of each GPU that the runtime needs for itself.
    given : sequences of int
        Splits to compare with the plan: layers (operators of a graph) of each GPU in turn, as the runtime counts them.
    free : bool
        Plan within the memory that is free: the topology's `Device.free_memory`, or if it has none, what is free now on the
        GPUs of this machine, which must be the topology's.

    Returns
    -------
    RuntimePlan

    Raises
    ------
    InputError
        An argument is wrong, or the runtime does not take such models.
    InfeasibleError
        The model does not fit; the message says which configuration would.

    Examples
    --------
    >>> from tvm_sched_plans import export_plan
    >>> plan = export_plan("llama-3-8b", "a6000-server", "vllm", workload={"context": 4096})
    >>> plan.measure, plan.lower_bound_ns <= plan.ours.total_ns
    ('1 x (3968 tokens of prompt, then 128 new ones), all stages busy', True)
    """
    chosen, request = plan_request(model, topology, runtime, workload, shapes, costs, overhead, free)
    source = request.source
    if output is not None and isinstance(source, OperatorModel) and source.external:
        _check_beside(Path(model), Path(output))
    plan = make_plan(chosen, request, given)
    if output is not None:
        plan.save(output)
    return plan


def plan_request(
    model: str | os.PathLike[str],
    topology: str | os.PathLike[str] | Topology,
    runtime: str,
    workload: TokenWorkload | Mapping[str, Any] | None = None,
    shapes: Mapping[str, Any] | None = None,
    costs: str = "",
    overhead: int | None = None,
    free: bool = False,
) -> tuple[Runtime, PlanRequest]:
    """Return the runtime and the request of `export_plan`'s arguments; see there for the errors."""
    machine = topology if isinstance(topology, Topology) else load_topology(topology)
    wanted = workload if isinstance(workload, TokenWorkload) else _workload(workload or {})
    chosen = get_runtime(runtime)
    if overhead is not None and overhead < 0:
        raise InputError(f"overhead is {overhead} bytes; 0 or more is allowed")
    source = open_source(model, chosen, shapes)
    if isinstance(source, OperatorModel) and workload:
        raise InputError(
            f"{os.fspath(model)}: context, batch and number formats are of language models; this is a graph of operators"
        )
    if isinstance(source, DecoderConfig) and shapes:
        raise InputError(f"{os.fspath(model)}: shapes are of ONNX files; a language model has a context and a batch")
    totals = {device.name: device.memory for device in gpus(machine)} if free else {}
    return chosen, PlanRequest(source, within_free(machine) if free else machine, wanted, costs, overhead, totals)


def _check_beside(model: Path, output: Path) -> None:
    """Refuse another folder than the model's: a plan's models refer to the weights' file beside them."""
    if model.resolve().parent != output.resolve().parent:
        raise InputError(
            f"{model}: its weights lie in a file of their own, which the plan's models refer to; write the plan beside the "
            f"model, e.g. {model.parent / output.name}"
        )


def _workload(fields: Mapping[str, Any]) -> TokenWorkload:
    try:
        return msgspec.convert(dict(fields), TokenWorkload)
    except msgspec.ValidationError as error:
        raise InputError(f"workload: {error}") from None


def open_source(
    model: str | os.PathLike[str], runtime: Runtime, shapes: Mapping[str, Any] | None = None
) -> DecoderConfig | OperatorModel:
    """Open a model's name or file; raise `InputError` if the runtime does not take such models."""
    text = os.fspath(model)
    path = Path(text)
    suffix = path.suffix.lower()
    if suffix == ".onnx" and "onnx" in runtime.takes:
        from .onnx_source import read_onnx

        return read_onnx(path, shapes)
    if suffix == ".pt2" and "torch" in runtime.takes:
        from .torch_source import read_program

        return read_program(path)
    source = read_architecture(text)
    if source is not None and "language" in runtime.takes:
        if source.experts and not runtime.mixtures:
            raise InputError(
                f"{text}: a mixture of experts, for which {runtime.name} is not planned; exo, llama.cpp and vllm are"
            )
        return source
    kinds = {
        "language": "a language model (a preset's name, a config.json, a folder of Hugging Face)",
        "onnx": "an ONNX file (.onnx)",
        "torch": "an exported program (.pt2)",
    }
    expected = " or ".join(kinds[kind] for kind in runtime.takes)
    if source is None and not path.exists():
        from tvm_sched_runtime.problem.decoder_config import PRESETS

        raise InputError(f"{text}: no such file, nor one of the language models {', '.join(PRESETS)}")
    raise InputError(f"{text}: {runtime.name} is planned for {expected}")


def make_plan(runtime: Runtime, request: PlanRequest, given: Sequence[Sequence[int]] = ()) -> RuntimePlan:
    """Search all configurations of a runtime; see `export_plan`."""
    cases = runtime.cases(request)
    splits = [Split("ours", case, placement) for case in cases if (placement := case.best()) is not None]
    defaults = runtime.defaults(request, cases)
    brought = [runtime.given(request, cases, counts) for counts in given]
    rows = [(split, split.case.price(split.placement)) for split in (*defaults, *brought)]
    # The default split is one of the searched placements, but the search charges too much for some copies.
    usable = [(split, priced) for split in splits if (priced := split.case.price(split.placement)).fits]
    usable += [(Split("ours", split.case, split.placement), priced) for split, priced in rows if priced.fits]
    if not usable:
        from .fitting import what_fits

        raise InfeasibleError(what_fits(runtime, request, cases[0]))
    ours, priced = min(usable, key=lambda each: each[1].total_ns)
    bounds = [lower_bound(case.chain, case.micro_batches) for case in _bounded(cases, [*defaults, *brought])]
    bound_ns = min((bound for bound in bounds if bound is not None), default=0)
    return RuntimePlan(
        runtime=runtime.name,
        model=_model_name(request),
        topology=request.topology.name,
        costs=request.costs,
        measure=_describe_request(runtime, request),
        ours=_row(ours, priced),
        defaults=tuple(_row(split, each) for split, each in rows[: len(defaults)]),
        given=tuple(_row(split, each) for split, each in rows[len(defaults) :]),
        lower_bound_ns=bound_ns,
        bound=BOUND,
        on_gpus=_all_on_gpus(ours),
        settings=runtime.settings(request, ours),
        notes=_notes(runtime, request, ours),
        environment=runtime.environment(request),
        files=_encoded(runtime.write(request, ours)),
    )


def _all_on_gpus(split: Split) -> bool:
    places = split.case.chain.machine.places
    units = split.case.chain.model.units
    return all(
        places[p].load is None and (places[p].device.kind != "cpu" or unit == "embed")
        for unit, p in zip(units, split.placement, strict=True)
    )


def _bounded(cases: list[Case], defaults: list[Split]) -> list[Case]:
    """Return the cases of all possible plans, each once."""
    every = [*cases, *(split.case for split in defaults)]
    return list({id(case): case for case in every}.values())


def _row(split: Split, priced: PricedPlacement) -> Row:
    places = split.case.chain.machine.places
    used = [p for p in range(len(places)) if priced.held[p] > 0]
    held = {places[p].name: priced.held[p] for p in used}
    limit = {places[p].name: places[p].device.memory for p in used}
    intervals = split.case.intervals(priced)
    return Row(split.label, priced.total_ns, priced.phase_ns, held, limit, priced.fits, intervals)


def _model_name(request: PlanRequest) -> str:
    source = request.source
    return source.name if isinstance(source, DecoderConfig) else source.graph.name


def _describe_request(runtime: Runtime, request: PlanRequest) -> str:
    if isinstance(request.source, OperatorModel):
        return "one run"
    workload = request.workload
    if not request.source.causal:
        return f"{workload.batch} x {workload.context} tokens"
    what = f"{workload.batch} x ({workload.prompt} tokens of prompt, then {workload.generated} new ones)"
    return f"{what}, all stages busy" if runtime.objective == "throughput" else what


def _encoded(files: Mapping[str, str | bytes]) -> dict[str, bytes]:
    return {name: text.encode() if isinstance(text, str) else text for name, text in files.items()}


def _notes(runtime: Runtime, request: PlanRequest, chosen: Split) -> tuple[str, ...]:
    overhead = runtime.overhead if request.overhead is None else request.overhead
    why = f": {runtime.overhead_is}" if request.overhead is None else ""
    source = request.source
    longest = source.context if isinstance(source, DecoderConfig) else 0
    beyond = (f"the model was made for {longest} tokens, the context is {request.workload.context}",)
    places = chosen.case.chain.machine.places
    return (
        *(beyond if 0 < longest < request.workload.context else ()),
        *((ASSUMED_HOST,) if any(is_assumed_host(place) for place in places) else ()),
        *_free_notes(request),
        *_order_notes(runtime, request),
        f"{runtime.title} cannot be told {'; '.join(runtime.cannot)}",
        f"{overhead / 1e9:g} GB of each GPU are the runtime's own{why}",
        f"latencies are of the {request.costs} model; tried with {runtime.tried}",
    )


def _free_notes(request: PlanRequest) -> tuple[str, ...]:
    """Say which memory is planned with if it is what is free."""
    memory = {device.name: device.memory for device in gpus(request.topology)}
    parts = [f"{name} {memory[name] / 1e9:.3g} of {total / 1e9:.3g} GB" for name, total in request.totals.items()]
    return (f"planned within the memory that is free: {', '.join(parts)}",) if parts else ()


def _order_notes(runtime: Runtime, request: PlanRequest) -> tuple[str, ...]:
    variables = " ".join(f"{name}={value}" for name, value in runtime.environment(request).items())
    return (
        (f"GPUs are counted as nvidia-smi does, by PCI address: {variables}, which scripts set",) if variables else ()
    )
