"""Reuse answers of equal programs: the layers of a transformer are equal, and so are many of their programs."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from ..common.milp import ENOUGH, GAP, Effort
from .outcome import Outcome
from .submodel import Submodel, evaluate


@dataclass(frozen=True)
class SolvedProgram:
    """A program and what came out of it.

    Attributes
    ----------
    number : int
        Of its submodel among those that have operators, from 0.
    times : list of float
        When its buses and devices are free.
    assignment : list of int
    outcome : Outcome
    seconds : float
        That the solver was allowed.
    """

    number: int
    times: list[float]
    assignment: list[int]
    outcome: Outcome
    seconds: float

    @property
    def duration(self) -> float:
        """Of the submodel, from the first device or bus that is free."""
        return self.outcome.total_ns - min(self.times)


@dataclass
class Repeats:
    """Answers to the programs of one run, by what their programs say.

    A program is alike to one from before where all of its constants are equal but the times from which buses and devices
    are free, and these differ by one amount, or nearly so. Memory counts where it can be short. What is free later by some
    amount makes no assignment end later by more than that, and none earlier; so the bound, moved by the least of the
    differences, stays a bound, and an answer loses no more to the best there is than the amounts differ by.

    Parameters
    ----------
    alike : float
        By how much the amounts may differ, as a part of the time that the submodel takes; at least the tolerance with which
        solvers prove an optimum (`GAP`).
    """

    alike: float
    known: dict[bytes, list[SolvedProgram]] = field(default_factory=dict)

    def find(self, s: Submodel, effort: Effort | None) -> tuple[list[int], Outcome] | None:
        """The assignment and the outcome of the program, with times as `tightened` makes them, that is most alike."""
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
        return (
            None
            if times is None
            else (answer.assignment, _shifted_outcome(answer, round(times.total), min(_shifts(s, answer))))
        )

    def start(self, s: Submodel) -> list[int] | None:
        """The last answer to a program that differs in nothing but times, however much; None where there is none."""
        known = self.known.get(_constants(s))
        return known[-1].assignment if known else None

    def add(self, number: int, s: Submodel, assignment: list[int], outcome: Outcome, effort: Effort | None) -> None:
        """Keep the answer to a submodel's program."""
        answer = SolvedProgram(
            number, _free_from(s), assignment, outcome, effort.time_limit if effort is not None else 0.0
        )
        self.known.setdefault(_constants(s), []).append(answer)


def _shifted_outcome(answer: SolvedProgram, total_ns: int, least: float) -> Outcome:
    """What is known of a program alike to an answered one, all of whose times are later by ``least``, or by more."""
    then = answer.outcome
    bound = None if then.bound_ns is None else int(then.bound_ns + least)
    outcome = msgspec.structs.replace(then, seconds=0.0, same_as=answer.number, total_ns=total_ns, bound_ns=bound)
    outcome.start_ns = round(then.start_ns + least)
    outcome.objective_ns = None if then.objective_ns is None else total_ns
    if then.status == "optimal" and (bound is None or total_ns - bound > 2 * GAP * answer.duration):
        outcome.status = "alike"
    return outcome


def _shifts(s: Submodel, answer: SolvedProgram) -> list[float]:
    """By how much buses and devices are free later than they were in an answered program."""
    return [now - before for now, before in zip(_free_from(s), answer.times, strict=True)]


def _free_from(s: Submodel) -> list[float]:
    return [*s.transfers_end, *s.device_end]


def _constants(s: Submodel) -> bytes:
    """Equal for submodels whose programs differ in nothing but the times from which buses and devices are free."""
    memory = None if _memory_is_ample(s) else (s.size, s.memory, s.memory_used)
    constants = (s.operators, s.placeholders, s.parameters, s.edges, s.q, s.buses, s.fixed)
    return msgspec.msgpack.encode((*constants, s.kernel, s.direct, s.load, s.copy, memory))


def _memory_is_ample(s: Submodel) -> bool:
    """Whether equation (11) forbids nothing: each node fits on each device, and copied into all of its subgraphs."""
    return all(s.memory_used[d] + s.q * sum(size[d] for size in s.size) <= s.memory[d] for d in s.devices)
