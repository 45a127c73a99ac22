"""The rule ``ports``: least time through a region on equal devices that each send and receive one copy at a time.

Proof: Lemma 5 of ``docs/proofs/regions.md``.
"""

from __future__ import annotations

from itertools import permutations, product
from typing import Any, NamedTuple

from .derivation import Derivation
from .document import HOST, Refused, Route
from .placement_bound import in_turn

LARGEST, TENSORS = 8, 32
"""Largest numbers of operators and tensors of a region, so that each placement and order takes a limited time."""

STATES = 3_000_000
"""Largest number of placements, complete or partial, and orders of arrival that are tried for all lemmas together."""


class Tensor(NamedTuple):
    """A tensor: its maker (-1: before the region), the time of a copy, and its readers."""

    maker: int
    copy: int
    readers: list[int]


class Ports:
    """Search the regions of all lemmas; equal regions are searched once."""

    def __init__(self) -> None:
        self.known, self.states = dict[str, bool](), STATES

    def least(self, known: Derivation, first: int | None, last: int | None, lemma: dict[str, Any]) -> int:
        """Return the ``ns`` of the lemma if no placement of the operators between its ends takes less, else 0."""
        p = known.problem
        if first is None or last is None or not known.exclusive:
            raise Refused("rule 'ports' is about the operators between two, on devices that run one at a time")
        behind, ahead = known.reach(first, True)[0], known.reach(last, False)[0]
        between = [o for o in p.order if o in behind and o in ahead and o != first]
        if not 0 < len(between) <= LARGEST or any(len({*known.best[o]}) > 1 for o in between):
            raise Refused(
                f"rule 'ports': not 1 to {LARGEST} operators between the two, or some takes longer on one device"
            )
        route, place = _route(known), {first: -1} | {o: i for i, o in enumerate(between)}
        readers = dict[int, list[int]]()
        for o in between:
            for t in p.inputs[o]:
                if p.maker.get(t) in place:
                    readers.setdefault(t, []).append(place[o])
        if len(readers) > TENSORS:
            raise Refused(f"rule 'ports': more than {TENSORS} tensors between the operators")
        tensors = [Tensor(place[p.maker[t]], route.ns(p.size[t]), own) for t, own in readers.items()]
        search = _Search(self, [known.shortest[o] for o in between], tensors, len(known.devices), lemma["ns"])
        if (key := str((search.time, tensors, search.ns))) not in self.known:
            self.known[key] = search.takes_less([], 0)
        return 0 if self.known[key] else search.ns


def _route(known: Derivation) -> Route:
    """Return a route between devices; refuse unless all take equally long and share a channel at each device."""
    routes = {pair: route for pair, route in known.problem.routes.items() if HOST not in pair}
    pairs = {(a, b) for a in known.devices for b in known.devices if a != b}
    ends = [[{*r.channels} for pair, r in routes.items() if pair[end] == d] for end in (0, 1) for d in known.devices]
    alike = len({route._replace(channels=()) for route in routes.values()}) == 1
    if not pairs <= {*routes} or not alike or not all(set.intersection(*through) for through in ends):
        raise Refused("rule 'ports' needs equal copies between all devices, over one channel into and out of each")
    return next(iter(routes.values()))


class _Search:
    """The search of one region. The operator before the region runs on device 0 and ends at time 0."""

    def __init__(self, all: Ports, time: list[int], tensors: list[Tensor], devices: int, ns: int) -> None:
        self.all, self.time, self.tensors, self.devices, self.ns = all, time, tensors, devices, ns
        self.follows = self._tails([0] * len(time), [{}] * len(tensors))  # without copies

    def takes_less(self, device: list[int], used: int) -> bool:
        """Return whether some placement of the other operators takes less than ``ns``; 0 to ``used`` are in use."""
        self.all.states -= 1
        if self.all.states < 0:
            raise Refused(f"more than {STATES} placements and orders of arrival to look at")
        ends = self._ends(device, [{}] * len(self.tensors))
        if any(end + tail >= self.ns for end, tail in zip(ends, self.follows, strict=False)):
            return False
        if len(device) == len(self.time):
            return self._some_order_takes_less(device)
        return any(self.takes_less([*device, d], max(used, d)) for d in range(min(used + 2, self.devices)))

    def _some_order_takes_less(self, device: list[int]) -> bool:
        at = [*device, 0]  # of makers: -1 is the operator before the region
        to = [sorted({device[o] for o in each.readers} - {at[each.maker]}) for each in self.tensors]
        for orders in product(*map(permutations, to)):
            self.all.states -= 1
            # With the k-th arrival k + 1 devices have the tensor; each copy at most doubles their number.
            copies = [{d: k.bit_length() for k, d in enumerate(order, 1)} for order in orders]
            end, tail = self._ends(device, copies), self._tails(device, copies)
            jobs: list[list[list[int]]] = [[] for _ in range(3 * self.devices)]
            for o, d in enumerate(device):
                jobs[d].append([end[o] - self.time[o], self.time[o], tail[o]])
            for each, order, steps in zip(self.tensors, orders, copies, strict=True):
                made = end[each.maker] if each.maker >= 0 else 0
                rest = {d: max(self.time[o] + tail[o] for o in each.readers if device[o] == d) for d in order}
                for d in order:
                    jobs[self.devices + d].append([made + (steps[d] - 1) * each.copy, each.copy, rest[d]])
                if order:
                    jobs[2 * self.devices + at[each.maker]].append([made, each.copy, rest[order[0]]])
            if max(end[-1], *map(in_turn, jobs)) < self.ns:
                return True
        return False

    def _ends(self, device: list[int], copies: list[dict[int, int]]) -> list[int]:
        """Return least ends of the placed operators; a tensor reaches a device in ``copies`` copy times, by default one."""
        end = list[int]()
        for o, d in enumerate(device):
            came = [0]
            for each, steps in zip(self.tensors, copies, strict=True):
                if o in each.readers:
                    apart = d != (device[each.maker] if each.maker >= 0 else 0)
                    came.append((end[each.maker] if each.maker >= 0 else 0) + apart * steps.get(d, 1) * each.copy)
            end.append(max(came) + self.time[o])
        return end

    def _tails(self, device: list[int], copies: list[dict[int, int]]) -> list[int]:
        """Return the least time from the end of each operator to the end of the last one."""
        tail = [0] * len(self.time)
        for o in range(len(self.time) - 1, -1, -1):
            for each, steps in zip(self.tensors, copies, strict=True):
                for b in each.readers if each.maker == o else ():
                    apart = device[b] != device[o]
                    tail[o] = max(tail[o], apart * steps.get(device[b], 1) * each.copy + self.time[b] + tail[b])
        return tail
