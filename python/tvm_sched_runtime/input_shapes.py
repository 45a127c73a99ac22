"""Parse shapes and constants of inputs: ``data:1,3,224,224``, ``batch={1,8}``, ``1x128``, ``sr=16000``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from .errors import InputError
from .files import UNREADABLE

Dims: TypeAlias = "tuple[int | frozenset[int], ...]"
ShapeSet: TypeAlias = "dict[str, Dims | int | frozenset[int] | range]"
"""Inputs to shapes and symbols to sizes, as `tvm_sched.relax.compile` takes them."""

_SIZE = r"(?:\d+|\{\s*\d+\s*(?:,\s*\d+\s*)*\})"
_DIMS = re.compile(rf"\s*(?:{_SIZE}\s*(?:,\s*{_SIZE}\s*)*)?")
_TOKENS = re.compile(rf"\s*({_SIZE})\s*x\s*({_SIZE})\s*")


_RANGE = re.compile(r"\s*(\d+)\s*\.\.\s*(\d+)\s*")


_TOKEN_RANGE = re.compile(r"\s*(\d+(?:\.\.\d+)?)\s*x\s*(\d+(?:\.\.\d+)?)\s*")


def split_ranges(
    texts: Iterable[str] | None,
) -> tuple[dict[str, tuple[int, int]], Callable[[Mapping[str, int]], list[str]]]:
    """Return the least and largest size of each ``SYMBOL=16..512`` or ``1x16..512``, and what the texts are at given sizes.

    Raises
    ------
    InputError
        A symbol has two ranges, or one is empty.
    """
    limits: dict[str, tuple[int, int]] = {}
    pieces: list[
        list[tuple[str, str]]
    ] = []  # of each text: symbols, none for a piece that stays, and what else stands there
    for text in texts or ():
        name, mark, size = text.rpartition("=")
        tokens = _TOKEN_RANGE.fullmatch(text)
        parts = (
            [("batch", tokens[1]), ("", "x"), ("tokens", tokens[2])]
            if tokens
            else [("", name + mark), (name.strip(), size)]
        )
        found = {symbol: match for symbol, part in parts if symbol and (match := _RANGE.fullmatch(part))}
        for symbol, match in found.items():
            low, high = int(match[1]), int(match[2])
            if symbol in limits or low > high:
                raise InputError(
                    f"--shape {text}: a range for each symbol, from its least to its largest size, is allowed"
                )
            limits[symbol] = low, high
        pieces.append([(symbol if symbol in found else "", part) for symbol, part in parts])

    def at(sizes: Mapping[str, int]) -> list[str]:
        return ["".join(str(sizes[symbol]) if symbol else part for symbol, part in each) for each in pieces]

    return limits, at


def is_token_shape(text: str) -> bool:
    """Return whether a text is BATCHxTOKENS."""
    return _TOKENS.fullmatch(text) is not None


def parse_shapes(texts: Iterable[str] | None) -> list[ShapeSet]:
    """Read ``NAME:1,3,{224,320}``, ``SYMBOL={1,8}`` and ``BATCHxTOKENS``; a repeated name begins the next set.

    An input's name may hold colons; ``NAME:`` is a scalar. ``1x128`` gives the symbols ``batch`` and ``tokens`` sizes.
    Without texts the list is empty.

    Raises
    ------
    InputError
        A text has none of these forms.
    """
    sets: list[ShapeSet] = []
    for text in texts or ():
        sizes = _parse_shape(text)
        if not sets or sizes.keys() & sets[-1].keys():
            sets.append({})
        sets[-1].update(sizes)
    return sets


def _parse_shape(text: str) -> ShapeSet:
    if match := _TOKENS.fullmatch(text):
        return {"batch": _size(match[1]), "tokens": _size(match[2])}
    name, colon, dims = text.rpartition(":")
    if colon and name and _DIMS.fullmatch(dims):
        return {name: tuple(_size(size) for size in re.findall(_SIZE, dims))}
    name, mark, size = text.rpartition("=")
    if mark and name.strip() and (limits := _RANGE.fullmatch(size)):
        sizes = range(int(limits[1]), int(limits[2]) + 1)
        if not sizes:
            raise InputError(f"--shape {text}: the range is empty; expected the least and the largest size")
        return {name.strip(): sizes}
    if mark and name.strip() and re.fullmatch(_SIZE, size.strip()):
        return {name.strip(): _size(size)}
    raise InputError(
        f"--shape {text}: expected NAME:DIMS with whole numbers, e.g. data:1,3,224,224, or SYMBOL=SIZE, e.g. batch=8, or "
        "BATCHxTOKENS, e.g. 1x32; '{1,8}' (in quotes) in place of a size stands for several, and SYMBOL=1..512 for a range"
    )


def _size(text: str) -> int | frozenset[int]:
    sizes = frozenset(int(size) for size in re.findall(r"\d+", text))
    return sizes if len(sizes) > 1 else min(sizes)


def one_shape(sets: Sequence[ShapeSet], why: str) -> ShapeSet | None:
    """Return the only set of shapes; if there are several, the error gives the reason ``why``."""
    several = any(
        isinstance(size, (frozenset, range))
        for shapes in sets
        for sizes in shapes.values()
        for size in (sizes if isinstance(sizes, tuple) else (sizes,))
    )
    if len(sets) > 1 or several:
        raise InputError(f"--shape gives an input two shapes; {why}, only `compile` takes several")
    return sets[0] if sets else None


def token_shapes(texts: Sequence[str], count: int) -> list[tuple[int, int]]:
    """Read ``1x32`` texts as (batch, tokens), one for each of ``count`` models; a single text is for all of them."""
    shapes = []
    for text in texts:
        batch, tokens = parse_shapes([text])[0].values()
        if not isinstance(batch, int) or not isinstance(tokens, int):
            raise InputError(f"--shape {text}: a set of sizes; a problem has one shape, only `compile` takes several")
        shapes.append((batch, tokens))
    if len(shapes) not in (1, count):
        raise InputError(
            f"--shape BATCHxTOKENS stands {len(shapes)} times for {count} language models by name, config.json or "
            "folder; give one for all of them, e.g. 1x32, or one for each in their order"
        )
    return shapes * count if len(shapes) == 1 else shapes


def parse_constants(texts: Iterable[str] | None) -> dict[str, Any]:
    """Read ``NAME=VALUE`` texts: a number, a list of numbers, true or false, JSON, or the name of a ``.npy`` file."""
    from .runtime.values import split_value

    constants: dict[str, Any] = {}
    for text in texts or ():
        name, value = split_value(text)
        if not name.strip() or not value.strip():
            raise InputError(f"--constant {text}: expected NAME=VALUE, e.g. sr=16000 or size=224,224")
        if name.strip() in constants:
            raise InputError(f"--constant {text}: {name.strip()!r} has a value already")
        constants[name.strip()] = _value(text, value.strip())
    return constants


def _value(text: str, value: str) -> Any:
    if value.endswith(".npy"):
        from .runtime.values import read_array

        return read_array(f"--constant {text}", Path(value))
    for candidate in (value.lower(), f"[{value.lower()}]"):
        try:
            decoded = msgspec.json.decode(candidate)
        except UNREADABLE:
            continue
        if isinstance(decoded, (bool, int, float, list)):
            return decoded
    raise InputError(
        f"--constant {text}: {value!r} is not a value; expected numbers (16000 or 1,2,3), true or false, nested lists "
        "([[1,0],[0,1]]) or a .npy file"
    )
