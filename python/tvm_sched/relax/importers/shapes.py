"""The shapes that a user gives for the inputs of a model: checked against what the model declares, symbols bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from ...errors import InputError

InputShapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class DeclaredInput:
    """An input as the model declares it: each dimension a number, a symbol's name, or None where nothing is said.

    ``shape`` is None when not even the rank is known.
    """

    name: str
    shape: tuple[int | str | None, ...] | None

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.name} of unknown rank"
        return f"{self.name}[{', '.join('?' if d is None else str(d) for d in self.shape)}]"


def bind_shapes(
    declared: Sequence[DeclaredInput], given: InputShapes | None, where: str
) -> tuple[dict[str, tuple[int, ...]], dict[str, int]]:
    """Find the static shape of each input and the value of each symbol.

    A symbol that one input's shape binds is bound in all inputs that declare it.

    Returns
    -------
    shapes : dict of str to tuple of int
        For every declared input.
    symbols : dict of str to int

    Raises
    ------
    InputError
        An unknown input, a wrong rank, a dimension that contradicts the model or another input, a dimension left open.
    """
    given = _checked(given, where)
    known = {item.name: item for item in declared}
    symbols: dict[str, int] = {}
    bound_by: dict[str, str] = {}
    for name, dims in given.items():
        if name not in known:
            raise InputError(
                f"{where}: a shape is given for input {name!r}, which the model does not have; "
                f"its inputs are {', '.join(str(item) for item in declared) or 'none'}"
            )
        _match(known[name], dims, symbols, bound_by, where)
    shapes = {item.name: _static(item, given, symbols, where) for item in declared}
    return shapes, symbols


def _checked(given: InputShapes | None, where: str) -> dict[str, tuple[int, ...]]:
    """Shapes as tuples of Python's integers; NumPy's are taken, too."""
    shapes: Any = {} if given is None else given
    if not isinstance(shapes, Mapping):
        raise InputError(f"{where}: input_shapes is {shapes!r}; a mapping from input names to shapes is allowed")
    checked = {}
    for name, dims in shapes.items():
        if isinstance(dims, (str, bytes)) or not hasattr(dims, "__iter__"):
            raise InputError(
                f"{where}: input {name!r}: shape {dims!r} is given; a sequence of whole numbers is allowed"
            )
        for axis, size in enumerate(dims):
            if isinstance(size, bool) or not isinstance(size, Integral) or size < 0:
                raise InputError(
                    f"{where}: input {name!r}: dimension {axis} is given as {size!r}; a whole number, 0 or more, is allowed"
                )
        checked[name] = tuple(int(size) for size in dims)
    return checked


def _match(
    item: DeclaredInput, dims: tuple[int, ...], symbols: dict[str, int], bound_by: dict[str, str], where: str
) -> None:
    if item.shape is None:
        return
    if len(dims) != len(item.shape):
        raise InputError(
            f"{where}: input {item.name!r} is given {len(dims)} dimensions {_text(dims)}, the model declares "
            f"{len(item.shape)}: {item}"
        )
    for axis, (size, declared) in enumerate(zip(dims, item.shape, strict=True)):
        if isinstance(declared, int) and size != declared:
            raise InputError(
                f"{where}: input {item.name!r}: dimension {axis} is given as {size}, "
                f"but the model fixes it at {declared}: {item}"
            )
        if isinstance(declared, str):
            if symbols.setdefault(declared, size) != size:
                raise InputError(
                    f"{where}: input {item.name!r}: dimension {axis} ({declared!r}) is given as {size}, but "
                    f"{bound_by[declared]} says {symbols[declared]}; one symbol has one size"
                )
            bound_by.setdefault(declared, f"input {item.name!r}, dimension {axis},")


def _static(item: DeclaredInput, given: InputShapes, symbols: dict[str, int], where: str) -> tuple[int, ...]:
    if item.name in given:
        return tuple(given[item.name])
    if item.shape is None:
        raise InputError(
            f"{where}: the model does not say how many dimensions input {item.name!r} has, and a schedule needs static "
            f"shapes; pass them, e.g. --input-shape {item.name}:1,3,224,224 "
            f"(input_shapes={{{item.name!r}: (1, 3, 224, 224)}})"
        )
    result = [symbols.get(dim) if isinstance(dim, str) else dim for dim in item.shape]
    for axis, size in enumerate(result):
        if size is None:
            symbol = item.shape[axis]
            example = ",".join(str(1 if d is None else d) for d in result)
            raise InputError(
                f"{where}: input {item.name!r}: dimension {axis} {f'({symbol!r}) ' if symbol else ''}has no fixed size, "
                f"and a schedule needs static shapes; pass them, e.g. --input-shape {item.name}:{example} "
                f"(input_shapes={{{item.name!r}: ({example},)}})"
            )
    return tuple(size for size in result if size is not None)


def _text(dims: Sequence[int]) -> str:
    return f"({', '.join(map(str, dims))})"
