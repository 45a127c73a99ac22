"""Computation of sizes from symbolic shapes while a graph is converted: Shape, what follows, and what takes the result."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from onnx import numpy_helper
from tvm import relax, te, tirx
from tvm.sym import Analyzer

Values = npt.NDArray[Any]
"""Integers, integer expressions of symbols, truth values, and numbers of floating point: `Scaled` or Python's."""
_MOST = 64
"""Elements up to which a constant is looked at."""
EXACT = 1 << 10
"""Numerator and denominator up to which float32 multiplies sizes up to 16,384 without rounding."""
_WHOLE = (6, 7)
_FLOATING = (1, 11)
"""ONNX's numbers of the types int32 and int64; float32 and float64, which hold usual sizes."""


@dataclass(frozen=True)
class Scaled:
    """A size as a number of floating point: ``dividend / divisor``."""

    dividend: Any
    divisor: int = 1

    def times(self, factor: Fraction) -> Scaled | None:
        """Multiply by a number; None if float32 might round the product of a usual size."""
        exact = factor / self.divisor
        power = exact.denominator & (exact.denominator - 1) == 0
        if not 0 < exact.numerator <= EXACT or exact.denominator > EXACT or not power:
            return None
        return Scaled(self.dividend * exact.numerator, exact.denominator)

    def rounded(self, up: bool = False) -> Any:
        """Return the whole number next below, or above; sizes are not negative."""
        if self.divisor == 1:
            return self.dividend
        return tirx.floordiv(self.dividend + (self.divisor - 1 if up else 0), tirx.IntImm("int64", self.divisor))


