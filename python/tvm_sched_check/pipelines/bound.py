"""Arguments for lower bounds of pipelines: how dear the dearest stage of any plan is, by the most stages allowed.

All of them are about a problem in which each operator takes its least time on these devices, each tensor its least time
between them, and parameters nothing: there no stage costs more than in the true one.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from ..document import HOST, Problem, Refused, count

STEPS = 3_000_000
"""Sets of operators that are looked at."""


def bound_of(problem: Problem, evidence: dict[str, Any]) -> int:
    """The bound in nanoseconds that evidence proves; refuses it where it does not follow."""
    relaxed = Relaxed(problem, [problem.d[name] for name in evidence["devices"]])
    rule, ns, stages = evidence["rule"], count(evidence["ns"]), count(evidence["stages"])
    if not stages:
        raise Refused("a pipeline has at least one stage")
    if rule == "average":
        proved = -(-sum(relaxed.work) // stages)
    elif rule == "operator":
        proved = relaxed.least_around(problem.o[evidence["operator"]])
    elif rule == "ideals":
        proved = 0 if relaxed.can_be_cut(stages, ns) else ns
    else:
        raise Refused(f"there is no rule {rule!r}; 'average', 'operator' and 'ideals' are")
    if ns > proved:
        raise Refused(f"the evidence claims {ns} ns; by rule {rule!r} there are {proved}")
    return ns


class Relaxed:
    """Work by operator; tensors by what they take, who makes them, who reads them, and whether they leave the model."""

    def __init__(self, problem: Problem, devices: list[int]) -> None:
        p = problem
        times = [[ns for d in devices if (ns := p.normal[o][d]) is not None] for o in range(len(p.o))]
        if not devices or not all(times):
            raise Refused("some operator can run on none of the devices")
        self.problem, self.work = p, [min(each) for each in times]
        pairs = [(a, b) for a in devices for b in devices if a != b and (a, b) in p.routes]
        readers = [[o for o, inputs in enumerate(p.inputs) if t in inputs] for t in range(len(p.size))]
        self.readers: list[set[int]] = [set() if p.kind[t] == "parameter" else set(r) for t, r in enumerate(readers)]
        self.producer = {t: o for o, outputs in enumerate(p.outputs) for t in outputs}
        self.transfer = []
        for t, size in enumerate(p.size):
            host = [p.routes[HOST, d].ns(size) if (HOST, d) in p.routes else 0 for d in devices]
            ways = [p.routes[pair].ns(size) for pair in pairs if self.readers[t] and not p.is_host(t)]
            self.transfer.append(min(ways + (host if p.is_host(t) or t in p.results else []), default=0))

    def least_around(self, o: int) -> int:
        """Least work and transfers of any set of operators that holds this one: a minimum cut, by a largest flow.

        A set pays for each operator in it; for each tensor that comes in; and for each that is made inside and read, or
        sent by the model, outside. So a tensor is paid for where some of its members are in and some are out.
        """
        p, left = self.problem, dict[Any, dict[Any, int]]()
        endless = sum(self.work) + sum(self.transfer) + 1

        def arc(a: Any, b: Any, capacity: int) -> None:
            left.setdefault(a, {})[b] = capacity
            left.setdefault(b, {}).setdefault(a, 0)

        for v, ns in enumerate(self.work):
            arc(v, "out", ns)
        for t, ns in enumerate(self.transfer):
            members = self.readers[t] | ({self.producer[t]} if t in self.producer else set())
            if self.readers[t] or t in p.results:
                arc(("in", t), ("cut", t), ns)
                for v in members:
                    arc(v, ("in", t), endless)
                    arc(("cut", t), v, endless)
                if p.is_host(t) or t in p.results:
                    arc(("cut", t), "out", endless)
        flow = 0
        while way := _way(left, o, "out"):
            amount = min(left[a][b] for a, b in way)
            for a, b in way:
                left[a][b] -= amount
                left[b][a] += amount
            flow += amount
        return flow

    def can_be_cut(self, stages: int, ns: int) -> bool:
        """Whether some partition into at most ``stages`` stages has none of ``ns`` or more; all of them are looked at.

        After each stage the operators so far are closed under what they read. Of those sets only the ones that are reached
        by fewest stages matter, and a stage only grows dearer in work.
        """
        p, whole, steps = self.problem, (1 << len(self.work)) - 1, STEPS
        before = [sum(1 << b for b in each) for each in p.before]
        reached, newest = {0}, {0}
        for _ in range(stages):
            found = set[int]()
            for ideal in newest:
                seen, left = {ideal}, [(ideal, 0, 0)]
                while left:
                    now, work, cost = left.pop()
                    for o in range(len(self.work)):
                        grown = now | 1 << o
                        if grown == now or before[o] & ~now or grown in seen or work + self.work[o] >= ns:
                            continue
                        steps -= 1
                        if steps < 0:
                            raise Refused(f"more than {STEPS} sets of operators to look at")
                        dearer = cost + self._added(o, now & ~ideal)
                        seen.add(grown)
                        left.append((grown, work + self.work[o], dearer))
                        if dearer < ns and grown not in reached:
                            found.add(grown)
            if whole in found:
                return True
            reached |= found
            newest = found
        return not whole

    def _added(self, o: int, stage: int) -> int:
        """What a stage costs more with an operator that follows it."""
        p, added = self.problem, self.work[o]
        for t in p.inputs[o]:
            inside = [v for v in self.readers[t] if stage >> v & 1]
            if t in self.producer and stage >> self.producer[t] & 1:
                if len(inside) + 1 == len(self.readers[t]) and t not in p.results:
                    added -= self.transfer[t]  # all who read it are in the stage now
            elif not inside and self.readers[t]:
                added += self.transfer[t]
        return added + sum(self.transfer[t] for t in p.outputs[o] if self.readers[t] or t in p.results)


def _way(left: dict[Any, dict[Any, int]], source: Any, sink: Any) -> list[tuple[Any, Any]]:
    """Arcs of a shortest way along which some capacity is left; none where there is no way."""
    came, queue = {source: source}, deque([source])
    while queue and sink not in came:
        at = queue.popleft()
        for b, capacity in left.get(at, {}).items():
            if capacity and b not in came:
                came[b] = at
                queue.append(b)
    way = []
    while sink in came and sink != source:
        way.append((came[sink], sink))
        sink = came[sink]
    return way
