"""`PartialSchedule`: a schedule under construction, whose events are timed by the rules of ``docs/model.md``.

Schedulers build their answers with it, so that their times equal the simulator's. The implementation is
``cpp/search/partial_schedule.cc``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tvm_sched_runtime.errors import InfeasibleError
from tvm_sched_runtime.problem import FORBIDDEN, Problem, Scenario, as_scenario
from tvm_sched_runtime.schedule import ScheduleIndex
from tvm_sched_runtime.schedule.native_objects import native_problem

from .events import Array, Event, Move, Run, events_of

if TYPE_CHECKING:
    from tvm_sched_runtime.schedule.native_problem import NativePartialSchedule


class Extension(NamedTuple):
    """A possible next step: an operator on a device, the moves that it needs before, and its end in nanoseconds.

    Examples
    --------
    >>> from tvm_sched.schedulers import PartialSchedule
    >>> PartialSchedule(problem).extension(0, 1, direct=False).end
    2750
    """

    end: int
    moves: list[Move]
    run: Run


def _native_numbers(method: str) -> property:
    """Return a property of `PartialSchedule`: the numbers that a method of the C++ object returns, as a list."""

    def numbers(schedule: PartialSchedule) -> list[int]:
        return _numbers(getattr(schedule._native, method)())

    return property(numbers)


class PartialSchedule:
    """A schedule under construction: times, places and memory after the events so far.

    Parameters
    ----------
    problem : Problem or Scenario
        The problem in a run (`Workload.scenario`); a `Problem` is a cold run.
    memory_scale : float
        Fraction of each device's memory that may be used. It is below 1 after an attempt that needed too much at some
        moment: here memory is counted in the order of events, not by time.

    Examples
    --------
    >>> from tvm_sched.schedulers import PartialSchedule
    >>> state = PartialSchedule(problem)
    >>> for operator in problem.graph.index.order:
    ...     state.place(state.extension(operator, 0, direct=False))
    ...
    >>> state.latency
    4750
    """

    def __init__(self, problem: Problem | Scenario, memory_scale: float = 1.0) -> None:
        self.scenario = as_scenario(problem)
        self._native: NativePartialSchedule = native_problem(self.scenario).partial_schedule(memory_scale)

    @property
    def latency(self) -> int:
        """End of the last kernel so far, in nanoseconds."""
        return self._native.latency_ns()

    device_free = _native_numbers("device_free")
    """When each device has finished its events, in nanoseconds."""

    channel_free = _native_numbers("channel_free")
    """When each channel has finished its events, in nanoseconds."""

    placed = _native_numbers("placed")
    """Device of each operator, -1 while it has none."""

    @property
    def events(self) -> list[Event]:
        """The events in the order in which they were appended."""
        return events_of(self.sequence)

    @property
    def sequence(self) -> Array:
        """The events as rows of kind, item, source, device."""
        rows: Array = np.asarray(np.from_dlpack(self._native.events()), dtype=np.int64)
        return rows

    starts = _native_numbers("starts")
    """When each event begins, in nanoseconds."""

    ends = _native_numbers("ends")
    """When each event ends, in nanoseconds."""

    def at(self, tensor: int, device: int) -> int | None:
        """Return when a tensor arrives on a device, in nanoseconds; None if it was not moved there."""
        when = self._native.at(tensor, device)
        return None if when < 0 else when

    def holders(self, tensor: int) -> list[int]:
        """Return the devices to which a tensor was moved, in order of arrival."""
        return _numbers(self._native.holders(tensor))

    def transits(self, device: int) -> list[int]:
        """Return the neighbours through which a parameter may be loaded into a device (parallel transmission)."""
        return _numbers(self._native.transits(device))

    def reads(self, run: Run) -> list[int]:
        """Return the tensors that a run reads from its device."""
        index = self.scenario.graph.index
        in_place = run.direct or self.scenario.reads_host_in_place(run.device)
        return [t for t in index.inputs[run.operator] if not (in_place and index.producer[t] < 0)]

    def needs(self, operator: int, device: int, direct: bool) -> list[int]:
        """Return the tensors that ``device`` still lacks before ``operator`` can run there."""
        return [t for t in self.reads(Run(operator, device, direct)) if self._native.at(t, device) < 0]

    def can_move(self, move: Move) -> bool:
        """Return whether a move's tensor is at its source and not yet at its device."""
        return self._native.can_move(*move)

    def fits(self) -> bool:
        """Return whether every device has room for its tensors, by the order of events."""
        return self._native.fits()

    def extension(self, operator: int, device: int, direct: bool) -> Extension | None:
        """Return the earliest end of ``operator`` there, with missing tensors on their fastest routes; None if impossible.

        Parameters are loaded directly if a neighbour lacks the memory to pass them on.
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
        """Return the error for an operator without an `extension`, with the least missing memory."""
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
        """Return the schedule in integers; transfers and placements in the order of the events."""
        return ScheduleIndex.of_native(self.scenario, self._native.schedule())


def _numbers(row: Any) -> list[int]:
    numbers: list[int] = np.from_dlpack(row).tolist()
    return numbers
