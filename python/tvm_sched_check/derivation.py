"""The evidence of a lower bound: lemmas ``from the end of first to the end of last at least ns pass``, in every schedule.

``first`` left out is the start of the run, ``last`` left out its end. Each lemma may use those before it; the last one
stands between start and end of the run and is the bound.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from .document import HOST, Problem, Refused
from .placement import Placements

NEVER = 1 << 60


def bound_of(problem: Problem, evidence: dict[str, Any]) -> int:
    """The bound in nanoseconds that the evidence proves; refuses evidence with a lemma that does not follow."""
    if evidence["problem"] != problem.digest:
        raise Refused(f"the evidence is of problem {evidence['problem']}, this file has the digest {problem.digest}")
    known = Derivation(problem)
    ends, ns = (0, 0), 0
    for number, lemma in enumerate(evidence["lemmas"]):
        ends, ns = (
            tuple(problem.o[lemma[e]] if lemma.get(e) is not None else None for e in ("first", "last")),
            lemma["ns"],
        )
        proved = known.proved(lemma["rule"], *ends, lemma)
        if isinstance(ns, bool) or not isinstance(ns, int) or proved < ns:
            raise Refused(f"lemma {number} ({lemma['rule']}) claims {ns!r} ns; what it rests on proves {proved}")
        known.add(*ends, ns)
    if ends != (None, None):
        raise Refused("the last lemma is not about the whole run")
    return ns


class Derivation:
    """What is proved so far, and the rules by which more is."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.devices = problem, range(len(problem.devices))
        p = problem
        self.best = [[min(p.times(o, d), default=NEVER) for d in self.devices] for o in range(len(p.operator_names))]
        self.shortest = [min(row) for row in self.best]
        self.to: dict[int | None, list[tuple[int | None, int]]] = defaultdict(list)
        self.of: dict[int | None, list[tuple[int | None, int]]] = defaultdict(list)
        self.placements = Placements(problem, self.best)
        # A host tensor can reach a device over a link from one that shares host memory: then it need not cross a bus.
        on_bus = [d for d in self.devices if p.route(HOST, d)]
        pairs = ((p.route(a, b), p.route(HOST, b)) for a in self.devices if p.shares[a] for b in on_bus)
        self.bypass = any(over and down and over.channels != down.channels for over, down in pairs)
        loads = [[p.copy_ns(t, HOST, d) or 0 for d in on_bus] for t in range(len(p.size))]
        self.arrival = [0 if self.bypass else min(each, default=NEVER) for each in loads]
        routes = {r for (a, b), r in p.routes.items() if HOST not in (a, b)}
        self.copy = [min((route.ns(size) for route in routes), default=NEVER) for size in p.size]

    def add(self, first: int | None, last: int | None, ns: int) -> None:
        """Make a lemma known to those that follow."""
        self.to[last].append((first, ns))
        self.of[first].append((last, ns))

    def proved(self, rule: str, first: int | None, last: int | None, lemma: dict[str, Any]) -> int:
        """Nanoseconds that a rule proves; the methods below say why."""
        if rule == "bus" and first is None:
            return self.bus(last, lemma["least"], lemma["multipliers"])
        start, end = self.heads(first)
        after = self.tails(last)
        if rule == "path":
            return max((end[o] + after[o] for o in end if o in after), default=0)
        if rule == "placement" and first is not None and last is not None:
            between = [o for o in self.problem.order if o in end and o in after]
            return self.placements.least(first, between, {self.problem.o[n] for n in lemma["operators"]}, lemma["ns"])
        operators = {self.problem.o[name] for name in lemma["operators"]}
        if not operators or not all(o in end and o in after for o in operators):
            raise Refused(f"a lemma of rule {rule!r} names an operator that is not on a way between its ends")
        if rule == "turns":
            return self.turns(sorted(self.shortest[o] for o in operators), start, after, operators)
        if rule == "work" and lemma["by"] in ("start", "end"):
            early = start if lemma["by"] == "start" else {o: end[o] - self.shortest[o] for o in operators}
            return self.work(operators, early, after, lemma["multipliers"], lemma["by"] == "start")
        raise Refused(f"there is no rule {rule!r} between these ends")

    def heads(self, first: int | None) -> tuple[dict[int, int], dict[int, int]]:
        """Least times from the end of ``first`` to start and end of the operators behind it; of all, from the run's start."""
        p, start, end = self.problem, {}, {} if first is None else {first: 0}
        for o in p.order:
            before = [b for b in p.before[o] if b in end]
            if o == first or (first is not None and not before):
                continue
            start[o] = max((end[b] for b in before), default=0)
            if first is None and len(before) > 1:
                start[o] = max(
                    start[o],
                    together_or_apart([(start[b], self.shortest[b], end[b] + self.between(b, o)) for b in before]),
                )
            end[o] = start[o] + self.shortest[o]
            if first is None:
                at_once = min((self._least(o, d, False) for d in self.devices))
                loaded = min((self._least(o, d, True) for d in self.devices))
                arrived = max(start[o], max((self.arrival[t] for t in p.host_inputs[o]), default=0))
                end[o] = min(start[o] + at_once, arrived + loaded)
                start[o] = start[o] if at_once < NEVER else arrived
            for known, ns in self.to[o]:
                if known in end or (known is None and first is None):
                    end[o] = max(end[o], ns + (0 if known is None else end[known]))
        end.pop(first, None)
        return start, end

    def _least(self, o: int, d: int, loaded: bool) -> int:
        """Time on a device to which host tensors must be brought first; or on others, or where they are read directly."""
        p = self.problem
        normal = p.normal[o][d] if p.shares[d] != loaded else None
        return min((ns for ns in (normal, None if loaded else p.direct[o][d]) if ns is not None), default=NEVER)

    def tails(self, last: int | None) -> dict[int, int]:
        """Least time from the end of the operators before ``last`` to its end; of all, to the end of the run."""
        p, after = self.problem, {}
        for o in reversed(p.order):
            behind = [s for s in p.after[o] if s in after]
            if last is not None and o != last and not behind:
                continue
            after[o] = max((self.shortest[s] + after[s] for s in behind), default=0)
            if last is None and len(behind) > 1:
                seen = [(after[s], self.shortest[s], self.shortest[s] + after[s] + self.between(o, s)) for s in behind]
                after[o] = max(after[o], together_or_apart(seen))
            for known, ns in self.of[o]:
                if known in after or (known is None and last is None):
                    after[o] = max(after[o], ns + (0 if known is None else after[known]))
        return after

    def between(self, p: int, o: int) -> int:
        """Least time of the copies from an operator to its reader, where these are on different devices."""
        return max(self.copy[t] for t in self.problem.outputs[p] if t in self.problem.inputs[o])

    def work(
        self, operators: Iterable[int], early: Mapping[int, int], after: Mapping[int, int], weights: Any, by_start: bool
    ) -> int:
        """A device that runs some of the operators has time for them from the first's start to the last's tail.

        Devices have different first and different last ones, so that the sum over devices, by weight, of heads and tails is
        no less than that of the least ones, the heaviest device having the least. Idle devices lift it if anything, as long
        as it is no less than the largest head and tail counted. By ``end``, an operator counts with its shortest time before
        its end, whenever it started.
        """
        weights = multipliers(weights, len(self.devices))
        total = 0
        for o in operators:
            on = [d for d in self.devices if self.best[o][d] < NEVER]
            total += min(weights[d] * (self.best[o][d] if by_start else self.shortest[o]) for d in on)
        sides = [sorted(side[o] for o in operators)[: len(weights)] for side in (early, after)]
        for side in sides:
            ranked = zip(sorted(weights, reverse=True), side + [side[-1]] * len(weights), strict=False)
            total += sum(weight * ns for weight, ns in ranked)
        if total < sum(weights) * (sides[0][-1] + sides[1][-1]):
            raise Refused("a lemma of rule 'work' counts more for devices that may be idle than it proves")
        return -(-total // sum(weights))

    def turns(
        self, shortest: list[int], start: Mapping[int, int], after: Mapping[int, int], operators: Iterable[int]
    ) -> int:
        """Of more than k operators for each device some device runs k + 1, one after another."""
        rounds = (len(shortest) - 1) // len(self.devices) + 1
        return min(start[o] for o in operators) + sum(shortest[:rounds]) + min(after[o] for o in operators)

    def bus(self, last: int | None, least: int, weights: Mapping[str, int]) -> int:
        """Host tensors whose readers must be followed by at least ``least`` cross the buses before that.

        Each tensor counts for the reader that is followed by most. An operator's tensors are loaded, each by itself, or cross
        in its direct read, whole; the cheapest by the buses' weights is counted.
        """
        p, after = self.problem, self.tails(last)
        channels = sorted({p.routes[HOST, d].channels[0] for d in self.devices if (HOST, d) in p.routes})
        names = [channel.split(" ")[-1] for channel in channels]
        if self.bypass or set(weights) != set(names):
            raise Refused(
                "a lemma of rule 'bus' has not one multiplier for each bus, or host tensors can avoid the buses"
            )
        of = dict(zip(channels, multipliers([weights[name] for name in names], len(names)), strict=True))
        on_bus = [(d, of[p.routes[HOST, d].channels[0]]) for d in self.devices if (HOST, d) in p.routes]
        follows: dict[int, int] = {}
        for o in after:
            if not any(p.shares[d] and p.times(o, d) for d in self.devices) and p.host_inputs[o]:
                modes = [ns for d, _ in on_bus for ns in (p.normal[o][d], self._rest(o, d)) if ns is not None]
                follows[o] = min(modes) + after[o]
        reads: dict[int, list[int]] = defaultdict(list)
        seen: set[int] = set()
        for o in sorted(follows, key=lambda o: (-follows[o], o)):
            if follows[o] >= least:
                reads[o] = [t for t in p.host_inputs[o] if t not in seen]
                seen.update(reads[o])
        reads = {o: tensors for o, tensors in reads.items() if tensors}
        total = 0
        for o, tensors in reads.items():
            loaded = sum(min(w * (p.copy_ns(t, HOST, d) or 0) for d, w in on_bus) for t in tensors)
            direct = [w * (p.host_read[o][d] or 0) for d, w in on_bus if p.direct[o][d] is not None]
            total += min([loaded, *direct])
        return -(-total // sum(of.values())) + min((follows[o] for o in reads), default=0)

    def _rest(self, o: int, d: int) -> int | None:
        """What a kernel does after its direct read."""
        direct, read = self.problem.direct[o][d], self.problem.host_read[o][d]
        return None if direct is None or read is None else direct - read


def multipliers(weights: Any, count: int) -> list[int]:
    """Integers from 0, not all 0: only their ratios matter."""
    if len(weights) != count or not all(type(w) is int and w >= 0 for w in weights) or not sum(weights):
        raise Refused(f"multipliers are {weights!r}; {count} integers from 0 are allowed, not all 0")
    return list(weights)


def together_or_apart(neighbours: list[tuple[int, int, int]]) -> int:
    """Least time at which an operator can go on for the sake of its neighbours on one side: (head, work, apart) of each.

    Those on its own device run there one after another, each after its head; for another one it waits until ``apart``. If
    some neighbour is on the device, those with a later ``apart`` may as well be: so only as many sets as neighbours count.
    """
    ranked = sorted(neighbours, key=lambda n: -n[2])
    best = ranked[0][2]
    for count in range(1, len(ranked) + 1):
        total = longest = 0
        for head, work, _ in sorted(ranked[:count], key=lambda n: -n[0]):
            total += work
            longest = max(longest, head + total)
        best = min(best, max(longest, ranked[count][2] if count < len(ranked) else 0))
    return best
