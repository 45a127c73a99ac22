"""Attention, ``softmax(scale * q @ k.T + mask) @ v`` as models write it out: one kernel that reads q, k, v in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..registry import KernelSet
from ..rewrite import RESHAPES, Rewriter, axis_order, constant_value, is_float32, operation, shape_of

FEWEST_SCORES = 64 * 64
"""Below this many scores a head the separate kernels are as fast, unless they need copies of keys and values."""
MOST_ELEMENTS = 1 << 24
"""Of values that are looked through: the place of each element is kept in mind."""


@dataclass(frozen=True)
class View:
    """A value as a kernel reads it: another value's memory with other dimensions and strides, times a number."""

    base: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    scale: float = 1.0
    offset: int = 0

    def described(self) -> dict[str, Any]:
        """As an operand."""
        described: dict[str, Any] = {"dims": list(self.shape), "strides": list(self.strides)}
        elements = prod(shape_of(self.base) or ()) if self.base is not None else prod(self.shape)
        if self.offset or elements != prod(self.shape):
            described.update(offset=self.offset, within=elements)
        return described

    @property
    def partial(self) -> bool:
        """Whether it is a part of its tensor, or some elements several times: other kernels would need a copy."""
        return "within" in self.described()


@dataclass(frozen=True)
class Found:
    """Attention in a graph.

    Attributes
    ----------
    query, key, value : View
        (batch, heads, rows, width) each.
    mask : View or None
    safe : bool
        Whether rows whose mask leaves no key give 0 rather than NaN.
    end : relax.Var
        The value that the kernel returns.
    result : View
        (batch, heads, rows, width) in that value.
    """

    query: View
    key: View
    value: View
    mask: View | None
    safe: bool
    end: Any
    result: View


def _sliced(call: Any) -> Callable[[Any], Any] | None:
    numbers = [[int(getattr(n, "value", n)) for n in part.fields] for part in call.args[1:] if _constant_tuple(part)]
    if len(numbers) != len(call.args) - 1 or len(numbers) not in (3, 4):
        return None
    steps = numbers[3] if len(numbers) == 4 else [1] * len(numbers[0])
    if min([1, *steps, *numbers[1], *numbers[2]]) < 0:  # counted from the end
        return None

    def cut(places: Any) -> Any:
        index = [slice(None)] * places.ndim
        for axis, begin, end, step in zip(*numbers[:3], steps, strict=True):
            index[axis] = slice(begin, end, step)
        return places[tuple(index)]

    return cut


def _constant_tuple(part: Any) -> bool:
    return isinstance(part, relax.Tuple) and all(
        isinstance(getattr(n, "value", n), int) or isinstance(n, tvm.tirx.IntImm) for n in part.fields
    )


def _to_shape(call: Any) -> Callable[[Any], Any]:
    shape = shape_of(call)
    return lambda places: places.reshape(shape)


MOVES: dict[str, Callable[[Any], Callable[[Any], Any] | None]] = {
    "permute_dims": lambda call: lambda places: places.transpose(axis_order(call)),
    **dict.fromkeys(RESHAPES, _to_shape),
    "broadcast_to": lambda call: lambda places: np.broadcast_to(places, shape_of(call) or ()),
    "strided_slice": _sliced,
}
"""Operators that move elements: from a call to a function of the places of its argument's elements."""


