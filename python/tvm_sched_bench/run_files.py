"""Files of a run: machine and versions, a line for each result, and the solutions."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

from tvm_sched_runtime.errors import FormatError, InputError
from tvm_sched_runtime.files import (
    UNREADABLE,
    convert,
    decode_document,
    read_bytes,
    why_unreadable,
    write_atomically,
    write_document,
)

FORMAT, VERSION = "tvm_sched.benchmark_run", 1
_PACKAGES = ("tvm-sched", "apache-tvm", "ortools", "numpy")


class Result(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Result of a method on an instance.

    Examples
    --------
    >>> result.value, result.key == (case.name, case.digest, "heft", 0)
    (3750.0, True)
    """

    instance: str
    kind: str
    digest: str
    """Name, kind and digest of the content of the instance."""
    method: str
    seed: int = 0
    limit: float = 0.0
    """Seconds that the method was given; 0 for solutions that were handed in."""
    value: float | None = None
    """Worth of the solution; None without a solution."""
    bound: float = 0.0
    """The strongest bound of package and method."""
    bound_by: str = ""
    seconds: float = 0.0
    """Seconds that the method took."""
    error: str = ""
    """Why there is no solution."""

    @property
    def key(self) -> tuple[str, str, str, int]:
        """Key of a result; a run computes each key once."""
        return self.instance, self.digest, self.method, self.seed


class Circumstances(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Machine and packages of a run."""

    seconds: float
    seeds: int
    date: str
    processor: str
    cores: int
    versions: dict[str, str]

    @staticmethod
    def here(seconds: float, seeds: int) -> Circumstances:
        """Return the circumstances of a run on this machine with these packages."""
        return Circumstances(
            seconds, seeds, time.strftime("%Y-%m-%d"), _processor(), os.cpu_count() or 1, dict(_versions())
        )

    @property
    def words(self) -> str:
        """A sentence."""
        packages = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        return f"{self.seconds:g} s a method, {self.date}, one of {self.cores} cores of {self.processor}; {packages}"


class Run:
    """A folder of results: ``run.json``, ``results.jsonl``, ``solutions/METHOD/INSTANCE.json``.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tvm_sched_bench import Run
    >>> log = Run(Path("out"))
    >>> log.solution("heft", case.name).parts[:3], log.results
    (('out', 'solutions', 'heft'), [])
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results = list(_lines(folder / "results.jsonl"))
        file = folder / "run.json"
        self.circumstances: Circumstances | None = None
        if file.exists():
            data = decode_document(read_bytes(file), FORMAT, VERSION, os.fspath(file))
            self.circumstances = convert(data, Circumstances, os.fspath(file))

    def begin(self, circumstances: Circumstances) -> None:
        """Make the folder, or go on in one of the same time a method, on whatever day.

        Raises
        ------
        InputError
            It is of other circumstances.
        """
        known = self.circumstances
        if known is not None:
            mine = msgspec.structs.replace(circumstances, date=known.date, seeds=known.seeds)
            if mine != known:
                raise InputError(
                    f"{self.folder} is of another run ({known.words}); give another folder, or go on as there"
                )
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.folder}: cannot be made ({error.strerror})") from None
        self.circumstances = circumstances
        write_document(self.folder / "run.json", circumstances, FORMAT, VERSION)

    def add(self, result: Result, solution: bytes | None, best: bool) -> None:
        """Keep a result; its solution, too, if it is the method's best on the instance."""
        if solution is not None and best:
            file = self.solution(result.method, result.instance)
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, solution)
        with (self.folder / "results.jsonl").open("ab") as lines:
            lines.write(msgspec.json.encode(result) + b"\n")
        self.results.append(result)

    def solution(self, method: str, instance: str) -> Path:
        """Return the path of a method's solution."""
        return self.folder / "solutions" / method / f"{instance}.json"


def _lines(file: Path) -> Iterable[Result]:
    """Yield the results of a file. An incomplete last line, left by an interrupted run, is dropped."""
    if not file.exists():
        return
    content = read_bytes(file)
    whole, _, remainder = content.rpartition(b"\n")
    if remainder:
        write_atomically(file, whole + b"\n" if whole else b"")
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            yield msgspec.json.decode(line, type=Result)
        except UNREADABLE as error:
            raise FormatError(f"{file}: line {number} is no result ({why_unreadable(error)})") from None


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _versions() -> Iterable[tuple[str, Any]]:
    for name in _PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue
