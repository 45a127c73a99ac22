"""Make a schedule of a sequence of events: repair it, simulate it and check its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm_sched_runtime.errors import InfeasibleError
from tvm_sched_runtime.problem import HOST, Scenario
from tvm_sched_runtime.schedule import Schedule, ScheduleIndex

from .events import Event, Run
from .greedy import list_schedule, priorities
from .native_methods import SCALES, shortfall
from .partial import PartialSchedule

LIMITLESS = 1e6
"""Factor on the memory that disables memory limits while a schedule is built."""


@dataclass(frozen=True)
class PricedSchedule:
    """A schedule, its latency, and the device that lacks most bytes of memory (0 or less: it fits)."""

    index: ScheduleIndex
    latency_ns: int
    shortfall: int
    device: str

    @property
    def fits(self) -> bool:
        """Whether every device has the memory."""
        return self.shortfall <= 0

    @staticmethod
    def of(index: ScheduleIndex) -> PricedSchedule:
        """Price a schedule with the simulator."""
        return PricedSchedule(index, index.times.latency_ns, *shortfall(index))


def merge_events(scenario: Scenario, events: Sequence[Event]) -> PricedSchedule:
    """Make a schedule of a sequence of events: drop needless moves, add missing ones on the fastest route.

    Parameters
    ----------
    events : sequence of Event
        A run for each operator, in topological order; memory is ignored.

    Raises
    ------
    InfeasibleError
        An operator is placed where its inputs cannot be brought.
    """
    state = PartialSchedule(scenario, LIMITLESS)
    needed = _needed(state, events)
    for event in events:
        if not isinstance(event, Run):
            if (event.tensor, event.device) in needed and state.can_move(event):
                state.append(event)
            continue
        extension = state.extension(*event)
        if extension is None:
            names = scenario.graph.operators[event.operator].name, scenario.topology.devices[event.device].name
            raise InfeasibleError(
                f"operator {names[0]!r} was placed on {names[1]!r}, where its inputs cannot be brought"
            )
        state.place(extension)
    return PricedSchedule.of(state.to_index())


def _needed(state: PartialSchedule, events: Sequence[Event]) -> set[tuple[int, int]]:
    """Return (tensor, device) for each tensor that a run reads there, or that a needed copy reads there."""
    needed: set[tuple[int, int]] = set()
    for event in reversed(events):
        if isinstance(event, Run):
            needed.update((t, event.device) for t in state.reads(event))
        elif event.source != HOST and (event.tensor, event.device) in needed:
            needed.add((event.tensor, event.source))
    return needed


class ListedSchedule:
    """Fallback on list scheduling for a scheduler whose schedules do not fit; raises the error if it fails, too."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.refused: PricedSchedule | None = None

    def refuse(self, priced: PricedSchedule) -> None:
        """Remember the schedule that lacks the least memory."""
        if self.refused is None or priced.shortfall < self.refused.shortfall:
            self.refused = priced

    def schedule(self) -> Schedule:
        """Return a list schedule that fits.

        Raises
        ------
        InfeasibleError
            No schedule fits; the message has the least shortfall.
        """
        rank = priorities(self.scenario)
        refusal: InfeasibleError | None = None
        for scale in SCALES:
            for frugal in (False, True):
                state = PartialSchedule(self.scenario, scale)
                try:
                    list_schedule(state, range(len(rank)), rank, frugal)
                except InfeasibleError as error:
                    refusal = refusal or error
                    continue
                priced = PricedSchedule.of(state.to_index())
                if priced.fits:
                    notes = {"instead": "a list schedule: the schedule of the method does not fit into memory"}
                    return priced.index.to_schedule(notes=notes)
                self.refuse(priced)
        if self.refused is None:
            raise refusal or InfeasibleError("the search has no schedule")
        raise InfeasibleError(
            f"memory does not suffice: device {self.refused.device!r} is short of {self.refused.shortfall} bytes in the "
            "best schedule; use devices with more memory, or more of them"
        )
