"""The rule ``placement``: whatever devices the operators between two others run on, it takes at least so long."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .document import HOST, Problem, Refused

Array = npt.NDArray[np.int64]
Lags = dict[tuple[int, int], Array]
NEVER = 1 << 60
NODES = 1_000_000
DECIDED = 100
"""Operators at most whose places are tried in one lemma."""


class Placements:
    """Branch and bound over places, integers only; equal regions are searched once."""

    def __init__(self, problem: Problem, best: list[list[int]]) -> None:
        self.problem, self.best, self.devices = problem, np.array(best, np.int64), range(len(problem.devices))
        self.nodes = NODES
        self._copies: dict[int, Array] = {}
        self._known: dict[Any, bool] = {}

    def least(self, first: int, between: list[int], decided: set[int], ns: int) -> int:
        """``ns`` if no placement of the decided operators takes less, else 0. ``between`` is in order, the last included."""
        if between[-1] not in decided:
            raise Refused("a lemma of rule 'placement' does not name its last operator")
        if len(decided) > DECIDED:
            raise Refused(f"a lemma of rule 'placement' names {len(decided)} operators; at most {DECIDED} are allowed")
        chosen = [o for o in between if o in decided]
        search = _Search(chosen, self.best[chosen], self._lags(first, between, decided), first, ns)
        if search.key not in self._known:
            search.nodes = self.nodes
            self._known[search.key] = search.run()
            self.nodes = search.nodes
        return ns if self._known[search.key] else 0

    def _copy(self, size: int) -> Array:
        """Least time from device to device, through others where that is faster."""
        if size not in self._copies:
            matrix = np.where(np.eye(len(self.devices), dtype=bool), 0, NEVER)
            for (a, b), route in self.problem.routes.items():
                if a != HOST:
                    matrix[a, b] = route.ns(size)
            for middle in self.devices:
                matrix = np.minimum(matrix, matrix[:, middle, None] + matrix[None, middle, :])
            self._copies[size] = np.minimum(matrix, NEVER)
        return self._copies[size]

    def _lags(self, first: int, between: list[int], decided: set[int]) -> Lags:
        """Least time from the end of a decided operator to the start of another one, by the devices of both.

        Operators that are not decided run between their neighbours on the best device, and disturb nobody.
        """
        p, lags = self.problem, {}
        for source in [first, *(o for o in between if o in decided)]:
            ended = {source: np.where(np.eye(len(self.devices), dtype=bool), 0, NEVER)}
            for o in between:
                came = [(ended[b][:, :, None] + self._edge(b, o)[None]).min(axis=1) for b in p.before[o] if b in ended]
                if came and o != source:
                    lag = np.minimum(np.maximum.reduce(came), NEVER)
                    if o in decided:
                        lags[source, o] = lag
                    else:
                        ended[o] = np.minimum(lag + self.best[o][None], NEVER)
        return lags

    def _edge(self, p: int, o: int) -> Array:
        shared = set(self.problem.outputs[p]) & set(self.problem.inputs[o])
        return np.maximum.reduce([self._copy(self.problem.size[t]) for t in shared])


class _Search:
    """Looks for a placement that may take less than ``ns``."""

    def __init__(self, operators: list[int], times: Array, lags: Lags, first: int, ns: int) -> None:
        self.ns, self.count, self.nodes = ns, len(operators), 0
        number = {first: -1} | {o: i for i, o in enumerate(operators)}
        edges = {(number[a], number[b]): lag for (a, b), lag in lags.items()}
        self.key = ns, times.tobytes(), *((ends, edges[ends].tobytes()) for ends in sorted(edges))
        self.devices = range(times.shape[1])
        # In all lists below the last entry, -1, is that of the operator before the region, which has ended at 0.
        self.time = [*times.tolist(), [0] * len(self.devices)]
        self.before = [[(a, edges[a, i].tolist()) for a in range(-1, i) if (a, i) in edges] for i in range(self.count)]
        tails = np.zeros((self.count + 1, times.shape[1]), np.int64)
        for (a, b), lag in sorted(edges.items(), key=lambda e: -e[0][1]):
            tails[a] = np.maximum(tails[a], np.minimum((lag + times[b] + tails[b]).min(axis=1), NEVER))
        self.tail = tails.tolist()
        twins = [[a for a in range(b) if self._are_twins(a, b, times, edges)] for b in self.devices]
        self.twin = [min(same, default=b) for b, same in enumerate(twins)]
        self.place, self.start = [0] * (self.count + 1), [0] * (self.count + 1)

    def _are_twins(self, a: int, b: int, times: Array, edges: Lags) -> bool:
        """Whether two devices could change names."""
        names = list(self.devices)
        names[a], names[b] = b, a
        same = (lag == lag[names][:, names] for lag in edges.values())
        return bool((times == times[:, names]).all()) and all(each.all() for each in same)

    def run(self) -> bool:
        used = [0] * len(self.devices)
        for d in self.devices:
            if self.twin[d] == d:
                self.place[-1], used[d] = d, 1
                if self.tail[-1][d] < self.ns and self._less(0, used):
                    return False
                used[d] = 0
        return True

    def _less(self, i: int, used: list[int]) -> bool:
        """Whether some places of the operators from ``i`` on may take less, those before being placed."""
        if i == self.count:
            return True
        for d in self.devices:
            if not used[d] and any(not used[e] and self.twin[e] == self.twin[d] for e in range(d)):
                continue  # the same as an unused one before
            self.nodes -= 1
            if self.nodes < 0:
                raise Refused(f"more than {NODES} placements to look at")
            self.place[i] = d
            ends = ((self.start[a] + self.time[a][self.place[a]], lag[self.place[a]][d]) for a, lag in self.before[i])
            self.start[i] = max((end + lag for end, lag in ends), default=0)
            if self._forced(i) < self.ns:
                used[d] += 1
                found = self._less(i + 1, used)
                used[d] -= 1
                if found:
                    return True
        return False

    def _forced(self, last: int) -> int:
        """End of the region by the operators so far on the device of the last one: they run one after another.

        Those with at least some start and at least some tail take that start, their work and that tail.
        """
        d, longest = self.place[last], 0
        here = [(self.start[k], self.time[k][d], self.tail[k][d]) for k in range(last + 1) if self.place[k] == d]
        here.sort(reverse=True)
        for tail in {tail for _, _, tail in here}:
            work = 0
            for start, time, follows in here:
                if follows >= tail:
                    work += time
                    longest = max(longest, start + work + tail)
        return longest
