"""Reorder the loads on a bus: device by device, alternating between devices, or alternating in pieces (preemption).

The last is preemption: a parameter that is moved in pieces gives the bus to another device between them. See
``docs/model.md``, "Preemption".
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import msgspec

from tvm_sched_runtime.problem import HOST, Problem
from tvm_sched_runtime.schedule import Schedule, Transfer

Item = TypeVar("Item")


def in_turns(queues: Iterable[Iterable[Item]]) -> Iterator[Item]:
    """Yield one item of each queue after the other while there are any: round-robin.

    Examples
    --------
    >>> from tvm_sched_bench.testing import in_turns
    >>> list(in_turns([[1, 2, 3], ["a"]]))
    [1, 'a', 2, 3]
    """
    ended = object()
    for turn in itertools.zip_longest(*queues, fillvalue=ended):
        yield from (item for item in turn if item is not ended)  # type: ignore[misc]


def reorder_loads(
    problem: Problem, schedule: Schedule, order: Callable[[list[list[Transfer]]], Iterable[Transfer]]
) -> Schedule:
    """Return the schedule with each bus's loads in another order, at the same positions, and without a certificate.

    Parameters
    ----------
    order : callable
        Gets the loads of a bus, a list for each device in the schedule's order, and returns them all: `in_turns`, or
        ``itertools.chain.from_iterable`` for one device after the other.

    Examples
    --------
    >>> from tvm_sched_bench.testing import reorder_loads
    >>> later = reorder_loads(problem, schedule, lambda queues: reversed([move for queue in queues for move in queue]))
    >>> [transfer.tensor for transfer in later.transfers]
    ['w', 'x', 'x', 'b']
    """
    device_id = {device.name: d for d, device in enumerate(problem.topology.devices)}
    buses: dict[tuple[int, ...], list[int]] = {}
    for k, transfer in enumerate(schedule.transfers):
        if transfer.kind == "load":
            buses.setdefault(problem.route(HOST, device_id[transfer.device]).channels, []).append(k)
    transfers = list(schedule.transfers)
    for places in buses.values():
        queues: dict[str, list[Transfer]] = {}
        for k in places:
            queues.setdefault(schedule.transfers[k].device, []).append(schedule.transfers[k])
        for k, transfer in zip(places, order(list(queues.values())), strict=True):
            transfers[k] = transfer
    return schedule.replace(transfers=tuple(transfers), certificate=None)


def in_pieces(problem: Problem, schedule: Schedule, size: int) -> tuple[Problem, Schedule]:
    """Return the schedule with each parameter in pieces of at most ``size`` bytes, moved one after another.

    Every piece pays the latency of its route, as a copy of its own does.

    Examples
    --------
    >>> from tvm_sched_bench.testing import in_pieces
    >>> cut, of_cut = in_pieces(problem, schedule, size=4000)
    >>> [tensor.name for tensor in cut.graph.tensors if tensor.kind == "parameter"]
    ['w#0', 'w#1']
    """
    graph = problem.graph
    pieces = {t.name: _pieces(t.size, size) for t in graph.tensors if t.kind == "parameter"}

    def names(tensor: str) -> list[str]:
        return [f"{tensor}#{k}" for k in range(len(pieces[tensor]))] if tensor in pieces else [tensor]

    tensors = [
        msgspec.structs.replace(t, name=name, size=part, shape=(), dtype="")
        for t in graph.tensors
        for name, part in zip(names(t.name), pieces.get(t.name, [t.size]), strict=True)
    ]
    operators = [
        msgspec.structs.replace(o, inputs=tuple(name for t in o.inputs for name in names(t))) for o in graph.operators
    ]
    split = msgspec.structs.replace(graph, tensors=tuple(tensors), operators=tuple(operators))
    transfers = [
        msgspec.structs.replace(t, tensor=name) if t.tensor else t
        for t in schedule.transfers
        for name in (names(t.tensor) if t.tensor else [""])
    ]
    changed = Problem(split, problem.topology, problem.costs)
    return changed, msgspec.structs.replace(
        schedule, problem=changed.digest, transfers=tuple(transfers), certificate=None
    )


def _pieces(total: int, size: int) -> list[int]:
    count = max(1, -(-total // size))
    return [size] * (count - 1) + [total - size * (count - 1)]
