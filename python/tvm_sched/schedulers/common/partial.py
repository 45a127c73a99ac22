"""`PartialSchedule`: a schedule under construction, whose events are timed by the rules of ``docs/model.md``.

Schedulers build their answers with it, so that what they believe of times is what the simulator will say. The work is done
in ``cpp/search/partial_schedule.cc``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...errors import InfeasibleError
from ...problem import FORBIDDEN, Problem, Scenario, as_scenario
from ...schedule import ScheduleIndex
from ...schedule._compiled import compiled
from .events import Array, Event, Move, Run, events_of

if TYPE_CHECKING:
    from ...schedule.native_problem import NativePartialSchedule


class Extension(NamedTuple):
    """A possible next step: an operator on a device, the moves that it needs before, and its end in nanoseconds."""

    end: int
    moves: list[Move]
    run: Run


class PartialSchedule:
    """A schedule under construction: times, places and memory after the events so far.

    Parameters
    ----------
    problem : Problem or Scenario
        The problem in a run (`Workload.scenario`); a `Problem` is a cold run.
    memory_scale : float
        Share of each device's memory that may be used. Below one when a first attempt held too much at some moment:
        what is counted here goes by the order of events, not by time.
    """

    def __init__(self, problem: Problem | Scenario, memory_scale: float = 1.0) -> None:
        self.scenario = as_scenario(problem)
        self._native: NativePartialSchedule = compiled(self.scenario).partial_schedule(memory_scale)

    @property
    def latency(self) -> int:
        """End of the last kernel so far, in nanoseconds."""
        return self._native.latency_ns()

    @property
    def device_free(self) -> list[int]:
        """When each device has done all that was given to it, in nanoseconds."""
        return _numbers(self._native.device_free())

    @property
    def channel_free(self) -> list[int]:
        """When each channel has done all that was given to it, in nanoseconds."""
        return _numbers(self._native.channel_free())

    @property
    def placed(self) -> list[int]:
        """Device of each operator, -1 while it has none."""
        return _numbers(self._native.placed())

    @property
    def events(self) -> list[Event]:
        """The events in the order in which they were appended."""
        return events_of(self.sequence)

    @property
    def sequence(self) -> Array:
        """The events as rows of kind, item, source, device."""
        rows: Array = np.asarray(np.from_dlpack(self._native.events()), dtype=np.int64)
        return rows

    @property
    def starts(self) -> list[int]:
        """When each event begins, in nanoseconds."""
        return _numbers(self._native.starts())

    @property
    def ends(self) -> list[int]:
        """When each event ends, in nanoseconds."""
        return _numbers(self._native.ends())

    def at(self, tensor: int, device: int) -> int | None:
        """When a tensor is on a device to which it was brought, in nanoseconds; None where it was not."""
        when = self._native.at(tensor, device)
        return None if when < 0 else when

    def holders(self, tensor: int) -> list[int]:
        """Devices to which a tensor was brought, in the order in which it got there."""
        return _numbers(self._native.holders(tensor))

    def transits(self, device: int) -> list[int]:
        """Neighbours through which a parameter may be loaded into a device (parallel transmission)."""
        return _numbers(self._native.transits(device))

    def reads(self, run: Run) -> list[int]:
        """Tensors that a run reads from its device, to which they must come first."""
        index = self.scenario.graph.index
        in_place = run.direct or self.scenario.reads_host_in_place(run.device)
        return [t for t in index.inputs[run.operator] if not (in_place and index.producer[t] < 0)]

    def needs(self, operator: int, device: int, direct: bool) -> list[int]:
        """Tensors that must still be brought to ``device`` before ``operator`` can run there."""
        return [t for t in self.reads(Run(operator, device, direct)) if self._native.at(t, device) < 0]

    def can_move(self, move: Move) -> bool:
        """Whether a move's tensor is at its source and not yet at its device."""
        return self._native.can_move(*move)

    def fits(self) -> bool:
        """Whether every device has room for what was brought to it, by the order of events."""
        return self._native.fits()

    def extension(self, operator: int, device: int, direct: bool) -> Extension | None:
        """The earliest end of ``operator`` there, with each missing tensor on its fastest way; None where impossible.

        Where a neighbour lacks the memory to pass parameters on, they are loaded straight away.
        """
        native = self._native.extension(operator, device, direct)
        if native is None:
            return None
        moves = [Move(*move) for move in np.from_dlpack(native.moves).tolist()]
        return Extension(native.end_ns, moves, Run(operator, device, direct))

    def place(self, extension: Extension) -> None:
        """Append an extension's events."""
        for move in extension.moves:
            self.append(move)
        self.append(extension.run)

    def append(self, event: Event) -> int:
        """Append one event; returns its end in nanoseconds.

        Raises
        ------
        ValueError
            A tensor is not where the event needs it, an operator runs again or where it cannot, or no route leads there.
        IndexError
            The event names an operator, tensor or device that the problem lacks.
        """
        if isinstance(event, Move):
            return self._native.append_move(*event)
        return self._native.append_run(*event)

    def refuse(self, operator: int) -> InfeasibleError:
        """The error to raise when `extension` finds no place for an operator: the missing memory where it is least."""
        devices, costs = self.scenario.topology.devices, self.scenario.costs
        short = [
            (self._native.shortfall(operator, d, direct), devices[d].name)
            for d in range(len(devices))
            for direct, ns in ((False, costs.operator_ns), (True, costs.direct_ns))
            if ns[operator, d] != FORBIDDEN
        ]
        name = self.scenario.graph.operators[operator].name
        least, device = min(short, default=(0, ""))
        if least <= 0:
            return InfeasibleError(f"no device that can run operator {name!r} can be reached by its inputs")
        return InfeasibleError(
            f"memory does not suffice: operator {name!r} is short of {least} bytes on the best device, {device!r}; "
            "use devices with more memory, or more of them"
        )

    def to_index(self) -> ScheduleIndex:
        """The schedule in integers; transfers and placements in the order of the events."""
        return ScheduleIndex.of_native(self.scenario, self._native.schedule())


def _numbers(row: Any) -> list[int]:
    numbers: list[int] = np.from_dlpack(row).tolist()
    return numbers
