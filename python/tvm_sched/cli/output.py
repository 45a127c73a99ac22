"""Output of commands: results on standard output, everything else on standard error; and how a process ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TextIO

import msgspec
import typer
from rich.console import Console

from .child_process import Note
from .progress_bar import Step

BAD_INPUT, FAILURE, INTERRUPTED = 2, 1, 130
DEBUG = "TVM_SCHED_DEBUG"

Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on standard output, and nothing else there.")
]
Debug = Annotated[
    bool, typer.Option("--debug", help=f"Show the traceback of an error (also: {DEBUG}=1).", envvar=DEBUG)
]


class Output:
    """Where a command writes: results to standard output, everything else to standard error.

    Parameters
    ----------
    json : bool
        Results are one JSON document instead of tables.

    Attributes
    ----------
    files : dict
        Written files by their content; a list if several hold the same.
    kept_in_cache : callable
        Returns what an interrupted command has left in the cache, for its last message; an empty text if nothing.
    show_partial : callable
        Shows the results that an interrupted command has.
    note : Note
        The current work of the process.
    """

    note = Note()

    def __init__(self, json: bool = False) -> None:
        self.json = json
        self._results = sys.stdout
        self.screen, self.aside = _console(sys.stdout), _console(sys.stderr)
        self.files: dict[str, str | list[str]] = {}
        self.kept_in_cache: Callable[[], str] = str
        self.show_partial: Callable[[], None] = lambda: None

    def show(self, *renderables: Any) -> None:
        """Print a result for people; nothing with ``--json``."""
        if not self.json:
            for renderable in renderables:
                self.screen.print(renderable)

    def text(self, text: str) -> None:
        """Print a part of a result as it is, at once."""
        self._results.write(text)
        self._results.flush()

    def result(self, data: Any) -> None:
        """Print the result, and the names of the files written, for programs; nothing without ``--json``."""
        if self.json:
            named = data._asdict() if hasattr(data, "_asdict") else data  # a tuple would become a list
            plain = msgspec.to_builtins(named, enc_hook=float)  # the hook is for fractions
            if isinstance(plain, dict) and self.files:
                plain["files"] = self.files
            self.document(plain)

    def document(self, data: Any) -> None:
        """Print a JSON document, with and without ``--json``."""
        self._results.write(msgspec.json.format(msgspec.json.encode(data), indent=2).decode() + "\n")

    def finish(self) -> None:
        """Flush the results."""
        self._results.flush()

    def say(self, text: str) -> None:
        """Print a message on standard error."""
        self.aside.print(text, markup=False, highlight=False, soft_wrap=True)

    def step(self, title: str) -> Step:
        """Return the progress display of a piece of work."""
        return Step(self.aside, title, self.note.write)

    def interrupted(self) -> None:
        """Print what there is of the results, that Ctrl-C was pressed, and which files were saved."""
        self.show_partial()
        self.finish()
        kept = self.kept_in_cache()
        nothing = "no file was written" if kept else "nothing was saved"
        saved = f"saved before: {', '.join(self.saved)}" if self.files else nothing
        self.say(f"interrupted; {saved}{f'; {kept}' if kept else ''}")

    def wrote(self, path: Path, what: str, key: str = "") -> None:
        """Print that a file was written; results name it under ``key``, by default ``what``."""
        key = key or what
        before = self.files.get(key)
        self.files[key] = (
            str(path) if before is None else [*([before] if isinstance(before, str) else before), str(path)]
        )
        self.say(f"{what}: {path}")

    @property
    def saved(self) -> list[str]:
        """All written files."""
        return [name for each in self.files.values() for name in ([each] if isinstance(each, str) else each)]


def _console(file: TextIO) -> Console:
    """Return a console without emoji, so that names such as ``:a:`` stay; files and pipes have 120 columns."""
    return Console(file=file, emoji=False, width=None if file.isatty() or "COLUMNS" in os.environ else 120)
