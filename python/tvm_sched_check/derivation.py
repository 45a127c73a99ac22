"""Check the evidence of a lower bound, a list of lemmas.

A lemma says that in every schedule ``last`` ends at least ``ns`` nanoseconds after ``first`` has ended.

A lemma without ``first`` begins at the start of the run, one without ``last`` ends at its end. Each lemma may use those
before it; the last one has neither and is the bound. The proofs of the rules are under ``docs/proofs/``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from itertools import accumulate
from math import inf
from typing import Any

from .document import HOST, Problem, Refused, count
from .placement_bound import Placements
from .together import Together

Times = dict[int, int]
Side = tuple[Times, Times, int]
"""Heads (or tails) on any device, the same on a device that runs no seed, and the number of seeds."""


def bound_of(
    problem: Problem,
    lemmas: list[dict[str, Any]],
    rules: Mapping[str, Callable[..., int]] = {},
    own_copies: bool = True,
) -> int:
    """Return the bound in nanoseconds that lemmas prove; refuse a lemma that does not follow.

    ``rules`` are further rules by name, called with what is known, the lemma's ends, and the lemma. ``own_copies`` says
    whether each activation has copies of its own; not so in a relaxed problem.
    """
    known = Derivation(problem, own_copies)
    for number, lemma in enumerate(lemmas):
        first, last = (problem.o[lemma[end]] if end in lemma else None for end in ("first", "last"))
        rule = lemma["rule"]
        proved = rules[rule](known, first, last, lemma) if rule in rules else known.proved(rule, first, last, lemma)
        if not count(lemma["ns"]) < proved + 1:  # times are integers, so what is proved is rounded up
            raise Refused(f"lemma {number} ({lemma['rule']}) claims {lemma['ns']} ns; what it rests on proves {proved}")
        known.to[last].append((first, lemma["ns"]))
        known.of[first].append((last, lemma["ns"]))
    if "first" in lemmas[-1] or "last" in lemmas[-1]:
        raise Refused("the last lemma is not about the whole run")
    return int(lemmas[-1]["ns"])


class Derivation:
    """The lemmas proved so far, and a method for each rule. Times are integers; infinite where an operator cannot run."""

    def __init__(self, problem: Problem, own_copies: bool = True) -> None:
        self.problem, self.devices = problem, range(len(problem.devices))
        p = problem
        self.best: list[list[Any]] = [[min(p.times(o, d), default=inf) for d in self.devices] for o in range(len(p.o))]
        self.shortest = [min(row) for row in self.best]
        self.exclusive, self.busy = p.concurrency is None, Together(p).occupied(self.best)
        self.least_busy = [min(row) for row in self.busy]
        self.to: dict[int | None, list[tuple[int | None, int]]] = defaultdict(list)
        self.of: dict[int | None, list[tuple[int | None, int]]] = defaultdict(list)
        self.placements = Placements(problem, self.best)
        self.on_bus = [d for d in self.devices if (HOST, d) in p.routes]
        # Over a link from a device that shares host memory, a host tensor may reach a device past its bus.
        links = [(a, b) for a in self.devices for b in self.on_bus if p.shares[a] and (a, b) in p.routes]
        self.bypass = any(p.routes[a, b].channels != p.routes[HOST, b].channels for a, b in links)
        self.load = [[p.routes[HOST, d].ns(size) for d in self.on_bus] for size in p.size]
        latencies = [p.set_latencies[d] for d in self.on_bus]
        self.arrival = [[ns + latency for ns, latency in zip(row, latencies, strict=True)] for row in self.load]
        to = [[{*r.channels} for (a, b), r in p.routes.items() if a != HOST and b == d] for d in self.devices]
        self.has_ports = own_copies and all(set.intersection(*ways) for ways in to if ways)
        self.copy_routes = {route._replace(channels=()) for (a, _), route in p.routes.items() if a != HOST}

    def proved(self, rule: str, first: int | None, last: int | None, lemma: dict[str, Any]) -> int:
        """Return the nanoseconds that a rule proves."""
        if rule == "bus" and first is None:
            return self.bus(last, lemma)
        (start, end), (after, passed) = self.reach(first, True), self.reach(last, False)
        between = [o for o in self.problem.order if o in end and o in after and o != first]
        operators = {self.problem.o[name] for name in lemma.get("operators", [])}
        if (first is not None and not between) or not operators <= set(between) or (rule != "path" and not operators):
            raise Refused(f"rule {rule!r}: no path leads from its first to its last operator, or one named is on none")
        if rule == "path":
            return max((end[o] + after[o] for o in between), default=0)
        if not self.exclusive and (rule == "placement" or lemma.get("by") == "end"):
            raise Refused(f"rule {rule!r} needs devices that run one operator at a time")
        if rule == "placement" and first is not None and last is not None:
            return self.placements.least(first, between, operators, lemma["ns"])
        if rule == "turns":  # docs/proofs/device_work.md, Lemma 5
            several = sorted(self.least_busy[o] for o in operators)[: (len(operators) - 1) // len(self.devices) + 1]
            return min(start[o] for o in operators) + sum(several) + min(after[o] for o in operators)
        if rule == "work" and lemma["by"] in (("start", "end", "ramp") if first is last is None else ("start", "end")):
            weights, by_end = multipliers(lemma["multipliers"], len(self.devices)), lemma["by"] == "end"
            early = {o: end[o] - self.shortest[o] for o in operators} if by_end else start
            sides = (early, early, 0), (after, after, 0)
            if lemma["by"] == "ramp":
                p = self.problem
                sides = self.ramp(p.order, p.before, start, end), self.ramp(p.order[::-1], p.after, after, passed)
            return self.work(operators, sides, weights, by_end)
        raise Refused(f"there is no rule {rule!r} between these ends")

    def reach(self, at: int | None, forward: bool) -> tuple[Times, Times]:
        """Return least times from the end of ``at``, or from the run's start, to start and end of the operators behind it.

        Backwards: from the end of an operator, and from its start, to the end of ``at`` or of the run. Proof: Lemmas 1 to
        4 of ``docs/proofs/heads_and_tails.md``.
        """
        p, start, end = self.problem, dict[int, int](), dict[int, int]()
        order, near, lemmas = (p.order, p.before, self.to) if forward else (p.order[::-1], p.after, self.of)
        claimed = end if forward else start  # lemmas are about ends of operators
        for o in order:
            reached = [b for b in near[o] if b in end]
            if at is not None and o != at and not reached:
                continue
            start[o] = max((end[b] for b in reached), default=0)
            if at is None and len(reached) > 1:
                start[o] = max(start[o], self.together_or_apart(o, reached, start, end))
                if forward and self.has_ports:  # docs/proofs/heads_and_tails.md, Lemma 7
                    beside = accumulate(
                        sorted(self.least_busy[b] for b in reached), initial=min(start[b] for b in reached)
                    )
                    copied = accumulate(
                        sorted(self.between(b, o) for b in reached), initial=min(end[b] for b in reached)
                    )
                    sides = [0, *list(beside)[1:]], [0, *list(copied)[1:]]
                    start[o] = max(start[o], min(map(max, sides[0], reversed(sides[1]))))
            if forward:
                end[o] = 0 if o == at else start[o] + self.shortest[o]
                if at is None:
                    end[o], start[o] = self._arriving(o, start[o])
            for other, ns in lemmas[o]:
                if other in claimed or (other is None and at is None):
                    claimed[o] = max(claimed[o], ns + (0 if other is None else claimed[other]))
            end[o] = end[o] if forward else start[o] + self.shortest[o]
        return start, end

    def _arriving(self, o: int, ready: int) -> tuple[int, int]:
        """Return least end and start of an operator whose predecessors allow ``ready`` (heads_and_tails.md, Lemma 2)."""
        p = self.problem
        loaded = min((ns for d in self.devices if not p.shares[d] and (ns := p.normal[o][d])), default=inf)
        at_once = min((ns for d in self.devices if (ns := (p.normal if p.shares[d] else p.direct)[o][d])), default=inf)
        arrival: Any = (
            0 if self.bypass else max((min(self.arrival[t], default=inf) for t in p.host_inputs[o]), default=0)
        )
        end: Any = min(ready + at_once, max(ready, arrival) + loaded)
        return end, ready if at_once < inf else max(ready, arrival)

    def together_or_apart(self, o: int, neighbours: Collection[int], head: Times, passed: Times) -> Any:
        """Return the least time at which an operator can start after its neighbours (heads_and_tails.md, Lemma 3).

        ``head`` are least times before the neighbours' starts, ``passed`` before their ends.
        """
        apart = {b: passed[b] + self.between(b, o) for b in neighbours}
        ranked = sorted(neighbours, key=apart.__getitem__, reverse=True)

        def together(size: int) -> Any:
            """Return the least start if the first ``size`` share the device of ``o``."""
            total = longest = 0
            for b in sorted(ranked[:size], key=head.__getitem__, reverse=True):
                total += self.least_busy[b]
                longest = max(longest, head[b] + total)
            return longest

        # With more of them there, `together` grows and the longest copy falls: the least maximum is where the two meet.
        meet = bisect_left(range(len(ranked)), True, key=lambda size: together(size) >= apart[ranked[size]])
        return min(together(meet), apart[ranked[meet - 1]] if meet else inf)

    def between(self, a: int, b: int) -> Any:
        """Return the least time of a copy between two neighbours on different devices, in either direction."""
        size = self.problem.before[a].get(b, self.problem.before[b].get(a, 0))
        return min((route.ns(size) for route in self.copy_routes), default=inf)

    def ramp(self, order: list[int], beside: list[dict[int, int]], reached: Times, passed: Times) -> Side:
        """Return heads, or tails, on devices that run no seed, an operator without neighbours ``beside`` it.

        Proof: Lemma 4 of ``docs/proofs/device_work.md``.
        """
        elsewhere = dict[int, Any]()
        for o in order:
            paths = [min(elsewhere[b] + self.shortest[b], passed[b] + self.between(b, o)) for b in beside[o]]
            elsewhere[o] = inf
            if paths:
                elsewhere[o] = max(reached[o], self.together_or_apart(o, beside[o], elsewhere, passed), *paths)
        return reached, elsewhere, sum(not each for each in beside)

    def work(self, operators: set[int], sides: tuple[Side, Side], weights: list[int], by_end: bool) -> int:
        """Return what rule ``work`` proves: Lemmas 2, 3 (``by_end``) and 4 of ``docs/proofs/device_work.md``."""
        total, most = 0, 0
        for o in operators:
            on = [d for d in self.devices if self.best[o][d] < inf]
            total += min(weights[d] * (self.shortest[o] if by_end else self.busy[o][d]) for d in on)
        for anywhere, elsewhere, seeds in sides:
            counted = [min(anywhere[o] for o in operators)] * min(seeds, len(weights))
            counted += sorted(ns for o in operators if (ns := elsewhere[o]) < inf)[: len(weights) - len(counted)]
            counted += [counted[-1]] * (len(weights) - len(counted))
            total += sum(weight * ns for weight, ns in zip(sorted(weights, reverse=True), counted, strict=True))
            most += counted[-1]
        if total < sum(weights) * most:
            raise Refused("a lemma of rule 'work' counts more for devices that may be idle than it proves")
        return -(-total // sum(weights))

    def bus(self, last: int | None, lemma: Mapping[str, Any]) -> int:
        """Return what rule ``bus`` proves: Theorem 2 of ``docs/proofs/bus.md``.

        With ``steps`` or ``devices``: Theorem 1 of ``docs/proofs/path_and_bus.md``; with ``regions``: Theorem 2.
        """
        p, busy = self.problem, [count(weight) for weight in lemma.get("devices", [0] * len(self.devices))]
        if last is not None and {"steps", "devices", "regions"} & {*lemma}:
            raise Refused("rule 'bus' with steps, devices or regions is about the whole run")
        if not self.exclusive and (lemma.get("regions") or any(busy)):
            raise Refused("rule 'bus' with devices or regions needs devices that run one operator at a time")
        of, bus, follows, loads = self.crossing(last, lemma)
        along, started, total = self.along(lemma.get("steps", []), lemma.get("regions", []))
        options = dict[int, list[tuple[int, int, int]]]()  # device, time and price
        for o in range(len(p.o)) if started or any(busy) else follows:
            own = [(d, ns, loads[o]) for d in self.devices if (ns := p.normal[o][d]) is not None]
            for d in self.devices:
                if (ns := p.direct[o][d]) is not None:
                    own.append((d, ns, bus[d] * p.bus_read(o, d) if o in follows else 0))
            options[o] = [(d, ns, (along[o] + busy[d]) * ns + carried) for d, ns, carried in own]
        total += self.cheapest(options, lemma.get("regions", []))
        total += sum(of.values()) * (p.set_latency + min(follows.values())) if follows else 0
        multipliers([*of.values(), *busy, started], len(of) + len(busy) + 1)  # refuses those that are all 0
        return -(-total // (sum(of.values()) + sum(busy) + started))

    def crossing(
        self, last: int | None, lemma: Mapping[str, Any]
    ) -> tuple[dict[str, int], list[int], dict[int, int], list[int]]:
        """Return the weights of the buses, by name and by device, and what crosses them.

        That is, the operators whose host tensors are counted, with the least time that follows them, longest first if the
        lemma names none; and by operator, the weighted bus time of loads of the tensors that are assigned to it.
        """
        p, (after, _), weights = self.problem, self.reach(last, False), lemma["multipliers"]
        names = sorted({p.bus[d] for d in self.on_bus})
        if self.bypass or sorted(weights) != names:
            raise Refused("rule 'bus': not one multiplier for each bus, or host tensors can avoid the buses")
        of = {name: count(weights[name]) for name in names}
        bus = [of.get(name, 0) for name in p.bus]
        follows, reader = dict[int, int](), dict[int, int]()
        for o in after:
            if p.host_inputs[o] and not any(p.shares[d] and p.times(o, d) for d in self.devices):
                rests = [ns - p.host_read(o, d) for d in self.on_bus if (ns := p.direct[o][d]) is not None]
                following = min([*rests, *(ns for d in self.on_bus if (ns := p.normal[o][d]) is not None)]) + after[o]
                if following >= lemma["least"]:
                    follows[o] = following
        counted = sorted(follows, key=lambda o: (-follows[o], o))
        if "operators" in lemma:  # only these; further readers may be assigned tensors and prove less
            counted = [p.o[name] for name in lemma["operators"]]
            if not {*counted} <= {*follows}:
                raise Refused("rule 'bus': less than `least` follows an operator named, or nothing must cross for it")
        for o in counted:
            for t in p.host_inputs[o]:
                if t not in reader or p.taken(o, t) > p.taken(reader[t], t):
                    reader[t] = o
        loads = [0] * len(p.o)
        for t, o in reader.items():
            loads[o] += min(bus[d] * ns for d, ns in zip(self.on_bus, self.load[t], strict=True))
        return of, bus, {o: follows[o] for o in counted}, loads

    def cheapest(self, options: dict[int, list[tuple[int, int, int]]], regions: Collection[dict[str, Any]]) -> int:
        """Return the least price of the options of each operator, of which those in a region count as the region's cost.

        Options are a device, a time and a price. Proof: Theorem 2 of ``docs/proofs/path_and_bus.md``.
        """
        for region in regions:
            first, end = self.problem.o[region["first"]], self.problem.o[region["last"]]
            behind, ahead = self.reach(first, True)[0], self.reach(end, False)[0]
            inside = {o: options.pop(o, []) for o in self.problem.order if o in behind and o in ahead and o != first}
            if not all(inside.values()) or not inside:
                raise Refused("two regions have an operator in common, or one has none")
            if self.placements.costs_less(first, inside, count(region["multiplier"]), count(region["cost"])):
                raise Refused(f"the region behind {region['first']!r} may cost less than {region['cost']}")
        return sum(region["cost"] for region in regions) + sum(
            min(price for *_, price in own) for own in options.values()
        )

    def along(self, steps: list[dict[str, Any]], regions: Collection[Any] = ()) -> tuple[Counter[int], int, int]:
        """Return the weights of operators on edge steps, the weight that starts, and what delay steps prove by weight.

        Regions carry weight on; `bus` prices them. Refuse steps along which more weight leaves an operator than arrives
        (``docs/proofs/path_and_bus.md``).
        """
        along, left, started, proved = Counter[int](), Counter[int | None](), 0, 0
        for i, step in enumerate([*steps, *regions]):
            weight, last = count(step["multiplier"]), self.problem.o[step["last"]]
            first = self.problem.o[step["first"]] if "first" in step else None
            left[last] += weight
            left[first] -= weight
            started += weight if first is None else 0
            if i >= len(steps):  # a region, priced as a whole
                continue
            if first is None or first in self.problem.before[last]:
                along[last] += weight
            else:
                proved += weight * max(ns for other, ns in self.of[first] if other == last)
        if any(weight < 0 for o, weight in left.items() if o is not None):
            raise Refused("rule 'bus': more goes on from an operator along steps than arrives there")
        return along, started, proved


def multipliers(weights: Any, number: int) -> list[int]:
    """Return the weights; refuse them unless they are ``number`` integers from 0, not all 0. Only their ratios matter."""
    if len(weights) != number or sum(map(count, weights)) == 0:
        raise Refused(f"multipliers are {weights!r}; {number} integers from 0 are allowed, not all 0")
    return list(weights)
