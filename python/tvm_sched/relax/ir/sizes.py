"""`Size`: an open size of a tensor, with which code for static shapes can calculate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from math import prod
from operator import mul
from typing import Any, TypeAlias

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.sym import Analyzer

from .statements import evaluate

EXAMPLES = (32, 512, 8192, 131072)
"""Sizes of symbols where a number is needed, to ask a library for its implementation or to count operations: the first that
leaves no size below `LEAST`, or else below 1."""
LEAST = 8
"""Least size that stands for larger ones: what a library does along 1 says nothing of others."""

BLOCK = 16
"""Libraries have code for whole blocks of so many numbers or rows, and other code for what is left."""
DRAWS, MOST_LOG, TYPICAL_LOG, MOST_EXAMPLE = 1024, 17, 6, 1 << 22
"""Of `examples_of`: how many numbers it tries, the logarithms of the largest and of the first, and the largest product."""


class Size:
    """A polynomial of symbols and of what else sizes are computed by, such as ``n // 2``.

    Equal polynomials are equal sizes. Where the difference of two is not constant, ``>`` and ``>=`` are true and ``<`` and
    ``<=`` are false, whatever the sizes are: use them only to ask whether a size is more than a number, such as ``n > 1``.
    """

    __slots__ = ("atoms", "terms")

    def __init__(self, terms: Mapping[tuple[str, ...], int], atoms: Mapping[str, Any]) -> None:
        self.terms = {names: factor for names, factor in terms.items() if factor}
        self.atoms = atoms

    def __eq__(self, other: object) -> bool:
        return self.terms == _terms(other)

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __add__(self, other: AnySize) -> AnySize:
        terms = dict(self.terms)
        for names, factor in _terms(other).items():
            terms[names] = terms.get(names, 0) + factor
        return _made(terms, self, other)

    def __mul__(self, other: AnySize) -> AnySize:
        terms: dict[tuple[str, ...], int] = {}
        for names, factor in self.terms.items():
            for others, more in _terms(other).items():
                joined = tuple(sorted(names + others))
                terms[joined] = terms.get(joined, 0) + factor * more
        return _made(terms, self, other)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> AnySize:
        return self * -1

    def __sub__(self, other: AnySize) -> AnySize:
        return self + other * -1

    def __rsub__(self, other: AnySize) -> AnySize:
        return -self + other

    def __gt__(self, other: AnySize) -> bool:
        difference = self - other
        return difference > 0 if isinstance(difference, int) else True

    def __lt__(self, other: AnySize) -> bool:
        difference = self - other
        return difference < 0 if isinstance(difference, int) else False

    def __ge__(self, other: AnySize) -> bool:
        return not self < other

    def __le__(self, other: AnySize) -> bool:
        return not self > other

    def divided(self, other: AnySize) -> AnySize | None:
        """Return the exact quotient; None if it is not known to be a polynomial."""
        divisor, left, terms = _terms(other), dict(self.terms), dict[tuple[str, ...], int]()
        first = max(divisor, key=_order, default=())
        while left and divisor:  # the largest product of symbols that is left, which no later step adds again
            names = max(left, key=_order)
            rest = list(names)
            if left[names] % divisor[first] or any(rest.count(name) < first.count(name) for name in first):
                return None
            for name in first:
                rest.remove(name)
            factor = terms[tuple(rest)] = left[names] // divisor[first]
            for others, value in divisor.items():
                product = tuple(sorted((*rest, *others)))
                left[product] = left.get(product, 0) - factor * value
                if not left[product]:
                    del left[product]
        if not divisor:
            return None
        return _made(terms, self)

    @property
    def expression(self) -> Any:
        """The size as an expression of TVM."""
        parts = [
            reduce(mul, [self.atoms[name] for name in names], tirx.IntImm("int64", factor))
            for names, factor in self.terms.items()
        ]
        return Analyzer().simplify(sum(parts[1:], parts[0]))

    def __tvm_ffi_object__(self) -> Any:
        return self.expression

    def example(self, number: int) -> int:
        """Return the size if each symbol is ``number``."""
        expression, analyzer = self.expression, Analyzer()
        for symbol in tirx.analysis.undefined_vars(expression):
            analyzer.bind(symbol, tirx.IntImm("int64", number))
        return int(analyzer.simplify(expression))


AnySize: TypeAlias = "int | Size"


def size_of(expression: Any) -> AnySize:
    """Return a size that TVM gives."""
    if isinstance(expression, (int, Size)):
        return expression
    if isinstance(expression, tirx.IntImm):
        return int(expression.value)
    if isinstance(expression, tirx.Add):
        return size_of(expression.a) + size_of(expression.b)
    if isinstance(expression, tirx.Sub):
        return size_of(expression.a) - size_of(expression.b)
    if isinstance(expression, tirx.Mul):
        return size_of(expression.a) * size_of(expression.b)
    if isinstance(expression, tirx.Var):  # most sizes: printed by TVM, the name takes longer than all else here
        return Size({(name := f"{expression.name} {hash(expression):x}",): 1}, {name: expression})
    simple = Analyzer().simplify(expression)
    if isinstance(simple, (tirx.IntImm, tirx.Add, tirx.Sub, tirx.Mul)):
        return size_of(simple)
    # Several symbols may have one name.
    name = " ".join([str(simple), *(f"{hash(symbol):x}" for symbol in tirx.analysis.undefined_vars(simple))])
    return Size({(name,): 1}, {name: simple})


def divided(size: AnySize, other: AnySize) -> AnySize | None:
    """Return the exact quotient of two sizes; None if it is not known."""
    if isinstance(size, Size):
        return size.divided(other)
    return None if isinstance(other, Size) or not other or size % other else size // other


def sizes_of(value: Any) -> tuple[Any, ...] | None:
    """Return the sizes of a tensor, an expression or a type, as int or `Size`; None if they are unknown."""
    ty = value if isinstance(value, tvm.ir.Type) else value.ty
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return None
    return tuple(map(size_of, ty.shape.values))


def example_of(size: Any, number: int) -> int:
    """Return `Size.example`, or a number itself."""
    return size.example(number) if isinstance(size, Size) else int(size)


def example_for(sizes: Iterable[Any]) -> int | None:
    """Return the first of `EXAMPLES` at which open sizes are at least `LEAST`, or else positive; None if there is none."""
    left = [size for size in sizes if isinstance(size, Size)]
    found = {number: min((size.example(number) for size in left), default=LEAST) for number in EXAMPLES}
    return next((number for least in (LEAST, 1) for number, size in found.items() if size >= least), None)


def examples_of(sizes: Sequence[Size]) -> list[list[int]]:
    """Return examples of sizes that go together: one for each combination of short, even and other sizes that was found."""
    expressions = [size.expression for size in sizes]
    symbols = list(dict.fromkeys(v for expression in expressions for v in tirx.analysis.undefined_vars(expression)))
    random = np.random.default_rng(0)
    drawn = (2 ** random.uniform(0, MOST_LOG, (DRAWS, len(symbols)))).astype("int64")
    drawn = np.where(drawn % 2 > 0, drawn, -(-drawn // BLOCK) * BLOCK)
    drawn = drawn[np.argsort(np.abs(np.log2(drawn) - TYPICAL_LOG).max(1))]
    values = {symbol: drawn[:, k] for k, symbol in enumerate(symbols)}
    found: dict[tuple[int, ...], list[int]] = {}
    columns = [evaluate(expression, values) for expression in expressions]
    for example in zip(*(column.tolist() for column in columns if column is not None), strict=True):
        alike = tuple(min(n, 2) if n < BLOCK else BLOCK + (n % BLOCK > 0) for n in example)
        if len(example) == len(sizes) and min(example) > 0 and prod(example) <= MOST_EXAMPLE:
            found.setdefault(alike, list(example))
    return list(found.values())


def product_of_terms(size: AnySize, known: Sequence[AnySize]) -> list[list[int]] | None:
    """Return a size as a sum of products, each a number and positions in ``known``; None if it is no such sum."""
    if isinstance(size, int):
        return [[size]]
    for position, each in enumerate(known):
        quotient = size.divided(each)
        rest = None if quotient is None else product_of_terms(quotient, known)
        if rest is not None:
            return [[*term, position] for term in rest]
    parts = [_made({names: factor}, size) for names, factor in size.terms.items()]
    sums = [product_of_terms(part, known) for part in parts] if len(parts) > 1 else [None]
    return None if None in sums else [term for terms in sums for term in terms or []]


def describe_sizes(
    document: Any, shapes: Sequence[Sequence[AnySize]]
) -> tuple[Any, list[list[int]], tuple[Size, ...]] | None:
    """Return a document with its sizes as sums of products of symbols, and which size of a tensor each symbol is.

    Parameters
    ----------
    document : nested dicts and lists
    shapes : sequence of shapes
        Of the tensors of a call.

    Returns
    -------
    Document, for each symbol a tensor, an axis and what to subtract from that size, and the symbols' sizes; None if a size
    of the document does not follow from the shapes.
    """
    known: dict[Size, list[int]] = {}
    for tensor, shape in enumerate(shapes):
        for axis, size in enumerate(shape):
            if isinstance(size, Size):
                known.setdefault(size, [tensor, axis, 0])
                free, constant = size - size.terms.get((), 0), size.terms.get((), 0)
                if isinstance(free, Size):
                    known.setdefault(free, [tensor, axis, constant])
    used: dict[Size, int] = {}

    def write(part: Any) -> Any:
        if isinstance(part, Mapping):
            return {key: write(value) for key, value in part.items()}
        if isinstance(part, (list, tuple)):
            return [write(value) for value in part]
        if not isinstance(part, Size):
            return part
        terms = product_of_terms(part, list(known))
        if terms is None:
            raise LookupError
        numbers = list(known)
        return [[factor, *(used.setdefault(numbers[k], len(used)) for k in places)] for factor, *places in terms]

    try:
        written = write(document)
    except LookupError:
        return None
    return written, [known[size] for size in used], tuple(used)


def _order(names: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
    """Return the place of a product of symbols among others; products with one more symbol have the same order."""
    return len(names), names


def _terms(value: Any) -> Mapping[tuple[str, ...], int]:
    if isinstance(value, Size):
        return value.terms
    return {(): value} if isinstance(value, int) and value else {}


def _made(terms: Mapping[tuple[str, ...], int], *sources: Any) -> AnySize:
    """Return a polynomial of the symbols of some sizes, as a number if it has none."""
    atoms = {name: atom for source in sources if isinstance(source, Size) for name, atom in source.atoms.items()}
    made = Size(terms, atoms)
    return made if any(made.terms) else made.terms.get((), 0)


__all__ = [
    "EXAMPLES",
    "AnySize",
    "Size",
    "describe_sizes",
    "divided",
    "example_for",
    "example_of",
    "examples_of",
    "size_of",
    "sizes_of",
]
