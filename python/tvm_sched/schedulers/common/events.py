"""Events of a schedule, and the sequences of them that C++ searches: rows of kind, item, source, device."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.problem import HOST
from tvm_sched_runtime.schedule import ScheduleIndex

Array = npt.NDArray[np.int64]

RUN, DIRECT, MOVE = range(3)
"""Kinds of events: ``Event::Kind`` of ``cpp/search/partial_schedule.h``."""


class Run(NamedTuple):
    """Run of ``operator`` on ``device``, with its host tensors loaded or (``direct``) read over the bus.

    Examples
    --------
    >>> from tvm_sched.schedulers import PartialSchedule
    >>> PartialSchedule(problem).extension(0, 1, direct=False).run
    Run(operator=0, device=1, direct=False)
    """

    operator: int
    device: int
    direct: bool


class Move(NamedTuple):
    """Transfer of ``tensor`` from ``source`` (`HOST`: a load) to ``device``.

    Examples
    --------
    >>> from tvm_sched.schedulers import PartialSchedule
    >>> PartialSchedule(problem).extension(0, 1, direct=False).moves
    [Move(tensor=0, source=-1, device=1), Move(tensor=1, source=-1, device=1)]
    """

    tensor: int
    source: int
    device: int


Event = Run | Move


def events_of(sequence: Array) -> list[Event]:
    """Convert the rows of a sequence to events."""
    return [
        Move(item, source, device) if kind == MOVE else Run(item, device, kind == DIRECT)
        for kind, item, source, device in sequence.tolist()
    ]


def sequence_of(index: ScheduleIndex) -> Array:
    """Convert a schedule to rows in the order of its events' starts, without evictions, streams and stages."""
    graph, times = index.scenario.graph.index, index.times
    position = {o: i for i, o in enumerate(graph.order)}
    read_end = {}
    keyed = []
    # Among events that start together, those without duration come first, in the order of the graph.
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
            written = 2 * position.get(graph.producer[item], -1) + 1
            keyed.append(((start, end, written), (MOVE, item, source, device)))
    kernels = zip(
        times.start_ns.tolist(), times.end_ns.tolist(), index.operator, index.device, index.direct, strict=True
    )
    for start, end, o, device, direct in kernels:  # a direct run has the place of its read on the bus
        key = (start, read_end.get(o, end), 2 * position[o])
        keyed.append((key, (DIRECT if direct else RUN, o, HOST, device)))
    keyed.sort(key=lambda entry: entry[0])
    return np.array([row for _, row in keyed], dtype=np.int64).reshape(-1, 4)
