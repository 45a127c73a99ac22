"""Values as kernels read them: the memory of another value, through transpositions, reshapes, slices and broadcasts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ...ir.tensor_types import static_shape
from .rewrite import RESHAPES, Rewriter, axis_order, is_tensor_of, operation

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
        elements = prod(static_shape(self.base) or ()) if self.base is not None else prod(self.shape)
        if self.offset or elements != prod(self.shape):
            described.update(offset=self.offset, within=elements)
        return described

    @property
    def partial(self) -> bool:
        """Whether it is a part of its tensor, or some elements several times: other kernels would need a copy."""
        return "within" in self.described()


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
    shape = static_shape(call)
    return lambda places: places.reshape(shape)


MOVES: dict[str, Callable[[Any], Callable[[Any], Any] | None]] = {
    "permute_dims": lambda call: lambda places: places.transpose(axis_order(call)),
    **dict.fromkeys(RESHAPES, _to_shape),
    "broadcast_to": lambda call: lambda places: np.broadcast_to(places, static_shape(call) or ()),
    "strided_slice": _sliced,
}
"""Operators that move elements: from a call to a function of the places of its argument's elements."""


class ViewRewriter(Rewriter):
    """A rewriter that finds in which value's memory another lies.

    Attributes
    ----------
    types : tuple of str
        Types of the values that it looks at.
    casts : bool
        Whether it sees through casts between them.
    """

    types: tuple[str, ...] = ("float32",)
    casts = False

    def accepts(self, expr: Any) -> bool:
        """Whether it is a tensor of one of the types with a static shape without zeros."""
        return is_tensor_of(expr, self.types)

    def is_cast(self, call: Any) -> bool:
        """Whether it is a cast that is seen through."""
        return self.casts and operation(call) == "astype" and self.accepts(call) and self.accepts(call.args[0])

    def view(self, expr: Any, shape: tuple[int, ...]) -> View | None:
        """A value as a tensor of a shape, read from the memory of the value that it is made of without arithmetic.

        None where no strides say how.
        """
        if prod(shape) > MOST_ELEMENTS:
            return self.whole(expr, shape)
        base, places, scale = self._memory(expr)
        found = _strided(places.reshape(shape))
        return None if found is None else View(base, shape, found[1], scale, found[0])

    def seen(self, expr: Any, shape: tuple[int, ...]) -> View:
        """As `view`, or the value itself where there is none."""
        return self.view(expr, shape) or self.whole(expr, shape)

    def whole(self, expr: Any, shape: tuple[int, ...]) -> View:
        """The value as it is, in another shape."""
        return View(self.resolve(expr), shape, strides_of(shape))

    def _memory(self, expr: Any) -> tuple[Any, Any, float]:
        """The value in whose memory another lies, the place there of each element, and a factor."""
        expr = self.resolve(expr)
        call: Any = self.defined(expr)
        name, shape = operation(call), static_shape(expr) or ()
        if self.is_cast(call):
            return self._memory(call.args[0])
        own = expr, np.arange(prod(shape), dtype=np.int32).reshape(shape), 1.0
        part = self.definitions.get(expr) if isinstance(expr, relax.Var) else None
        if isinstance(part, relax.TupleGetItem):
            return self._part(part, own)
        if name == "multiply":
            left, right = self.number(call.args[0]), self.number(call.args[1])
            factor = right if left is None else left
            if factor and np.isfinite(factor) and static_shape(call.args[1 if left is not None else 0]) == shape:
                base, places, scale = self._memory(call.args[1 if left is not None else 0])
                return base, places, scale * factor
        if (
            name not in MOVES
            or not self.accepts(call.args[0])
            or prod(static_shape(call.args[0]) or ()) > MOST_ELEMENTS
        ):
            return own
        moved = MOVES[name](call)
        if moved is None:
            return own
        base, places, scale = self._memory(call.args[0])
        return base, moved(places), scale

    def _part(self, item: Any, own: tuple[Any, Any, float]) -> tuple[Any, Any, float]:
        """The same of a part of a split value."""
        call: Any = self.defined(item.tuple_value)
        if operation(call) != "split" or not self.accepts(call.args[0]):
            return own
        if prod(static_shape(call.args[0]) or ()) > MOST_ELEMENTS:
            return own
        base, places, scale = self._memory(call.args[0])
        axis = int(call.attrs.axis) % places.ndim
        sizes = [int(part.shape.values[axis]) for part in call.ty.fields]
        begin = sum(sizes[: item.index])
        return base, np.take(places, range(begin, begin + sizes[item.index]), axis), scale

    def result(self, variable: Any, shape: tuple[int, ...]) -> tuple[Any, View]:
        """The last value that is the product's in another order, which nothing else reads between, and how it lies."""
        end, steps = variable, list[Any]()
        best = (variable, View(None, shape, strides_of(shape)))
        while len(users := self.uses[end]) == 1 and users[0] is not None:
            end = users[0]
            call = self.definitions[end]
            moves = operation(call) in ("permute_dims", "reshape") or isinstance(call, relax.Var)
            if not moves and not self.is_cast(call):
                break
            steps.append(call)
            array = _undone(np.empty(static_shape(end) or (), np.int8), steps, shape)
            if array is not None and array.strides[-1] == 1:
                best = (end, View(None, shape, tuple(array.strides)))
        return best


def _undone(array: Any, steps: list[Any], shape: tuple[int, ...]) -> Any:
    """An array as it was before transpositions and reshapes; None where no strides say that."""
    for call in reversed(steps):
        if operation(call) == "permute_dims":
            array = array.transpose(np.argsort(axis_order(call)))
        elif operation(call) == "reshape":
            array = _reshaped(array, static_shape(call.args[0]) or ())
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


def strides_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a compact tensor."""
    return tuple(prod(shape[k + 1 :]) for k in range(len(shape)))


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
    plain = strides_of(shape)
    return tuple(plain[d] if size == 1 else strides[d] for d, size in enumerate(shape))
