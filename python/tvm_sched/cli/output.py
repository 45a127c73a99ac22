"""Output of commands: results on standard output, everything else on standard error; and how a process ends."""

from __future__ import annotations

import os
import sys
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
        Files that were written, by what they hold; a list of several.
    note : Note
        What the process is doing.
    """

    note = Note()

    def __init__(self, json: bool = False) -> None:
        self.json = json
        self._results = sys.stdout
        self.screen, self.aside = _console(sys.stdout), _console(sys.stderr)
        self.files: dict[str, str | list[str]] = {}

    def show(self, *renderables: Any) -> None:
        """Print a result for people; nothing with ``--json``."""
        if not self.json:
            for renderable in renderables:
                self.screen.print(renderable)

    def result(self, data: Any) -> None:
        """Print the result, and the names of the files written, for programs; nothing without ``--json``."""
        if self.json:
            named = data._asdict() if hasattr(data, "_asdict") else data  # else a tuple would be a list
            plain = msgspec.to_builtins(named, enc_hook=float)  # of a fraction
            if isinstance(plain, dict) and self.files:
                plain["files"] = self.files
            self.document(plain)

    def document(self, data: Any) -> None:
        """Print a JSON document, with and without ``--json``."""
        self._results.write(msgspec.json.format(msgspec.json.encode(data), indent=2).decode() + "\n")

    def finish(self) -> None:
        """Make sure that results have gone where they should."""
        self._results.flush()

    def say(self, text: str) -> None:
        """A message, on standard error."""
        self.aside.print(text, markup=False, highlight=False, soft_wrap=True)

    def step(self, title: str) -> Step:
        """Progress of a piece of work, see `Step`."""
        return Step(self.aside, title, self.note.write)

    def interrupted(self) -> None:
        """Say that Ctrl-C was pressed, and what result there is."""
        saved = f"saved before: {', '.join(self.saved)}" if self.files else "nothing was saved"
        self.say(f"interrupted; {saved}")

    def wrote(self, path: Path, what: str, key: str = "") -> None:
        """Say that a file was written; results name it under ``key``, or under what it holds."""
        key = key or what
        before = self.files.get(key)
        self.files[key] = (
            str(path) if before is None else [*([before] if isinstance(before, str) else before), str(path)]
        )
        self.say(f"{what}: {path}")

    @property
    def saved(self) -> list[str]:
        """All files that were written."""
        return [name for each in self.files.values() for name in ([each] if isinstance(each, str) else each)]


def _console(file: TextIO) -> Console:
    """A console; what goes into a file or a pipe is wider than the 80 columns of an unknown terminal.

    Names such as ``:a:`` stand as they are, and are no emoji.
    """
    return Console(file=file, emoji=False, width=None if file.isatty() or "COLUMNS" in os.environ else 120)
