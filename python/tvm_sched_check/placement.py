"""The rule ``placement``: whatever devices the operators between two others run on, it takes at least so long."""

from __future__ import annotations

from typing import Any

import numpy as np

from .document import HOST, Problem, Refused

NODES = 1_000_000
DECIDED = 100
"""Operators at most whose places are tried in one lemma."""


class Placements:
    """Branch and bound over places; equal regions are searched once. Arrays hold integers of any size, or infinity."""

    def __init__(self, problem: Problem, best: list[list[Any]]) -> None:
        self.problem, self.best, self.nodes = problem, np.array(best, object), NODES
        self.apart = np.where(np.eye(len(problem.devices), dtype=bool), 0, np.full((), np.inf, object))
        self.copies: dict[int, Any] = {}
        self.known: dict[str, bool] = {}

    def least(self, first: int, between: list[int], decided: set[int], ns: int) -> int:
        """``ns`` if no placement of the decided operators takes less, else 0. ``between`` is in order, the last included."""
        if between[-1] not in decided or len(decided) > DECIDED:
            raise Refused(
                f"a lemma of rule 'placement' leaves out its last operator, or names more than at most {DECIDED}"
            )
        chosen = [first, *(o for o in between if o in decided)]
        time = [[0] * len(self.apart), *self.best[chosen[1:]].tolist()]
        region = _Region(self, ns, time, [self._lags(o, chosen, between) for o in chosen])
        key = str((ns, time, region.before))
        if key not in self.known:
            self.known[key] = region.takes_less(0, [])
        return 0 if self.known[key] else ns

    def _copy(self, size: int) -> Any:
        """Least time from device to device, through others where that is faster."""
        if size not in self.copies:
            table = self.apart.copy()
            for (a, b), route in self.problem.routes.items():
                if a != HOST:
                    table[a, b] = route.ns(size)
            for middle in range(len(table)):
                table = np.minimum(table, table[:, middle, None] + table[None, middle, :])
            self.copies[size] = table
        return self.copies[size]

    def _lags(self, source: int, chosen: list[int], between: list[int]) -> dict[int, Any]:
        """Least time from the end of an operator to the start of chosen ones, by the devices of both.

        Operators that are not chosen run between their neighbours on the best device, and disturb nobody.
        """
        p, lags, ended = self.problem, dict[int, Any](), {source: self.apart}
        for o in between:
            came = []
            for b in set(p.before[o]) & set(ended):
                copies = [self._copy(p.size[t]) for t in set(p.outputs[b]) & set(p.inputs[o])]
                came.append((ended[b][:, :, None] + np.maximum.reduce(copies)[None]).min(axis=1))
            if came and o in chosen:
                lags[chosen.index(o)] = np.maximum.reduce(came)
            elif came:
                ended[o] = np.maximum.reduce(came) + self.best[o]
        return lags


class _Region:
    """Operators by position, before them the one that has ended at 0: times, and lags from those that precede."""

    def __init__(self, search: Placements, ns: int, time: list[list[Any]], lags: list[dict[int, Any]]) -> None:
        self.search, self.ns, self.time, self.devices = search, ns, time, range(len(time[0]))
        self.before = [[(a, lags[a][i].tolist()) for a in range(i) if i in lags[a]] for i in range(len(time))]
        tail = np.zeros((len(time), len(self.devices)), object)
        for a, following in reversed(list(enumerate(lags))):
            for i, lag in following.items():
                tail[a] = np.maximum(tail[a], (lag + time[i] + tail[i]).min(axis=1))
        self.tail, self.start = tail.tolist(), [0] * len(time)
        tables = [lag for following in lags for lag in following.values()]
        self.twin = [min(a for a in self.devices if self._are_twins(a, b, tables)) for b in self.devices]

    def _are_twins(self, a: int, b: int, tables: list[Any]) -> bool:
        """Whether two devices could change names."""
        names = list(self.devices)
        names[a], names[b] = b, a
        return all(row[a] == row[b] for row in self.time) and all((t == t[names][:, names]).all() for t in tables)

    def takes_less(self, i: int, place: list[int]) -> bool:
        """Whether some places of the operators from ``i`` on may take less, those before being placed."""
        if i == len(self.time):
            return True
        for d in self.devices:
            if d not in place and any(e not in place and self.twin[e] == self.twin[d] for e in range(d)):
                continue  # the same as an unused one before
            self.search.nodes -= 1
            if self.search.nodes < 0:
                raise Refused(f"more than {NODES} placements to look at")
            ends = (self.start[a] + self.time[a][place[a]] + lag[place[a]][d] for a, lag in self.before[i])
            self.start[i] = max(ends, default=0)
            if self._forced([*place, d]) < self.ns and self.takes_less(i + 1, [*place, d]):
                return True
        return False

    def _forced(self, place: list[int]) -> int:
        """End of the region by the operators so far on the device of the last one: they run one after another.

        Those with at least some start and at least some tail take that start, their work and that tail.
        """
        d, longest = place[-1], 0
        here = [(self.start[k], self.time[k][d], self.tail[k][d]) for k, e in enumerate(place) if e == d]
        for tail in {tail for _, _, tail in here}:
            work = 0
            for start, time, follows in sorted(here, reverse=True):
                if follows >= tail:
                    work += time
                    longest = max(longest, start + work + tail)
        return longest
