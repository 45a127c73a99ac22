"""Progress on standard error: a bar on a terminal, a plain line now and then elsewhere; nothing for short work."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

PATIENCE = 2.0
"""Seconds for which work may go on silently, and between two plain lines."""


class Step:
    """One long piece of work; call it with what is being done, how many parts are done and how many there are.

    Use it as a context manager around the work. It says nothing for the first two seconds, so that short work stays
    quiet; on a terminal a spinner shows that something goes on even when nobody calls it.
    """

    def __init__(self, console: Console, title: str) -> None:
        self.console, self.title = console, title
        self._begin = self._said = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> Step:
        if self.console.is_terminal:
            self._bar = Progress(
                SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=28), MofNCompleteColumn(),
                TimeElapsedColumn(), console=self.console, transient=True,
            )  # fmt: skip
            self._task = self._bar.add_task(self.title, total=None)
            self._bar.start()
        return self

    def __call__(self, what: str, done: int, total: int) -> None:  # noqa: D102 - the class says it
        text = f"{self.title}: {what}" if what else self.title
        if self._bar:
            self._bar.update(self._task, description=text, completed=done, total=total or None)
            return
        now = time.monotonic()
        if now - self._said >= PATIENCE:
            self._said = now
            count = f" ({done} of {total})" if total else ""
            text = f"{text}{count}, {now - self._begin:.0f} s"
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()
        seconds = time.monotonic() - self._begin
        if kind is None and seconds >= PATIENCE:
            self.console.print(f"{self.title}: {seconds:.1f} s", markup=False, highlight=False, soft_wrap=True)