class AttentionClaimer(Rewriter):
    """Replaces attention by kernels; what computed it otherwise is left without users."""

    def __init__(self, mod: Any, kernels: KernelSet) -> None:
        super().__init__(mod)
        self.kernels = kernels
        self.found: dict[Any, Found] | None = None

    def visit(self, variable: Any, value: Any) -> Any:
        """Rewrite one binding."""
        if self.found is None:
            each = (self._find(v, c) for v, c in self.definitions.items() if operation(c) == "matmul")
            self.found = {found.end: found for found in each if found is not None}
        if variable in self.found:
            return self.emit(self._call(self.found[variable]))
        return super().visit(variable, value)

    def _call(self, found: Found) -> Any:
        views = [v for v in (found.query, found.key, found.value, found.mask) if v is not None]
        kernel = {
            "primitive": "attention",
            "algorithm": "safe" if found.safe else "plain",
            "numbers": [found.query.scale * found.key.scale],
            "operands": [view.described() for view in (*views, found.result)],
        }
        batch, heads, rows, width = found.query.shape
        keys, out = found.value.shape[2:]
        flops = batch * heads * rows * keys * (2 * width + 2 * out + 8)
        return self.kernels.call("attention", kernel, [self.value(v.base) for v in views], found.end.ty, flops)

    def _find(self, variable: Any, product: Any) -> Found | None:
        """The attention that a product of probabilities and values ends."""
        if not all(is_float32(e) for e in (*product.args, product)):
            return None
        softmax, safe = self._probabilities(product.args[0])
        shape = shape_of(softmax) if softmax is not None else None
        if softmax is None or shape is None or len(shape) not in (2, 3, 4):
            return None
        scores = self._scores(softmax.args[0])
        if scores is None:
            return None
        first, mask, scale = scores
        lead, out = (shape_of(product) or ())[:-1], (shape_of(product) or ())[-1]
        if len(shape) == 2 and len(lead) in (2, 3) and mask is None:  # softmax of older opsets: all rows in one matrix
            shape = (*lead, shape[-1])
        batch, heads, rows, keys = (*(1,) * (4 - len(shape)), *shape)
        width = (shape_of(first.args[0]) or ())[-1]
        sizes = (rows * width, width * keys, keys * out)
        operands = (*first.args, product.args[1])
        if any(
            prod(shape_of(e) or ()) != batch * heads * size or len(shape_of(e) or ()) < 2
            for e, size in zip(operands, sizes, strict=True)
        ):
            return None
        for outer, inner in _splits(batch, heads):
            query = self._view(first.args[0], (outer, inner, rows, width))
            turned = self._view(first.args[1], (outer, inner, width, keys))
            value = self._view(product.args[1], (outer, inner, keys, out))
            if query is not None and turned is not None and value is not None:
                break
        else:
            outer, inner = batch, heads
            query = self._seen(first.args[0], (batch, heads, rows, width))
            turned = self._seen(first.args[1], (batch, heads, width, keys))
            value = self._seen(product.args[1], (batch, heads, keys, out))
        if rows * keys < FEWEST_SCORES and not any(view.partial for view in (query, turned, value)):
            return None
        key = View(turned.base, _swapped(turned.shape), _swapped(turned.strides), turned.scale * scale, turned.offset)
        if value.scale != 1.0 or not all(_is_matrix(each) for each in (query, key, value)):
            return None
        if mask is not None and mask.shape[1] != 1 and (outer, inner) != (batch, heads):
            shape = (outer, inner, *mask.shape[2:])
            mask = View(mask.base, shape, _strides(shape))
        end, result = self._result(variable, (outer, inner, rows, out))
        return Found(query, key, value, mask, safe, end, result)

    def _probabilities(self, expr: Any) -> tuple[Any, bool]:
        """The softmax, and whether rows without a key give 0."""
        call: Any = self._seen_through(expr)
        safe = False
        if operation(call) == "where":
            softmax: Any = self._seen_through(call.args[2])
            if (
                not self._is_zero(call.args[1])
                or operation(softmax) != "nn.softmax"
                or not self._no_key(call.args[0], softmax.args[0])
            ):
                return None, False
            call, safe = softmax, True
        if operation(call) != "nn.softmax" or not is_float32(call):
            return None, False
        rank = len(shape_of(call) or ())
        return (call, safe) if int(call.attrs.axis) % rank == rank - 1 else (None, False)

    def _is_zero(self, expr: Any) -> bool:
        filled: Any = self.defined(expr)
        if operation(filled) in ("full", "full_like"):  # folded where it is small
            return bool(self.number(filled.args[1]) == 0)
        value = constant_value(self.resolve(expr))
        return value is not None and not value.any()

    def _no_key(self, expr: Any, scores: Any) -> bool:
        """Whether it is ``not any(not (scores == -inf))`` of each row, as PyTorch writes it."""
        names = []
        call: Any = self.defined(expr)
        while operation(call) in ("logical_not", "astype", "max"):
            if operation(call) == "max":
                rank = len(shape_of(call) or ())
                if [int(a) % rank for a in call.attrs.axis or []] != [rank - 1] or not call.attrs.keepdims:
                    return False
            names.append(operation(call))
            call = self.defined(call.args[0])
        order = [name for name in names if name != "astype"]
        if order != ["logical_not", "max", "logical_not"] or operation(call) != "equal":
            return False
        same = self.resolve(call.args[0]).same_as(self.resolve(scores))
        return same and self.number(call.args[1]) == -np.inf

    def _scores(self, expr: Any) -> tuple[Any, View | None, float] | None:
        """The product that the scores come from, the mask that is added, and what the product is multiplied by."""
        mask, scale = None, 1.0
        shape = shape_of(expr) or ()
        call: Any = self._seen_through(expr)
        while operation(call) in ("add", "multiply", "divide"):
            positions = (0, 1) if operation(call) != "divide" else (0,)
            number = next((n for k in (1, 0) if (n := self.number(call.args[k])) is not None), None)
            if operation(call) == "add":
                inner = next((k for k in positions if self._is_product(call.args[k])), None)
                if mask is not None or scale != 1.0 or inner is None or shape_of(call) != shape:
                    return None
                mask = self._mask(call.args[1 - inner], len(shape))
                if mask is None:
                    return None
                call = self._seen_through(call.args[inner])
                continue
            if number is None or number == 0 or not np.isfinite(number):
                return None
            if operation(call) == "divide" and self.number(call.args[1]) is None:
                return None
            scale *= 1 / number if operation(call) == "divide" else number
            inner = 0 if self.number(call.args[0]) is None else 1
            call = self._seen_through(call.args[inner])
        return (call, mask, scale) if operation(call) == "matmul" and is_float32(call.args[0]) else None

    def _is_product(self, expr: Any) -> bool:
        call: Any = self._seen_through(expr)
        while operation(call) in ("multiply", "divide"):
            scalar = self.number(call.args[1]) is not None
            call = self._seen_through(call.args[0 if scalar else 1])
        return operation(call) == "matmul"

    def _mask(self, expr: Any, rank: int) -> View | None:
        shape = shape_of(expr)
        if shape is None or len(shape) > rank or not is_float32(expr):
            return None
        full = (*(1,) * (4 - len(shape)), *shape)
        return View(self.resolve(expr), full, _strides(full))

    def _seen_through(self, expr: Any) -> Any:
        """The call that computes a value, reshapes left out."""
        call = self.defined(expr)
        while operation(call) == "reshape":
            call = self.defined(call.args[0])
        return call

    def _view(self, expr: Any, shape: tuple[int, ...]) -> View | None:
        """A value as a tensor of a shape, read from the memory of the value that it is made of without arithmetic.

        None where no strides say how.
        """
        if prod(shape) > MOST_ELEMENTS:
            return self._whole(expr, shape)
        base, places, scale = self._memory(expr)
        found = _strided(places.reshape(shape))
        return None if found is None else View(base, shape, found[1], scale, found[0])

    def _seen(self, expr: Any, shape: tuple[int, ...]) -> View:
        """The same, or the value as it is."""
        return self._view(expr, shape) or self._whole(expr, shape)

    def _whole(self, expr: Any, shape: tuple[int, ...]) -> View:
        return View(self.resolve(expr), shape, _strides(shape))

    def _memory(self, expr: Any) -> tuple[Any, Any, float]:
        """The value in whose memory another lies, the place there of each element, and a factor."""
        expr = self.resolve(expr)
        call: Any = self.defined(expr)
        name, shape = operation(call), shape_of(expr) or ()
        own = expr, np.arange(prod(shape), dtype=np.int32).reshape(shape), 1.0
        part = self.definitions.get(expr) if isinstance(expr, relax.Var) else None
        if isinstance(part, relax.TupleGetItem):
            return self._part(part, own)
        if name == "multiply":
            left, right = self.number(call.args[0]), self.number(call.args[1])
            factor = right if left is None else left
            if factor and np.isfinite(factor) and shape_of(call.args[1 if left is not None else 0]) == shape:
                base, places, scale = self._memory(call.args[1 if left is not None else 0])
                return base, places, scale * factor
        if name not in MOVES or not is_float32(call.args[0]) or prod(shape_of(call.args[0]) or ()) > MOST_ELEMENTS:
            return own
        moved = MOVES[name](call)
        if moved is None:
            return own
        base, places, scale = self._memory(call.args[0])
        return base, moved(places), scale

    def _part(self, item: Any, own: tuple[Any, Any, float]) -> tuple[Any, Any, float]:
        """The same of a part of a split value."""
        call: Any = self.defined(item.tuple_value)
        if operation(call) != "split" or not is_float32(call.args[0]):
            return own
        if prod(shape_of(call.args[0]) or ()) > MOST_ELEMENTS:
            return own
        base, places, scale = self._memory(call.args[0])
        axis = int(call.attrs.axis) % places.ndim
        sizes = [int(part.shape.values[axis]) for part in call.ty.fields]
        begin = sum(sizes[: item.index])
        return base, np.take(places, range(begin, begin + sizes[item.index]), axis), scale

    def _result(self, variable: Any, shape: tuple[int, ...]) -> tuple[Any, View]:
        """The last value that is the product's in another order, which nothing else reads between, and how it lies."""
        end, steps = variable, list[Any]()
        best = (variable, View(None, shape, _strides(shape)))
        while len(users := self.uses[end]) == 1 and users[0] is not None:
            end = users[0]
            call = self.definitions[end]
            if operation(call) not in ("permute_dims", "reshape") and not isinstance(call, relax.Var):
                break
            steps.append(call)
            array = _undone(np.empty(shape_of(end) or (), np.int8), steps, shape)
            if array is not None and array.strides[3] == 1:
                best = (end, View(None, shape, tuple(array.strides)))
        return best


