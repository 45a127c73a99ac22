"""`Runtime`: what the planner needs to know about a runtime: possible places, its default split, and how to write a plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import msgspec

from tvm_sched.cost_model import default_cost_model
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import DecoderConfig, Device, Topology

from ..cuts import best_latency, best_period
from ..language import Serving, language_model
from ..operators import OperatorModel
from ..places import gpus
from ..token_workload import TokenWorkload
from ..unit_chain import Chain, Placement
from ..unit_model import UnitModel
from ..unit_pricing import PricedPlacement, price, price_intervals

Objective = Literal["latency", "throughput"]


@dataclass(frozen=True)
class PlanRequest:
    """A request for a plan: model, machine and workload.

    Attributes
    ----------
    source : DecoderConfig or OperatorModel
        A language model, or a graph of operators from a file.
    topology : Topology
    workload : TokenWorkload
        Of a language model.
    costs : str
        The cost model's name. Empty: `default_cost_model`.
    overhead : int or None
        Bytes of each GPU that the runtime needs for itself; None: the figure known for the runtime.
    totals : mapping
        Whole memory by the names of devices whose memory in ``topology`` is what is free.
    """

    source: DecoderConfig | OperatorModel
    topology: Topology
    workload: TokenWorkload
    costs: str = ""
    overhead: int | None = None
    totals: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.costs:
            object.__setattr__(self, "costs", default_cost_model(self.topology))

    @property
    def architecture(self) -> DecoderConfig:
        """The language model."""
        assert isinstance(self.source, DecoderConfig)
        return self.source

    @property
    def operators(self) -> OperatorModel:
        """The graph of operators."""
        assert isinstance(self.source, OperatorModel)
        return self.source


@dataclass(frozen=True)
class Case:
    """A configuration of a runtime; the planner searches the best cut of each."""

    chain: Chain
    stages: int = 0
    """Runs of units exactly; 0: any number."""
    micro_batches: int = 1
    search: Chain | None = None
    """The chain in which cuts are searched, if memory must be reserved for which a cut is not charged."""
    tied: bool = False
    """Whether the runtime keeps the last unit at the place of the first one, because they share weights."""

    def best(self) -> Placement | None:
        """Return the best cut of the units; None if none fits."""
        if self.micro_batches > 1:
            return best_period(self.search or self.chain, self.stages, self.micro_batches)
        return best_latency(self.search or self.chain, self.stages, self.tied)

    def price(self, placement: Placement) -> PricedPlacement:
        """Price a placement in this configuration."""
        return price(self.chain, placement, self.micro_batches)

    def intervals(self, priced: PricedPlacement) -> dict[str, tuple[int, int]]:
        """Return the intervals of a placement's times (`price_intervals`)."""
        return price_intervals(self.chain, priced)


@dataclass(frozen=True)
class Split:
    """A placement with a label, in the configuration that it applies to."""

    label: str
    case: Case
    placement: Placement


