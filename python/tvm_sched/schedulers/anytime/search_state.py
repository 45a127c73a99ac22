"""State of a search: the incumbent, and a pool of sequences from which improvers start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tvm_sched_runtime.errors import InfeasibleError
from tvm_sched_runtime.problem import Request, Scenario
from tvm_sched_runtime.schedule import Schedule, ScheduleIndex
from tvm_sched_runtime.schedule.schedule import weighted_mean
from tvm_sched_runtime.search_budget import Incumbent

from ...bounds import lower_bound, optimality_threshold
from ..common.events import MOVE, Array, sequence_of
from ..common.native_methods import shortfall
from ..common.search import Searches
from .device_group_moves import RuleSchedule

MOST_STARTS = 64
"""Number of sequences in the pool."""

APART = 0.02
"""Least fraction of operators on different devices in two diverse starts."""


@dataclass(frozen=True)
class Start:
    """The sequence of events of a whole schedule, and the fraction of the memory that its search could use."""

    latency_ns: int
    sequence: Array
    memory_scale: float


class ScheduleState(Incumbent[ScheduleIndex]):
    """The best schedule of a problem so far; costs are latencies in nanoseconds.

    Parameters
    ----------
    scenario : Scenario
    seed : int
    mix : sequence of Request
        Kinds of runs whose mean latency is the objective; none: the scenario's run alone.

    Attributes
    ----------
    memory_scale : float
        Fraction of each device's memory with which list scheduling succeeded.
    listed : RuleSchedule or None
        The best list schedule, with its rule.
    refusal : InfeasibleError or None
        Error of the first method without a schedule.
    """

    def __init__(self, scenario: Scenario, seed: int, mix: Sequence[Request] = ()) -> None:
        super().__init__()
        self.mix = mix
        known = scenario.graph.index.tensor_id.keys()
        self._runs = [scenario.with_resident(known & frozenset(request.resident)) for request in mix]
        self.scenario, self.seed, self.searches = scenario, seed, Searches(scenario)
        self.memory_scale = 1.0
        self.listed: RuleSchedule | None = None
        self.refusal: InfeasibleError | None = None
        self._pool: dict[bytes, Start] = {}
        self._shortfalls: list[tuple[int, str]] = []

    @property
    def goal(self) -> int:
        """The latency at which a schedule counts as proved optimal."""
        return optimality_threshold(int(self.bound))

    @property
    def run_goal(self) -> int:
        """Lower bound on the latency of the scenario's run."""
        return optimality_threshold(lower_bound(self.scenario).ns) if self.mix and self.bound else self.goal

    @property
    def other_runs(self) -> list[tuple[Scenario, float]]:
        """The other runs that count, and their shares."""
        total = sum(request.weight for request in self.mix)
        runs = zip(self._runs, self.mix, strict=True)
        return [(run, request.weight / total) for run, request in runs if run != self.scenario]

    def _evaluate(self, index: ScheduleIndex) -> tuple[int, tuple[int, str]]:
        """Return the objective's latency, and the shortfall (see `shortfall`) in the worst run."""
        if not self.mix:
            return index.objective_ns, shortfall(index)
        runs = [index.when_warm(run.resident) for run in self._runs]
        return weighted_mean(self.mix, [run.objective_ns for run in runs]), max(map(shortfall, runs))

    def offer_sequence(self, sequence: Array, memory_scale: float) -> int | None:
        """Offer a sequence; return its latency, or None if it does not fit into memory."""
        index = ScheduleIndex.of_sequence(self.scenario, sequence)
        latency, short = self._evaluate(index)
        if short[0] > 0:
            self._shortfalls.append(short)
            return None
        self._pool.setdefault(sequence.tobytes(), Start(latency, sequence, memory_scale))
        if len(self._pool) > 2 * MOST_STARTS:
            self._pool = {start.sequence.tobytes(): start for start in self.starts()[:MOST_STARTS]}
        self.offer(index, latency)
        return latency

    def offer_index(self, index: ScheduleIndex) -> int:
        """Offer a schedule that fits into memory in the scenario's run; return its latency.

        Without stages and evictions it also joins the pool, as a sequence.
        """
        latency, short = self._evaluate(index)
        if short[0] <= 0:
            self.offer(index, latency)
        if not index.evicted and not any(index.stage):
            self.offer_sequence(sequence_of(index), self.memory_scale)
        return latency

    def refuse(self, error: InfeasibleError) -> None:
        """Keep the error of the first method without a schedule."""
        self.refusal = self.refusal or error

    def starts(self) -> list[Start]:
        """Return the pool, the best first."""
        return sorted(self._pool.values(), key=lambda start: start.latency_ns)

    def diverse_starts(self, most: int) -> list[Start]:
        """Return the best starts, no two of which put nearly all operators on the same devices."""
        chosen: list[Start] = []
        mappings: list[Array] = []
        for start in self.starts():
            runs = start.sequence[start.sequence[:, 0] != MOVE]
            mapping = runs[np.argsort(runs[:, 1]), 3]
            if all(np.mean(mapping != other) >= APART for other in mappings):
                chosen.append(start)
                mappings.append(mapping)
            if len(chosen) == most:
                break
        return chosen

    def answer(self) -> Schedule:
        """Return the best schedule, with the latencies of all improvers in its notes.

        Raises
        ------
        InfeasibleError
            No schedule fits into the devices' memory.
        """
        if self.best is not None:
            tried = {
                name: reached if isinstance(reached, str) else reached / 1e9 for name, reached in self.tried.items()
            }
            return self.best.to_schedule(notes={"tried": tried})
        if self._shortfalls:
            short, device = min(self._shortfalls)
            raise InfeasibleError(
                f"memory does not suffice: device {device!r} is short of {short} bytes in the best schedule; use "
                "devices with more memory, or more of them"
            )
        raise self.refusal or InfeasibleError("the search has no schedule")
