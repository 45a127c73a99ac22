"""Annealing over stages, their order and their devices at once, priced by the model: where devices or links are unequal."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from random import Random

from ..errors import ProblemError
from ..problem import FORBIDDEN, Problem
from .pipeline_plan import Stage
from .stage_pricing import Assignment, price_stage

MOVES_PER_OPERATOR, LEAST_MOVES = 500, 3000
TURNS = 4
"""How often the annealing starts again from the best so far."""
_HOT, _COLD = 0.5, 0.005
"""First and last temperature, as parts of the energy at the start."""
_BROKEN = 1e18
"""Energy of a broken rule, beyond all times."""
_MISSED = 4.0
"""How much worse a nanosecond beyond a limit is than one of the objective."""
_TIE = 0.01
"""Weight of what matters less: it leads across plateaus of the maximum over stages."""

Key = Callable[[Sequence[Stage]], tuple[int, int, int]]


class DeviceAnnealing:
    """Each device not in use may take a stage; moves take an operator to a stage, or a device to another place.

    Only the stages that a move touches are priced again. The answer depends on the seed, and on the time where that ends
    it.

    Parameters
    ----------
    problem : Problem
    sequence : sequence of int
        Devices in the order of their stages, one for each stage that may be; stages may be empty.
    spare : sequence of int
        Devices that have no stage.
    stage_of : sequence of int
        Of each operator, by its place in ``sequence``; no operator reads from a later stage.
    key : callable
        Of the stages that are not empty: how far a limit is missed, what is minimised, and what comes after it.
    """

    def __init__(
        self,
        problem: Problem,
        sequence: Sequence[int],
        spare: Sequence[int],
        stage_of: Sequence[int],
        key: Key,
    ) -> None:
        self.problem, self.key = problem, key
        self.rank = {o: r for r, o in enumerate(problem.graph.index.order)}
        self.sequence, self.spare, self.stage_of = list(sequence), list(spare), list(stage_of)
        index = problem.graph.index
        self.before = [set(u) for u in index.predecessors]
        self.after: list[set[int]] = [set() for _ in self.before]
        for o, found in enumerate(self.before):
            for u in found:
                self.after[u].add(o)
        self.costs: list[tuple[Stage | None, int]] = [(None, 0)] * len(self.sequence)
        self._price(range(len(self.sequence)))

    def run(self, seed: int, end: float) -> Iterator[Assignment]:
        """Anneal until the moves are done or the clock passes ``end``; yield the best assignment of each turn."""
        random, best = Random(seed), self._state()
        least = self._energy()
        moves = max(LEAST_MOVES, MOVES_PER_OPERATOR * len(self.stage_of)) // TURNS
        scale = least if least < _BROKEN else 1.0 + sum(stage.cost_ns for stage, _ in self.costs if stage)
        for _ in range(TURNS):
            self._restore(best)
            energy = least
            for move in range(moves):
                if time.monotonic() > end:
                    break
                temperature = scale * _HOT * (_COLD / _HOT) ** (move / moves)
                kept = self._state()
                if not self._change(random):
                    continue
                found = self._energy()
                if found <= energy or random.random() < math.exp((energy - found) / temperature):
                    energy = found
                    if energy < least:
                        least, best = energy, self._state()
                else:
                    self._restore(kept)
            self._restore(best)
            yield self._assignment()

    def _state(self) -> tuple[list[int], list[int], list[int], list[tuple[Stage | None, int]]]:
        return list(self.sequence), list(self.spare), list(self.stage_of), list(self.costs)

    def _restore(self, state: tuple[list[int], list[int], list[int], list[tuple[Stage | None, int]]]) -> None:
        self.sequence, self.spare, self.stage_of, self.costs = (list(part) for part in state)  # type: ignore[assignment]

    def _assignment(self) -> list[tuple[int, list[int]]]:
        parts: list[tuple[int, list[int]]] = [(device, []) for device in self.sequence]
        for o in self.rank:
            parts[self.stage_of[o]][1].append(o)
        return parts

    def _change(self, random: Random) -> bool:
        """Make a random move; False where there is none of its kind."""
        kind = random.random()
        if kind < 0.55 and self.stage_of:
            return self._move_operator(random)
        if kind < 0.7 and self.stage_of:
            return self._move_group(random)
        places = len(self.sequence)
        a = random.randrange(places)
        if kind < 0.8 and self.spare:
            b = random.randrange(len(self.spare))
            self.sequence[a], self.spare[b] = self.spare[b], self.sequence[a]
        elif kind < 0.9:
            b = random.randrange(places)
            self.sequence[a], self.sequence[b] = self.sequence[b], self.sequence[a]
        else:
            self._move_empty(random)
        self._price(range(places))
        return True

    def _move_operator(self, random: Random) -> bool:
        """Take an operator to another stage between those it reads from and those that read it."""
        o = random.randrange(len(self.stage_of))
        first = max((self.stage_of[u] for u in self.before[o]), default=0)
        last = min((self.stage_of[v] for v in self.after[o]), default=len(self.sequence) - 1)
        old = self.stage_of[o]
        targets = [s for s in range(first, last + 1) if s != old]
        if not targets:
            return False
        self._relocate([o], random.choice(targets))
        return True

    def _move_group(self, random: Random) -> bool:
        """Take an operator to the next stage with all of its stage that read from it, or that stage as a whole; or back."""
        o, step = random.randrange(len(self.stage_of)), random.choice((-1, 1))
        old, used = self.stage_of[o], set(self.stage_of)
        reached = old + step
        while 0 <= reached < len(self.sequence) and reached not in used:
            reached += step
        targets = [s for s in range(old + step, reached + step, step) if 0 <= s < len(self.sequence)]
        if not targets:
            return False
        if random.random() < 0.3:
            group = [u for u, s in enumerate(self.stage_of) if s == old]
        else:
            group, follow = [o], self.after if step > 0 else self.before
            for u in group:
                group += sorted(v for v in follow[u] if self.stage_of[v] == old and v not in group)
        self._relocate(group, random.choice(targets))
        return True

    def _relocate(self, group: Sequence[int], new: int) -> None:
        """Put operators into a stage, and price the stages that they are joined to."""
        index, touched = self.problem.graph.index, {new, *(self.stage_of[o] for o in group)}
        for o in group:
            self.stage_of[o] = new
        for o in group:
            near = {u for t in index.inputs[o] for u in (index.producer[t], *index.consumers[t]) if u >= 0}
            touched.update(self.stage_of[u] for u in near | self.after[o])
        self._price(touched)

    def _move_empty(self, random: Random) -> None:
        """Take an empty stage with its device to another place in the order."""
        used = set(self.stage_of)
        empty = [s for s in range(len(self.sequence)) if s not in used]
        if not empty:
            return
        old, new = random.choice(empty), random.randrange(len(self.sequence))
        self.sequence.insert(new, self.sequence.pop(old))
        places = list(range(len(self.sequence)))
        places.insert(new, places.pop(old))
        self.stage_of = [places.index(s) for s in self.stage_of]

    def _price(self, stages: Sequence[int] | set[int] | range) -> None:
        """Price stages again; with each stands how many rules it breaks."""
        assignment = self._assignment()
        stage_of = dict(enumerate(self.stage_of))
        for s in stages:
            device, operators = assignment[s]
            if not operators:
                self.costs[s] = (None, 0)
                continue
            broken = sum(self.problem.costs.operator_ns[o, device] == FORBIDDEN for o in operators)
            try:
                stage = price_stage(self.problem, assignment, stage_of, s)
            except ProblemError:  # nothing joins two of the devices
                self.costs[s] = (None, int(broken) + 1)
                continue
            broken += stage.peak_bytes > self.problem.topology.devices[device].memory
            self.costs[s] = (stage, int(broken))

    def _energy(self) -> float:
        over, objective, then = self.key([stage for stage, _ in self.costs if stage is not None])
        return _BROKEN * sum(broken for _, broken in self.costs) + _MISSED * over + objective + _TIE * then
