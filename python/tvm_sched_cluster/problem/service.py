"""`Service`: the operators of a model with the required throughput and latency; `ServiceRequest`: a request to run one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import msgspec
import numpy as np

from tvm_sched_runtime.checks import require_not_negative, require_positive
from tvm_sched_runtime.errors import GraphError, InputError
from tvm_sched_runtime.problem.costs import LONGEST_NS

from .cluster import Digested, GpuKind

MOST_OPERATORS = 10_000
"""Most operators of a service."""
MOST_BLOCKS = 256
"""Most blocks of a service: the search for mixes of GPUs takes time with their square, seconds at this number."""


class ServiceOperator(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An operator of a service, usually a layer.

    Examples
    --------
    >>> ServiceOperator("layer0", flops=2e12, memory=4 * 10**9, output=10**6)
    ServiceOperator(name='layer0', flops=2000000000000.0, memory=4000000000, output=1000000, latency={})
    """

    name: str
    flops: float
    """Floating-point operations of one input."""
    memory: int
    """Bytes that a GPU holds to run it."""
    output: int = 0
    """Bytes of its output."""
    latency: dict[str, float] = {}
    """Seconds by kind of GPU, if they were measured; otherwise `operator_ns` estimates them."""


class Edge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Data from one operator to another. An edge to the same or an earlier operator is a loop.

    Examples
    --------
    >>> from tvm_sched_cluster import Edge
    >>> Edge("embed", "layers", bytes=4096)
    Edge(source='embed', target='layers', bytes=4096)
    """

    source: str
    target: str
    bytes: int


class Service(Digested, frozen=True, forbid_unknown_fields=True):
    """A model to serve, with its requirements.

    Raises
    ------
    GraphError
        No operators, a name twice, an edge between operators that are not there.
    InputError
        A requirement or size out of range.

    Examples
    --------
    >>> chat.memory, chat.cycle_limit_ns, chat.latency_limit_ns
    (24000000000, 100000000, 1000000000)
    """

    name: str
    operators: tuple[ServiceOperator, ...]
    """In topological order."""
    throughput: float
    """Least inputs a second."""
    latency: float
    """Most seconds from input to output."""
    edges: tuple[Edge, ...] | None = None
    """Default: each operator's output goes to the next one."""
    category: str = ""
    model: str = ""
    source: str = ""
    """For readers; nothing depends on them."""
    model_file: str = ""
    """Path of the model, for `tvm_sched_cluster.compiled_placements`; empty if unknown."""
    input_shapes: dict[str, tuple[int, ...]] = msgspec.field(default_factory=dict)
    """Shapes of inputs that the model leaves open."""

    def __post_init__(self) -> None:
        _check(self)

    @property
    def content(self) -> tuple[Any, ...]:
        """Everything that placements depend on."""
        return self.operators, self.throughput, self.latency, self.all_edges

    @property
    def memory(self) -> int:
        """Bytes of all operators."""
        return sum(operator.memory for operator in self.operators)

    @property
    def cycle_limit_ns(self) -> int:
        """Longest time between two inputs."""
        return math.floor(1e9 / self.throughput)

    @property
    def latency_limit_ns(self) -> int:
        """Longest time from input to output."""
        return math.floor(self.latency * 1e9)

    @cached_property
    def operator_id(self) -> dict[str, int]:
        """Position of each operator."""
        return {operator.name: o for o, operator in enumerate(self.operators)}

    @cached_property
    def all_edges(self) -> tuple[Edge, ...]:
        """The edges; without any, each operator hands data to the next one."""
        if self.edges is not None:
            return self.edges
        return tuple(Edge(a.name, b.name, a.output) for a, b in pairwise(self.operators))

    @cached_property
    def blocks(self) -> tuple[tuple[int, int], ...]:
        """First operator of each block and the one after its last: pieces that may be stages of their own.

        A stage may end where all data that goes on is made by its last operator and read by the one that follows, and
        no loop reaches over the place. Graphs whose edges skip operators have few such places.
        """
        crossing, following = ([0] * (len(self.operators) + 1) for _ in range(2))
        for edge in self.all_edges:
            a, b = self.operator_id[edge.source], self.operator_id[edge.target]
            crossing[min(a, b) + 1] += 1
            crossing[max(a, b) + 1] -= 1
            following[b] += b == a + 1
        counts = list(accumulate(crossing))
        ends = [place for place in range(1, len(self.operators)) if counts[place] == following[place]]
        return tuple(pairwise([0, *ends, len(self.operators)]))

    def input_bytes(self, place: int) -> int:
        """Return the bytes that cross a place between two operators."""
        return self._input_bytes[place]

    @cached_property
    def _input_bytes(self) -> list[int]:
        changes = [0] * (len(self.operators) + 1)
        for edge in self.all_edges:
            a, b = self.operator_id[edge.source], self.operator_id[edge.target]
            changes[min(a, b) + 1] += edge.bytes
            changes[max(a, b) + 1] -= edge.bytes
        return list(accumulate(changes))


class ServiceRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to deploy a service.

    Examples
    --------
    >>> ServiceRequest("r0", "chat", lifetime=3600.0)
    ServiceRequest(name='r0', service='chat', time=0.0, lifetime=3600.0)
    """

    name: str
    """Name of this deployment; no two running ones have the same name."""
    service: str
    time: float = 0.0
    lifetime: float = 0.0
    """When it comes, and for how long it stays; lifetime 0: for good."""


def operator_ns(operator: ServiceOperator, kind: GpuKind) -> int:
    """Return the nanoseconds of an operator on a GPU: FLOPs / FLOP/s + memory / memory bandwidth (RAMPA, Section V-A).

    Examples
    --------
    >>> from tvm_sched_cluster import operator_ns
    >>> operator_ns(chat.operators[0], cluster.kinds[0])
    30000000
    """
    seconds = operator.latency.get(kind.name)
    if seconds is None:
        seconds = operator.flops / kind.flops + operator.memory / kind.memory_bandwidth
    return math.ceil(seconds * 1e9 - 1e-3)  # a whole number with an error of rounding stays that number


def requests_of(demand: Mapping[str, float], count: int, seed: int = 0) -> list[ServiceRequest]:
    """Draw random requests, one a second, each for a service with the probability that ``demand`` gives it.

    Raises
    ------
    InputError
        Probabilities that are negative, or 0 all of them.

    Examples
    --------
    >>> from tvm_sched_cluster import requests_of
    >>> [request.service for request in requests_of({"chat": 0.5, "search": 0.5}, count=4, seed=1)]
    ['search', 'search', 'chat', 'search']
    """
    names = list(demand)
    weights = np.array([demand[name] for name in names], dtype=float)
    if not names or not (weights >= 0).all() or not weights.sum() > 0:
        raise InputError(f"a demand needs probabilities from 0, one at least above it; found {dict(demand)}")
    chosen = np.random.default_rng(seed).choice(len(names), size=count, p=weights / weights.sum())
    return [ServiceRequest(f"r{i}", names[c], time=float(i)) for i, c in enumerate(chosen)]


def demand_of(requests: Iterable[ServiceRequest]) -> dict[str, float]:
    """Return the fraction of all requests that ask for each service.

    Examples
    --------
    >>> from tvm_sched_cluster import demand_of
    >>> demand_of([ServiceRequest(f"r{n}", name) for n, name in enumerate(("chat", "search", "chat", "chat"))])
    {'chat': 0.75, 'search': 0.25}
    """
    counts = Counter(request.service for request in requests)
    total = counts.total()
    return {name: count / total for name, count in counts.items()}


def by_name(services: Sequence[Service]) -> dict[str, Service]:
    """Return services by name; raise `InputError` if two have the same name."""
    named = {service.name: service for service in services}
    if len(named) < len(services):
        twice = [name for name, count in Counter(service.name for service in services).items() if count > 1]
        raise InputError(f"services {', '.join(twice)} stand there several times; each needs a name of its own")
    return named


def _check(service: Service) -> None:
    where = f"service {service.name!r}"
    if not service.operators:
        raise GraphError(f"{where} has no operators")
    if len(service.operators) > MOST_OPERATORS:
        raise InputError(f"{where} has {len(service.operators)} operators; at most {MOST_OPERATORS} are allowed")
    counts = Counter(operator.name for operator in service.operators)
    for name, count in counts.items():
        if count > 1 or not name:
            raise GraphError(f"{where}: operator {name!r} stands there {count} times; each needs a name of its own")
    for what, value in (("throughput", service.throughput), ("latency", service.latency)):
        require_positive(f"{where}: {what}", value)
    for what, seconds in (("throughput", 1 / service.throughput), ("latency", service.latency)):
        if seconds * 1e9 > LONGEST_NS:  # times are counted in 64 bits
            raise InputError(f"{where}: {what} asks for {seconds:.3g} s; at most {LONGEST_NS / 1e9:.3g} s are allowed")
    for operator in service.operators:
        for field in ("flops", "memory", "output"):
            require_not_negative(f"{where}: {field} of operator {operator.name!r}", getattr(operator, field))
        for kind, seconds in operator.latency.items():
            require_not_negative(f"{where}: latency of operator {operator.name!r} on {kind!r}", seconds)
    for edge in service.edges or ():
        for end in (edge.source, edge.target):
            if end not in counts:
                raise GraphError(f"{where}: an edge names operator {end!r}, which is not there")
        require_not_negative(f"{where}: bytes of the edge from {edge.source!r} to {edge.target!r}", edge.bytes)
