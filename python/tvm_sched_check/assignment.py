"""The rule ``assignment``: a weighted sum of paths, devices and buses, with the transfers that each device's operators need.

Proof: Theorem 1 of ``docs/proofs/assignment.md``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cache
from math import inf
from typing import Any

from .derivation import Derivation, multipliers
from .document import HOST, Problem, Refused, Route, count


def least(known: Derivation, first: int | None, last: int | None, lemma: dict[str, Any]) -> int:
    """Return the nanoseconds that a lemma proves about the whole run."""
    if first is not None or last is not None:
        raise Refused("rule 'assignment' is about the whole run")
    return Assignment(known, lemma).least()


class Assignment:
    """Rule `assignment` applied to a lemma: what its prices prove of the problem."""

    def __init__(self, known: Derivation, lemma: dict[str, Any]) -> None:
        self.known, self.problem, self.lemma = known, (p := known.problem), lemma
        self.follows, self.behind = times_behind(known)
        self.entry = cache(self._entry)
        channels = {p.bus[d]: p.routes[HOST, d].channels[0] for d in known.on_bus}
        self.rows = [(channels[row["bus"]], count(row["least"]), count(row["multiplier"])) for row in lemma["buses"]]
        # Devices between which copies occupy no weighed bus, in either direction, are one place.
        self.place = list(known.devices)
        for (a, b), route in p.routes.items():
            if a != HOST and (back := p.routes.get((b, a))) and not self.weight(route, inf) + self.weight(back, inf):
                self.place = [self.place[a] if place == self.place[b] else place for place in self.place]

    def weight(self, route: Route, follows: float) -> int:
        """Return the weight, for a nanosecond of a transfer over a route, of the rows with at most ``follows`` behind it."""
        return sum(weight for channel, least, weight in self.rows if channel in route.channels and least <= follows)

    def _entry(self, t: int, place: int, follows: int) -> int:
        """Return the least price of bringing a tensor to a place, at least ``follows`` before the end of the run."""
        p, inside = self.problem, [d for d in self.known.devices if self.place[d] == place]
        if p.is_host(t) and any(p.in_place(t, d) for d in inside):
            return 0
        sources = {d for d in self.known.devices if self.place[d] != place} | ({HOST} if p.is_host(t) else set())
        known = p.host_routes if p.is_host(t) else p.routes
        routes = [route for (source, target), route in known.items() if source in sources and target in inside]
        return min((route.ns(p.size[t]) * self.weight(route, follows) for route in routes), default=0)

    def claims(self) -> Counter[tuple[int, int]]:
        """Return by operator and device what copies of activations cost the reader, less what they spare the maker."""
        p, shares, claimed = (
            self.problem,
            Counter[tuple[int, int]](),
            defaultdict[tuple[int, int], list[tuple[int, int]]](list),
        )
        for claim in self.lemma.get("copies", []):
            t, reader = p.t[claim["tensor"]], p.o[claim["reader"]]
            if t not in p.maker or t not in p.inputs[reader] or len(claim["prices"]) != len(p.devices):
                raise Refused(
                    "rule 'assignment': a reader does not read an activation, or has not one price for each device"
                )
            for d, price in enumerate(map(count, claim["prices"])):
                if price != claim["prices"][self.place[d]]:
                    raise Refused("rule 'assignment': prices differ between devices that copies join freely")
                shares[reader, d] += price
                shares[p.maker[t], d] -= price
                if price and self.place[d] == d:
                    claimed[t, d].append((price, self.behind[reader]))
        for (t, place), prices in claimed.items():
            if sum(price for price, _ in prices) > self.entry(t, place, min(follows for _, follows in prices)):
                raise Refused(f"rule 'assignment': copies of {p.tensor_names[t]!r} cost less than their readers claim")
        return shares

    def least(self) -> int:
        """Add up the least cost of each operator, and divide by the weight of the latency."""
        p, busy = self.problem, [count(weight) for weight in self.lemma.get("devices", [0] * len(self.place))]
        regions = self.lemma.get("regions", [])
        if (any(busy) or regions) and not self.known.exclusive:
            raise Refused("rule 'assignment' with devices or regions needs devices that run one operator at a time")
        if max((least for _, least, _ in self.rows), default=0) > max(self.behind):
            raise Refused("rule 'assignment': less than `least` follows every operator")
        along, started, total = self.known.along(self.lemma["steps"], regions)
        shares, loads = self.claims(), assigned(p, self.follows)
        options: dict[int, list[tuple[int, int, int]]] = {o: [] for o in range(len(p.o))}
        for o, d in ((o, d) for o in options for d in self.known.devices):
            weight = along[o] + busy[d]
            if (ns := p.normal[o][d]) is not None:
                brought = sum(self.entry(t, self.place[d], self.follows[o]) for t in loads[o])
                options[o].append((d, ns, weight * ns + shares[o, d] + brought))
            if (ns := p.direct[o][d]) is not None:
                route = p.routes.get((HOST, d))
                read = p.host_read(o, d) * self.weight(route, self.follows[o]) if route else 0
                options[o].append((d, ns, weight * ns + shares[o, d] + read))
        total += self.known.cheapest(options, regions)
        weights = [weight for *_, weight in self.rows]
        total += sum(least * weight for _, least, weight in self.rows)
        multipliers([*weights, *busy, started], len(weights) + len(busy) + 1)  # refuses those that are all 0
        return -(-total // (sum(weights) + sum(busy) + started))


def times_behind(known: Derivation) -> tuple[list[int], list[int]]:
    """Return least times from the last byte of each operator's host tensors, and from its start, to the end of the run."""
    p, after = known.problem, known.reach(None, False)[0]
    follows = list[int]()
    for o in range(len(p.o)):
        rests = [ns for d in known.devices if (ns := p.normal[o][d]) is not None]
        for d in known.devices:
            if (ns := p.direct[o][d]) is not None:
                rests.append(ns - (p.host_read(o, d) if (HOST, d) in p.routes else 0))
        follows.append(min(rests) + after[o])
    return follows, [ns + after[o] for o, ns in enumerate(known.shortest)]


def assigned(problem: Problem, follows: list[int]) -> defaultdict[int, list[int]]:
    """Return the host tensors that are assigned to each operator, each to one of its readers."""
    loads = defaultdict[int, list[int]](list)
    for t in range(len(problem.size)):
        if readers := [o for o, read in enumerate(problem.host_inputs) if t in read]:
            loads[max(readers, key=lambda o: (problem.taken(o, t), follows[o], -o))].append(t)
    return loads