def _undone(array: Any, steps: list[Any], shape: tuple[int, ...]) -> Any:
    """An array as it was before transpositions and reshapes; None where no strides say that."""
    for call in reversed(steps):
        if operation(call) == "permute_dims":
            array = array.transpose(np.argsort(axis_order(call)))
        elif operation(call) == "reshape":
            array = _reshaped(array, shape_of(call.args[0]) or ())
        if array is None:
            return None
    return _reshaped(array, shape)


def _reshaped(array: Any, shape: tuple[int, ...]) -> Any:
    """The same memory in another shape; None where it would have to be copied."""
    result = array.view()
    try:
        result.shape = shape
    except AttributeError:
        return None
    return result


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[k + 1 :]) for k in range(len(shape)))


def _splits(batch: int, heads: int) -> list[tuple[int, int]]:
    """Numbers that can stand for batch and heads: those of a single batch may be groups that share keys and values."""
    shared = [(heads // k, k) for k in range(2, heads + 1) if heads % k == 0] if batch == 1 else []
    return [(batch, heads), *shared]


def _strided(places: Any) -> tuple[int, tuple[int, ...]] | None:
    """Offset and strides that give the place of each element; None where none do."""
    first = int(places.flat[0])
    strides: list[int] = []
    expected: Any = np.int32(first)
    for d, size in enumerate(places.shape):
        stride = int(places[tuple(int(k == d) for k in range(places.ndim))]) - first if size > 1 else 0
        if stride < 0:
            return None
        strides.append(stride)
        along = [1] * places.ndim
        along[d] = size
        expected = expected + (np.arange(size, dtype=np.int32) * stride).reshape(along)
    if not np.array_equal(places, np.broadcast_to(expected, places.shape)):
        return None
    return first, _of_single(places.shape, strides)


def _of_single(shape: tuple[int, ...], strides: list[int]) -> tuple[int, ...]:
    """Strides in which dimensions of one element have what they would have in a compact tensor."""
    plain = _strides(shape)
    return tuple(plain[d] if size == 1 else strides[d] for d, size in enumerate(shape))


def _swapped(four: tuple[int, ...]) -> tuple[int, ...]:
    return (*four[:2], four[3], four[2])


def _is_matrix(view: View) -> bool:
    """Whether each head's matrix lies in rows or in columns."""
    (rows, columns), (row, column) = view.shape[2:], view.strides[2:]
    return (column == 1 and row >= columns) or (row == 1 and column >= rows)
