"""`Timeline`: start, end and place of each kernel and copy. Simulator and executor both return one."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..errors import FormatError
from ..files import Document

FORMAT, VERSION = "tvm_sched.timeline", 1

EventKind = Literal["kernel", "load", "copy", "host_read"]


class Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kernel or copy.

    Examples
    --------
    >>> from tvm_sched_runtime.schedule import simulate
    >>> simulate(problem, schedule).events[0]
    Event(kind='kernel', name='right', lanes=('gpu1/0',), start_ns=350, end_ns=1350, bytes=8000)
    """

    kind: EventKind
    name: str
    """Operator of a kernel or host_read, tensor of a load or copy."""
    lanes: tuple[str, ...]
    """Occupied lanes: ``"gpu0/0"`` (device and stream) for a kernel, channels (`Topology.channels`) for transfers."""
    start_ns: int
    end_ns: int
    """Start and end, from the start of the run."""
    bytes: int = 0
    """Bytes of a transfer, or bytes that the kernel reads and writes."""

    def __post_init__(self) -> None:
        if not 0 <= self.start_ns <= self.end_ns:
            raise FormatError(
                f"event {self.name!r} runs from {self.start_ns} to {self.end_ns} ns; 0 <= start <= end is allowed"
            )

    @property
    def duration_ns(self) -> int:
        """End minus start."""
        return self.end_ns - self.start_ns


class Timeline(Document, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Events of one run, planned or real; ``docs/formats/timeline.md`` describes its document.

    Examples
    --------
    >>> from tvm_sched_runtime.schedule import simulate
    >>> timeline = simulate(problem, schedule)
    >>> timeline.latency_ns, timeline.lanes
    (3750, ('gpu1/0', 'gpu0/0', 'pcie down', 'gpu0 > gpu1', 'gpu1 > gpu0'))
    """

    kept_as = ("timeline", FORMAT, VERSION)

    source: Literal["simulated", "emulated", "measured"]
    problem: str
    """Digest of the problem."""
    events: tuple[Event, ...]
    """A simulated timeline has the schedule's placements first, then its transfers, both in the schedule's order."""
    latency_ns: int
    """Time from the start of the run to the end of its last kernel."""

    @property
    def latency(self) -> float:
        """Seconds."""
        return self.latency_ns / 1e9

    def _repr_html_(self) -> str:
        """Return the picture that notebooks show."""
        from .notebook_views import timeline_html

        return timeline_html(self)

    @property
    def lanes(self) -> tuple[str, ...]:
        """Names of all lanes in use, in order of first appearance."""
        return tuple(dict.fromkeys(lane for event in self.events for lane in event.lanes))
