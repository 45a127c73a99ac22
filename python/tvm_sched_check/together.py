"""Operators that run together on a device (``costs.concurrency``): the formulas of ``docs/model.md`` in exact arithmetic.

Covered are stages, from serial share and resources. Measured pairs, threads, contention and factors are refused, and so are
overlapping streams (``docs/formats/evidence.md``, "What is not covered").
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Any

from .document import Problem, Refused, count

ROUNDED_OFF = Fraction(1, 1000)
"""Nanoseconds by which a stage may end before its exact time: the model counts them as an error of rounding."""


def stages_of(
    problem: Problem, placed: list[tuple[int, int, bool]], placements: list[dict[str, Any]]
) -> list[tuple[int, int]]:
    """Return the first placement of the stage of each placement, which stands for the stage, and the stream.

    ``placed`` has operator, device and whether the operator reads directly. Raise `Refused` if a stage breaks a rule.
    """
    first, leaders, streams = dict[tuple[int, int], int](), list[tuple[int, int]](), dict[int, set[int]]()
    last = dict[int, tuple[int, int]]()
    for p, ((_, d, direct), placement) in enumerate(zip(placed, placements, strict=True)):
        stage, stream = count(placement.get("stage", 0)), count(placement.get("stream", 0))
        at, split = (d, stage or -1 - p), last.get(d) != (d, stage)
        if stage and (direct or (split and at in first) or problem.concurrency is None):
            raise Refused("a stage reads directly, is split in its device's order, or costs.concurrency is missing")
        streams.setdefault(d, set()).update(() if stage else {stream})
        last[d] = at
        leaders.append((first.setdefault(at, p), stream))
    if problem.concurrency is not None and any(len(used) > 1 for used in streams.values()):
        raise Refused("operators overlap on streams of a device outside of stages, which this checker does not cover")
    return leaders


class Together:
    """The serial share, and the part of each resource that operators use, by operator and device."""

    def __init__(self, problem: Problem) -> None:
        known = {key: value for key, value in (problem.concurrency or {}).items() if value and key != "interval"}
        self.known, self.serial = problem.concurrency is not None, Fraction(_part(known.pop("serial_share", 0), 0))
        rows = known.pop("utilisation", [])
        if known:
            raise Refused(f"costs.concurrency.{min(known)} is not covered by this checker")
        self.used = [[[Fraction(_part(u, 1e-300)) for u in parts] for parts in row] for row in rows]
        shapes = {(len(row), *map(len, row)) for row in self.used}
        if self.known and (
            len(rows) != len(problem.o) or len(shapes) > 1 or any(len({*s[1:]}) > 1 or 0 in s for s in shapes)
        ):
            raise Refused("costs.concurrency.utilisation is not one row of resources for each operator and device")

    def occupied(self, best: list[list[Any]]) -> list[list[Any]]:
        """Return the least time that each operator occupies each device (``docs/proofs/index.md``, Lemma 1).

        It is of the resource that all operators together need longest.
        """
        if not self.known:
            return best
        parts = range(len(self.used[0][0]) if best else 0)
        of = [
            [
                [self._occupied(ns, u[r]) for ns, u in zip(*each, strict=True)]
                for each in zip(best, self.used, strict=True)
            ]
            for r in parts
        ]
        return max(of, key=lambda times: sum(map(min, times)), default=best)

    def _occupied(self, ns: Any, used: Fraction) -> Any:
        return max(ns * (self.serial + (1 - self.serial) * used) - ROUNDED_OFF, Fraction(0)) if type(ns) is int else ns

    def stage(self, d: int, members: list[tuple[int, int, int]]) -> int:
        """Return the time of a stage, from operator, stream and time alone of its members in launch order."""
        queues: dict[int, list[tuple[Any, int]]] = {}
        for o, stream, ns in members[::-1]:
            queues.setdefault(stream, []).append((ns, o))
        longest = max(sum(ns for ns, _ in queue) for queue in queues.values())
        if len(queues) == 1:
            return longest
        needed = max(map(sum, zip(*([ns * u for u in self.used[o][d]] for o, _, ns in members), strict=True)))
        time = self.serial * sum(ns for *_, ns in members) + (1 - self.serial) * max(needed, longest)
        if len(queues) < len(members):
            time = max(time, self._overlapped(d, queues))
        return max(longest, ceil(time - ROUNDED_OFF))

    def _overlapped(self, d: int, queues: dict[int, list[tuple[Any, int]]]) -> Any:
        """Return the time until all streams have ended, by the rule for streams; each queue has its first operator last."""
        now: Any = 0
        while queues:
            least = min(queue[-1][0] for queue in queues.values())
            needed = max(map(sum, zip(*(self.used[queue[-1][1]][d] for queue in queues.values()), strict=True)))
            alone = len(queues) == 1
            now += least * (1 if alone else max(1, self.serial * len(queues) + (1 - self.serial) * max(1, needed)))
            for queue in queues.values():
                ns, o = queue.pop()
                queue += [(ns - least, o)] if ns > least else []
            queues = {stream: queue for stream, queue in queues.items() if queue}
        return now


def _part(value: Any, least: float) -> Any:
    if type(value) not in (int, float) or not least <= value <= 1:
        raise Refused(f"costs.concurrency has {value!r} where a part of 1 is allowed")
    return value
