"""What a step of `gpu_hour.py` is given: the prepared folder, the seconds it has left, and the record it appends to."""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

ARCHIVE, UNPACKED = "artifacts.tar.xz", "unpacked.txt"
"""Of the prepared folder: what is carried of its artifacts, and the digest of the archive that was unpacked."""
CURRENT, HUNG, TOO_LONG = "current.json", "hung.txt", "took too long"
"""Of the working folder: the running case, and where it was when its time was over; and the digest of such a case."""
ORDER = "order.json"
"""Beside the artifacts: their files in the order in which they were asked for."""


def rows(file: Path) -> Iterator[dict[str, Any]]:
    """Read the rows of a record; a last line that was cut off is left out."""
    if not file.is_file():
        return
    for line in file.read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def append(file: Path, row: dict[str, Any]) -> None:
    """Append a row and have it on the disk when this returns."""
    with file.open("a") as opened:
        opened.write(json.dumps(row, default=float) + "\n")
        opened.flush()
        os.fsync(opened.fileno())


def working_folder() -> Path:
    """Return a folder for files of this machine."""
    place = Path(os.environ.get("GPU_HOUR_WORK", "/tmp/gpu_hour"))
    place.mkdir(parents=True, exist_ok=True)
    return place


class NotAvailable(Exception):
    """What a step or a case needs is not on this machine."""


@dataclass
class Step:
    """A running step.

    Parameters
    ----------
    name : str
    folder : Path
        What ``prepare`` wrote.
    record : Path
        File of JSON lines.
    end : float
        When the step has to be over, by `time.monotonic`.
    quick : bool
        Whether this is a rehearsal: every case once, no time measured with care.
    known : set of (str, str or None)
        Cases that an earlier run recorded, with the digest of what was measured.
    over : bool
        Whether a case was left out because the time was over.
    """

    name: str
    folder: Path
    record: Path
    end: float
    quick: bool = False
    known: set[tuple[str, str | None]] = field(default_factory=set)
    over: bool = False

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.end - time.monotonic()

    @cached_property
    def work(self) -> Path:
        """A folder for files of this machine."""
        return working_folder()

    def write(self, case: str, **found: Any) -> None:
        """Append what a case found."""
        append(self.record, {"step": self.name, "case": case, "at": round(time.time(), 3), **found})
        print(f"{self.name}: {case}: {short(found)}", flush=True)

    def measure(
        self,
        case: str,
        run: Callable[[], dict[str, Any]],
        least: float = 5.0,
        most: float = float("inf"),
        of: Iterable[Path] = (),
    ) -> None:
        """Run a case that the record lacks, if ``least`` seconds are left; a failure is recorded, too.

        A case that takes longer than ``most`` seconds, or than the step has, ends the process; `run_all` records where that
        was, and starts the step again without it. ``of`` are the files that are measured: with others, or another version of
        our library, a known case is measured again.
        """
        made = self.digest(of)
        if {(case, made), (case, TOO_LONG)} & self.known:
            return
        if self.left < least:
            if not self.over:
                self.write(case, status="no time left")
            self.over = True
            return
        begin = time.monotonic()
        (self.work / CURRENT).write_text(json.dumps({"step": self.name, "case": case}))
        with (self.work / HUNG).open("w") as trace:
            faulthandler.dump_traceback_later(min(most, max(self.left, 0) + 1), exit=True, file=trace)
            try:
                self._measure(case, run, begin, made)
            finally:
                faulthandler.cancel_dump_traceback_later()
                (self.work / CURRENT).unlink()

    def _measure(self, case: str, run: Callable[[], dict[str, Any]], begin: float, made: str | None) -> None:
        try:
            found = run()
        except NotAvailable as reason:
            self.write(case, status="not available", reason=str(reason))
            return
        except Exception as error:  # the next case may still say something
            told = "".join(traceback.format_exception(error))[-1500:]
            self.write(case, status="failed", error=f"{type(error).__name__}: {error}"[:600], traceback=told)
            return
        self.write(case, status="done", seconds=round(time.monotonic() - begin, 3), made=made, **found)

    def digest(self, files: Iterable[Path]) -> str | None:
        """Return a digest of artifacts and of our library, ``None`` without artifacts."""
        found = list(files)
        if not found:
            return None
        library = os.environ.get("TVM_SCHED_LIBRARY")
        made = hashlib.sha1()
        for file in [*found, *([Path(library)] if library else [])]:
            made.update(file.read_bytes())
        return made.hexdigest()[:12]

    def artifacts(self, kind: str) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Return the prepared artifacts of a kind, in the order in which they were asked for, with their descriptions."""
        place = self.folder / "artifacts"
        for name in json.loads((place / ORDER).read_text()):
            file = place / f"{name}.json"
            if file.exists() and (about := json.loads(file.read_text()))["kind"] == kind:
                yield file.with_suffix(".so"), about


def short(found: dict[str, Any]) -> str:
    """Return a row in one line for the screen."""
    text = json.dumps({key: value for key, value in found.items() if key != "traceback"}, default=float)
    return text if len(text) < 260 else f"{text[:257]}..."


def torch_with_cuda() -> Any:
    """Import PyTorch.

    Raises
    ------
    NotAvailable
        It is not installed, or finds no GPU.
    """
    try:
        import torch
    except ImportError as error:
        raise NotAvailable(f"PyTorch is missing ({error})") from None
    if not torch.cuda.is_available():
        raise NotAvailable("PyTorch finds no GPU")
    return torch
