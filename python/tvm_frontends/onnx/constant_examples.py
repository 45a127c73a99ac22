"""Which inputs of a model may become constants, and examples of their values, for refusals of shapes that data decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import MissingConstant, UnsupportedNode

MOST_NUMBERS = 64
"""Most numbers of an input that is proposed as a constant; an input with more is data."""

Shape = Sequence[int | None] | None


def refusal(problem: str, inputs: Mapping[str, tuple[str, Shape]], examples: Mapping[str, Any]) -> UnsupportedNode:
    """Return the error for a node that needs constants; it proposes to freeze inputs, where that makes sense.

    Parameters
    ----------
    inputs : mapping of str to (dtype, shape)
        All inputs of the model.
    examples : mapping of str to value
        Inputs that would have to be frozen.
    """
    names = ", ".join(map(repr, examples))
    if not examples:
        return UnsupportedNode(f"{problem}; change the model so that it is a constant")
    if len(inputs) == 1:
        return UnsupportedNode(
            f"{problem}; it is computed from {names}, the model's only input: export the model with a constant there, or "
            "with a separate input for it, which can be frozen"
        )
    if any(not _is_small(*inputs[name]) for name in examples if name in inputs):
        return UnsupportedNode(
            f"{problem}; it is computed from {names}, which are data: export the model with a constant there, or cut it "
            "before this node"
        )
    return UnsupportedNode(problem, MissingConstant(dict(examples)))


def _is_small(dtype: str, shape: Shape) -> bool:
    return shape is None or math.prod(size or 1 for size in shape) <= MOST_NUMBERS


def usual_value(dtype: str, shape: Shape) -> Any:
    """Return a value for an input of which only type and shape are known."""
    one: Any = True if dtype == "bool" else 1.0 if dtype.startswith(("float", "bfloat", "double")) else 1
    for size in reversed(list(shape or ())):
        one = [one] * (1 if size is None else size)
    return one


def value_for(operator: str, position: int, dtype: str, shape: Shape, data: Shape) -> Any:
    """Return a value for an input that a node reads directly, with which the node is valid.

    Parameters
    ----------
    position : int
        Which input of the node it is.
    shape, data : sequence of int
        Shapes of this input, and of the node's first input.
    """
    count = math.prod(size or 1 for size in shape or ())
    known = [size or 1 for size in data] if data is not None else []
    make = _VALUES.get((operator, position))
    values = make(count, known) if make else None
    if values is None or len(values) != count:
        return usual_value(dtype, shape)
    return list(values) if shape else values[0]


def _doubled(count: int, data: list[int]) -> list[int]:
    return [size * 2 if axis >= len(data) - 2 else size for axis, size in enumerate(data)]


_VALUES: dict[tuple[str, int], Callable[[int, list[int]], list[Any]]] = {
    ("Reshape", 1): lambda count, data: [-1, *[1] * (count - 1)][:count],
    ("Expand", 1): lambda count, data: [1] * count,
    ("Tile", 1): lambda count, data: [2] * count,
    ("Slice", 1): lambda count, data: [0] * count,
    ("Slice", 2): lambda count, data: [1] * count,
    ("Slice", 3): lambda count, data: list(range(count)),
    ("Pad", 1): lambda count, data: [0] * count,
    ("Pad", 3): lambda count, data: list(range(count)),
    ("TopK", 1): lambda count, data: [1] * count,
    ("Resize", 2): lambda count, data: [2.0 if axis >= count - 2 else 1.0 for axis in range(count)],
    ("Resize", 3): _doubled,
    ("Upsample", 1): lambda count, data: [2.0 if axis >= count - 2 else 1.0 for axis in range(count)],
    ("CumSum", 1): lambda count, data: [0] * count,
    ("CumProd", 1): lambda count, data: [0] * count,
    ("Unsqueeze", 1): lambda count, data: list(range(count)),
    ("Squeeze", 1): lambda count, data: [axis for axis, size in enumerate(data) if size == 1][:count],
    ("Split", 1): lambda count, data: [],
    ("ConstantOfShape", 0): lambda count, data: [2] * count,
    ("CenterCropPad", 1): lambda count, data: data[:count],
    ("Range", 0): lambda count, data: [0] * count,
    ("Range", 1): lambda count, data: [8] * count,
    ("Range", 2): lambda count, data: [1] * count,
    ("OneHot", 1): lambda count, data: [10] * count,
    ("Dropout", 2): lambda count, data: [False] * count,
    ("HannWindow", 0): lambda count, data: [16] * count,
    ("HammingWindow", 0): lambda count, data: [16] * count,
    ("BlackmanWindow", 0): lambda count, data: [16] * count,
    **{(f"Reduce{name}", 1): lambda count, data: list(range(count)) for name in (
        "L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")},
}  # fmt: skip
"""Values by operator and position, as a list of as many numbers as the input has."""
