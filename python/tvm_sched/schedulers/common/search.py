"""The C++ searches on one problem: list scheduling and local search over sequences of events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...problem import HOST, Problem
from ...schedule import ScheduleIndex
from ...schedule._compiled import compiled
from ...schedule.simulator import price
from .partial import Event, Move, Run

if TYPE_CHECKING:
    from ...schedule.native import NativeLocalSearch

Array = npt.NDArray[np.int64]

RUN, DIRECT, MOVE = range(3)
"""Kinds of events: `Event.Kind` of cpp/search/partial_schedule.h. Rows are kind, item, source, device."""


class Choice:
    """Where and how operators may be placed.

    Parameters
    ----------
    devices : iterable of int
    direct : bool
        Direct host access too.
    """

    def __init__(self, devices: Iterable[int], direct: bool = True) -> None:
        self.devices = frozenset(devices)
        self.direct = direct


class Searches:
    """The searches of a problem; what they return are sequences, rows of kind, item, source, device."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._native = compiled(problem)

    def construct(
        self, choices: Sequence[Choice], choice: Sequence[int], memory_scale: float = 1.0, backfill: bool = True
    ) -> tuple[Array, int] | None:
        """List scheduling: the operator of highest rank first, where it ends first.

        Parameters
        ----------
        choices : sequence of Choice
        choice : sequence of int, (operators,)
            Position in ``choices`` for each operator.
        memory_scale : float
            Share of each device's memory that may be used.
        backfill : bool
            Loads may take gaps that earlier decisions left on a bus.

        Returns
        -------
        (sequence, latency in nanoseconds) or None
            None where memory does not suffice.
        """
        devices = len(self.problem.topology.devices)
        rows = [[c.direct, *(d in c.devices for d in range(devices))] for c in choices]
        found, latency = self._native.construct(
            np.array(rows, dtype=np.int64), np.array(choice, dtype=np.int64), memory_scale, backfill
        )
        sequence = _rows(found)
        return (sequence, int(latency)) if len(sequence) else None

    def improve(self, start: Array, memory_scale: float, seed: int, goal: int) -> Improvement:
        """Local search from the sequence of a whole schedule until a latency of ``goal`` nanoseconds."""
        return Improvement(self._native.improve(np.ascontiguousarray(start), memory_scale, seed, goal))


class Improvement:
    """A local search that goes on as long as it is told to; in what portions does not matter to what it finds."""

    def __init__(self, native: NativeLocalSearch) -> None:
        self._native = native

    def step(self, events: int) -> bool:
        """Replay about that many events more; False when it is of no use to go on."""
        return bool(self._native.step(events))

    @property
    def latency_ns(self) -> int:
        """Latency of the best schedule."""
        return int(self._native.latency_ns())

    @property
    def best(self) -> Array:
        """Sequence of the best schedule."""
        return _rows(self._native.best())


def _rows(table: Any) -> Array:
    return np.asarray(np.from_dlpack(table), dtype=np.int64)


def rows_of(events: Iterable[Event]) -> Array:
    """Events as rows."""
    rows = [
        (MOVE, event.tensor, event.source, event.device)
        if isinstance(event, Move)
        else (DIRECT if event.direct else RUN, event.operator, HOST, event.device)
        for event in events
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, 4)


def events_of(sequence: Array) -> list[Event]:
    """Rows as events."""
    return [
        Move(item, source, device) if kind == MOVE else Run(item, device, kind == DIRECT)
        for kind, item, source, device in sequence.tolist()
    ]


def schedule_index(sequence: Array) -> ScheduleIndex:
    """Rows as a schedule in integers: launch order and channel order are the sequence's."""
    kind, item, source, device = (column.tolist() for column in sequence.T)
    runs = [i for i, k in enumerate(kind) if k != MOVE]
    transfers = [i for i, k in enumerate(kind) if k != RUN]
    transfer_kinds = [
        ScheduleIndex.HOST_READ
        if kind[i] == DIRECT
        else ScheduleIndex.LOAD
        if source[i] == HOST
        else ScheduleIndex.COPY
        for i in transfers
    ]
    return ScheduleIndex(
        [item[i] for i in runs],
        [device[i] for i in runs],
        [kind[i] == DIRECT for i in runs],
        transfer_kinds,
        [item[i] for i in transfers],
        [HOST if kind[i] == DIRECT else source[i] for i in transfers],
        [device[i] for i in transfers],
    )


def sequence_of(problem: Problem, index: ScheduleIndex) -> Array:
    """A schedule as rows, in the order in which its events start; evictions, streams and stages are not in them."""
    graph, times = problem.graph.index, price(problem, index)
    position = {o: i for i, o in enumerate(graph.order)}
    read_end = {}
    keyed = []
    # Events that start together and take no time stand first, in the order in which the graph needs them.
    transfers = zip(
        times.transfer_start_ns.tolist(),
        times.transfer_end_ns.tolist(),
        index.transfer_kind,
        index.transfer_item,
        index.transfer_source,
        index.transfer_device,
        strict=True,
    )
    for start, end, kind, item, source, device in transfers:
        if kind == ScheduleIndex.HOST_READ:
            read_end[item] = end
        else:
            made = 2 * position.get(graph.producer[item], -1) + 1
            keyed.append(((start, end, made), (MOVE, item, source, device)))
    kernels = zip(
        times.start_ns.tolist(), times.end_ns.tolist(), index.operator, index.device, index.direct, strict=True
    )
    for start, end, o, device, direct in kernels:  # a direct run has its place on the bus by its read
        key = (start, read_end.get(o, end), 2 * position[o])
        keyed.append((key, (DIRECT if direct else RUN, o, HOST, device)))
    keyed.sort(key=lambda entry: entry[0])
    return np.array([row for _, row in keyed], dtype=np.int64).reshape(-1, 4)
