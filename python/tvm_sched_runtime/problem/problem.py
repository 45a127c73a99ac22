"""`Problem`: the complete input of a scheduler, and its file format."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ..errors import InputError, ProblemError
from ..files import Document, content_digest, convert, encode_document
from .concurrency import Concurrency
from .costs import FORBIDDEN, LONGEST_NS, Costs, Uncertainty, concatenate_costs
from .graph import OpGraph, Tensor
from .joined_parameters import join_parameters
from .topology import HOST, STREAM_FIELDS, Route, Topology
from .variants import Group, Variants, all_alternatives

FORMAT, VERSION = "tvm_sched.problem", 1


@dataclass(frozen=True, eq=False, repr=False)
class Problem(Document):
    """Graph, topology, costs and variants that fit together; immutable.

    `derive` skips the checks. The objective of a schedule is in its `Workload`. ``docs/formats/problem.md`` describes the
    document.

    Raises
    ------
    ProblemError
        Shapes differ; an operator can run on no device or fits into none; direct host access is faster than its bus; the
        variants do not fit the graph.

    Examples
    --------
    >>> problem = Problem(graph, topology, Costs([[2000, 2000], [1000, 1000], [1000, 1000]]))
    >>> problem.runs_on(0, 1), problem.load_ns(0, 0)
    (True, 250)
    >>> problem.save("fork.json")
    >>> Problem.load("fork.json").digest == problem.digest
    True
    """

    kept_as = ("problem", FORMAT, VERSION)

    graph: OpGraph
    topology: Topology
    costs: Costs
    """``costs`` has a row for each operator of the graph and a column for each device of the topology."""
    variants: Variants | None = None
    """Groups of operators with alternatives. Code that reads ``graph`` alone schedules the groups as in the graph. A
    schedule names the alternatives that it uses (`Schedule.choice`); its operators are those of `resolve`."""
    joinable: bool = False
    """Whether a schedule may join parameters (`Schedule.joined`), because the file of parameters has the order that suits
    the schedule. Bounds hold for all ways to join them."""

    def __post_init__(self) -> None:
        graph, costs = graph_on(self.graph, self.topology), self.costs
        object.__setattr__(self, "graph", graph)
        shape = (len(graph.operators), len(self.topology.devices))
        if not graph.operators and costs.operator_ns.shape[0] == 0:  # no rows in a file, so no columns either
            costs = Costs(np.empty(shape, dtype=np.int64), source=costs.source)
            object.__setattr__(self, "costs", costs)
        if costs.operator_ns.shape != shape:
            raise ProblemError(
                f"costs are for {costs.operator_ns.shape[0]} operators and {costs.operator_ns.shape[1]} devices, "
                f"the graph has {shape[0]} operators and the topology {shape[1]} devices"
            )
        self._check_total()
        for o, operator in enumerate(graph.operators):
            self._check_operator(o, operator.name)
        if self.variants is not None and not self.variants.groups:
            object.__setattr__(self, "variants", None)
        if self.variants is not None and self.topology.maps_storage:
            raise ProblemError(
                f"the problem has variants, and topology {self.topology.name!r} maps storage into memory that its "
                "devices share; one of them is allowed"
            )
        if self.variants is not None:
            self.variants.check(graph, costs)
            Problem(
                all_alternatives(graph, self.variants.groups),
                self.topology,
                concatenate_costs([costs, self.variants.costs]),
            )

    @staticmethod
    def derive(
        graph: OpGraph, topology: Topology, costs: Costs, variants: Variants | None = None, joinable: bool = False
    ) -> Problem:
        """Make a problem without checks, from parts of a checked one; checks take seconds for thousands of operators.

        A relaxation may therefore have parts that `Problem` refuses, such as an operator without inputs that reads host
        memory directly.
        """
        problem, graph = object.__new__(Problem), graph_on(graph, topology)
        fields = {"graph": graph, "topology": topology, "costs": costs, "variants": variants, "joinable": joinable}
        for name, value in fields.items():
            object.__setattr__(problem, name, value)
        return problem

    @cached_property
    def parameters(self) -> frozenset[str]:
        """Names of the parameters, those of alternatives included."""
        return frozenset(t.name for t in (*self.graph.tensors, *self.own_tensors) if t.kind == "parameter")

    @property
    def own_tensors(self) -> list[Tensor]:
        """Tensors that only alternatives have."""
        groups = self.variants.groups if self.variants else ()
        return [tensor for group in groups for each in group.alternatives for tensor in each.tensors]

    @property
    def places(self) -> int:
        """Number of pairs of an operator and a device, with the operators of alternatives."""
        alternatives = self.variants.costs.operator_ns.size if self.variants else 0
        return int(self.costs.operator_ns.size + alternatives)

    def resolve(self, choice: Mapping[str, str] | None = None, joined: Sequence[Sequence[str]] = ()) -> Problem:
        """Return the problem without variants that results from a choice, and from joining parameters.

        Parameters
        ----------
        choice : mapping of str to str, optional
            Name of an alternative by name of the group; other groups stay as in the graph.
        joined : sequence of sequence of str
            Sets of parameters that travel together (`join_parameters`).

        Raises
        ------
        ProblemError
            The choice names an unknown group or alternative; these parameters cannot be joined.
        """
        wanted, sets = dict(choice or {}), tuple(map(tuple, joined))
        if self.variants is None and wanted:
            raise ProblemError(f"the choice names group {next(iter(wanted))!r}; the problem has no variants")
        if self.variants is None and not sets:
            return self
        if sets and not self.joinable:
            raise ProblemError("parameters are joined; the problem does not say that they are joinable")
        last = self.__dict__.get("_last_resolved")  # a search resolves the same choice many times
        if last is None or last[0] != (wanted, sets):
            graph, costs = self.graph, self.costs
            if self.variants is not None:
                graph, costs = self.variants.choose(graph, costs, wanted)
            if sets:
                graph = join_parameters(graph, sets, self.topology.most_joined)
            chosen = Problem.derive(graph, self.topology, costs, joinable=self.joinable and not sets)
            last = self.__dict__["_last_resolved"] = (wanted, sets), chosen
        return last[1]

    def _check_total(self) -> None:
        """Check that sums of times in any schedule fit into 64 bits."""
        both = np.stack([self.costs.operator_ns, self.costs.direct_ns])
        longest = np.where(both < FORBIDDEN, both, 0).max(axis=(0, 2), initial=0).sum(dtype=np.float64)
        places = range(HOST, len(self.topology.devices))
        routes = [self.topology.route(a, b) for a in places for b in places]
        sizes = self.graph.index.size
        slowest = max(
            (len(sizes) * r.latency + (sum(sizes) / r.bandwidth if r.bandwidth else math.inf) for r in routes if r),
            default=0.0,
        )
        waiting = max(d.stream_overhead + d.wait_overhead for d in self.topology.devices) * len(both[0])
        total = float(longest) / 1e9 + slowest * len(self.topology.devices) + waiting
        if not total * 1e9 <= LONGEST_NS:
            raise ProblemError(
                f"the times of all operators and transfers can add up to {total:.3g} s; at most {LONGEST_NS / 1e9:.3g} s "
                "are allowed: look at the operators' latencies, at latency and bandwidth of buses, links and switches, and "
                "at stream_overhead and wait_overhead of devices"
            )

    def _check_operator(self, o: int, name: str) -> None:
        runnable = [d for d in range(len(self.topology.devices)) if self.runs_on(o, d)]
        if not runnable:
            raise ProblemError(
                f"operator {name!r} can run on no device of {self.topology.name!r}: all latencies are null"
            )
        index = self.graph.index
        room = max(self.topology.devices[d].memory for d in runnable)
        for d in runnable:
            direct = int(self.costs.direct_ns[o, d])
            if direct != FORBIDDEN and (self.reads_host_in_place(d) or not index.host_inputs[o]):
                raise ProblemError(
                    f"operator {name!r} has a latency with direct host access on {self.topology.devices[d].name!r}, "
                    "but there is nothing to read over a bus: the device shares host memory, or the operator reads "
                    "neither graph inputs nor parameters; it must be null"
                )
            if direct != FORBIDDEN and self.topology.storage and not self.topology.maps_storage:
                raise ProblemError(
                    f"operator {name!r} has a latency with direct host access on {self.topology.devices[d].name!r}, which "
                    f"cannot read pages of a file in {self.topology.storage.name!r}; it must be null"
                )
            if direct != FORBIDDEN and direct < self.host_read_ns(o, d):
                raise ProblemError(
                    f"operator {name!r} on {self.topology.devices[d].name!r}: direct host access in {direct} ns is "
                    f"faster than the bus, which carries its {self.host_bytes(o)} bytes in {self.host_read_ns(o, d)} ns"
                )
            once = self.route(HOST, d).nanoseconds(self.host_bytes(o)) if direct != FORBIDDEN else 0
            if self.host_read_ns(o, d) < once:
                raise ProblemError(
                    f"operator {name!r} on {self.topology.devices[d].name!r}: host_read_ns is {self.host_read_ns(o, d)}, "
                    f"but the bus takes {once} ns for one reading of its {self.host_bytes(o)} bytes; it must be at least "
                    "that, or null for one reading"
                )
        smallest = min(self._working_set(o, d) for d in runnable)
        if not self.fits(o):
            largest = max((*index.inputs[o], *index.outputs[o]), key=lambda t: index.size[t])
            raise ProblemError(
                f"operator {name!r} needs {smallest} bytes at once (largest tensor "
                f"{self.graph.tensors[largest].name!r}, {index.size[largest]} bytes), but the devices that can run it "
                f"have at most {room} bytes of memory"
            )

    def fits(self, o: int) -> bool:
        """Return whether some device can run operator ``o`` and has memory for its tensors."""
        devices = enumerate(self.topology.devices)
        return any(self.runs_on(o, d) and self._working_set(o, d) <= device.memory for d, device in devices)

    def _working_set(self, o: int, d: int) -> int:
        """Return the least bytes that operator ``o`` takes on device ``d``; host tensors may stay in host memory."""
        index = self.graph.index
        in_place = self.reads_host_in_place(d) or self.costs.direct_ns[o, d] != FORBIDDEN
        held = [t for t in index.inputs[o] if index.producer[t] >= 0 or not in_place]
        return sum(index.size[t] for t in (*held, *index.outputs[o]))

    def runs_on(self, o: int, d: int) -> bool:
        """Return whether operator ``o`` can run on device ``d``, with or without direct host access."""
        return bool(self.costs.operator_ns[o, d] != FORBIDDEN or self.costs.direct_ns[o, d] != FORBIDDEN)

    def reads_host_in_place(self, d: int) -> bool:
        """Return `Topology.reads_host_in_place`."""
        return self.topology.reads_host_in_place(d)

    def host_bytes(self, o: int) -> int:
        """Return the bytes of graph inputs and parameters that operator ``o`` reads; of a table, only the rows read.

        With storage that kernels read in place (`Topology.maps_storage`) they are of parameters alone.
        """
        return sum(self.graph.index.host_bytes[o])

    def host_read_ns(self, o: int, d: int) -> int:
        """Return the time for which operator ``o`` occupies the bus of device ``d`` when it runs with direct host access."""
        route, known = self.topology.route(HOST, d), self.costs.host_read_ns
        if route is None or not self.graph.index.host_inputs[o]:
            return 0
        if known is not None and known[o, d] != FORBIDDEN:
            return int(known[o, d])
        return route.nanoseconds(self.host_bytes(o))

    @cached_property
    def host_reads_ns(self) -> npt.NDArray[np.int64]:
        """`host_read_ns` of each operator on each device, shape (operators, devices)."""
        host_bytes = np.array([self.host_bytes(o) for o in range(len(self.graph.operators))], dtype=np.float64)
        reads = np.array([bool(tensors) for tensors in self.graph.index.host_inputs], dtype=bool)
        result = np.zeros((len(self.graph.operators), len(self.topology.devices)), dtype=np.int64)
        for d in range(len(self.topology.devices)):
            if (route := self.topology.route(HOST, d)) is not None:
                result[:, d] = np.where(reads, route.nanoseconds_of(host_bytes), 0)
                if (known := self.costs.host_read_ns) is not None:
                    result[:, d] = np.where(reads & (known[:, d] != FORBIDDEN), known[:, d], result[:, d])
        return result

    def load_ns(self, t: int, d: int) -> int:
        """Return the time of loading host tensor ``t`` into device ``d``; 0 if that shares host memory."""
        route = self.topology.route(HOST, d)
        return 0 if route is None else route.nanoseconds(self.graph.index.size[t])

    def copy_ns(self, t: int, source: int, target: int) -> int:
        """Return the time of a peer copy of tensor ``t``.

        Raises
        ------
        ProblemError
            Nothing joins the two devices.
        """
        return self.route(source, target).nanoseconds(self.graph.index.size[t])

    def route(self, source: int, target: int) -> Route:
        """Return `Topology.route`, which must exist."""
        route = self.topology.route(source, target)
        if route is None:
            names = ["host" if d == HOST else self.topology.devices[d].name for d in (source, target)]
            raise ProblemError(f"nothing joins {names[0]!r} to {names[1]!r} in topology {self.topology.name!r}")
        return route

    @cached_property
    def digest(self) -> str:
        """Identifier of the problem: the digest of its file."""
        return content_digest(self._document)

    def to_json(self) -> bytes:
        """Return the problem as a JSON document, see ``docs/formats/problem.md``."""
        return self._document

    @cached_property
    def _document(self) -> bytes:
        body = {
            "graph": msgspec.to_builtins(self.graph),
            "topology": msgspec.to_builtins(self.topology),
            "costs": self.costs.to_builtins(),
        }
        for device in body["topology"]["devices"]:
            for field in STREAM_FIELDS:
                if not device[field]:
                    del device[field]
        if self.variants is not None:
            body["variants"] = self.variants.to_builtins()
        if self.joinable:
            body["joinable"] = True
        if not self.graph.models:
            del body["graph"]["models"]
        return encode_document(body, FORMAT, VERSION)

    @classmethod
    def of_fields(cls, fields: dict[str, Any], where: str) -> Problem:
        """Make a problem of a document's fields; any error refuses the whole document."""
        body = convert(fields, _ProblemBody, where)
        try:
            variants = Variants(body.variants.groups, body.variants.costs.build()) if body.variants else None
            return Problem(body.graph, body.topology, body.costs.build(), variants, body.joinable)
        except InputError as error:
            raise type(error)(f"{where}: {error}") from None

    def __repr__(self) -> str:
        return f"Problem({self.graph.name!r}: {len(self.graph.operators)} operators, {self.topology.name!r})"


