"""Schedules for a range of sizes, as tables and for programs."""

from __future__ import annotations

import msgspec
from rich.table import Table

from ..size_ranges import RangeSchedules
from .tables import table
from .units import format_ns, format_percent


class SizeAnchor(msgspec.Struct, frozen=True):
    """Sizes at which there is a schedule."""

    sizes: dict[str, int]
    latency_ns: int
    lower_bound_ns: int
    """Of the anchor's schedule; and a bound of all schedules at these sizes and larger ones."""
    scheduler: str


class ScheduledRange(msgspec.Struct, frozen=True):
    """Schedules for all sizes in a range."""

    symbols: dict[str, tuple[int, int]]
    factor: float
    """At no size does the schedule take more than this many times the least latency, if prices between two anchors lie
    between theirs."""
    adjusted: bool
    """Whether some latencies fall as sizes grow."""
    anchors: list[SizeAnchor]

    @classmethod
    def of(cls, ranged: RangeSchedules) -> ScheduledRange:
        """Summarise schedules for a range."""
        anchors = [
            SizeAnchor(dict(zip(ranged.symbols, a.sizes, strict=True)), a.latency_ns, a.bound_ns, a.schedule.scheduler)
            for a in ranged.anchors
        ]
        return cls(dict(ranged.symbols), ranged.factor, ranged.adjusted, anchors)

    def table(self) -> Table:
        """Return a row for each anchor."""
        rows = [
            (", ".join(f"{name}={size}" for name, size in a.sizes.items()), format_ns(a.latency_ns),
             format_ns(a.lower_bound_ns), format_percent(1 - a.lower_bound_ns / max(a.latency_ns, 1)))
            for a in self.anchors
        ]  # fmt: skip
        return table(("up to", "latency", "lower bound", "gap"), rows)

    @property
    def sentence(self) -> str:
        """What is certified."""
        where = ", ".join(f"{name} from {low} to {high}" for name, (low, high) in self.symbols.items())
        text = f"for all {where}: latency <= {self.factor:.4g} x the least possible, at these prices, if those between "
        text += "anchors lie between theirs"
        if self.adjusted:
            text += "; some fall as sizes grow, so latencies are with the largest, bounds with the least of them"
        return text
