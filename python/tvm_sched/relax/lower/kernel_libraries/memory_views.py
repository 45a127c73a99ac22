"""Views: values read in place from another value's memory, through transpositions, reshapes, slices and broadcasts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ...ir.sizes import Size, divided, sizes_of
from .rewrite import RESHAPES, Rewriter, axis_order, is_tensor_of, operation

MOST_ELEMENTS = 1 << 24
"""Largest value that is traced: the trace holds the position of each element."""


@dataclass(frozen=True)
class View:
    """A value read from the memory of ``base`` with a shape, strides and an offset in elements, multiplied by ``scale``."""

    base: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    scale: float = 1.0
    offset: int = 0

    def described(self) -> dict[str, Any]:
        """Return the description as an operand of a kernel."""
        described: dict[str, Any] = {"dims": list(self.shape), "strides": list(self.strides)}
        elements = prod(sizes_of(self.base) or ()) if self.base is not None else prod(self.shape)
        if self.offset or elements != prod(self.shape):
            described.update(offset=self.offset, within=elements)
        return described

    @property
    def partial(self) -> bool:
        """Whether the view omits or repeats elements of its tensor, so that other kernels would need a copy."""
        return "within" in self.described()

    @property
    def has_matrices(self) -> bool:
        """Whether each matrix of the last two dimensions is stored by rows or by columns."""
        (rows, columns), (row, column) = self.shape[-2:], self.strides[-2:]
        return (column == 1 and row >= columns) or (row == 1 and column >= rows)


def is_open(shape: tuple[Any, ...]) -> bool:
    """Whether a shape has an open size."""
    return any(isinstance(size, Size) for size in shape)


@dataclass(frozen=True)
class OpenPlaces:
    """The positions of the elements of a tensor with open sizes, like an array of them; None where strides cannot say."""

    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    offset: Any = 0

    def transpose(self, axes: Any) -> OpenPlaces:
        """Return the positions with dimensions in another order."""
        return OpenPlaces(tuple(self.shape[k] for k in axes), tuple(self.strides[k] for k in axes), self.offset)

    def __getitem__(self, index: tuple[slice, ...]) -> OpenPlaces | None:
        shape, strides, offset = list(self.shape), list(self.strides), self.offset
        for axis, cut in enumerate(index):
            if cut == slice(None):
                continue
            if isinstance(shape[axis], Size):
                return None
            taken = range(shape[axis])[cut]
            offset = offset + taken.start * strides[axis]
            shape[axis], strides[axis] = len(taken), strides[axis] * taken.step
        return OpenPlaces(tuple(shape), tuple(strides), offset)

    def reshape(self, shape: tuple[Any, ...]) -> OpenPlaces | None:
        """Join and split dimensions whose elements lie one after the other."""
        plain = strides_of(shape)
        old = [pair for pair in zip(self.shape, self.strides, strict=True) if pair[0] != 1]
        new = [axis for axis, size in enumerate(shape) if size != 1]
        strides = dict(enumerate(plain))
        while old and new:
            (size, stride), axes = old.pop(0), [new.pop(0)]
            while (wanted := prod(shape[axis] for axis in axes)) != size:
                if divided(size, wanted) is not None and new:
                    axes.append(new.pop(0))
                elif divided(wanted, size) is not None and old and stride == old[0][0] * old[0][1]:
                    more, stride = old.pop(0)
                    size = size * more
                else:
                    return None
            for axis in reversed(axes):
                strides[axis], stride = stride, stride * shape[axis]
        return None if old or new else OpenPlaces(tuple(shape), tuple(strides.values()), self.offset)


def _places(shape: tuple[int, ...]) -> Any:
    return np.arange(prod(shape), dtype=np.int32).reshape(shape)


def _sliced(call: Any) -> Callable[[Any], Any] | None:
    numbers = [[int(getattr(n, "value", n)) for n in part.fields] for part in call.args[1:] if _constant_tuple(part)]
    if len(numbers) != len(call.args) - 1 or len(numbers) not in (3, 4):
        return None
    steps = numbers[3] if len(numbers) == 4 else [1] * len(numbers[0])
    if min([1, *steps, *numbers[1], *numbers[2]]) < 0:  # counted from the end
        return None

    def cut(places: Any) -> Any:
        index = [slice(None)] * len(places.shape)
        for axis, begin, end, step in zip(*numbers[:3], steps, strict=True):
            index[axis] = slice(begin, end, step)
        return places[tuple(index)]

    return cut


def _constant_tuple(part: Any) -> bool:
    return isinstance(part, relax.Tuple) and all(
        isinstance(getattr(n, "value", n), int) or isinstance(n, tvm.tirx.IntImm) for n in part.fields
    )


def _to_shape(call: Any) -> Callable[[Any], Any]:
    shape = sizes_of(call) or ()
    return lambda places: _places_as(places, shape)


def _places_as(places: Any, shape: tuple[Any, ...]) -> Any:
    """Reshape positions; None for those of a static tensor in an open shape, or if no strides do that."""
    return places.reshape(shape) if isinstance(places, OpenPlaces) or not is_open(shape) else None


def _broadcast(call: Any) -> Callable[[Any], Any]:
    shape = sizes_of(call) or ()
    return lambda places: None if isinstance(places, OpenPlaces) or is_open(shape) else np.broadcast_to(places, shape)


MOVES: dict[str, Callable[[Any], Callable[[Any], Any] | None]] = {
    "permute_dims": lambda call: lambda places: places.transpose(axis_order(call)),
    **dict.fromkeys(RESHAPES, _to_shape),
    "broadcast_to": _broadcast,
    "strided_slice": _sliced,
}
"""Operators that move elements. From a call to a function that moves an array of positions as the call moves elements."""


class ViewRewriter(Rewriter):
    """A rewriter that finds the memory in which a value can be read in place.

    Attributes
    ----------
    types : tuple of str
        Data types of the values that are traced.
    casts : bool
        Whether casts between these types are traced.
    """

    types: tuple[str, ...] = ("float32",)
    casts = False

    def accepts(self, expr: Any) -> bool:
        """Whether an expression is a non-empty tensor of one of the types with a static shape."""
        return is_tensor_of(expr, self.types)

    def is_cast(self, call: Any) -> bool:
        """Whether a call is a cast that is traced."""
        return self.casts and operation(call) == "astype" and self.accepts(call) and self.accepts(call.args[0])

    def view(self, expr: Any, shape: tuple[int, ...]) -> View | None:
        """Return a view of a shape on the memory that a value comes from without arithmetic; None if it has no strides."""
        if not is_open(shape) and prod(shape) > MOST_ELEMENTS:
            return self.whole(expr, shape)
        base, places, scale = self._memory(expr)
        layout = _strided(_places_as(places, shape))
        return None if layout is None else View(base, shape, layout[1], scale, layout[0])

    def view_or_whole(self, expr: Any, shape: tuple[int, ...]) -> View:
        """Return `view`, or `whole` if there is none."""
        return self.view(expr, shape) or self.whole(expr, shape)

    def whole(self, expr: Any, shape: tuple[int, ...]) -> View:
        """Return the value itself as a dense tensor of a shape."""
        return View(self.resolve(expr), shape, strides_of(shape))

    def _memory(self, expr: Any) -> tuple[Any, Any, float]:
        """Return the value whose memory holds another, the position there of each element, and a factor."""
        expr = self.resolve(expr)
        call: Any = self.defined(expr)
        name, shape = operation(call), sizes_of(expr) or ()
        if self.is_cast(call):
            return self._memory(call.args[0])
        own = expr, OpenPlaces(shape, strides_of(shape)) if is_open(shape) else _places(shape), 1.0
        part = self.definitions.get(expr) if isinstance(expr, relax.Var) else None
        if isinstance(part, relax.TupleGetItem):
            return self._part(part, own)
        if name == "multiply":
            left, right = self.number(call.args[0]), self.number(call.args[1])
            factor, operand = (right, call.args[0]) if left is None else (left, call.args[1])
            if factor and np.isfinite(factor) and sizes_of(operand) == shape:
                base, places, scale = self._memory(operand)
                return base, places, scale * factor
        moved = MOVES[name](call) if name in MOVES and self._is_traced(call.args[0]) else None
        if moved is None:
            return own
        base, places, scale = self._memory(call.args[0])
        places = moved(places)
        return own if places is None else (base, places, scale)

    def _is_traced(self, expr: Any) -> bool:
        shape = sizes_of(expr) or ()
        return self.accepts(expr) and (is_open(shape) or prod(shape) <= MOST_ELEMENTS)

    def _part(self, item: Any, own: tuple[Any, Any, float]) -> tuple[Any, Any, float]:
        """As `_memory`, for a part of a split value; ``own`` if the split value is not traced."""
        call: Any = self.defined(item.tuple_value)
        if operation(call) != "split" or not self._is_traced(call.args[0]):
            return own
        base, places, scale = self._memory(call.args[0])
        axis = int(call.attrs.axis) % len(places.shape)
        sizes = [int(part.shape.values[axis]) for part in call.ty.fields]
        begin = sum(sizes[: item.index])
        places = places[(*[slice(None)] * axis, slice(begin, begin + sizes[item.index]))]
        return own if places is None else (base, places, scale)

    def result(self, variable: Any, shape: tuple[int, ...]) -> tuple[Any, View]:
        """Return the last value that only reorders a kernel's result, with its view; values between have one user."""
        end, steps = variable, list[Any]()
        best = (variable, View(None, shape, strides_of(shape)))
        while len(users := self.uses[end]) == 1 and users[0] is not None:
            end = users[0]
            call = self.definitions[end]
            moves = operation(call) in ("permute_dims", "reshape") or isinstance(call, relax.Var)
            if not moves and not self.is_cast(call):
                break
            steps.append(call)
            whole = sizes_of(end) or ()
            array = _undone(
                OpenPlaces(whole, strides_of(whole)) if is_open((*whole, *shape)) else np.empty(whole, np.int8),
                steps,
                shape,
            )
            if array is not None and array.strides[-1] == 1:
                best = (end, View(None, shape, tuple(array.strides)))
        return best


