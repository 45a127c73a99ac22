"""What a plain line of progress says of the time that is left."""

import io
import threading
from types import SimpleNamespace

import pytest
from rich.console import Console

from tvm_sched.cli import progress_bar
from tvm_sched.cli.progress_bar import Step


class Lines(io.StringIO):
    """A file that knows when it got a text."""

    def __init__(self, wanted: str) -> None:
        super().__init__()
        self.wanted, self.there = wanted, threading.Event()

    def write(self, text: str) -> int:
        written = super().write(text)
        if self.wanted in self.getvalue():
            self.there.set()
        return written


@pytest.mark.parametrize(
    ("done", "wanted"),
    [
        (10, "Compiling: kernels (10 of 100, 10%; about 180 s more), 25 s"),  # 20 s for 10, so 180 for 90
        (60, "Compiling: kernels (60 of 100, 60%), 25 s"),  # 13 s more are not worth a word
        (0, "Compiling: kernels (0 of 100, 0%), 25 s"),  # nothing is known
    ],
)
def test_a_line_says_how_long_the_part_needs(monkeypatch: pytest.MonkeyPatch, done: int, wanted: str) -> None:
    clock = [0.0]
    monkeypatch.setattr(progress_bar, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(progress_bar, "PATIENCE", 0.01)
    lines = Lines(wanted)
    with Step(Console(file=lines, width=200), "Compiling") as step:
        clock[0] = 5.0
        step("kernels", 0, 100)  # the part begins 5 s after the work
        clock[0] = 25.0
        step("kernels", done, 100)
        assert lines.there.wait(20), lines.getvalue()
