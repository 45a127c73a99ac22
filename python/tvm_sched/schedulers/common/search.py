"""The C++ searches on one problem: list scheduling and local search over sequences of events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_sched_runtime.problem import Problem, Scenario, as_scenario
from tvm_sched_runtime.schedule.native_objects import native_problem

from .events import Array

if TYPE_CHECKING:
    from tvm_sched_runtime.schedule.native_problem import NativeLocalSearch


class PlacementChoice:
    """Devices and kinds of access that operators may use.

    Parameters
    ----------
    devices : iterable of int
    direct : bool
        Whether direct host access is allowed, too.
    copy_weight : float
        An operator is placed where its end plus this weight times the time of its copies is least.
    """

    def __init__(self, devices: Iterable[int], direct: bool = True, copy_weight: float = 0.0) -> None:
        self.devices = frozenset(devices)
        self.direct = direct
        self.copy_weight = copy_weight


class Searches:
    """The searches of a problem; they return sequences: rows of kind, item, source, device."""

    def __init__(self, scenario: Problem | Scenario) -> None:
        self.scenario = as_scenario(scenario)
        self._native = native_problem(self.scenario)

    def construct(
        self,
        choices: Sequence[PlacementChoice],
        choice: Sequence[int],
        memory_scale: float = 1.0,
        home: Sequence[int] = (),
        turn: Sequence[int] = (),
    ) -> tuple[Array, int] | None:
        """Schedule by list scheduling: the operator of highest rank first, on the device where it ends first.

        Loads may take gaps that earlier decisions left on a bus.

        Parameters
        ----------
        choice : sequence of int, (operators,)
            Position in ``choices`` for each operator.
        memory_scale : float
            Share of each device's memory that may be used.
        home : sequence of int, (tensors,), optional
            The device that alone loads a parameter for the devices that it reaches without a bus; -1: each device gets it
            as is fastest.
        turn : sequence of int, (operators,), optional
            Of the operators whose inputs are there, that of least turn comes first, and loads go by the turn of their first
            reader. Without it the operator of highest rank comes first.

        Returns
        -------
        (sequence, latency in nanoseconds) or None
            None if memory does not suffice.
        """
        devices = len(self.scenario.topology.devices)
        result = self._native.construct(
            np.array([[d in c.devices for d in range(devices)] for c in choices], dtype=np.int64),
            np.array([c.direct for c in choices], dtype=np.int64),
            np.array([round(100 * c.copy_weight) for c in choices], dtype=np.int64),
            np.array(choice, dtype=np.int64),
            memory_scale,
            np.array(home, dtype=np.int64),
            np.array(turn, dtype=np.int64),
        )
        return None if result is None else (_rows(result.events), result.latency_ns)

    def improve(
        self,
        start: Array,
        memory_scale: float,
        seed: int,
        goal: int,
        others: Sequence[tuple[Scenario, float]] = (),
    ) -> Improvement:
        """Improve the sequence of a whole schedule by local search until its latency is ``goal`` nanoseconds.

        With ``others``, the problem in other runs and their shares, the latency is the mean over all runs.
        """
        from tvm_sched_runtime.schedule.native_problem import LocalSearchSettings, WeightedRun  # loads the library

        runs = [WeightedRun(problem=native_problem(other), share=share) for other, share in others]
        settings = LocalSearchSettings(memory_scale=memory_scale, seed=seed, goal_ns=goal, other_runs=runs)
        return Improvement(self._native.improve(np.ascontiguousarray(start), settings))


class Improvement:
    """A local search in steps; its result does not depend on how the events are divided into steps."""

    def __init__(self, native: NativeLocalSearch) -> None:
        self._native = native

    def step(self, events: int) -> bool:
        """Replay about this many more events; return False if further steps cannot help."""
        return bool(self._native.step(events))

    @property
    def latency_ns(self) -> int:
        """Latency of the best schedule."""
        return int(self._native.latency_ns())

    @property
    def best(self) -> Array:
        """Sequence of the best schedule."""
        return _rows(self._native.best())


def _rows(table: Any) -> Array:
    return np.asarray(np.from_dlpack(table), dtype=np.int64)
