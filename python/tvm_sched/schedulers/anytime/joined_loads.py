"""Join parameters that a schedule moves one after another into sets, which travel as one tensor (``docs/model.md``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tvm_sched_runtime.errors import InfeasibleError, ScheduleError
from tvm_sched_runtime.problem import HOST, Request, Scenario
from tvm_sched_runtime.schedule import ScheduleIndex
from tvm_sched_runtime.search_budget import OutOfTime, seconds_left

from ..common.native_methods import shortfall
from ..scheduler_registry import get

Sets = tuple[tuple[str, ...], ...]
"""Names of joined parameters, as in `Schedule.joined`."""

LIMITS = ((0.0, 0.0), (1.0, 0.0), (2.0, 0.0), (4.0, 0.0), (16.0, 0.0), (1.0, 0.1), (1.0, 0.2), (1.0, 0.4))
"""Sizes at which a set is closed: bytes worth this many latencies, and this fraction of the bytes still to be loaded.
Successive parameters with the same readers stay in one set, and one of at least that size begins a set. The second kind
gives sets that shrink towards the end of the loads, where kernels wait for the last one."""


QUICK = ("single", "pipelined", "heft", "peft")
"""Methods whose schedules are joined at first."""


Row = tuple[int, ...]
"""Kind, tensor or operator, source, device and eviction of a transfer, as in `ScheduleIndex.transfers`."""


class Joined(NamedTuple):
    """Sets of parameters, and a schedule of the scenario in which they are joined."""

    latency_ns: float
    sets: Sets
    at: ScheduleIndex


def may_join(scenario: Scenario) -> bool:
    """Return whether there are parameters that a schedule may join, and that are not on the devices anyway."""
    problem = scenario.problem
    return problem.joinable and problem.topology.most_joined > 1 and problem.parameters > scenario.resident


def join_at_first(
    scenario: Scenario, mix: Sequence[Request], known: Sequence[ScheduleIndex] = ()
) -> tuple[Joined | None, bool]:
    """Return the fastest of quick schedules with joined parameters, and whether Ctrl-C came.

    The methods run on the problem with the sets that are best for the ``known`` schedules, on that with a set for the
    parameters of each operator, and on that with the sets which were best then, until the deadline of the search around.
    There is no schedule if nothing can be joined.
    """
    best: Joined | None = None
    try:
        for found in _joined_at_first(scenario, mix, known):
            best = found
    except KeyboardInterrupt:
        return best, True
    return best, False


def _joined_at_first(scenario: Scenario, mix: Sequence[Request], known: Sequence[ScheduleIndex]) -> Iterator[Joined]:
    """Yield ever faster schedules for `join_at_first`."""
    best: Joined | None = None
    if not may_join(scenario):
        return
    for index in known:
        if seconds_left() <= 0:
            return
        found = join_loads(scenario, index, mix=mix)
        if best is None or found.latency_ns < best.latency_ns:
            yield (best := found)
    tried = set[Sets]()
    for number in range(3):
        sets = _sets_of_readers(scenario, mix) if number == 1 else best.sets if best else ()
        if sets in tried:
            continue
        tried.add(sets)
        joined = scenario.resolve({}, sets)
        for name in QUICK:
            if seconds_left() <= 0:
                return
            method = get(name)
            with suppress(InfeasibleError, OutOfTime):
                schedule = method.function(joined.problem, joined.workload, msgspec.convert({}, method.options))
                found = join_loads(scenario, ScheduleIndex.of(joined, schedule), sets, mix)
                if best is None or found.latency_ns < best.latency_ns:
                    yield (best := found)


def _sets_of_readers(scenario: Scenario, mix: Sequence[Request]) -> Sets:
    """Return a set of each operator's parameters: without it, methods avoid loads that take many latencies."""
    index = scenario.graph.index
    read = dict.fromkeys(t for o in index.order for t in index.host_inputs[o])
    return _sets(scenario, [(ScheduleIndex.LOAD, t, HOST, 0, 0) for t in read], mix, *LIMITS[0])


def join_loads(scenario: Scenario, index: ScheduleIndex, sets: Sets = (), mix: Sequence[Request] = ()) -> Joined:
    """Return the fastest of the given schedule and its copies with the sets that each of `LIMITS` gives.

    Parameters are joined that all transfers bring to the same devices in the same way, in the order of their transfers.
    Placements, and the order of transfers by the first of a set, stay as they are.

    Parameters
    ----------
    scenario : Scenario
        Without joined parameters.
    index : ScheduleIndex
        A schedule of the scenario in which ``sets`` are joined.
    mix : sequence of Request
        Kinds of runs; joined parameters are resident in the same ones.
    """
    best = Joined(index.objective_ns, sets, index)
    number = scenario.graph.index.tensor_id
    members = {number[names[0]]: [number[name] for name in names] for names in sets}
    rows: list[Row] = [
        (row[0], t, *row[2:])
        for row in index.transfers.T.tolist()
        for t in ([row[1]] if row[0] == ScheduleIndex.HOST_READ else members.get(row[1], [row[1]]))
    ]
    tried = {frozenset(sets)}
    for several, share in LIMITS:
        other = _sets(scenario, rows, mix, several, share)
        if frozenset(other) in tried:
            continue
        if seconds_left() <= 0:
            break
        tried.add(frozenset(other))
        gone = {number[name] for names in other for name in names[1:]}
        kept = [row for row in rows if row[0] == ScheduleIndex.HOST_READ or row[1] not in gone]
        joined = ScheduleIndex(scenario.resolve({}, other), index.placements, np.array(kept, dtype=np.int64).T.copy())
        try:
            if joined.objective_ns < best.latency_ns and shortfall(joined)[0] <= 0:
                best = Joined(joined.objective_ns, other, joined)
        except ScheduleError:  # a sum of times is out of range
            continue
    return best


def _sets(scenario: Scenario, rows: Sequence[Row], mix: Sequence[Request], several: float, share: float) -> Sets:
    """Return the sets of parameters that one of `LIMITS` gives for a schedule's transfers."""
    graph = scenario.graph
    index = graph.index
    runs = [scenario.resident, *(request.resident for request in mix)]
    moves: dict[int, list[tuple[int, ...]]] = {}
    for row in rows:
        if row[0] != ScheduleIndex.HOST_READ:
            moves.setdefault(row[1], []).append((row[0], *row[2:]))
    alike: dict[tuple[Any, ...], list[int]] = {}
    for t, how in moves.items():
        tensor = graph.tensors[t]
        if tensor.kind == "parameter" and t not in index.graph_outputs:
            warm = tuple(tensor.name in names for names in runs)
            alike.setdefault((tuple(how), graph.model_of(tensor.name), warm), []).append(t)
    sets = []
    for (how, *_), tensors in alike.items():
        route, left = scenario.topology.route(HOST, how[0][2]), sum(index.size[t] for t in tensors)
        latency_bytes = route.latency * route.bandwidth if route else 0.0
        current: list[int] = []
        held = 0
        for t in tensors:
            least = max(several * latency_bytes, share * left)
            if len(current) == scenario.topology.most_joined:
                sets.append(current)
                current, held, left = [], 0, left - held
            together = current and index.consumers[t] == index.consumers[current[-1]]
            if current and not together and (held >= least or index.size[t] >= max(least, held)):
                left -= held
                sets.append(current)
                current, held = [], 0
            current.append(t)
            held += index.size[t]
        sets.append(current)
    return tuple(tuple(graph.tensors[t].name for t in each) for each in sets if len(each) > 1)
