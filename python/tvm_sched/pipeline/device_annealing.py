"""Anneal stages, their order and their devices together, for unequal devices or links; the model prices them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from random import Random

from tvm_sched_runtime.errors import ProblemError
from tvm_sched_runtime.pipeline.pipeline_plan import Stage
from tvm_sched_runtime.pipeline.stage_pricing import Assignment, price_stage
from tvm_sched_runtime.problem import FORBIDDEN, Problem

MOVES_PER_OPERATOR, LEAST_MOVES = 500, 3000
TURNS = 4
"""How often the annealing starts again from the best assignment."""
_HOT, _COLD = 0.5, 0.005
"""First and last temperature, as fractions of the energy at the start."""
_BROKEN = 1e18
"""Energy of a broken rule, larger than all times."""
_MISSED = 4.0
"""Weight of a nanosecond beyond a limit, relative to a nanosecond of the objective."""
_TIE = 0.01
"""Weight of the secondary objective, which leads across plateaus of the maximum over stages."""

Key = Callable[[Sequence[Stage]], tuple[int, int, int]]


class DeviceAnnealing:
    """Annealing whose moves take an operator to a stage, or a device to another place in the order.

    Only the stages that a move touches are priced again. The answer depends on the seed, and on the machine if the time
    ends the search.

    Parameters
    ----------
    problem : Problem
    sequence : sequence of int
        Device of each stage; stages may be empty.
    spare : sequence of int
        Devices without a stage.
    stage_of : sequence of int
        Stage of each operator, as a position in ``sequence``; no operator reads from a later stage.
    key : callable
        From the stages that are not empty to (excess over a limit, objective, secondary objective).
    """

    def __init__(
        self, problem: Problem, sequence: Sequence[int], spare: Sequence[int], stage_of: Sequence[int], key: Key
    ) -> None:
        self.problem, self.key = problem, key
        self.rank = {o: r for r, o in enumerate(problem.graph.index.order)}
        self.sequence, self.spare, self.stage_of = list(sequence), list(spare), list(stage_of)
        index = problem.graph.index
        self.before = [set(u) for u in index.predecessors]
        self.after: list[set[int]] = [set() for _ in self.before]
        for o, predecessors in enumerate(self.before):
            for u in predecessors:
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
                changed = self._energy()
                if changed <= energy or random.random() < math.exp((energy - changed) / temperature):
                    energy = changed
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
        """Make a random move; return False if no move of its kind exists."""
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
        """Move an operator to another stage between its producers' and its readers' stages."""
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
        """Move an operator and its readers in the same stage, or the whole stage, to the next or the previous stage."""
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
        """Put operators into a stage, and price all stages with which they share tensors."""
        index, touched = self.problem.graph.index, {new, *(self.stage_of[o] for o in group)}
        for o in group:
            self.stage_of[o] = new
        for o in group:
            near = {u for t in index.inputs[o] for u in (index.producer[t], *index.consumers[t]) if u >= 0}
            touched.update(self.stage_of[u] for u in near | self.after[o])
        self._price(touched)

    def _move_empty(self, random: Random) -> None:
        """Move an empty stage with its device to another place in the order."""
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
        """Price stages again, and count the rules that each breaks."""
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
            except ProblemError:  # no route between two devices
                self.costs[s] = (None, int(broken) + 1)
                continue
            broken += stage.peak_bytes > self.problem.topology.devices[device].memory
            self.costs[s] = (stage, int(broken))

    def _energy(self) -> float:
        over, objective, then = self.key([stage for stage, _ in self.costs if stage is not None])
        return _BROKEN * sum(broken for _, broken in self.costs) + _MISSED * over + objective + _TIE * then
