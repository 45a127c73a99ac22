"""`ScheduleIndex`: a schedule in the integer indices of its problem, with its times, memory and waits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import ScheduleError
from ..problem import HOST, Problem, Scenario, as_scenario
from .native_objects import native_problem
from .rules import Violation, describe, loaded_in_place
from .schedule import Placement, Schedule, Transfer

if TYPE_CHECKING:
    from .native_problem import NativeSchedule

Array = npt.NDArray[np.int64]

_KINDS = {"load": 0, "copy": 1, "host_read": 2}


@dataclass(frozen=True)
class Times:
    """Times of the parts of a schedule, in nanoseconds.

    Examples
    --------
    >>> from tvm_sched_runtime.schedule import ScheduleIndex
    >>> times = ScheduleIndex.of(problem, schedule).times
    >>> times.start_ns.tolist(), times.end_ns.tolist()
    ([350, 750, 2750], [1350, 2750, 3750])
    """

    start_ns: Array
    end_ns: Array
    """Start and end of the kernel of each placement, in the schedule's order."""
    transfer_start_ns: Array
    transfer_end_ns: Array
    """Start and end of each transfer, in the schedule's order; a host_read starts with its operator and ends with its
    bus time."""
    latency_ns: int
    """End of the last kernel."""
    peak_memory: Array
    """Peak bytes on each device. They can exceed the device's memory, which `verify` checks."""


def _column(table: str, row: int) -> cached_property[list[int]]:
    """Return an attribute that is a row of a table of `ScheduleIndex`, as a list."""
    return cached_property(lambda index: _list(getattr(index, table)[row]))