class Runtime(ABC):
    """Base class of runtimes that plans can be written for; each is a separate file and registered by name.

    A subclass sets what has no value here, and has the methods that are abstract here; `get_runtime` refuses it otherwise.

    Examples
    --------
    >>> from tvm_sched_plans import get_runtime
    >>> get_runtime("llama.cpp").name
    'llama.cpp'
    """

    name: ClassVar[str]
    title: ClassVar[str]
    tried: ClassVar[str]
    """The versions that its plans were tried with, and how."""
    cannot: ClassVar[tuple[str, ...]]
    """Properties of a schedule that its plans cannot express."""
    takes: ClassVar[tuple[str, ...]] = ("language",)
    """Kinds of models that it runs: some of ``language``, ``onnx`` and ``torch``."""
    mixtures: ClassVar[bool] = False
    """Whether it is planned for language models with mixtures of experts."""
    overhead: ClassVar[int]
    """Bytes of each GPU that are not for weights, cache and activations."""
    overhead_is: ClassVar[str]
    """What these bytes hold, for messages."""
    objective: ClassVar[Objective] = "latency"
    file: ClassVar[str]
    """Default name of a plan's file."""
    serving: ClassVar[Serving] = Serving()

    def room(self, request: PlanRequest, device: Device) -> int:
        """Return the bytes of a device that a plan may use."""
        return device.memory - (self.overhead if request.overhead is None else request.overhead)

    def gpus(self, request: PlanRequest) -> tuple[Device, ...]:
        """Return the GPUs; raise `InputError` if there are none or if the overhead leaves no memory on any."""
        devices = gpus(request.topology)
        if not devices:
            raise InputError(
                f"topology {request.topology.name!r} has no GPU, so there is nothing to split for {self.name}; give one "
                "with devices of kind 'cuda' (`tvm-sched topology list`)"
            )
        if all(self.room(request, device) <= 0 for device in devices):
            overhead = self.overhead if request.overhead is None else request.overhead
            raise InputError(
                f"an overhead of {overhead} bytes leaves no memory on any GPU of {request.topology.name!r} for {self.name}"
            )
        return devices

    def numbers(self, request: PlanRequest) -> dict[str, int]:
        """Return the number of each GPU by its name, as nvidia-smi counts: its own, or its position in the topology."""
        devices = enumerate(self.gpus(request))
        numbers = {device.name: n if device.number is msgspec.UNSET else device.number for n, device in devices}
        if len(set(numbers.values())) < len(numbers):
            raise InputError(
                f"topology {request.topology.name!r}: GPUs have the numbers {list(numbers.values())}, of which some occur "
                "twice; give each GPU a `number` of its own, or none of them one"
            )
        return numbers

    def environment(self, request: PlanRequest) -> dict[str, str]:
        """Return the environment variables under which the runtime counts the GPUs by their positions in the topology.

        Without CUDA_DEVICE_ORDER, CUDA counts its fastest GPU first. CUDA_VISIBLE_DEVICES is left to the user unless the
        topology says which of the machine's GPUs it has.
        """
        chosen = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        if any(device.number is not msgspec.UNSET for device in self.gpus(request)):
            chosen["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, self.numbers(request).values()))
        return chosen

    def given(self, request: PlanRequest, cases: Sequence[Case], counts: Sequence[int]) -> Split:
        """Return the split with so many units on each place in turn: layers on GPUs, or operators on GPUs and the CPU.

        Raises
        ------
        InputError
            Other numbers than the runtime can have.
        """
        case = cases[0]
        units = case.chain.model.units
        if not isinstance(request.source, DecoderConfig):
            check_given(counts, len(units), "operators", len(case.chain.machine.places), "places, the CPU last,")
            return Split(given_label(counts), case, placed_in_turn(counts))
        check_given(counts, len(units) - 2, "layers", len(self.gpus(request)))
        layers = placed_in_turn(counts)
        # The embedding is with the first layer; norm and last layer are with the last one, or with the embedding.
        return Split(given_label(counts), case, (layers[0], *layers, layers[0] if case.tied else layers[-1]))

    def language_model(self, request: PlanRequest, micro_batches: int = 1) -> UnitModel:
        """Return the units of a language model as this runtime serves it."""
        serving = replace(self.serving, micro_batches=micro_batches)
        return language_model(request.architecture, request.workload, serving)

    @abstractmethod
    def cases(self, request: PlanRequest) -> list[Case]:
        """Return the configurations to search; memory limits are explained with the first."""

    def on_gpus(self, request: PlanRequest) -> list[Case]:
        """Configurations with everything on GPUs that can be, to compute what would fit."""
        return self.cases(request)

    @abstractmethod
    def defaults(self, request: PlanRequest, cases: Sequence[Case]) -> list[Split]:
        """Return the runtime's default splits."""

    @abstractmethod
    def write(self, request: PlanRequest, split: Split) -> dict[str, str | bytes]:
        """Return a plan's files by name: first the plan, then files for the same folder."""

    @abstractmethod
    def settings(self, request: PlanRequest, split: Split) -> dict[str, Any]:
        """Return the plan as data, for programs."""


def given_label(counts: Sequence[int]) -> str:
    """Return the label of a split that the user gave."""
    return f"given {','.join(map(str, counts))}"


def placed_in_turn(counts: Sequence[int]) -> Placement:
    """Return the place of each unit, with so many units on each place in turn."""
    return tuple(p for p, count in enumerate(counts) for _ in range(count))


def check_given(
    counts: Sequence[int], total: int, what: str, most: int, places: str = "GPUs", least: int = 0, exact: bool = True
) -> None:
    """Raise `InputError` unless the counts of a split are allowed: ``total`` in all (at most, if not ``exact``)."""
    allowed = f"1 to {most} numbers for the {places} in the topology's order, each {least} or more, are allowed"
    sums = f"{total} {what} in all" if exact else f"at most {total} {what} in all"
    if not 1 <= len(counts) <= most or any(count < least for count in counts):
        raise InputError(f"{given_label(counts)}: {allowed}; {sums}")
    if sum(counts) > total or (exact and sum(counts) != total):
        raise InputError(f"{given_label(counts)}: {sum(counts)} {what}; {sums}, and {allowed}")


GB = 1_000_000_000
