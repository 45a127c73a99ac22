"""Checks of the shapes for a model's inputs, and binding of its symbols to sizes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeAlias

from .errors import MissingShape, ModelError, ModelWarning

if TYPE_CHECKING:
    from .shape_examples import Proposals

Sizes: TypeAlias = "int | set[int] | frozenset[int]"
InputShapes: TypeAlias = "Mapping[str, Sequence[Sizes] | Sizes]"
"""Shapes of inputs and sizes of symbols, by name; a set of sizes stands for several shapes."""
Checked: TypeAlias = "tuple[frozenset[int], ...] | frozenset[int]"
"""An input's shape or a symbol's sizes, with a set wherever there is a size."""
StaticShapes: TypeAlias = "dict[str, tuple[int, ...]]"
MOST_ELEMENTS = 1 << 53
"""Largest number of elements of an input."""

_NO_NAMES = ("", "?", "-1", "None", "*")
"""Names that exporters write for an unknown dimension."""


@dataclass(frozen=True)
class Expression:
    """A dimension computed from symbols, such as ``2*n``."""

    text: str
    symbols: tuple[str, ...]
    evaluate: Callable[[Mapping[str, int]], int]

    def __str__(self) -> str:
        return self.text

    def value(self, sizes: Mapping[str, int]) -> int | None:
        """Return the size; None if a symbol has none."""
        return self.evaluate(sizes) if all(symbol in sizes for symbol in self.symbols) else None


Dimension: TypeAlias = "int | str | Expression | None"


@dataclass(frozen=True)
class DeclaredInput:
    """An input as the model declares it."""

    name: str
    shape: tuple[Dimension, ...] | None
    """Each dimension is a number, a symbol's name, an `Expression` of symbols, or None if it is not declared. Undeclared
    dimensions are independent of each other; ``?``, ``-1`` and the empty name are None. The shape is None if not even
    the rank is known."""
    dtype: str | None = None
    """NumPy's name of the type; None if it is unknown."""

    def __post_init__(self) -> None:
        if self.shape is not None:
            object.__setattr__(self, "shape", tuple(map(_dimension, self.shape)))

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.name} of unknown rank"
        return f"{self.name}[{', '.join('?' if d is None else str(d) for d in self.shape)}]"


def _dimension(declared: Dimension) -> Dimension:
    unknown = declared < 0 if isinstance(declared, int) else isinstance(declared, str) and declared in _NO_NAMES
    return None if unknown else declared


def symbols_of(declared: Sequence[DeclaredInput]) -> list[str]:
    """Return the names of the symbols, in the order of the inputs."""
    names: dict[str, None] = {}
    for dimension in (dimension for item in declared for dimension in item.shape or ()):
        if isinstance(dimension, str):
            names[dimension] = None
        elif isinstance(dimension, Expression):
            names.update(dict.fromkeys(dimension.symbols))
    return list(names)


def expand_shapes(
    declared: Sequence[DeclaredInput],
    shapes: InputShapes | None,
    where: str,
    numbers: Collection[str] = (),
    defaults: Mapping[str, int] | None = None,
    loose: bool = False,
    proposals: Proposals | None = None,
) -> list[StaticShapes]:
    """Expand sets of sizes to all static shapes: the product over symbols, and over dimensions without one.

    Parameters
    ----------
    shapes : mapping, optional
        The shape of each input by name, whose dimensions may be sets of sizes; or the size or sizes of a symbol by name (a
        number or a set; a sequence is always the shape of an input). Shapes of other inputs follow from the symbols.
    where : str
        The model, for messages.
    numbers : collection of str
        Inputs whose constant is a scalar: their open dimensions are 1.
    defaults : mapping of str to int, optional
        Sizes of symbols that ``shapes`` leaves open.
    loose : bool
        Whether two inputs may have different sizes for one symbol, as ONNX Runtime allows; a `ModelWarning` says so.
    proposals : Proposals, optional
        How sizes are proposed if some are missing.

    Returns
    -------
    list of dict of str to tuple of int
        For each combination the shape of every input, sizes ascending, the first symbol slowest.

    Raises
    ------
    ModelError
        An unknown name, a wrong rank, a size that is not a whole number of 0 or more, two inputs with different sizes
        for one symbol, or a dimension that contradicts the model or is left open.
    """
    checked = _checked(shapes, where)
    if loose:
        declared = _without_contradicted(declared, checked, where)
    assigned = _Assignment(declared, where, numbers, proposals)
    for name, allowed in checked.items():
        assigned.take(name, allowed)
    for symbol, size in (defaults or {}).items():
        assigned.sizes.setdefault(symbol, frozenset([size]))
    keys = list(assigned.sizes)
    combinations = []
    for chosen in product(*(sorted(assigned.sizes[key]) for key in keys)):
        sizes = dict(zip(keys, chosen, strict=True))
        combinations.append({item.name: assigned.static(item, sizes) for item in declared})
    return combinations


