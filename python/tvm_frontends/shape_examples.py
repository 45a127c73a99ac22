"""Sizes to propose for the open dimensions of a model: those that its weights and metadata say, else usual ones by name.

They are examples for a message. A size of 1 everywhere would often not fit the model (images that are halved five times, a
table of 77 positions), and where it does, a schedule for it says nothing about the real model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .shapes import DeclaredInput, Dimension

IMAGE, TOKENS, SAMPLES, OTHER = "image", "tokens", "samples", "other"
_KINDS: tuple[tuple[str, str], ...] = (
    (r"batch|^bs?$|^n$|^num_images$", "batch"),
    (r"channel|^c$|^rgb$", "channels"),
    (r"height|width|^[hw]$|image_?size|imgsz|resolution|rows|cols", IMAGE),
    (r"sample|audio|wave|sound", SAMPLES),
    (r"seq|token|length|^len|time|step|frame|past|context|text|^[tsl]$|words", TOKENS),
)
"""Patterns of a dimension's name in lower case, and its kind; the first that matches counts."""

ROUNDS: tuple[Mapping[str, int], ...] = tuple(
    {"batch": 1, "channels": 3, IMAGE: image, TOKENS: tokens, SAMPLES: samples, OTHER: other}
    for image, tokens, samples, other in (
        (224, 128, 16000, 16), (256, 64, 16000, 1), (640, 77, 48000, 4), (299, 512, 16000, 3), (32, 16, 4096, 10),
        (64, 1, 1024, 32),
    )
)  # fmt: skip
"""Sizes by kind: the usual ones first, then others that some models need."""


@dataclass(frozen=True)
class Hints:
    """What a model's file says of sizes that its inputs leave open."""

    dimensions: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """By input and axis, from the weights that meet the input."""
    kinds: Mapping[str, int] = field(default_factory=dict)
    """By kind (`IMAGE`, `TOKENS`, ...), from metadata."""


@dataclass(frozen=True)
class Proposals:
    """How a model's open sizes are proposed."""

    hints: Callable[[], Hints] = Hints
    fits: Callable[[dict[str, tuple[int, ...]]], bool | None] | None = None
    """Whether the model can be prepared with shapes; None if that is not known in time. Without it nothing is tried."""


def examples(
    declared: Sequence[DeclaredInput],
    given: Mapping[str | tuple[str, int], int],
    ranks: Mapping[str, int],
    hints: Hints,
    usual: Mapping[str, int] = ROUNDS[0],
) -> dict[str, tuple[int, ...]]:
    """Return a shape for each input, equal symbols with equal sizes.

    Parameters
    ----------
    given : mapping
        Sizes that the user gave: of symbols by name, of other dimensions by input and axis.
    ranks : mapping of str to int
        Numbers of dimensions that the user gave for inputs of unknown rank.
    usual : mapping of str to int
        Sizes by kind.
    """
    sizes: dict[str | tuple[str, int], int] = dict(given)
    usual = {**usual, **hints.kinds}
    shapes: dict[str, Sequence[Dimension]] = {
        item.name: item.shape if item.shape is not None else (None,) * ranks.get(item.name, _rank(item))
        for item in declared
    }
    for item in declared:  # what weights say of a symbol holds for all inputs
        for axis, dimension in enumerate(shapes[item.name]):
            hint = hints.dimensions.get((item.name, axis))
            if hint is not None and isinstance(dimension, str):
                sizes.setdefault(dimension, hint)

    def size(item: DeclaredInput, axis: int, dimension: Dimension) -> int:
        if isinstance(dimension, int):
            return dimension
        key = dimension if isinstance(dimension, str) else (item.name, axis)
        if key not in sizes:
            hint = hints.dimensions.get((item.name, axis))
            found = None if dimension is None or isinstance(dimension, str) else dimension.value(_symbols(sizes))
            sizes[key] = (
                found
                if found is not None
                else hint
                if hint is not None
                else _usual(item, shapes[item.name], axis, dimension, usual)
            )
        return sizes[key]

    # A sum of symbols, as exporters write ("past + sequence"), comes after its parts.
    for item in declared:
        for axis, dimension in enumerate(shapes[item.name]):
            if not (isinstance(dimension, str) and ("+" in dimension or "total" in dimension)):
                size(item, axis, dimension)
    named = _symbols(sizes)
    past, now = (next((named[name] for name in named if word in name), None) for word in ("past", "seq"))
    for dimension in (each for item in declared for each in shapes[item.name]):
        if isinstance(dimension, str) and "total" in dimension and past is not None and now is not None:
            sizes.setdefault(dimension, past + (now if len([name for name in named if "seq" in name]) > 1 else 1))
    for item in declared:
        for dimension in shapes[item.name]:
            if isinstance(dimension, str) and dimension not in sizes and "+" in dimension:
                names = map(str.strip, dimension.split("+"))
                parts = [int(name) if name.isdecimal() else sizes.get(name) for name in names]
                if all(part is not None for part in parts):
                    sizes[dimension] = sum(part for part in parts if part is not None)
    return {
        item.name: tuple(size(item, axis, dimension) for axis, dimension in enumerate(shapes[item.name]))
        for item in declared
    }


