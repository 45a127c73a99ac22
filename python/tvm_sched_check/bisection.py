"""The rule ``bisection``: the division of the operators between two buses, by a positive definite matrix.

Proof: Theorem 2 of ``docs/proofs/bisection.md``.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from operator import gt
from typing import Any

from . import assignment
from .assignment import assigned, times_behind
from .derivation import Derivation
from .document import HOST, Refused, count
from .eigenvalue import negative_part


def least(known: Derivation, first: int | None, last: int | None, lemma: dict[str, Any]) -> int:
    """Return the ``ns`` of a lemma; refuse it if its weights do not exclude shorter schedules."""
    if first is not None or last is not None:
        raise Refused("rule 'bisection' is about the whole run")
    matrix, slack = Bisection(known, lemma).matrix(), count(lemma["slack"])
    matrix[0][0] -= 2 * slack
    if 2 * slack <= negative_part(matrix) * len(matrix):
        raise Refused("rule 'bisection': the weights do not exclude shorter schedules")
    return count(lemma["ns"])


class Bisection:
    """Rule `bisection` applied to a lemma: the matrix whose eigenvalues decide it."""

    def __init__(self, known: Derivation, lemma: dict[str, Any]) -> None:
        self.known, self.problem, self.lemma = known, (p := known.problem), lemma
        names, n = lemma["sides"], len(p.o)
        if len(names) != 2 or len(known.on_bus) < len(p.devices) or {*p.bus} != {*names}:
            raise Refused("rule 'bisection' needs two buses, over which all devices load")
        self.side = [names.index(bus) for bus in p.bus]
        self.channels = [p.routes[HOST, self.side.index(k)].channels[0] for k in (0, 1)]
        self.rows = [(names.index(row["bus"]), count(row["least"]), count(row["multiplier"])) for row in lemma["buses"]]
        self.follows, self.behind = ([count(ns) for ns in lemma[key]] for key in ("follows", "behind"))
        known_times = times_behind(known)
        if any(
            len(own) != n or any(map(gt, own, most))
            for own, most in zip((self.follows, self.behind), known_times, strict=True)
        ):
            raise Refused("rule 'bisection': less follows an operator than is claimed")
        self.entry = cache(self._entry)

    def _entry(self, t: int, side: int) -> int:
        """Return the least time for which bringing a tensor to a side occupies the side's bus."""
        p, channel = self.problem, self.channels[side]
        return min(
            (
                route.ns(p.size[t]) if channel in route.channels else 0
                for (source, target), route in (p.host_routes if p.is_host(t) else p.routes).items()
                if self.side[target] == side and (p.is_host(t) if source == HOST else self.side[source] != side)
            ),
            default=0,
        )

    def loads(self) -> list[list[int]]:
        """Return by side and operator the least time for which its host tensors occupy the bus; 0 if it cannot run there."""
        p, own = self.problem, assigned(self.problem, self.follows)
        found = [[0] * len(p.o), [0] * len(p.o)]
        for side in (0, 1):
            for o in range(len(p.o)):
                on = [d for d in self.known.devices if self.side[d] == side]
                times = [sum(self.entry(t, side) for t in own[o])] * any(p.normal[o][d] is not None for d in on)
                times += [p.host_read(o, d) for d in on if p.direct[o][d] is not None]
                found[side][o] = min(times, default=0)
        return found

    def matrix(self) -> list[list[int]]:
        """Return twice the matrix ``M`` of Theorem 2 for ``U = ns - 1``."""
        latest, n = count(self.lemma["ns"]) - 1, len(self.problem.o)
        leasts, product = [count(each) for each in self.lemma["leasts"]], count(self.lemma["product"])
        if max([*leasts, *(least for _, least, _ in self.rows)]) > max(self.behind):
            raise Refused("rule 'bisection': less than `least` follows every operator")
        if len(leasts) != 2 or [type(y) for y in self.lemma["diagonal"]] != [int] * n:
            raise Refused("rule 'bisection' needs two times and one integer for each operator")
        loads = self.loads()
        matrix = [[0] * (n + 1) for _ in range(n + 1)]
        for side, least, weight in self.rows:
            matrix[0][0] -= 2 * weight * (latest - least)
            for o in range(n):
                if self.follows[o] >= least:
                    matrix[0][0] += 2 * weight * loads[side][o] * side
                    matrix[0][o + 1] += weight * loads[side][o] * (1 - 2 * side)
        a, b = (
            [ns * (f >= least) for ns, f in zip(own, self.follows, strict=True)]
            for own, least in zip(loads, leasts, strict=True)
        )
        first, second = latest - leasts[0], latest - leasts[1] - sum(b)
        matrix[0][0] -= 2 * product * first * second
        for o, y in enumerate(self.lemma["diagonal"]):
            matrix[0][o + 1] -= y + product * (first * b[o] - second * a[o])
            matrix[o + 1][o + 1] += 2 * y
            for q in range(n):
                matrix[o + 1][q + 1] += product * (a[o] * b[q] + a[q] * b[o])
        self._copies(matrix)
        for o in range(1, n + 1):
            matrix[o][0] = matrix[0][o]
        return matrix

    def _copies(self, matrix: list[list[int]]) -> None:
        """Add the claims to the matrix; refuse claims above what the copies cost."""
        p, claimed = self.problem, defaultdict[tuple[int, int], list[tuple[int, int]]](list)
        for claim in self.lemma["copies"]:
            t, reader, prices = p.t[claim["tensor"]], p.o[claim["reader"]], [count(each) for each in claim["prices"]]
            if t not in p.maker or t not in p.inputs[reader] or len(prices) != 2:
                raise Refused("rule 'bisection': a reader does not read an activation, or has not two prices")
            maker = p.maker[t]
            for side, there in ((0, reader), (1, maker)):
                claimed[t, side].append((prices[side], self.behind[reader]))
                matrix[0][there + 1] += prices[side]
            matrix[maker + 1][reader + 1] -= sum(prices)
            matrix[reader + 1][maker + 1] -= sum(prices)
        for (t, side), claims in claimed.items():
            behind = min(ns for _, ns in claims)
            weight = sum(x for own, least, x in self.rows if own == side and least <= behind)
            if sum(price for price, _ in claims) > self.entry(t, side) * weight:
                raise Refused(f"rule 'bisection': copies of {p.tensor_names[t]!r} cost less than their readers claim")


OF_SCHEDULES = {"assignment": assignment.least, "bisection": least}
"""The rules that hold for schedules alone, not for problems with variants."""
