"""Computation of sizes from symbolic shapes while a graph is converted: Shape, and what follows up to Reshape or Expand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax, tirx
from tvm.sym import Analyzer

Values = npt.NDArray[np.object_]
"""Integers and integer expressions of symbols."""


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
    first = inputs[0] if inputs else None
    if first is None or any(value is None for value in inputs):
        return None
    rest = [value for value in inputs[1:] if value is not None]
    if node.op_type in ("Cast", "Identity") and attributes.get("to", 7) in (6, 7):
        return first
    if node.op_type == "Gather" and not _is_symbolic(rest[0]):
        return _objects(np.take(first, rest[0].astype(np.int64), axis=attributes.get("axis", 0)))
    if node.op_type in ("Squeeze", "Unsqueeze"):
        axes = rest[0] if rest else attributes.get("axes")  # an attribute before opset 13
        chosen = tuple(int(axis) for axis in axes) if axes is not None else None
        return _objects(np.squeeze(first, chosen) if node.op_type == "Squeeze" else np.expand_dims(first, chosen or ()))
    if node.op_type == "Concat":
        return _objects(np.concatenate([first, *rest], axis=attributes["axis"]))
    if node.op_type == "Slice" and first.ndim == 1 and not any(map(_is_symbolic, rest)):
        begin, end, step = (int(part[0]) for part in (rest[0], rest[1], rest[3] if len(rest) > 3 else np.array([1])))
        return first[begin:end:step]
    if node.op_type in ("Add", "Sub", "Mul"):
        return _objects({"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}[node.op_type](first, rest[0]))
    if node.op_type == "Reshape" and not _is_symbolic(rest[0]):
        return _objects(first.reshape([int(size) for size in rest[0]]))
    return None


def reshape(data: relax.Expr, sizes: Values) -> relax.Expr:
    """Reshape to sizes, of which 0 stands for the dimension of the data, and -1 for what is left."""
    have = list(data.ty.shape.values)
    want = [have[k] if _is(size, 0) else size for k, size in enumerate(sizes)]
    if any(_is(size, -1) for size in want):
        left = list(have)
        divisor: Any = 1
        for size in (size for size in want if not _is(size, -1)):
            # Equal dimensions are left out of the quotient, since they may be 0.
            same = next(
                (k for k, other in enumerate(left) if Analyzer().can_prove_equal(_int64(other), _int64(size))), None
            )
            if same is None:
                divisor = divisor * size
            else:
                del left[same]
        number: Any = 1
        for size in left:
            number = number * size
        # Where the divisor is 0, the reshape is refused if there are elements, since their numbers differ.
        quotient = tirx.floordiv(_int64(number), tirx.max(_int64(divisor), tirx.IntImm("int64", 1)))
        want = [quotient if _is(size, -1) else size for size in want]
    return relax.op.reshape(data, relax.ShapeExpr([Analyzer().simplify(_int64(size)) for size in want]))


def expand(data: relax.Expr, sizes: Values) -> relax.Expr | None:
    """Broadcast to sizes where it is known which dimensions are 1; else None."""
    have, want = list(data.ty.shape.values), [_int64(size) for size in sizes]
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
        array[index] = int(value) if isinstance(value, (int, np.integer, tirx.IntImm)) else value
    return array


def _is_symbolic(values: Values) -> bool:
    return not all(isinstance(value, int) for value in values.flat)


def _is(size: Any, number: int) -> bool:
    return isinstance(size, (int, tirx.IntImm)) and int(size) == number


def _int64(size: Any) -> Any:
    return tirx.IntImm("int64", size) if isinstance(size, int) else size


def constant_values(array: npt.NDArray[Any] | None) -> Values | None:
    """Return small integers of a constant as `Values`."""
    return None if array is None or array.dtype.kind not in "iu" or array.size > 64 else _objects(np.asarray(array))


__all__ = ["Values", "constant_values", "expand", "reshape", "values_of"]