def problem_of(
    graph: OpGraph,
    groups: Sequence[Group],
    topology: Topology,
    cost_model: Callable[[OpGraph, Topology], Costs],
    joinable: bool = False,
) -> Problem:
    """Make the problem of a graph and its groups, with latencies by a cost model.

    Drop the groups if the costs have concurrency or the topology maps storage. Drop alternatives with an operator that no
    device can run or hold. The problem is ``joinable`` only if loads have a latency.

    Raises
    ------
    ProblemError
        As `Problem`, for any other reason.

    Examples
    --------
    >>> from tvm_sched.cost_model import roofline
    >>> from tvm_sched_runtime.problem import problem_of
    >>> problem_of(graph, (), topology, roofline).costs.operator_ns.tolist()
    [[2000, 2000], [1000, 1000], [1000, 1000]]
    """
    joinable = joinable and topology.most_joined > 1
    if topology.maps_storage or not groups:
        return Problem(graph, topology, cost_model(graph, topology), joinable=joinable)
    every = all_alternatives(graph, groups)
    both = cost_model(every, topology)
    costs, variants = Variants.split(groups, len(graph.operators), both)
    if costs.concurrency is not None:
        return Problem(graph, topology, costs, joinable=joinable)
    all_operators = Problem.derive(every, topology, both)
    fits = [all_operators.fits(o) for o in range(len(graph.operators), len(every.operators))]
    return Problem(graph, topology, costs, variants.only(fits), joinable)


