"""Reuse answers of equal programs: the layers of a transformer are equal, and so are many of their programs."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from ..common.milp import ENOUGH, GAP, Effort
from .outcome import Outcome
from .submodel import Submodel, evaluate


@dataclass(frozen=True)
class SolvedProgram:
    """A program and its answer."""

    number: int
    """Number of its submodel among the non-empty ones, from 0."""
    times: list[float]
    """Times at which its buses and devices are free."""
    assignment: list[int]
    outcome: Outcome
    seconds: float
    """Time limit of the solver."""

    @property
    def duration(self) -> float:
        """Duration of the submodel, from the first free device or bus."""
        return self.outcome.total_ns - min(self.times)


@dataclass
class Repeats:
    """Answers to the programs of one run, by the constants of the programs.

    Two programs are alike if their constants are equal, and the times at which buses and devices are free differ by nearly
    the same amount. Memory counts only if it can be short. If buses and devices are free later by at most some amount, no
    assignment ends later by more than this amount, and none ends earlier. So the old bound plus the least difference is a
    bound, and a reused answer is worse than the best by at most the spread of the differences.
    """

    alike: float
    """Largest spread of the differences, as a fraction of the submodel's duration; at least `GAP`."""
    known: dict[bytes, list[SolvedProgram]] = field(default_factory=dict)

    def find(self, s: Submodel, effort: Effort | None) -> tuple[list[int], Outcome] | None:
        """Return the assignment and outcome of the most alike program; ``s`` has the times of `tightened`."""
        enough = 0.0 if effort is None else ENOUGH * effort.time_limit
        near = [
            (spread, answer)
            for answer in self.known.get(_constants(s), ())
            if (answer.outcome.status == "optimal" or answer.seconds >= enough)
            and (spread := max(moves := _shifts(s, answer)) - min(moves)) <= max(self.alike, GAP) * answer.duration
        ]
        if not near:
            return None
        _, answer = min(near, key=lambda each: each[0])
        times = evaluate(s, answer.assignment)
        if times is None:
            return None
        return answer.assignment, _shifted_outcome(answer, round(times.total), min(_shifts(s, answer)))

    def start(self, s: Submodel) -> list[int] | None:
        """Return the last answer to a program that differs in times alone; None if there is none."""
        known = self.known.get(_constants(s))
        return known[-1].assignment if known else None

    def add(self, number: int, s: Submodel, assignment: list[int], outcome: Outcome, effort: Effort | None) -> None:
        """Keep the answer to a submodel's program."""
        seconds = effort.time_limit if effort is not None else 0.0
        answer = SolvedProgram(number, _free_from(s), assignment, outcome, seconds)
        self.known.setdefault(_constants(s), []).append(answer)


def _shifted_outcome(answer: SolvedProgram, total_ns: int, least: float) -> Outcome:
    """Return the outcome of a program alike to an answered one, with times later by at least ``least``."""
    then = answer.outcome
    bound = None if then.bound_ns is None else int(then.bound_ns + least)
    outcome = msgspec.structs.replace(then, seconds=0.0, same_as=answer.number, total_ns=total_ns, bound_ns=bound)
    outcome.start_ns = round(then.start_ns + least)
    outcome.objective_ns = None if then.objective_ns is None else total_ns
    if then.status == "optimal" and (bound is None or total_ns - bound > 2 * GAP * answer.duration):
        outcome.status = "alike"
    return outcome


def _shifts(s: Submodel, answer: SolvedProgram) -> list[float]:
    """Return by how much each bus and device is free later than in an answered program."""
    return [now - before for now, before in zip(_free_from(s), answer.times, strict=True)]


def _free_from(s: Submodel) -> list[float]:
    return [*s.transfers_end, *s.device_end]


def _constants(s: Submodel) -> bytes:
    """Encode all constants but the times from which buses and devices are free."""
    memory = None if _memory_is_ample(s) else (s.size, s.memory, s.memory_used)
    constants = (s.operators, s.placeholders, s.parameters, s.edges, s.q, s.buses, s.fixed)
    return msgspec.msgpack.encode((*constants, s.kernel, s.direct, s.load, s.copy, memory))


def _memory_is_ample(s: Submodel) -> bool:
    """Return whether equation (11) always holds: each device has room for all nodes in all of its subgraphs."""
    return all(s.memory_used[d] + s.q * sum(size[d] for size in s.size) <= s.memory[d] for d in s.devices)
