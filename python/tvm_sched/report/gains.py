"""Gains of `tvm-sched auto` on this machine: over one device, and over ONNX Runtime."""

from __future__ import annotations

import msgspec

from .units import format_time

_IN_WORDS = {
    "in parallel": "operators in parallel",
    "logical devices": "a device for each core",
    "one of N devices": "a single core",
}
"""What the schedules are called for people who do not know the compiler."""


class Rival(msgspec.Struct, frozen=True, kw_only=True):
    """Another implementation of the model, measured in alternating runs with the artifact."""

    name: str
    seconds: float
    ours: float
    """Median latency of the rival and of the artifact, in alternating runs."""
    quiet: bool
    """Whether no other process used the machine meanwhile."""
    difference: float | None = None
    """Largest difference between the outputs of both, divided by the largest value."""

    def sentence(self) -> str:
        """Return how much faster the artifact is."""
        ratio = self.seconds / self.ours
        verdict = "as fast as" if 0.98 <= ratio <= 1.02 else f"{ratio:.2f} times as fast as"
        same = ""
        if self.difference is not None:
            same = f", outputs within {self.difference:.0e} of the largest" if self.difference else ", equal outputs"
        noisy = "" if self.quiet else "; other processes were busy"
        times = f"{format_time(self.ours)} against {format_time(self.seconds)}"
        return f"{verdict} {self.name} ({times}{same}{noisy})"


class Gains(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `tvm-sched auto` for a model on this machine."""

    model: str
    machine: str
    schedule: str
    """Name of the schedule that the artifact runs."""
    seconds: float
    """Median latency."""
    one_device: Rival | None
    """Comparison with one device; None if one device is fastest."""
    others: list[str]
    """Measured or planned schedules over several devices or streams that are not faster."""
    onnxruntime: Rival | None
    """Comparison with ONNX Runtime; if None, `onnxruntime_absent` has the reason."""
    onnxruntime_absent: str = ""

    def lines(self) -> list[str]:
        """Return the three lines that the command prints."""
        schedule = _IN_WORDS.get(self.schedule, self.schedule)
        first = f"{self.model} on {self.machine}: {format_time(self.seconds)} ({schedule})"
        tried = f" (not faster: {', '.join(_IN_WORDS.get(each, each) for each in self.others)})" if self.others else ""
        second = self.one_device.sentence() if self.one_device else f"one device is fastest here{tried}"
        third = self.onnxruntime.sentence() if self.onnxruntime else f"ONNX Runtime: {self.onnxruntime_absent}"
        return [first, second, third]
