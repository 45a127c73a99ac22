"""Shapes and values of inputs on the command line: sizes, sets of sizes, symbols, constants."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
import typer

from ..errors import InputError
from ..files import UNREADABLE

InputShapes = Annotated[
    list[str] | None,
    typer.Option(
        "--input-shape",
        metavar="NAME:DIMS|SYMBOL=SIZES",
        help="Shape of an input, e.g. data:1,3,224,224, or size of a symbol that the model declares, e.g. batch=8. "
        "`compile` takes sets, 'data:{1,8},3,224,224' or 'batch={1,8}': an artifact with a plan for each combination. "
        "May be repeated.",
    ),
]
TokenShape = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="BATCHxTOKENS",
        help="Of a language model given by its name, config.json or folder, e.g. 1x32. One for all, or one for each.",
    ),
]

Dims: TypeAlias = "tuple[int | frozenset[int], ...]"
ShapeSet: TypeAlias = "dict[str, Dims | int | frozenset[int]]"
"""Inputs to shapes and symbols to sizes, as `tvm_sched.relax.compile` takes them."""


@dataclass(frozen=True)
class ShapeOptions:
    """Shapes and values of a model's inputs: ``--input-shape``, ``--shape`` and ``--constant``."""

    input_shape: InputShapes = None
    shape: TokenShape = None
    constant: Annotated[
        list[str] | None,
        typer.Option(
            "--constant",
            metavar="NAME=VALUE",
            help="Freeze an input, e.g. sr=16000, size=224,224, flag=true, mask='[[1,0]]' or table=file.npy. May be "
            "repeated.",
        ),
    ] = None

    def sets(self) -> list[ShapeSet]:
        """All shapes that are given, ``--shape`` as sizes of the symbols ``batch`` and ``tokens``."""
        if self.shape and self.input_shape:
            raise InputError(
                "--shape and --input-shape are given; one of them is allowed (batch=1 and tokens=128 are symbols)"
            )
        return parse_token_sizes(self.shape) if self.shape else parse_shapes(self.input_shape)

    def constants(self) -> dict[str, Any]:
        """The values of frozen inputs."""
        return parse_constants(self.constant)


_SIZE = r"(?:\d+|\{\s*\d+\s*(?:,\s*\d+\s*)*\})"
_DIMS = re.compile(rf"\s*(?:{_SIZE}\s*(?:,\s*{_SIZE}\s*)*)?")


def parse_shapes(texts: Iterable[str] | None) -> list[ShapeSet]:
    """``NAME:1,3,{224,320}`` and ``SYMBOL={1,8}`` texts as sets of shapes; a name that comes again begins the next set.

    An input's name may hold colons; ``NAME:`` is a scalar. Without texts the list is empty.
    """
    sets: list[ShapeSet] = []
    for text in texts or ():
        name, sizes = _parse_shape(text)
        if not sets or name in sets[-1]:
            sets.append({})
        sets[-1][name] = sizes
    return sets


def _parse_shape(text: str) -> tuple[str, Dims | int | frozenset[int]]:
    name, colon, dims = text.rpartition(":")
    if colon and name and _DIMS.fullmatch(dims):
        return name, tuple(_size(size) for size in re.findall(_SIZE, dims))
    name, mark, size = text.rpartition("=")
    if mark and name.strip() and re.fullmatch(_SIZE, size.strip()):
        return name.strip(), _size(size)
    raise InputError(
        f"--input-shape {text}: expected NAME:DIMS with whole numbers, e.g. data:1,3,224,224, or SYMBOL=SIZE, e.g. batch=8; "
        "'{1,8}' (in quotes) in place of a size stands for several"
    )


def _size(text: str) -> int | frozenset[int]:
    sizes = frozenset(int(size) for size in re.findall(r"\d+", text))
    return sizes if len(sizes) > 1 else min(sizes)


def one_shape(sets: Sequence[ShapeSet], why: str) -> ShapeSet | None:
    """The only set; ``why`` is what a message says of several: what has one shape."""
    several = any(
        isinstance(size, frozenset)
        for given in sets
        for sizes in given.values()
        for size in (sizes if isinstance(sizes, tuple) else (sizes,))
    )
    if len(sets) > 1 or several:
        raise InputError(f"--input-shape gives an input two shapes; {why}, only `compile` takes several")
    return sets[0] if sets else None


def parse_token_sizes(texts: Iterable[str] | None) -> list[ShapeSet]:
    """``1x128`` and ``{1,8}x{32,128}`` texts as sizes of the symbols ``batch`` and ``tokens``."""
    sets: list[ShapeSet] = []
    for text in texts or ():
        match = re.fullmatch(rf"\s*({_SIZE})\s*x\s*({_SIZE})\s*", text)
        if match is None:
            raise InputError(f"--shape {text}: expected BATCHxTOKENS, e.g. 1x32 or '{{1,8}}x{{32,128}}'")
        sets.append({"batch": _size(match[1]), "tokens": _size(match[2])})
    return sets


def parse_constants(texts: Iterable[str] | None) -> dict[str, Any]:
    """``NAME=VALUE`` texts: a number, a list of numbers, true or false, JSON, or the name of a ``.npy`` file."""
    constants: dict[str, Any] = {}
    for text in texts or ():
        name, mark, value = text.partition("=")
        if not mark or not name.strip() or not value.strip():
            raise InputError(f"--constant {text}: expected NAME=VALUE, e.g. sr=16000 or size=224,224")
        if name.strip() in constants:
            raise InputError(f"--constant {text}: {name.strip()!r} has a value already")
        constants[name.strip()] = _value(text, value.strip())
    return constants


def _value(text: str, value: str) -> Any:
    if value.endswith(".npy"):
        from ..runtime.values import read_array

        return read_array(f"--constant {text}", Path(value))
    for candidate in (value.lower(), f"[{value.lower()}]"):
        try:
            found = msgspec.json.decode(candidate)
        except UNREADABLE:
            continue
        if isinstance(found, (bool, int, float, list)):
            return found
    raise InputError(
        f"--constant {text}: {value!r} is no number; expected numbers (16000 or 1,2,3), true or false, nested lists "
        "([[1,0],[0,1]]) or a .npy file"
    )