def _divided(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        return (abs(left) // abs(right)) * (1 if (left < 0) == (right < 0) else -1) if right else None
    if not isinstance(right, int) or right <= 0:
        return None
    zero, divisor = expression_of(0), expression_of(right)
    if _compared(operator.ge, operator.lt)(left, 0):
        return tirx.floordiv(left, divisor)
    # It rounds towards zero.
    return tirx.floordiv(tirx.max(left, zero), divisor) - tirx.floordiv(tirx.max(-left, zero), divisor)


def _remainder(left: Any, right: Any) -> Any:
    return left % right if isinstance(right, int) and right > 0 else None


def _of_sizes(*values: Any) -> Analyzer:
    """Return an analyzer that knows that the symbols of expressions are sizes."""
    analyzer = Analyzer()
    for symbol in {each for value in values for each in tirx.analysis.undefined_vars(expression_of(value))}:
        analyzer.bind(symbol, tvm.ir.Range(0, 1 << 40))
    return analyzer


def _compared(
    compare: Callable[[Any, Any], Any], opposite: Callable[[Any, Any], Any]
) -> Callable[[Any, Any], bool | None]:
    """Return a comparison that is None where neither it nor its opposite is known of all sizes."""

    def known(left: Any, right: Any) -> bool | None:
        analyzer = _of_sizes(left, right)
        if analyzer.can_prove(compare(expression_of(left), expression_of(right))):
            return True
        return False if analyzer.can_prove(opposite(expression_of(left), expression_of(right))) else None

    return known


_PAIRS: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Div": _divided,
    "Mod": _remainder,
    "Max": lambda left, right: (
        max(left, right) if _are_numbers(left, right) else tirx.max(expression_of(left), expression_of(right))
    ),
    "Min": lambda left, right: (
        min(left, right) if _are_numbers(left, right) else tirx.min(expression_of(left), expression_of(right))
    ),
    "Equal": _compared(tirx.EQ, tirx.NE),
    "Less": _compared(operator.lt, operator.ge),
    "Greater": _compared(operator.gt, operator.le),
    "And": operator.and_,
    "Or": operator.or_,
}
"""Operators of two whole numbers; None where the result is not known."""


def values_of(node: Any, inputs: Sequence[Values | None], shape: Sequence[Any] | None) -> Values | None:
    """Return the values of a node's result if they are computed from sizes, else None.

    Parameters
    ----------
    node : onnx.NodeProto
    inputs : sequence of arrays or None
        Values of the node's inputs, as far as they are known.
    shape : sequence, optional
        The shape of its first input.
    """
    attributes: dict[str, Any] = {each.name: _attribute(each) for each in node.attribute}
    if node.op_type == "Shape" and shape is not None:
        return _objects(list(shape)[attributes.get("start", 0) : attributes.get("end")])
    if node.op_type == "Size" and shape is not None:
        return _objects(functools.reduce(operator.mul, shape, 1))
    first = inputs[0] if inputs else None
    if first is None or any(value is None for value in inputs):
        return None
    rest = [value for value in inputs[1:] if value is not None]
    if node.op_type == "Identity":
        return first
    if node.op_type == "Cast":
        return _each(first, lambda value: _cast(value, attributes["to"]))
    if node.op_type in ("Floor", "Ceil"):
        return _each(first, lambda x: Scaled(x.rounded(node.op_type == "Ceil")) if isinstance(x, Scaled) else None)
    if node.op_type == "Gather" and not _is_symbolic(rest[0]):
        return _objects(np.take(first, rest[0].astype(np.int64), axis=attributes.get("axis", 0)))
    if node.op_type in ("Squeeze", "Unsqueeze"):
        axes = rest[0] if rest else attributes.get("axes")  # an attribute before opset 13
        chosen = tuple(int(axis) for axis in axes) if axes is not None else None
        return _objects(np.squeeze(first, chosen) if node.op_type == "Squeeze" else np.expand_dims(first, chosen or ()))
    if node.op_type == "Concat":
        return _objects(np.concatenate([first, *rest], axis=attributes["axis"]))
    if node.op_type == "Slice" and rest and first.ndim == 1 and not any(map(_is_symbolic, rest)):
        begin, end, step = (int(part[0]) for part in (rest[0], rest[1], rest[3] if len(rest) > 3 else np.array([1])))
        return first[begin:end:step]
    if node.op_type in _PAIRS and len(rest) == 1 and not attributes.get("fmod", 0):
        return _each(first, _scale(node.op_type) if is_floating(first) else _PAIRS[node.op_type], rest[0])
    if node.op_type == "Where":
        return _each(first, lambda condition, *values: values[not condition], *rest)
    if node.op_type == "Not":
        return _each(first, operator.not_)
    if node.op_type == "ReduceProd" and first.ndim == 1 and not is_floating(first):
        product = functools.reduce(operator.mul, first, 1)
        return _objects([product] if attributes.get("keepdims", 1) else product)
    if node.op_type == "ConstantOfShape" and not _is_symbolic(first) and first.shape == (1,) and first[0] <= _MOST:
        array = numpy_helper.to_array(attributes["value"]) if "value" in attributes else np.zeros(1, "float32")
        return constant_values(np.repeat(array, first[0]))
    if node.op_type == "Reshape" and not _is_symbolic(rest[0]):
        return _objects(first.reshape([int(size) for size in rest[0]]))
    return None


def _each(first: Values, compute: Callable[..., Any], *rest: Values) -> Values | None:
    """Return what is computed of each element, with broadcasting; None if a result is not known."""
    arrays = np.broadcast_arrays(first, *rest)
    results = [compute(*elements) for elements in zip(*(array.flat for array in arrays), strict=True)]
    if any(result is None for result in results):
        return None
    found = np.empty(arrays[0].size, object)
    found[:] = results
    return _objects(found.reshape(arrays[0].shape))


def _cast(value: Any, to: int) -> Any:
    if to in _FLOATING:
        return (
            value if isinstance(value, (Scaled, float)) else float(value) if isinstance(value, int) else Scaled(value)
        )
    if to in _WHOLE:
        if isinstance(value, Scaled):  # a cast rounds towards zero
            above = value.divisor == 1 or _compared(operator.ge, operator.lt)(value.dividend, 0)
            return value.rounded() if above else None
        return int(value) if isinstance(value, float) else value
    return value if isinstance(value, bool) else None


def is_floating(values: Values) -> bool:
    """Whether numbers of floating point are among the values."""
    return any(isinstance(value, (Scaled, float)) for value in values.flat)


def _scale(operation: str) -> Callable[[Any, Any], Any]:
    """Return the product of a size and a number, or their quotient; None for other operands."""

    def scaled(left: Any, right: Any) -> Any:
        if isinstance(left, float) and isinstance(right, float):
            compute = {"Mul": operator.mul, "Div": operator.truediv}.get(operation)
            if compute is None or (right == 0 and operation == "Div"):
                return None
            wide, narrow = compute(left, right), float(compute(np.float32(left), np.float32(right)))
            return wide if wide == narrow else None  # else it depends on the type
        if operation == "Mul" and isinstance(right, Scaled):
            left, right = right, left
        if operation not in ("Mul", "Div") or not isinstance(left, Scaled) or not isinstance(right, float):
            return None
        if not np.isfinite(right) or right <= 0:
            return None
        return left.times(Fraction(right) if operation == "Mul" else 1 / Fraction(right))

    return scaled


_ELEMENTWISE = """
Add Sub Mul Div Pow Mod Max Min Mean Sum Equal Less Greater LessOrEqual GreaterOrEqual And Or Xor Where
BitwiseAnd BitwiseOr BitwiseXor BitShift
""".split()  # noqa: SIM905
"""Operators whose operands are broadcast to each other."""


def agreeing(
    builder: relax.BlockBuilder, node: Any, operands: Sequence[relax.Expr | None]
) -> Sequence[relax.Expr | None]:
    """Make sizes that have to be equal one expression: operands are broadcast or reshaped to it.

    Whether the sizes are equal is checked when the model runs. A size that is not known to be 1 is not broadcast.
    """
    shapes = [_dims(operand) for operand in operands]
    known = [shape for shape in shapes if shape is not None]
    joined = node.op_type == "Concat"
    if not (joined or node.op_type in _ELEMENTWISE) or len(known) < 2 or len(known) < len(operands):
        return operands
    rank = max(map(len, known))
    if joined and any(len(shape) != rank for shape in known):
        return operands
    except_axis = next((each.i for each in node.attribute if each.name == "axis"), 0) % max(rank, 1) if joined else -1
    analyzer = Analyzer()
    result: list[relax.Expr] = [operand for operand in operands if operand is not None]
    for axis in range(rank):
        places = [axis - rank + len(shape) for shape in known]
        sizes = {k: known[k][place] for k, place in enumerate(places) if axis != except_axis and place >= 0}
        if not joined:
            sizes = {k: size for k, size in sizes.items() if not _is(size, 1)}
        wanted = min(sizes.values(), key=lambda size: not isinstance(size, tirx.IntImm), default=None)
        for k, size in sizes.items():
            if isinstance(size, tirx.IntImm) or analyzer.can_prove_equal(size, wanted):
                continue
            target = list(_dims(result[k]) or ())
            target[places[k]] = wanted
            # Nothing is broadcast to 1; as only this axis changes, numbers of elements agree where its sizes do.
            join = relax.op.reshape if _is(wanted, 1) else relax.op.broadcast_to
            result[k] = builder.emit(join(result[k], relax.ShapeExpr(target)))
    return result


def _dims(value: relax.Expr | None) -> list[Any] | None:
    if not isinstance(value, relax.Expr) or not isinstance(value.ty, relax.TensorType):
        return None
    return list(value.ty.shape.values) if isinstance(value.ty.shape, relax.ShapeExpr) else None


def tensor_of(builder: relax.BlockBuilder, values: Values, dtype: str | None) -> relax.Expr:
    """Emit sizes as a tensor, for operators that compute with them; without a type it is that of the values."""
    flat = list(values.flat)
    kind = dtype or ("float32" if is_floating(values) else "bool" if isinstance(flat[0], bool) else "int64")
    if not _is_symbolic(values):
        return relax.const(np.array(values.tolist(), kind).reshape(values.shape), kind)

    def compute(*sizes: Any) -> te.Tensor:
        def number(k: int) -> tirx.Expr:
            if isinstance(flat[k], (int, float)):
                return tirx.const(flat[k], kind)
            divisor = flat[k].divisor if isinstance(flat[k], Scaled) else 1
            return sizes[k].astype(kind) if divisor == 1 else sizes[k].astype(kind) / tirx.const(divisor, kind)

        def element(*i: tirx.Var) -> tirx.Expr:
            place, chosen = 0, number(len(flat) - 1)
            for axis, size in enumerate(values.shape):
                place = place * size + i[axis]
            for k in reversed(range(len(flat) - 1)):
                chosen = tirx.Select(place == k, number(k), chosen)
            return chosen

        return te.compute(values.shape, element, name="sizes")

    dividends = [value.dividend if isinstance(value, Scaled) else value for value in flat]
    dividends = [expression_of(0 if isinstance(value, float) else value) for value in dividends]
    return builder.emit_te(compute, *dividends, primfunc_name_hint="sizes")


def _slice(data: relax.Expr, starts: Values, ends: Values, axes: Values | None) -> relax.Expr | None:
    """Cut a part out of a tensor, with steps of 1; None if it is not known whether an end counts from the end.

    Ends that lie outside of the tensor are moved to its ends, as the standard has it.
    """
    dims = list(data.ty.shape.values)
    holds = _compared(operator.ge, operator.lt)
    chosen = range(len(starts)) if axes is None else [int(axis) % len(dims) for axis in axes.flat]
    begins, stops = [], []
    for axis, start, end in zip(chosen, starts.flat, ends.flat, strict=True):
        limits = []
        for limit in (start, end):
            if isinstance(limit, int) and limit > 1 << 30:
                limit = dims[axis]
            elif (positive := holds(limit, 0)) is None:
                return None
            elif not positive:
                limit = dims[axis] + limit
            limits.append(limit)
        analyzer = _of_sizes(*limits, dims[axis])
        inside = [analyzer.simplify(tirx.max(tirx.min(expression_of(x), dims[axis]), expression_of(0))) for x in limits]
        begins.append(inside[0])
        stops.append(analyzer.simplify(tirx.max(*inside)))
    return relax.op.strided_slice(data, list(chosen), begins, stops, assume_inbound=True)


def converted(
    node: Any, data: relax.Expr | None, values: Sequence[Values | None], dtype: str | None
) -> relax.Expr | None:
    """Return the result of a node that takes sizes; None if it is not one, or some of them are not known.

    Parameters
    ----------
    data : relax.Expr, optional
        Its first input, if that is a tensor of known rank.
    values : sequence of arrays or None
        Values of its inputs, as far as they are known.
    dtype : str, optional
        Type of its result, if that is known.
    """
    attributes: dict[str, Any] = {each.name: _attribute(each) for each in node.attribute}
    given = [None if value is None or is_floating(value) else value for value in values]
    if node.op_type == "ConstantOfShape" and given[0] is not None:
        fill = numpy_helper.to_array(attributes["value"]) if "value" in attributes else np.zeros(1, "float32")
        shape = relax.ShapeExpr([expression_of(size) for size in given[0]])
        return relax.op.full(shape, relax.const(tvm.runtime.tensor(fill.reshape(()))))
    if node.op_type == "Range" and all(value is not None and value.size == 1 for value in given):
        start, end, step = (next(value.flat) for value in given if value is not None)
        if not _is_positive(step):
            return None
        end = _of_sizes(start, end).simplify(tirx.max(expression_of(end), expression_of(start)))
        return relax.op.arange(expression_of(start), end, expression_of(step), dtype or "int64")
    if data is None:
        return None
    if node.op_type == "Flatten":
        dims = list(data.ty.shape.values)
        axis = attributes.get("axis", 1)
        axis += len(dims) if axis < 0 else 0
        return relax.op.reshape(
            data,
            relax.ShapeExpr(
                [functools.reduce(operator.mul, part, tirx.IntImm("int64", 1)) for part in (dims[:axis], dims[axis:])]
            ),
        )
    if len(given) > 1 and given[1] is not None and given[1].ndim == 1:
        if node.op_type == "Reshape":
            return _reshape(data, given[1], bool(attributes.get("allowzero", 0)))
        if node.op_type == "Expand":
            return _expand(data, given[1])
    if node.op_type == "Slice" and len(given) > 2 and given[1] is not None and given[2] is not None:
        steps = given[4] if len(given) > 4 else None
        axes = given[3] if len(given) > 3 else None
        if (len(given) > 3 and axes is None and node.input[3]) or (
            steps is not None and any(step != 1 for step in steps)
        ):
            return None
        return _slice(data, given[1], given[2], axes)
    return None


def _reshape(data: relax.Expr, sizes: Values, zero: bool) -> relax.Expr:
    """Reshape to sizes, of which -1 stands for what is left, and 0 for the dimension of the data unless ``zero``."""
    have = list(data.ty.shape.values)
    want = [have[k] if _is(size, 0) and not zero else size for k, size in enumerate(sizes)]
    if any(_is(size, -1) for size in want):
        left = list(have)
        divisor: Any = 1
        for size in (size for size in want if not _is(size, -1)):
            # Equal dimensions are left out of the quotient, since they may be 0.
            same = next(
                (
                    k
                    for k, other in enumerate(left)
                    if Analyzer().can_prove_equal(expression_of(other), expression_of(size))
                ),
                None,
            )
            if same is None:
                divisor = divisor * size
            else:
                del left[same]
        number: Any = 1
        for size in left:
            number = number * size
        # Where the divisor is 0, the reshape is refused if there are elements, since their numbers differ.
        quotient = tirx.floordiv(expression_of(number), tirx.max(expression_of(divisor), tirx.IntImm("int64", 1)))
        want = [quotient if _is(size, -1) else size for size in want]
    return relax.op.reshape(data, relax.ShapeExpr([Analyzer().simplify(expression_of(size)) for size in want]))


def _expand(data: relax.Expr, sizes: Values) -> relax.Expr | None:
    """Broadcast to sizes where it is known which dimensions are 1; else None."""
    have, want = list(data.ty.shape.values), [expression_of(size) for size in sizes]
    count = max(len(have), len(want))
    have, want = ([tirx.IntImm("int64", 1)] * (count - len(dims)) + dims for dims in (have, want))
    result = []
    for size, wanted in zip(have, want, strict=True):
        if _is(size, 1) or Analyzer().can_prove_equal(size, wanted):
            result.append(wanted)
        elif _is(wanted, 1):
            result.append(size)
        else:
            return None
    return relax.op.broadcast_to(data, relax.ShapeExpr(result))


def _attribute(attribute: Any) -> Any:
    import onnx

    return onnx.helper.get_attribute_value(attribute)


def _objects(values: Any) -> Values:
    """Return an array of objects, with numbers as Python's."""
    array = np.empty(np.shape(values), object) if not isinstance(values, np.ndarray) else values.astype(object)
    if not isinstance(values, np.ndarray):
        if array.ndim == 0:
            array[()] = values
        for k, value in enumerate(values if array.ndim else ()):
            array[k] = value
    for index, value in np.ndenumerate(array):
        whole = isinstance(value, (int, np.integer, tirx.IntImm)) and not isinstance(value, bool)
        array[index] = int(value) if whole else value
    return array


def _is_symbolic(values: Values) -> bool:
    return not all(isinstance(value, (int, float)) for value in values.flat)


def _is_positive(value: Any) -> bool:
    return isinstance(value, int) and value > 0


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(value, int) for value in values)


def _is(size: Any, number: int) -> bool:
    return isinstance(size, (int, tirx.IntImm)) and int(size) == number


def expression_of(size: Any) -> Any:
    """Return a size as an expression of type int64."""
    return tirx.IntImm("int64", size) if isinstance(size, int) else size


def constant_values(array: npt.NDArray[Any] | None) -> Values | None:
    """Return the numbers of a small constant as `Values`."""
    if array is None or array.dtype.kind not in "iufb" or array.size > _MOST:
        return None
    found = np.empty(array.size, object)
    found[:] = array.reshape(-1).tolist()
    return found.reshape(array.shape)


__all__ = [
    "EXACT",
    "Values",
    "agreeing",
    "constant_values",
    "converted",
    "expression_of",
    "is_floating",
    "tensor_of",
    "values_of",
]
