"""Conversion of nodes whose result has a size that the model computes or takes: Range, Slice, Pad, Expand and others.

Such an element of a tensor is read when the model runs, as a symbol of the shapes that follow (`emit_count`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from ..kernels.bounded import emit_count
from ..tensor_types import dtype_of, static_shape
from .operators.nodes import constant_of
from .shape_values import Values, converted, expression_of

SIZES: dict[str, tuple[int, ...]] = {
    "ConstantOfShape": (0,), "Expand": (1,), "OneHot": (1,), "Pad": (1, 2), "Range": (0, 1, 2), "Reshape": (1,),
    "Resize": (3,), "Slice": (1, 2, 4), "Split": (1,), "Tile": (1,), "TopK": (1,),
}  # fmt: skip
"""Inputs that may be computed, by operator; axes must be constants."""
_MOST = 16
"""Most elements of an operand that are read as sizes."""
_FAR = 1 << 40
"""Beyond any size; bounds of slices are moved to it, so that their differences do not overflow."""


@dataclass(frozen=True)
class Element:
    """An element of a tensor of the model, by the tensor's name; it is known when the model runs."""

    tensor: str
    position: int


class SizesFromData:
    """What an importer knows of the elements that are sizes; each is read once.

    Parameters
    ----------
    builder : relax.BlockBuilder
    producers : mapping of str to onnx.NodeProto
        The node that computes each tensor of the graph.
    """

    def __init__(self, builder: relax.BlockBuilder, producers: Mapping[str, Any]) -> None:
        self.builder, self.producers = builder, producers
        self.read: dict[Element, tirx.Var] = {}

    def elements(self, name: str, nodes: Mapping[str, Any], known: Any) -> list[Any] | None:
        """Return numbers, expressions of symbols and `Element`s of an operand; None if their count is not known.

        Parameters
        ----------
        nodes : mapping
            The converted tensors by name.
        known : callable
            Returns the values of a tensor by its name, or None.
        """
        if (values := known(name)) is not None:
            return list(values.flat)
        producer = self.producers.get(name)
        kind = producer.op_type if producer is not None else ""
        if producer is not None and kind in ("Identity", "Unsqueeze", "Squeeze", "Cast"):
            source = nodes.get(producer.input[0])
            if kind != "Cast" or (isinstance(source, relax.Expr) and _keeps(dtype_of(source), nodes.get(name))):
                return self.elements(producer.input[0], nodes, known)
        if producer is not None and kind == "Concat":
            parts = [self.elements(part, nodes, known) for part in producer.input]
            return None if None in parts else [each for part in parts for each in part or ()]
        value = nodes.get(name)
        shape = static_shape(value) if isinstance(value, relax.Expr) else None
        count = None if shape is None else int(np.prod(shape, dtype=np.int64))
        return None if count is None or count > _MOST else [Element(name, k) for k in range(count)]

    def size(self, element: Any, nodes: Mapping[str, Any]) -> Any:
        """Return an element as a number or an expression of symbols, with a symbol for an `Element`."""
        if not isinstance(element, Element):
            return element
        if element not in self.read:
            self.read[element] = self.count(nodes[element.tensor], element.position, element.tensor)
        return self.read[element]

    def count(self, tensor: relax.Expr, position: int, name: str) -> tirx.Var:
        """Emit an element of a tensor as a symbol; a call in which it is negative is an error."""
        flat = self._emit(relax.op.reshape(tensor, (-1,))) if tensor.ty.ndim != 1 else tensor
        one = self._emit(relax.op.take(flat, relax.const([position], "int64"), 0, mode="clip"))
        one = one if dtype_of(one) == "int64" else self._emit(relax.op.astype(one, "int64"))
        return emit_count(self.builder, one, re.sub(r"\W", "_", name))

    def _emit(self, value: relax.Expr) -> relax.Expr:
        return self.builder.emit(value)

    # ---- nodes; ``operands`` are the converted inputs, and ``values`` their `elements`

    def convert(
        self,
        node: Any,
        operands: Sequence[relax.Expr | None],
        values: Sequence[list[Any] | None],
        nodes: Mapping[str, Any],
        attributes: Mapping[str, Any],
        dtype: str | None,
    ) -> list[relax.Expr] | relax.ShapeExpr | None:
        """Return the results of a node; a shape stands for its last operand, for a converter that takes one; else None."""
        kind, name = node.op_type, node.output[0]
        x = operands[0]
        if kind == "Range":
            start, end, step = map(self._flat, operands)
            return [self._range(start, end, step, name)]
        if kind == "ConstantOfShape":
            sizes = self._sizes(values[0], nodes)
            result = converted(node, None, [sizes], dtype) if sizes is not None else None
            return None if result is None else [result]
        if not isinstance(x, relax.Expr) or not isinstance(getattr(x.ty, "shape", None), relax.ShapeExpr):
            return None
        dims = list(x.ty.shape.values)
        if kind == "OneHot":
            return self._one_hot(
                operands, self.count(self._flat(operands[1]), 0, name), int(attributes.get("axis", -1))
            )
        if kind == "TopK":
            return None if operands[1] is None else self._top(x, operands[1], attributes, name)
        if kind == "Pad":
            return self._pad(x, operands, str(attributes.get("mode", b"constant"), "ascii"), name)
        if kind == "Split":
            return self._split(x, operands[1], values[1], int(attributes.get("axis", 0)) % len(dims), nodes)
        if kind == "Slice":
            return self._slice(x, [*operands, None, None][:5], name)
        wanted = next((value for value in reversed(values) if value), None)
        if wanted is None:
            return None
        if kind == "Resize":
            return relax.ShapeExpr([expression_of(self.size(each, nodes)) for each in wanted])
        if kind == "Tile":
            return [self._tile(x, [expression_of(self.size(each, nodes)) for each in wanted])]
        last = next(each for each in reversed(operands) if each is not None)
        if kind == "Expand":
            return [self._expand(x, last, wanted, nodes, name)]
        if kind == "Reshape":
            if all(isinstance(each, Element) for each in wanted) and not _dims_have(dims, wanted, self.read):
                last = self._resolved(x, last, bool(attributes.get("allowzero", 0)))
                wanted = [self.count(last, k, name) for k in range(len(wanted))]
            sizes = self._sizes(wanted, nodes)
            result = converted(node, x, [None, sizes], dtype)
            return None if result is None else [result]
        return None

    def _sizes(self, wanted: list[Any] | None, nodes: Mapping[str, Any]) -> Values | None:
        if wanted is None:
            return None
        found = np.empty(len(wanted), object)
        found[:] = [self.size(each, nodes) for each in wanted]
        return found

    def _flat(self, value: relax.Expr | None) -> relax.Expr:
        assert value is not None
        return self._emit(relax.op.reshape(value, (-1,)))

    def _long(self, value: relax.Expr) -> relax.Expr:
        return value if dtype_of(value) == "int64" else self._emit(relax.op.astype(value, "int64"))

    def _range(self, start: relax.Expr, end: relax.Expr, step: relax.Expr, name: str) -> relax.Expr:
        whole = dtype_of(start).startswith("int")

        def counted(a: te.Tensor, b: te.Tensor, c: te.Tensor) -> te.Tensor:
            def element(i: tirx.Var) -> tirx.Expr:
                zero, one = tirx.const(0, "int64"), tirx.const(1, "int64")
                if whole:
                    first, last, by = (each[i].astype("int64") for each in (a, b, c))
                    distance = tirx.Select(by < 0, first - last, last - first)
                    least = tirx.max(tirx.max(by, -by), one)
                    number = tirx.max(tirx.floordiv(distance + least - one, least), zero)
                else:
                    exact = (b[i] - a[i]).astype("float64") / c[i].astype("float64")
                    number = tirx.max(tirx.ceil(exact), tirx.const(0, "float64")).astype("int64")
                return tirx.Select(c[i] == tirx.const(0, c.dtype), -one, number)

            return te.compute((1,), element, name="count")

        n = self.count(self.builder.emit_te(counted, start, end, step, primfunc_name_hint="range_count"), 0, name)

        def numbers(a: te.Tensor, c: te.Tensor, size: Any) -> te.Tensor:
            return te.compute((size,), lambda i: a[0] + i.astype(a.dtype) * c[0], name="numbers")

        return self.builder.emit_te(numbers, start, step, n, primfunc_name_hint="range_numbers")

    def _slice(self, x: relax.Expr, operands: Sequence[relax.Expr | None], name: str) -> list[relax.Expr] | None:
        dims, axes = list(x.ty.shape.values), constant_of(operands[3])
        if operands[3] is not None and axes is None:
            return None
        assert operands[1] is not None
        shape = static_shape(operands[1])
        assert operands[2] is not None
        count = shape[0] if shape else 0
        chosen = list(range(count)) if axes is None else [int(axis) % len(dims) for axis in axes.reshape(-1)]
        steps = operands[4] if operands[4] is not None else relax.const(np.ones(count, np.int64))
        starts, ends, steps = (self._long(each) for each in (operands[1], operands[2], steps))

        def bounds(start: te.Tensor, end: te.Tensor, step: te.Tensor, *sizes: Any) -> te.Tensor:
            zero, one, far = (tirx.const(number, "int64") for number in (0, 1, _FAR))

            def within(value: Any, least: Any, most: Any) -> Any:
                return tirx.max(tirx.min(value, most), least)

            def element(i: tirx.Var) -> tirx.Expr:
                k = tirx.floordiv(i, tirx.const(2, "int64"))
                size = sizes[-1]
                for place, other in enumerate(sizes[:-1]):
                    size = tirx.Select(k == place, other, size)
                by = within(step[k], -far, far)
                first, last = (each[k] + tirx.Select(each[k] < 0, size, zero) for each in (start, end))
                up = by > zero
                first = tirx.Select(up, within(first, zero, size), within(first, zero, size - one))
                last = tirx.Select(up, within(last, zero, size), within(last, -one, size - one))
                width = tirx.max(tirx.max(by, -by), one)
                number = tirx.floordiv(tirx.Select(up, last - first, first - last) + width - one, width)
                number = tirx.max(tirx.min(number, size), zero)  # from the end of an empty axis, too
                number = tirx.Select(by == zero, -one, number)
                return tirx.Select(tirx.floormod(i, tirx.const(2, "int64")) == 0, first, number)

            return te.compute((2 * count,), element, name="bounds")

        sizes = [expression_of(dims[axis]) for axis in chosen]
        found = self.builder.emit_te(bounds, starts, ends, steps, *sizes, primfunc_name_hint="slice_bounds")
        result = list(dims)
        for k, axis in enumerate(chosen):
            result[axis] = self.count(found, 2 * k + 1, name)

        def part(a: te.Tensor, bound: te.Tensor, step: te.Tensor, *sizes: Any) -> te.Tensor:
            def element(*i: tirx.Var) -> tirx.Expr:
                place = list(i)
                for k, axis in enumerate(chosen):
                    place[axis] = bound[2 * k] + i[axis] * step[k]
                return a(*place)

            return te.compute(sizes, element, name="part")

        return [self._shaped(part, [x, found, steps], result, "slice_part")]

    def _shaped(self, compute: Any, operands: Sequence[relax.Expr], sizes: Sequence[Any], hint: str) -> relax.Expr:
        """Emit a kernel that takes the sizes of its result after its operands."""
        return self.builder.emit_te(compute, *operands, *map(expression_of, sizes), primfunc_name_hint=hint)

    def _pad(
        self, x: relax.Expr, operands: Sequence[relax.Expr | None], mode: str, name: str
    ) -> list[relax.Expr] | None:
        dims, named = list(x.ty.shape.values), constant_of(operands[3]) if len(operands) > 3 else None
        if (len(operands) > 3 and operands[3] is not None and named is None) or operands[1] is None:
            return None
        axes = list(range(len(dims))) if named is None else [int(axis) % len(dims) for axis in named.reshape(-1)]
        widths = self._long(operands[1])
        given = operands[2] if len(operands) > 2 else None
        fill = relax.const(np.zeros(1), dtype_of(x)) if given is None else self._flat(given)

        def total(width: te.Tensor, *sizes: Any) -> te.Tensor:
            def element(i: tirx.Var) -> tirx.Expr:
                size = sizes[-1]
                for place, other in enumerate(sizes[:-1]):
                    size = tirx.Select(i == place, other, size)
                after = size + width[i] + width[i + len(axes)]
                # There is nothing to repeat of an axis that is empty, or that negative widths leave empty.
                zero = tirx.const(0, "int64")
                kept = size + tirx.min(width[i], zero) + tirx.min(width[i + len(axes)], zero)
                nothing = tirx.all(kept <= zero, after > zero)
                return after if mode == "constant" else tirx.Select(nothing, tirx.const(-1, "int64"), after)

            return te.compute((len(axes),), element, name="sizes")

        sizes = [expression_of(dims[axis]) for axis in axes]
        found = self.builder.emit_te(total, widths, *sizes, primfunc_name_hint="pad_sizes")
        result = list(dims)
        for k, axis in enumerate(axes):
            result[axis] = self.count(found, k, name)

        def padded(a: te.Tensor, width: te.Tensor, value: te.Tensor, *sizes: Any) -> te.Tensor:
            zero, one = tirx.const(0, "int64"), tirx.const(1, "int64")

            def element(*i: tirx.Var) -> tirx.Expr:
                place, inside = list(i), []
                for k, axis in enumerate(axes):
                    size, at = a.shape[axis].astype("int64"), i[axis] - width[k]
                    if mode == "constant":
                        inside += [at >= zero, at < size]
                    elif mode == "wrap":
                        at = tirx.floormod(at, tirx.max(size, one))
                    elif mode == "reflect":
                        at = tirx.floormod(at, tirx.max(2 * size - 2, one))
                        at = tirx.min(at, tirx.max(2 * size - 2, zero) - at)
                    place[axis] = tirx.max(tirx.min(at, size - one), zero)
                return tirx.if_then_else(tirx.all(*inside), a(*place), value[0]) if inside else a(*place)

            return te.compute(sizes, element, name="padded")

        return [self._shaped(padded, [x, widths, fill], result, "pad")]

    def _split(
        self, x: relax.Expr, sizes: relax.Expr | None, wanted: list[Any] | None, axis: int, nodes: Mapping[str, Any]
    ) -> list[relax.Expr] | None:
        if sizes is None or wanted is None:
            return None
        parts, begin = [], expression_of(0)
        analyzer = tvm.sym.Analyzer()
        lengths = [expression_of(self.size(each, nodes)) for each in wanted]
        dims = list(x.ty.shape.values)
        dims[axis] = sum(lengths, expression_of(0))
        x = self._emit(relax.op.reshape(x, dims))  # refuses lengths with another sum
        for length in lengths:
            end = analyzer.simplify(begin + length)
            parts.append(self._emit(relax.op.strided_slice(x, [axis], [begin], [end], assume_inbound=True)))
            begin = end
        return parts

    def _tile(self, x: relax.Expr, repeats: Sequence[Any]) -> relax.Expr:
        dims = list(x.ty.shape.values)
        apart = [size for dim in dims for size in (expression_of(1), dim)]
        wide = [size for pair in zip(repeats, dims, strict=True) for size in pair]
        spread = self._emit(relax.op.broadcast_to(self._emit(relax.op.reshape(x, apart)), relax.ShapeExpr(wide)))
        return relax.op.reshape(spread, [count * dim for count, dim in zip(repeats, dims, strict=True)])

    def _expand(
        self, x: relax.Expr, last: relax.Expr, wanted: Sequence[Any], nodes: Mapping[str, Any], name: str
    ) -> relax.Expr:
        """Broadcast to sizes: 1 leaves a dimension as it is, and every other one must be 1 or the size."""
        dims, analyzer = list(x.ty.shape.values), tvm.sym.Analyzer()
        count = max(len(dims), len(wanted))
        have = [expression_of(1)] * (count - len(dims)) + dims
        want = [1] * (count - len(wanted)) + list(wanted)
        result = []
        for axis, (size, each) in enumerate(zip(have, want, strict=True)):
            asked = self.read.get(each, each) if isinstance(each, Element) else each
            if _is_one(size):
                result.append(expression_of(self.size(each, nodes)))
            elif _is_one(asked) or (not isinstance(asked, Element) and analyzer.can_prove_equal(size, asked)):
                result.append(size)
            else:

                def chosen(asked_sizes: te.Tensor, own: Any, place: int = axis - count + len(wanted)) -> te.Tensor:
                    return te.compute(
                        (1,), lambda i: tirx.Select(asked_sizes[i + place] == 1, own, asked_sizes[i + place])
                    )

                hint = "expanded_size"
                one = self.builder.emit_te(chosen, self._long(last), expression_of(size), primfunc_name_hint=hint)
                result.append(self.count(one, 0, name))
        return relax.op.broadcast_to(x, relax.ShapeExpr(result))

    def _resolved(self, x: relax.Expr, last: relax.Expr, zero_allowed: bool) -> relax.Expr:
        """Emit the sizes of a reshape, of which 0 stands for the dimension of the data, and -1 for what is left."""
        dims = [expression_of(size) for size in x.ty.shape.values]
        count = int(last.ty.shape.values[0])

        def sizes(given: te.Tensor, *have: Any) -> te.Tensor:
            one = tirx.const(1, "int64")
            elements: list[Any] = [given[k].astype("int64") for k in range(count)]
            if not zero_allowed:
                elements = [
                    tirx.Select(each == 0, have[k], each) if k < len(have) else each for k, each in enumerate(elements)
                ]
            rest, total = one, one
            for each in elements:
                rest = rest * tirx.Select(each == -1, one, each)
            for each in have:
                total = total * each
            quotient = tirx.floordiv(total, tirx.max(rest, one))
            elements = [tirx.Select(each == -1, quotient, each) for each in elements]

            def element(i: tirx.Var) -> tirx.Expr:
                chosen = elements[-1]
                for k in reversed(range(count - 1)):
                    chosen = tirx.Select(i == k, elements[k], chosen)
                return chosen

            return te.compute((count,), element, name="sizes")

        return self.builder.emit_te(sizes, last, *dims, primfunc_name_hint="reshape_sizes")

    def _top(
        self, x: relax.Expr, wanted: relax.Expr, attributes: Mapping[str, Any], name: str
    ) -> list[relax.Expr] | None:
        axis = int(attributes.get("axis", -1)) % len(x.ty.shape.values)
        size = x.ty.shape.values[axis]
        if not isinstance(size, tirx.IntImm) or dtype_of(x) not in ("float32", "float64", "int32", "int64"):
            return None
        largest = bool(attributes.get("largest", 1))
        pair = self._emit(relax.op.topk(x, int(size), axis, "both", largest, "int64"))
        n = self.count(self._flat(wanted), 0, name)
        parts = [self._emit(relax.TupleGetItem(pair, k)) for k in range(2)]
        begin = expression_of(0)
        return [self._emit(relax.op.strided_slice(part, [axis], [begin], [n], assume_inbound=True)) for part in parts]

    def _one_hot(self, operands: Sequence[relax.Expr | None], depth: Any, axis: int) -> list[relax.Expr]:
        indices, values = operands[0], operands[2]
        assert indices is not None
        dims = list(indices.ty.shape.values)
        axis %= len(dims) + 1

        def compute(given: te.Tensor, pair: te.Tensor, *sizes: Any) -> te.Tensor:
            def element(*i: tirx.Var) -> tirx.Expr:
                at = given(*i[:axis], *i[axis + 1 :]).astype("int64")
                at = at + tirx.Select(at < 0, sizes[axis], tirx.const(0, "int64"))
                return tirx.Select(at == i[axis], pair[1], pair[0])

            return te.compute(sizes, element, name="one_hot")

        assert values is not None
        return [self._shaped(compute, [indices, values], [*dims[:axis], depth, *dims[axis:]], "one_hot")]


def _keeps(source: str, result: Any) -> bool:
    """Whether a cast leaves integers that can be sizes as they are."""
    wide = {source, "int32", "uint32", "int64", "uint64"}
    return source.startswith(("int", "uint")) and isinstance(result, relax.Expr) and dtype_of(result) in wide


def _dims_have(dims: Sequence[Any], wanted: Sequence[Any], read: Mapping[Element, tirx.Var]) -> bool:
    """Whether a size that is asked for is one of the data's, so that it stands for itself."""
    return any(each in read and any(read[each].same_as(size) for size in dims) for each in wanted)


def _is_one(size: Any) -> bool:
    return isinstance(size, (int, tirx.IntImm)) and int(size) == 1
