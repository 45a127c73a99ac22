"""The least latency of a tiny problem, by trying every sequence of events."""

from __future__ import annotations

from tvm_sched.schedulers.common import partial
from tvm_sched.schedulers.common.greedy import list_schedule, priorities
from tvm_sched_bench.testing.hios_problems import LayeredGraph
from tvm_sched_runtime.errors import InfeasibleError
from tvm_sched_runtime.problem import FORBIDDEN, HOST, Problem

from .reference_partial import Event, Move, PartialSchedule, Run


class TooLarge(Exception):
    """More states than a test should visit; ``best`` is the shortest latency found until then."""

    def __init__(self, best: int | None) -> None:
        super().__init__("too many states")
        self.best = best


def least_latency(problem: Problem, most_states: int = 20_000) -> int | None:
    """Latency of the best schedule of all, memory left aside; None where none exists.

    Appending events one by one, each as early as the rules allow, reaches every semi-active schedule, and one of those is
    optimal. Branches that reach a state seen before are cut, and those in which an operator without a place could not
    end in time even if nothing delayed it.

    Raises
    ------
    TooLarge
    """
    index, rank = problem.graph.index, priorities(problem)
    best: list[int | None] = [_list_latency(problem, rank)]
    seen: set[object] = set()

    def visit(state: PartialSchedule) -> None:
        ends = state.latency
        for o in index.order:
            if state.placed[o] < 0:
                made = [t for t in index.inputs[o] if index.producer[t] >= 0 and t in state.holders]
                ready = max((min(state.at[t, d] for d in state.holders[t]) for t in made), default=0)
                ends = max(ends, ready + rank[o])
        if best[0] is not None and ends >= best[0]:
            return
        if all(d >= 0 for d in state.placed):
            best[0] = state.latency
            return
        key = (tuple(state.device_free), tuple(state.channel_free), frozenset(state.at.items()), tuple(state.placed))
        if key in seen:
            return
        seen.add(key)
        if len(seen) > most_states:
            raise TooLarge(best[0])
        for event in events(state):
            after = state.clone()
            after.append(event)
            visit(after)

    visit(PartialSchedule(problem))
    return best[0]


def _list_latency(problem: Problem, rank: list[int]) -> int | None:
    """Latency of a list schedule: a first best that cuts much. Without memory limits, like the search."""
    state = partial.PartialSchedule(problem, memory_scale=1e6)
    try:
        list_schedule(state, range(len(rank)), rank)
    except InfeasibleError:
        return None
    return state.latency


def events(state: PartialSchedule) -> list[Event]:
    """All events that may come next; moves only where some operator that is not placed could use them."""
    problem, index = state.problem, state.problem.graph.index
    devices = range(len(problem.topology.devices))
    found: list[Event] = []
    for o, d in ((o, d) for o in index.order if state.placed[o] < 0 for d in devices):
        for direct, costs in ((False, problem.costs.operator_ns), (True, problem.costs.direct_ns)):
            free = all(state.placed[p] >= 0 for p in index.predecessors[o])
            if free and costs[o, d] != FORBIDDEN and not state.needs(o, d, direct):
                found.append(Run(o, d, direct))
    wanted = {t for o in index.order if state.placed[o] < 0 for t in index.inputs[o]}
    for t in sorted(wanted):
        for d in devices:
            if (t, d) in state.at:
                continue
            if index.producer[t] < 0 and problem.reads_host_in_place(d):
                continue
            if index.producer[t] < 0 and problem.topology.route(HOST, d) is not None:
                found.append(Move(t, HOST, d))
            found += [Move(t, s, d) for s in state.sources(t) if s != d and problem.topology.route(s, d) is not None]
    return found


def least_layered_latency(graph: LayeredGraph, devices: int) -> int:
    """Latency of the best schedule on equal devices whose copies wait for nothing, in nanoseconds, by trying all.

    Appending operators one by one, each as soon as its device and its inputs allow, reaches every semi-active schedule.
    """
    time = [round(ms * 1e6) for ms in graph.time]
    reads = [[(a, round(ms * 1e6)) for a, b, ms in graph.edges if b == o] for o in range(len(time))]
    tail = list(time)
    for a, b, _ in reversed(graph.edges):  # sorted by the first; operators are numbered in topological order
        tail[a] = max(tail[a], time[a] + tail[b])
    best = sum(time)

    def visit(end: dict[int, tuple[int, int]], free: tuple[int, ...]) -> None:
        nonlocal best
        if len(end) == len(time):
            best = min(best, max(free))
            return
        for o in range(len(time)):
            if o in end or any(p not in end for p, _ in reads[o]):
                continue
            for d in range(devices):
                start = max([free[d], *(end[p][0] + (copy if end[p][1] != d else 0) for p, copy in reads[o])])
                if start + tail[o] < best:
                    visit(end | {o: (start + time[o], d)}, (*free[:d], start + time[o], *free[d + 1 :]))
                if free[d] == 0:
                    break  # devices without an operator are alike

    visit({}, (0,) * devices)
    return best