def graph_on(graph: OpGraph, topology: Topology) -> OpGraph:
    """Return the graph as a problem on a topology holds it: inputs are in place if it maps storage.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import graph_on
    >>> graph_on(graph, topology) is graph
    True
    """
    return graph.with_inputs_in_place(topology.maps_storage)


class _ConcurrencyBody(msgspec.Struct, forbid_unknown_fields=True):
    utilisation: list[list[list[float]]]
    serial_share: float = 0.0
    pairs: list[tuple[int, int, int, int]] = []
    threads: list[int] = []
    excess: list[float] = []
    crowding: list[list[float]] = []
    factor: float = 1.0
    interval: tuple[float, float] = (1.0, 1.0)


class _UncertaintyBody(msgspec.Struct, forbid_unknown_fields=True):
    low_ns: list[list[int | None]]
    high_ns: list[list[int | None]]
    shared: list[list[float]]
    far: list[list[bool]]

    def build(self) -> Uncertainty:
        """Convert lists to arrays; raises `ProblemError` for rows of different lengths."""
        if len({len(row) for rows in (self.shared, self.far) for row in rows}) > 1:
            raise ProblemError("rows of uncertainty differ in length; each has a value for each device")
        shared, far = np.array(self.shared, np.float64), np.array(self.far, np.bool_)
        return Uncertainty(_matrix(self.low_ns), _matrix(self.high_ns), shared, far)