def _without_contradicted(
    declared: Sequence[DeclaredInput], shapes: Mapping[str, Checked], where: str
) -> Sequence[DeclaredInput]:
    """Return the inputs, without a symbol for which the caller gives two inputs different sizes.

    Exporters name dimensions by position, so ``width`` of one input may be unrelated to ``width`` of another. The symbol
    stays in inputs without an explicit shape.
    """
    sizes_of: dict[str, set[frozenset[int]]] = {}
    for item in declared:
        dims, own = shapes.get(item.name), dict[str, set[frozenset[int]]]()
        if isinstance(dims, tuple) and len(dims) == len(item.shape or ()):
            for dimension, sizes in zip(item.shape or (), dims, strict=True):
                if isinstance(dimension, str) and len(sizes) == 1:
                    own.setdefault(dimension, set()).add(sizes)
        for symbol, own_sizes in own.items():
            if len(own_sizes) == 1:  # several sizes within one input are a mistake
                sizes_of.setdefault(symbol, set()).update(own_sizes)
    apart = {symbol for symbol, sizes in sizes_of.items() if len(sizes) > 1 and symbol not in shapes}
    if not apart:
        return declared
    warnings.warn(
        f"{where}: inputs are given different sizes for {', '.join(map(repr, sorted(apart)))}, which the model says are "
        "one; each input has its own",
        ModelWarning,
        stacklevel=2,
    )
    return [
        replace(item, shape=tuple(None if d in apart else d for d in item.shape or ()))
        if item.name in shapes and item.shape is not None
        else item
        for item in declared
    ]


def bind_shapes(
    declared: Sequence[DeclaredInput], shapes: InputShapes | None, where: str, loose: bool = False
) -> tuple[StaticShapes, dict[str, int]]:
    """Return the static shape of each input and the size of each symbol, if each input has one shape.

    A symbol that one input's shape binds is bound in all inputs that declare it; ``loose`` as for `expand_shapes`.

    Returns
    -------
    shapes : dict of str to tuple of int
        For every declared input.
    symbols : dict of str to int

    Raises
    ------
    ModelError
        As `expand_shapes`, and if there are sets of sizes.
    """
    combinations = expand_shapes(declared, shapes, where, loose=loose)
    if len(combinations) > 1:
        raise ModelError(f"{where}: {len(combinations)} shapes are given; one is allowed here")
    symbols: dict[str, int] = {}
    for item in declared:
        for dimension, size in zip(item.shape or (), combinations[0][item.name], strict=False):
            if isinstance(dimension, str):
                symbols[dimension] = size
    return combinations[0], symbols


Key: TypeAlias = "str | tuple[str, int]"
"""A symbol, or a dimension (input, axis) without one."""