class ScheduleIndex:
    """A schedule in the integer indices of its problem, for simulator, verifier and emitter. Immutable.

    It is encoded for C++ once and simulated once, each at first use. `ScheduleIndex.of` returns the same object for the same
    `Schedule` and `Problem`, and `to_schedule` passes it on. So a schedule is indexed and priced once, from its scheduler
    through verification and passes to an executable.

    Parameters
    ----------
    problem : Problem or Scenario
        The problem in a run; a `Problem` is a cold run.
    placements : array of int64, (5, placements)
        Rows: operator, device, whether with direct host access, stream, stage; in launch order.
    transfers : array of int64, (5, transfers)
        Rows: kind (`LOAD`, `COPY`, `HOST_READ`), the tensor of a load or copy or the operator of a host_read, source (`HOST`
        for loads and host_reads), device, whether the tensor leaves the device after its last reader.

    Examples
    --------
    >>> from tvm_sched_runtime.schedule import ScheduleIndex
    >>> index = ScheduleIndex.of(problem, schedule)
    >>> index.device, index.times.latency_ns
    ([1, 0, 0], 3750)
    """

    LOAD = 0
    COPY = 1
    HOST_READ = 2

    def __init__(self, problem: Problem | Scenario, placements: Array, transfers: Array) -> None:
        self.scenario = as_scenario(problem)
        self.placements, self.transfers = placements, transfers

    @property
    def problem(self) -> Problem:
        """The problem of the schedule, without resident parameters."""
        return self.scenario.problem

    @staticmethod
    def of(problem: Problem | Scenario, schedule: Schedule) -> ScheduleIndex:
        """Return the index of a schedule; raises `ScheduleError` if it names something that the problem lacks.

        A schedule that chooses among variants or joins parameters is `resolved` first.
        """
        if schedule.choice or schedule.joined:
            raise ScheduleError(
                "the schedule chooses among variants or joins parameters; resolve problem and schedule first (`resolved`)"
            )
        scenario = as_scenario(problem)
        index = schedule.__dict__.get("index")
        if index is None or index.problem is not scenario.problem:
            index = schedule.__dict__["index"] = _encode(scenario, schedule)
        if index.scenario != scenario:
            index = schedule.__dict__["index"] = ScheduleIndex(scenario, index.placements, index.transfers)
        return index

    @staticmethod
    def of_native(problem: Problem | Scenario, native: NativeSchedule) -> ScheduleIndex:
        """Return the schedule of a search in C++."""
        index = ScheduleIndex(problem, _array(native.placements()), _array(native.transfers()))
        index.__dict__["native"] = native
        return index

    @staticmethod
    def of_sequence(problem: Problem | Scenario, sequence: Array) -> ScheduleIndex:
        """Make a schedule from events (rows of kind, item, source, device) in launch order and channel order."""
        return ScheduleIndex.of_native(
            problem, native_problem(problem).schedule_of_sequence(np.ascontiguousarray(sequence))
        )

    @staticmethod
    def on_one_device(
        problem: Problem | Scenario, device: int, order: Sequence[int], loads: Sequence[int]
    ) -> ScheduleIndex:
        """Make a schedule of one device from its operators and loads, in their orders."""
        placements, transfers = np.zeros((5, len(order)), np.int64), np.zeros((5, len(loads)), np.int64)
        placements[0], placements[1] = order, device
        transfers[0], transfers[1], transfers[2], transfers[3] = ScheduleIndex.LOAD, loads, HOST, device
        return ScheduleIndex(problem, placements, transfers)

    operator = _column("placements", 0)
    """Operators in launch order."""
    device = _column("placements", 1)
    """Device of each placement."""

    @cached_property
    def direct(self) -> list[bool]:
        """Whether each placement is with direct host access."""
        return [bool(direct) for direct in self.placements[2]]

    stream = _column("placements", 3)
    """Stream of each placement."""
    stage = _column("placements", 4)
    """Stage of each placement; 0: none."""
    transfer_kind = _column("transfers", 0)
    """`LOAD`, `COPY` or `HOST_READ`."""
    transfer_item = _column("transfers", 1)
    """The tensor of a load or copy, the operator of a host_read."""
    transfer_source = _column("transfers", 2)
    """Source device of each transfer; `HOST` for loads and host_reads."""
    transfer_device = _column("transfers", 3)
    """Target device of each transfer."""

    @cached_property
    def evicted(self) -> frozenset[tuple[int, int]]:
        """Tensor and device of the loads and copies whose parameter is evicted after its last reader."""
        evicted = self.transfers[:, self.transfers[4] != 0]
        return frozenset(zip(_list(evicted[1]), _list(evicted[3]), strict=True))

    @cached_property
    def objective_ns(self) -> int:
        """The objective of searches: the latency, or with lags (`Workload`) the latest end including lags."""
        lags = self.scenario.operator_lags_ns
        if not len(lags):
            return self.times.latency_ns
        return int((self.times.end_ns + lags[self.placements[0]]).max(initial=0))

    @cached_property
    def native(self) -> NativeSchedule:
        """The schedule in C++."""
        return native_problem(self.scenario).schedule(self.placements, self.transfers)

    @cached_property
    def times(self) -> Times:
        """Times and peak memory. Linear in operators, transfers and tensors read.

        Raises
        ------
        ScheduleError
            The schedule breaks one of rules 1 to 4 of ``docs/model.md``, so that it has no times. Memory is not checked.
        """
        for violation in self.violations(1):
            raise ScheduleError(violation.message)
        count = self.placements.shape[1]
        simulation = self._call_native(self.native.simulate)
        start, end = _array(simulation.start_ns), _array(simulation.end_ns)
        return Times(
            start[:count],
            end[:count],
            start[count:],
            end[count:],
            simulation.latency_ns,
            _array(simulation.peak_memory),
        )

    @cached_property
    def peak_memory(self) -> Array:
        """Peak bytes on each device, in this run and in the cold run before a warm one."""
        if not self.scenario.resident:
            return self.times.peak_memory
        return np.maximum(self.times.peak_memory, self.when_warm(()).times.peak_memory)

    def violations(self, limit: int) -> list[Violation]:
        """Return up to ``limit`` broken rules; C++ checks all except memory, certificate and evictions."""
        broken = self._call_native(lambda: self.native.violations(limit))
        violations = [describe(self.problem, self.placements, self.transfers, rule) for rule in broken]
        return [*violations, *islice(self._loads_in_place(), max(limit - len(violations), 0))]

    def _loads_in_place(self) -> Iterator[Violation]:
        """Yield a violation for each load or copy of a graph input where none is needed; C++ does not check them."""
        if not self.problem.topology.maps_storage:
            return
        tensors, devices = self.problem.graph.tensors, self.problem.topology.devices
        for kind, t, device in zip(self.transfer_kind, self.transfer_item, self.transfer_device, strict=True):
            if kind != self.HOST_READ and tensors[t].kind == "input":
                yield loaded_in_place(tensors[t].name, devices[device].name)

    def holdings(self) -> Array:
        """Return the rows of tensor, device, begin, end: when each tensor is on each device, in nanoseconds."""
        return _array(self.native.holdings())

    def memory_profile(self) -> Array:
        """Return the rows of device, time in nanoseconds, bytes held from then on; by device, then by time."""
        return _array(self.native.memory_profile())

    def threads(self) -> list[int]:
        """Return how many threads compute each placement; 0 if its device has no threads."""
        return _list(_array(self.native.threads()))

    def when_warm(self, names: Collection[str]) -> ScheduleIndex:
        """Return the schedule in a run in which these parameters are resident; none: in a cold run."""
        return ScheduleIndex(self.scenario.with_resident(names), self.placements, self.transfers)

    def with_evicted(self, evicted: Collection[tuple[int, int]]) -> ScheduleIndex:
        """Return the schedule in which these tensors, too, leave these devices after their last readers."""
        transfers = self.transfers.copy()
        chosen = [
            kind != self.HOST_READ and (item, device) in evicted
            for kind, item, device in zip(self.transfer_kind, self.transfer_item, self.transfer_device, strict=True)
        ]
        transfers[4] |= np.array(chosen, dtype=np.int64)
        return ScheduleIndex(self.scenario, self.placements, transfers)

    def to_schedule(self, submodel: Sequence[int] | None = None, **fields: Any) -> Schedule:
        """Return the schedule with names; ``submodel[o]`` is operator ``o``'s submodel, ``fields`` go to `Schedule`."""
        graph, devices = self.problem.graph, self.problem.topology.devices
        placements = tuple(
            Placement(
                graph.operators[o].name, devices[d].name, stream, bool(direct), submodel[o] if submodel else 0, stage
            )
            for o, d, direct, stream, stage in self.placements.T.tolist()
        )
        transfers = []
        for kind, item, source, device, evict in self.transfers.T.tolist():
            to, evict = devices[device].name, bool(evict)
            if kind == self.LOAD:
                transfers.append(Transfer("load", to, graph.tensors[item].name, evict=evict))
            elif kind == self.COPY:
                transfers.append(Transfer("copy", to, graph.tensors[item].name, devices[source].name, evict=evict))
            else:
                transfers.append(Transfer("host_read", to, operator=graph.operators[item].name))
        schedule = Schedule(self.problem.digest, placements, tuple(transfers), **fields)
        schedule.__dict__["index"] = self
        return schedule

    def _call_native(self, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except (IndexError, OverflowError, RuntimeError) as error:  # an index or a sum that is out of range
            raise ScheduleError(f"the schedule cannot be priced: {error}") from None


def _encode(scenario: Scenario, schedule: Schedule) -> ScheduleIndex:
    problem = scenario.problem
    operators, tensors = problem.graph.index.operator_id, problem.graph.index.tensor_id
    devices = problem.topology.device_id
    try:
        placed = [
            (operators[p.operator], devices[p.device], p.direct_host_access, p.stream, p.stage)
            for p in schedule.placements
        ]
        moved = [
            (
                _KINDS[t.kind],
                operators[t.operator] if t.operator else tensors[t.tensor],
                devices[t.source] if t.source else HOST,
                devices[t.device],
                t.evict,
            )
            for t in schedule.transfers
        ]
    except KeyError as error:
        raise ScheduleError(
            f"the schedule names {error.args[0]!r}, which is not an operator, tensor or device of problem {problem.digest} "
            f"({problem.graph.name!r} on {problem.topology.name!r})"
        ) from None
    return ScheduleIndex(scenario, _table(placed), _table(moved))


def _table(rows: Sequence[tuple[int, ...]]) -> Array:
    return np.array(rows, dtype=np.int64).reshape(-1, 5).T.copy()


def _array(tensor: Any) -> Array:
    return np.asarray(np.from_dlpack(tensor), dtype=np.int64)


def _list(row: Array) -> list[int]:
    numbers: list[int] = row.tolist()
    return numbers