def _rank(item: DeclaredInput) -> int:
    """Return a usual number of dimensions: pictures are numbers, tokens integers."""
    return 2 if (item.dtype or "").startswith(("int", "uint")) else _IMAGE_RANK


def _symbols(sizes: Mapping[str | tuple[str, int], int]) -> dict[str, int]:
    return {key: size for key, size in sizes.items() if isinstance(key, str)}


def _usual(
    item: DeclaredInput, shape: Sequence[Dimension], axis: int, dimension: Dimension, usual: Mapping[str, int]
) -> int:
    name = str(dimension).lower() if isinstance(dimension, str) else ""
    for pattern, kind in _KINDS:
        if name and re.search(pattern, name):
            return usual[kind]
    return usual[_kind_by_place(item, shape, axis)]


_IMAGE_RANK = 4


def _kind_by_place(item: DeclaredInput, shape: Sequence[Dimension], axis: int) -> str:
    """Return the kind of a dimension without a telling name: pictures have four dimensions, tokens two or three."""
    rank = len(shape)
    if rank == 1:
        return OTHER
    if axis == 0:
        return "batch"
    if rank >= _IMAGE_RANK:
        last = isinstance(shape[-1], int) and shape[-1] <= _IMAGE_RANK  # channels last
        return IMAGE if axis in (range(1, rank - 1) if last else range(2, rank)) else "channels"
    if any(re.search(pattern, item.name.lower()) for pattern, kind in _KINDS if kind == SAMPLES):
        return SAMPLES
    return TOKENS


def missing_sizes(
    declared: Sequence[DeclaredInput],
    given: Mapping[str | tuple[str, int], int],
    ranks: Mapping[str, int],
    proposals: Proposals,
) -> dict[str, tuple[int, ...] | int]:
    """Return what the user may pass for the open dimensions: sizes of symbols, and shapes of inputs that have other ones.

    Proposals are tried on the model in turn. It is the first one if none fits, or if the trials take too long.
    """
    hints = proposals.hints()
    chosen = first = examples(declared, given, ranks, hints)
    tried: list[dict[str, tuple[int, ...]]] = []
    for usual in ROUNDS if proposals.fits is not None else ():
        assert proposals.fits is not None
        chosen = examples(declared, given, ranks, hints, usual)
        if chosen in tried:
            continue
        verdict = proposals.fits(chosen)
        if verdict:
            break
        tried.append(chosen)
        if verdict is None:
            chosen = first
            break
    else:
        chosen = first
    sizes: dict[str, tuple[int, ...] | int] = {}
    symbols = {
        dimension for item in declared for dimension in item.shape or () if isinstance(dimension, str)
    } | given.keys()
    for item in declared:
        shape = chosen[item.name]
        names = [dimension for dimension in item.shape or (None,) if not isinstance(dimension, int)]
        if all(symbols.issuperset(getattr(dimension, "symbols", (dimension,))) for dimension in names):
            for dimension, size in zip(item.shape or (), shape, strict=True):
                if isinstance(dimension, str) and dimension not in given:
                    sizes[dimension] = size
        elif item.name not in ranks:
            sizes[item.name] = shape
    return sizes
