"""The arguments of every benchmark, and problems from files."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvm_sched.problem import Problem


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
