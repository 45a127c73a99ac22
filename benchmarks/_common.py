"""What all benchmarks share: their arguments, the problems to run on, and the rows that they write."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from _checked import sentence
from _tables import Row, tables
from _tables import Table as Figures
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from tvm_sched.problem import Problem

__all__ = ["Row", "best_ms", "circumstances", "instances", "parser", "report", "sections", "version_and_date"]
T = TypeVar("T")
PREDICTED = "Latencies on GPU topologies are predicted from data sheets (see `docs/model.md`), not measured."


def parser(description: str, models: bool = True) -> argparse.ArgumentParser:
    """The arguments of every benchmark; ``models`` adds those that name inputs of one's own."""
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    result.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    result.add_argument("--markdown", type=Path, metavar="FILE", help="write a page of results there")
    result.add_argument("--quick", action="store_true", help="minutes instead of hours: fewer and smaller cases")
    if models:
        result.add_argument(
            "--model", type=Path, metavar="FILE", help="a model of your own instead of the built-in ones"
        )
        result.add_argument(
            "--shape",
            action="append",
            default=[],
            metavar="NAME:DIMS",
            type=_input_shape,
            help="shape of an input of that model, e.g. data:1,3,224,224; may stand several times",
        )
        result.add_argument(
            "--topology", action="append", default=[], metavar="NAME|FILE", help="instead of all presets"
        )
        result.add_argument("--instances", type=Path, metavar="DIR", help="a folder of problem files (*.json) instead")
    return result


def _input_shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, colon, dims = text.rpartition(":")
    try:
        if not (name and colon):
            raise ValueError
        return name, tuple(int(dim) for dim in dims.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:DIMS, such as data:1,3,224,224") from None


def instances(folder: Path) -> Iterator[tuple[str, Problem]]:
    """Name and problem of each ``*.json`` in a folder, in order of name."""
    from tvm_sched.problem import Problem

    files = sorted(folder.glob("*.json"))
    if not files:
        raise SystemExit(f"{folder} holds no problem files (*.json)")
    for file in files:
        yield file.stem, Problem.load(file)


def best_ms(work: Callable[[], T], repeats: int) -> tuple[float, T]:
    """Least wall-clock milliseconds of several calls, and what the last one returned."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - start)
    return best * 1e3, result


def report(
    title: str,
    rows: list[Row],
    file: Path | None,
    markdown: Path | None = None,
    *,
    predicted: bool = False,
    notes: str = "",
) -> None:
    """Print rows as tables; write them as JSON and as a page of Markdown where files are given.

    ``predicted``: the page says that latencies on GPUs are predicted. ``notes`` stand above the tables there.
    """
    made = tables(rows)
    for each in made:
        shown = Table(*each.header, title=f"{title}: {each.unit}")
        for line in each.lines:
            shown.add_row(*(cell.replace("**", "") for cell in line))
        Console().print(shown)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    if markdown is not None:
        lines = [f"# {title}", "", *circumstances(predicted), *([notes] if notes else []), "", *sections(made)]
        markdown.parent.mkdir(parents=True, exist_ok=True)
        markdown.write_text("\n".join(lines))


def sections(made: Iterable[Figures]) -> list[str]:
    """Tables under their names, in Markdown."""
    return [line for each in made for line in (f"## {each.unit}", "", *each.markdown(), "")]


def circumstances(predicted: bool = False) -> list[str]:
    """What made a page of results: command, machine, date, versions; if latencies are predicted; what was checked."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        cpu = names[0] if names else cpu
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *map(_elsewhere, sys.argv[1:])])
    packages = ", ".join(f"{name} {version(name)}" for name in ("apache-tvm", "ortools", "numpy"))
    made = f"Made by `{command}` on {version_and_date()}, {os.cpu_count()} cores of {cpu}; {packages}."
    return [made, *([PREDICTED] if predicted else []), *([told] if (told := sentence()) else [])]


def version_and_date() -> str:
    """The date, and the version of the sources where there is git."""
    return f"{time.strftime('%Y-%m-%d')}{_commit()}"


def _commit() -> str:
    """Which version of the sources this is, in words; nothing where there is no git."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return f", commit {subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()}"
    except (OSError, subprocess.CalledProcessError):
        return ""


def _elsewhere(argument: str) -> str:
    """An argument as it may stand on a page: of a path outside of the repository its last name."""
    option, equals, value = argument.rpartition("=")
    outside = os.path.isabs(value) or value.startswith(os.pardir)
    return f"{option}{equals}{Path(value).name}" if outside else argument
