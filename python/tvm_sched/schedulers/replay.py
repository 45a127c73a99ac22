"""Play a sequence of events that may no longer fit together: what nobody needs is dropped, what is missing is added."""

from __future__ import annotations

from collections.abc import Sequence

from ..problem import HOST
from .partial import Event, PartialSchedule, Run


def replay(
    empty: PartialSchedule, sequence: Sequence[Event], tail: Sequence[int], worse_than: int
) -> PartialSchedule | None:
    """The schedule of a sequence, repaired; linear in events.

    Parameters
    ----------
    empty : PartialSchedule
        Without events; it is not changed.
    sequence : sequence of Event
        A `Run` for each operator in topological order. Moves may stand anywhere: one that nobody needs, that comes twice
        or whose source lacks the tensor is left out, and a run that misses a tensor brings it on the fastest way.
    tail : sequence of int
        Least time between the end of each operator and the end of the run, in nanoseconds.
    worse_than : int
        Give up as soon as the latency must get above this, in nanoseconds.

    Returns
    -------
    PartialSchedule or None
        None where a run is impossible, memory does not suffice, or the latency is above ``worse_than``.
    """
    state = empty.clone()
    needed = _needed(state, sequence)
    for event in sequence:
        if isinstance(event, Run):
            if state.needs(*event):
                plan = state.plan(*event)
                if plan is None:
                    return None
                state.place(plan)
            else:
                state.append(event)
            if state.ends[-1] + tail[event.operator] > worse_than:
                return None
        elif (event.tensor, event.device) in needed and state.can_move(event):
            state.append(event)
    return state if state.fits() else None


def _needed(state: PartialSchedule, sequence: Sequence[Event]) -> set[tuple[int, int]]:
    """(tensor, device) for each tensor that a run reads there, or that is copied on to where one does."""
    needed: set[tuple[int, int]] = set()
    for event in reversed(sequence):
        if isinstance(event, Run):
            needed.update((t, event.device) for t in state.reads(event))
        elif event.source != HOST and (event.tensor, event.device) in needed:
            needed.add((event.tensor, event.source))
    return needed


def critical_events(state: PartialSchedule) -> list[int]:
    """Positions of events that the latency waits for: back from the last kernel, each begins when the next one ends."""
    starts = state.starts()
    ending: dict[int, list[int]] = {}
    for i, (event, start, end) in enumerate(zip(state.events, starts, state.ends, strict=True)):
        ending.setdefault(end, []).append(i)
        if isinstance(event, Run) and event.direct:
            ending.setdefault(start + state.problem.host_read_ns(event.operator, event.device), []).append(i)
    runs = [i for i, event in enumerate(state.events) if isinstance(event, Run)]
    at = max(runs, key=lambda i: state.ends[i])
    found = [at]
    while True:
        before = [i for i in ending.get(starts[at], ()) if i < at]
        if not before:
            return found
        at = before[-1]
        found.append(at)
