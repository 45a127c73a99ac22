"""Random schedules, built event by event in a possible order of time, so that they never deadlock."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from random import Random

import numpy as np

from tvm_sched_runtime.problem import FORBIDDEN, HOST, Problem
from tvm_sched_runtime.schedule.indexed import ScheduleIndex
from tvm_sched_runtime.schedule.schedule import Schedule

_Event = tuple[str, int, int, int]
"""Kind (run, direct, load, copy, host_read), operator or tensor, source, device."""


def random_schedule(problem: Problem, seed: int) -> Schedule:
    """Return a random schedule that obeys rules 1 to 4 of ``docs/model.md``; it may need more memory than there is.

    Operators in a random topological order on random devices; parameters loaded, read directly, copied from another
    device or sent through a neighbour; some loads long before they are needed; now and then a copy that nobody reads.

    Examples
    --------
    >>> from tvm_sched_runtime.schedule import violations
    >>> from tvm_sched_bench.testing import random_schedule
    >>> violations(problem, random_schedule(problem, seed=1))
    []
    """
    maker = _ScheduleMaker(problem, Random(seed))
    for o in maker.topological_order():
        maker.run(o)
    return maker.index().to_schedule(scheduler="random", options={"seed": seed})


class _ScheduleMaker:
    def __init__(self, problem: Problem, random: Random) -> None:
        self.problem, self.random = problem, random
        self.events: list[_Event] = []
        self.devices = range(len(problem.topology.devices))
        sharing = {d for d in self.devices if problem.reads_host_in_place(d)}
        producer = problem.graph.index.producer
        self.at: list[set[int]] = [set() if p >= 0 else set(sharing) for p in producer]  # devices, by tensor
        self.neighbours = [[b for b in self.devices if problem.topology.route(a, b)] for a in self.devices]
        self.roaming = random.choice([0.1, 0.5, 1.0])  # how often an operator goes to another device than the last
        self.detours = random.choice([0.0, 0.2])
        self.last = random.choice(self.devices)

    def topological_order(self) -> list[int]:
        index = self.problem.graph.index
        waiting = [len(before) for before in index.predecessors]
        free = [o for o, count in enumerate(waiting) if count == 0]
        order = []
        while free:
            o = free.pop(self.random.randrange(len(free)))
            order.append(o)
            for s in index.successors[o]:
                waiting[s] -= 1
                if waiting[s] == 0:
                    free.append(s)
        return order

    def run(self, o: int) -> None:
        problem, index = self.problem, self.problem.graph.index
        choices = [d for d in self.devices if problem.runs_on(o, d)]
        stay = self.last in choices and self.random.random() >= self.roaming
        d = self.last = self.last if stay else self.random.choice(choices)
        can_load = problem.costs.operator_ns[o, d] != FORBIDDEN
        direct = problem.costs.direct_ns[o, d] != FORBIDDEN and (not can_load or self.random.random() < 0.4)
        for t in index.inputs[o]:
            if not (direct and index.producer[t] < 0):
                self.bring(t, d)
        if direct:
            self.events.append(("host_read", o, HOST, d))
        self.events.append(("direct" if direct else "run", o, HOST, d))
        for t in index.outputs[o]:
            self.at[t].add(d)
            if self.random.random() < 0.03:
                self.bring(t, self.random.choice(self.devices))

    def bring(self, t: int, target: int) -> None:
        """Bring a tensor to a device by a random load or copy."""
        if target in self.at[t]:
            return
        loadable = self.problem.graph.index.producer[t] < 0
        if loadable and (not self.at[t] or self.random.random() < 0.7):
            if self.random.random() >= self.detours:
                self.load(t, target)
                return
            transit = self.random.choice(self.devices)
            if transit not in self.at[t]:
                self.load(t, transit)
        source = self.random.choice(sorted(self.at[t]))
        if self.random.random() < self.detours:
            self.hop(t, source, self.random.choice(self.devices))
            source = self.random.choice(sorted(self.at[t]))
        self.hop(t, source, target)

    def load(self, t: int, d: int) -> None:
        early = self.random.random() < 0.3  # a load waits for nothing, so it may stand anywhere before its readers
        self.events.insert(
            self.random.randint(0, len(self.events)) if early else len(self.events), ("load", t, HOST, d)
        )
        self.at[t].add(d)

    def hop(self, t: int, source: int, target: int) -> None:
        """Copy along a shortest chain of routes, past devices that have the tensor already."""
        before = {source: source}
        queue = deque([source])
        while queue and target not in before:
            a = queue.popleft()
            for b in self.neighbours[a]:
                if b not in before:
                    before[b] = a
                    queue.append(b)
        path = [target]
        while path[-1] != source:
            path.append(before[path[-1]])
        path.reverse()
        for a, b in pairwise(path):
            if b not in self.at[t]:
                self.events.append(("copy", t, a, b))
                self.at[t].add(b)

    def index(self) -> ScheduleIndex:
        placed = [event for event in self.events if event[0] in ("run", "direct")]
        moved = [event for event in self.events if event[0] not in ("run", "direct")]
        kind = {"load": ScheduleIndex.LOAD, "copy": ScheduleIndex.COPY, "host_read": ScheduleIndex.HOST_READ}
        placements = [(item, device, what == "direct", 0, 0) for what, item, _, device in placed]
        transfers = [(kind[what], item, source, device, 0) for what, item, source, device in moved]
        tables = (np.array(rows, dtype=np.int64).reshape(-1, 5).T.copy() for rows in (placements, transfers))
        return ScheduleIndex(self.problem, *tables)
