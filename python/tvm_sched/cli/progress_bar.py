"""Progress on standard error: a bar on a terminal, a plain line now and then elsewhere; nothing for short work."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ..progress import report_to

PATIENCE = 2.0
"""Seconds of silence at first; the pauses between plain lines grow from this to `LONGEST` seconds."""
LONGEST = 15.0
MOST_NAMED = 3
"""Parts of the work that the last line names, those that took longest."""
WORTH_NAMING = 0.1
"""Share of the time that a part took at least to be named."""
WORTH_SAYING = 20.0
"""Seconds that a part has left at least for its line to say so."""


class Step:
    """Progress of a long piece of work, a context manager; call it with the current work, parts done and parts in all.

    It prints nothing in the first two seconds, and then reports the time even if nobody calls it. The last line says
    what the time was spent on. Inside the context, it also hears `tvm_sched.progress.report_progress`. ``note`` is
    called with each text.
    """

    def __init__(self, console: Console, title: str, note: Callable[[str], None] = lambda text: None) -> None:
        self.console, self.title, self.note = console, title, note
        self._begin = self._since = time.monotonic()
        self._what, self._spent = "", defaultdict[str, float](float)
        self._latest = (title, 0, 0)
        self._listening = report_to(self)
        self._over = threading.Event()
        self._bar: Progress | None = None
        self._printer: threading.Thread | None = None

    def __enter__(self) -> Step:
        self.note(self.title)
        self._listening.__enter__()
        if self.console.is_terminal:
            self._bar = Progress(
                SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=28), MofNCompleteColumn(),
                TaskProgressColumn(), TimeElapsedColumn(), TimeRemainingColumn(), console=self.console, transient=True,
            )  # fmt: skip
            self._task = self._bar.add_task(self.title, total=None)
            self._bar.start()
        else:
            self._printer = threading.Thread(target=self._print_lines, name="progress", daemon=True)
            self._printer.start()
        return self

    def __call__(self, what: str, done: int, total: int) -> None:  # noqa: D102 - the class says it
        text = f"{self.title}: {what}" if what else self.title
        self.note(text)
        if self._bar:
            self._bar.update(self._task, description=text, completed=done, total=total or None)
        self._latest = (text, done, total)
        if what != self._what:
            self._count(what)

    def _count(self, what: str) -> None:
        """Add the time since the last call to the work named there."""
        now = time.monotonic()
        self._spent[self._what] += now - self._since
        self._what, self._since = what, now

    def _print_lines(self) -> None:
        """Print a plain line after two seconds, and then ever more seldom."""
        pause = PATIENCE
        while not self._over.wait(pause):
            now = time.monotonic()
            text, done, total = self._latest
            parts = f" ({done} of {total}, {done / total:.0%}{_rest(done, total, now - self._since)})" if total else ""
            self._say(f"{text}{parts}, {now - self._begin:.0f} s")
            pause = min(1.5 * pause, LONGEST)

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._listening.__exit__(kind, error, trace)
        if self._bar:
            self._bar.stop()
        if self._printer:
            self._printer.join()
        seconds = time.monotonic() - self._begin
        if kind is None and seconds >= PATIENCE:
            self._say(f"{self.title}: {seconds:.1f} s{self._longest_parts(seconds)}")

    def _longest_parts(self, seconds: float) -> str:
        """Return the parts that took most of the time, in brackets."""
        self._count("")
        parts = [
            f"{what} {spent:.1f} s"
            for what, spent in sorted(self._spent.items(), key=lambda part: -part[1])[:MOST_NAMED]
            if what and spent >= WORTH_NAMING * seconds
        ]
        return f" ({', '.join(parts)})" if parts else ""


def _rest(done: int, total: int, seconds: float) -> str:
    """Return how long a part that did ``done`` of ``total`` in ``seconds`` needs for the others, if that is worth a word."""
    rest = seconds * (total - done) / done if done else 0.0
    return f"; about {rest:.0f} s more" if rest >= WORTH_SAYING else ""