def _undone(array: Any, steps: list[Any], shape: tuple[int, ...]) -> Any:
    """Undo transpositions and reshapes of an array in place; None if no strides do that."""
    for call in reversed(steps):
        if operation(call) == "permute_dims":
            array = array.transpose(np.argsort(axis_order(call)))
        elif operation(call) == "reshape":
            array = _reshaped(array, sizes_of(call.args[0]) or ())
        if array is None:
            return None
    return _reshaped(array, shape)


def _reshaped(array: Any, shape: tuple[int, ...]) -> Any:
    """Reshape an array without a copy; None if that is impossible."""
    if isinstance(array, OpenPlaces):
        return array.reshape(shape)
    if is_open(shape):
        return None
    result = array.view()
    try:
        result.shape = shape
    except AttributeError:
        return None
    return result


def strides_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a dense tensor, in elements."""
    return tuple(prod(shape[k + 1 :]) for k in range(len(shape)))


def _strided(places: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """Return the offset and strides that give the position of each element; None if there are none."""
    if places is None:
        return None
    if isinstance(places, OpenPlaces):
        return places.offset, places.strides
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
    # Dimensions of extent 1 get the strides of a dense tensor.
    plain = strides_of(places.shape)
    return first, tuple(plain[d] if size == 1 else strides[d] for d, size in enumerate(places.shape))