class _Assignment:
    """Sizes of symbols and of dimensions without one, recorded one input or symbol at a time."""

    def __init__(
        self, declared: Sequence[DeclaredInput], where: str, numbers: Collection[str], proposals: Proposals | None
    ) -> None:
        self.declared, self.where, self.numbers, self.proposals = declared, where, numbers, proposals
        self.inputs = {item.name: item for item in declared}
        self.symbols = symbols_of(declared)
        self.sizes: dict[Key, frozenset[int]] = {}
        self.ranks: dict[str, int] = {}
        self._source_of: dict[Key, str] = {}

    def take(self, name: str, sizes: Checked) -> None:
        """Record the shape or size for a name."""
        if isinstance(sizes, frozenset):
            if name in self.inputs and name not in self.symbols:
                raise ModelError(
                    f"{self.where}: input {name!r}: shape {_sizes(sizes)} is given; a sequence of whole numbers is allowed"
                )
            if name not in self.symbols:
                raise ModelError(self._unknown("a size", "symbol", name))
            self._note(name, sizes, f"symbol {name!r}", f"{name}=")
        elif name not in self.inputs:
            raise ModelError(self._unknown("a shape", "input", name))
        else:
            self._take_input(self.inputs[name], sizes)

    def _unknown(self, what: str, kind: str, name: str) -> str:
        has = ", ".join(str(item) for item in self.declared) or "none"
        symbols = f" and its symbols are {', '.join(self.symbols)}" if kind == "symbol" and self.symbols else ""
        symbols = " and it has no symbols" if kind == "symbol" and not self.symbols else symbols
        return (
            f"{self.where}: {what} is given for {kind} {name!r}, which the model does not have; "
            f"its inputs are {has}{symbols}"
        )

    def _take_input(self, item: DeclaredInput, dims: tuple[frozenset[int], ...]) -> None:
        declared: Sequence[Dimension] = [None] * len(dims) if item.shape is None else item.shape
        if len(dims) != len(declared):
            raise ModelError(
                f"{self.where}: input {item.name!r} is given {len(dims)} dimensions {_text(dims)}, the model declares "
                f"{len(declared)}: {item}"
            )
        self.ranks[item.name] = len(dims)
        for axis, (sizes, dimension) in enumerate(zip(dims, declared, strict=True)):
            source = f"input {item.name!r}, dimension {axis},"
            if isinstance(dimension, int):
                if sizes != {dimension}:
                    raise ModelError(
                        f"{self.where}: input {item.name!r}: dimension {axis} is given as {_sizes(sizes)}, "
                        f"but the model fixes it at {dimension}: {item}"
                    )
            elif isinstance(dimension, str):
                self._note(dimension, sizes, f"input {item.name!r}: dimension {axis} ({dimension!r})", source)
            else:
                self._note((item.name, axis), sizes, f"input {item.name!r}: dimension {axis}", source)

    def _note(self, key: Key, sizes: frozenset[int], what: str, source: str) -> None:
        if self.sizes.setdefault(key, sizes) != sizes:
            raise ModelError(
                f"{self.where}: {what} is given as {_sizes(sizes)}, but {self._source_of[key]} says "
                f"{_sizes(self.sizes[key])}; one symbol has one size, or one set of sizes"
            )
        self._source_of.setdefault(key, source)

    def static(self, item: DeclaredInput, sizes: Mapping[Key, int]) -> tuple[int, ...]:
        """Return the shape of an input for one combination of sizes."""
        number = item.name in self.numbers
        if item.shape is None and item.name not in self.ranks:
            if number:
                return ()
            raise ModelError(
                f"{self.where}: the model does not say how many dimensions input {item.name!r} has, and static shapes are "
                "needed",
                self._missing(),
            )
        shape: Sequence[Dimension] = [None] * self.ranks[item.name] if item.shape is None else item.shape
        extents = [self._size(item, axis, dimension, sizes) for axis, dimension in enumerate(shape)]
        for axis, size in enumerate(extents):
            if size is None and not number:
                raise self._open(item, axis, shape[axis])
        static = tuple(1 if size is None else size for size in extents)
        if math.prod(static) > MOST_ELEMENTS:
            raise ModelError(
                f"{self.where}: input {item.name!r} has the shape {list(static)}; at most {MOST_ELEMENTS} "
                "elements are allowed"
            )
        return static

    def _size(self, item: DeclaredInput, axis: int, dimension: Dimension, sizes: Mapping[Key, int]) -> int | None:
        if isinstance(dimension, int):
            return dimension
        if isinstance(dimension, str):
            return sizes.get(dimension)
        assigned = sizes.get((item.name, axis))
        if not isinstance(dimension, Expression):
            return assigned
        follows = dimension.value({key: size for key, size in sizes.items() if isinstance(key, str)})
        if assigned is not None and follows is not None and assigned != follows:
            raise ModelError(
                f"{self.where}: input {item.name!r}: dimension {axis} is given as {assigned}, but the model says "
                f"{dimension}, which is {follows}"
            )
        return assigned if follows is None else follows

    def _open(self, item: DeclaredInput, axis: int, dimension: Dimension) -> ModelError:
        named = f"({str(dimension)!r}) " if dimension is not None else ""
        return ModelError(
            f"{self.where}: input {item.name!r}: dimension {axis} {named}has no fixed size, and static shapes are needed",
            self._missing(),
        )

    def _missing(self) -> MissingShape:
        from .shape_examples import Proposals, missing_sizes  # which imports this module

        declared = [item for item in self.declared if item.name not in self.numbers]
        given = {key: min(sizes) for key, sizes in self.sizes.items()}
        return MissingShape(missing_sizes(declared, given, self.ranks, self.proposals or Proposals()))


def _checked(argument: Any, where: str) -> dict[str, Checked]:
    """Shapes with sets for sizes; NumPy's integers are taken, too."""
    shapes: Any = {} if argument is None else argument
    if not isinstance(shapes, Mapping):
        raise ModelError(f"{where}: the shapes are {shapes!r}; a mapping from input names to shapes is allowed")
    checked: dict[str, Checked] = {}
    for name, dims in shapes.items():
        if isinstance(dims, (set, frozenset)):
            checked[name] = _set_of(dims, f"{where}: symbol {name!r} is given as")
        elif _is_whole(dims):
            checked[name] = _set_of({dims}, f"{where}: symbol {name!r} is given as")
        elif isinstance(dims, (str, bytes)) or not hasattr(dims, "__iter__"):
            raise ModelError(
                f"{where}: input {name!r}: shape {dims!r} is given; a sequence of whole numbers is allowed"
            )
        else:
            checked[name] = tuple(
                _set_of(
                    size if isinstance(size, (set, frozenset)) else {size},
                    f"{where}: input {name!r}: dimension {axis} is given as",
                )
                for axis, size in enumerate(dims)
            )
    return checked


def _is_whole(size: object) -> bool:
    return isinstance(size, Integral) and not isinstance(size, bool)


def _set_of(sizes: Any, subject: str) -> frozenset[int]:
    for size in sizes:
        if not _is_whole(size) or size < 0:
            raise ModelError(f"{subject} {size!r}; a whole number, 0 or more, is allowed")
    if not sizes:
        raise ModelError(f"{subject} an empty set; one size or more is allowed")
    return frozenset(int(size) for size in sizes)


def _sizes(sizes: frozenset[int]) -> str:
    text = ",".join(map(str, sorted(sizes)))
    return text if len(sizes) == 1 else f"{{{text}}}"


def _text(dims: Sequence[frozenset[int]]) -> str:
    return f"({', '.join(map(_sizes, dims))})"