class _CostsBody(msgspec.Struct, forbid_unknown_fields=True):
    operator_ns: list[list[int | None]]
    direct_ns: list[list[int | None]]
    source: str = ""
    host_read_ns: list[list[int | None]] | None = None
    concurrency: _ConcurrencyBody | None = None
    uncertainty: _UncertaintyBody | None = None

    def build(self) -> Costs:
        """Convert lists to arrays; raises `InputError` for impossible values."""
        together = self.concurrency
        concurrency = None if together is None else Concurrency(**msgspec.structs.asdict(together))
        known = self.uncertainty.build() if self.uncertainty else None
        read = None if self.host_read_ns is None else _matrix(self.host_read_ns)
        return Costs(_matrix(self.operator_ns), _matrix(self.direct_ns), self.source, concurrency, known, read)


class _VariantsBody(msgspec.Struct, forbid_unknown_fields=True):
    groups: list[Group]
    costs: _CostsBody


class _ProblemBody(msgspec.Struct, forbid_unknown_fields=True):
    graph: OpGraph
    topology: Topology
    costs: _CostsBody
    variants: _VariantsBody | None = None
    joinable: bool = False


def _matrix(rows: list[list[int | None]]) -> Any:
    if len({len(row) for row in rows}) > 1:
        raise ProblemError(
            f"rows of costs have {sorted({len(row) for row in rows})} columns; each has one for each device"
        )
    if any(value is not None and not -FORBIDDEN <= value <= FORBIDDEN for row in rows for value in row):
        raise ProblemError(f"a latency in the costs has more digits than 64 bits hold; 0 to {FORBIDDEN} ns are allowed")
    return np.array([[FORBIDDEN if value is None else value for value in row] for row in rows], dtype=np.int64)
