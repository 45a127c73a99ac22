"""What all benchmarks share: their arguments, the problems to run on, and the rows that they write."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from tvm_sched.problem import Problem

T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """A figure.

    Parameters
    ----------
    case : str
        What was worked on.
    method : str
        What did it.
    figure, unit : float, str
        What came out.
    peer : float or None
        The same figure of the peer, from the same run; None where there is no peer.
    peer_name : str
        Who the peer is.
    """

    case: str
    method: str
    figure: float
    unit: str
    peer: float | None = None
    peer_name: str = ""


def parser(description: str, models: bool = True) -> argparse.ArgumentParser:
    """The arguments of every benchmark; ``models`` adds those that name inputs of one's own."""
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    result.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    result.add_argument("--quick", action="store_true", help="minutes instead of hours: fewer and smaller cases")
    if models:
        result.add_argument(
            "--model", type=Path, metavar="FILE", help="a model of your own instead of the built-in ones"
        )
        result.add_argument(
            "--input-shape",
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


def report(title: str, rows: list[Row], file: Path | None) -> None:
    """Print rows as a table; write them as JSON where a file is given."""
    table = Table("case", "method", "figure", "unit", "peer", title=title)
    for row in rows:
        peer = "" if row.peer is None else f"{row.peer:.4g} {row.peer_name}".rstrip()
        table.add_row(row.case, row.method, f"{row.figure:.4g}", row.unit, peer)
    Console().print(table)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
