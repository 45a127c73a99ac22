"""Steps that extend a random ONNX graph by one or two nodes, a family of operators a function.

A step draws inputs among the graph's values, draws the attributes and adds the nodes; without a fitting value it adds
none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from .onnx_builder import Draw, GraphBuilder, Value

_MOVABLE = ("float32", "int64", "int32", "bool", "uint8", "int8")
_SMALL = 64.0
_KEEP_BOUND = ("Relu", "Abs", "Neg")
_SMOOTH = (
    "LeakyRelu", "Elu", "Selu", "Sigmoid", "Tanh", "Softplus", "Softsign", "HardSigmoid", "HardSwish", "Erf", "Sin", "Cos",
    "Atan", "Mish", "ThresholdedRelu", "Celu", "Sigmoid", "Asinh",
)  # fmt: skip
_BOUNDED = {
    "Sigmoid": 1.0, "Tanh": 1.0, "Softsign": 1.0, "HardSigmoid": 1.0, "Erf": 1.0, "Sin": 1.0, "Cos": 1.0, "Atan": 1.6,
}  # fmt: skip


def _is_float(value: Value) -> bool:
    return value.dtype == "float32"


def _axis(draw: Draw, rank: int) -> int:
    return draw(st.integers(-rank, rank - 1))


def _order(draw: Draw, count: int) -> list[int]:
    return draw(st.permutations(range(count)))


def unary(b: GraphBuilder, draw: Draw) -> None:
    """Add a function of one number."""
    x = b.pick(draw, lambda v: _is_float(v) and v.bound <= _SMALL)
    if x is None:
        return
    if draw(st.booleans()):
        name = draw(st.sampled_from(_KEEP_BOUND))
        b.add(name, [x], exact=x.exact, bound=x.bound)
    elif x.bound <= 4 and draw(st.booleans()):
        b.add("Exp", [x], bound=math.exp(x.bound))
    else:
        name = draw(st.sampled_from(_SMOOTH))
        if name == "ThresholdedRelu" and not x.exact:
            name = "Tanh"
        b.add(name, [x], bound=_BOUNDED.get(name, 2 * x.bound + 1))


def rounding(b: GraphBuilder, draw: Draw) -> None:
    """Add a rounding operator, on exact values only."""
    x = b.pick(draw, lambda v: _is_float(v) and v.exact)
    if x is not None:
        b.add(draw(st.sampled_from(["Floor", "Ceil", "Round", "Sign"])), [x], exact=True, bound=x.bound + 1)


def tests(b: GraphBuilder, draw: Draw) -> None:
    """Add IsNaN or IsInf."""
    x = b.pick(draw, _is_float)
    if x is not None:
        b.add(draw(st.sampled_from(["IsNaN", "IsInf"])), [x], exact=True)


def _partner(b: GraphBuilder, draw: Draw, x: Value) -> Value:
    """Return a tensor that broadcasts with ``x``: one of the graph, or an initializer of fewer or shorter dimensions."""
    other = b.pick(draw, lambda v: v.dtype == x.dtype and _broadcasts(x.shape, v.shape))
    if other is not None and draw(st.booleans()):
        return other
    kept = draw(st.integers(0, len(x.shape)))
    shape = [size if draw(st.booleans()) else 1 for size in x.shape[len(x.shape) - kept :]]
    return b.weight(shape, x.dtype)


def _broadcasts(a: Sequence[int], b: Sequence[int]) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(a), reversed(b), strict=False))


def binary(b: GraphBuilder, draw: Draw) -> None:
    """Add arithmetic with broadcasting."""
    x = b.pick(draw, lambda v: v.dtype in ("float32", "int64", "int32") and v.bound <= _SMALL)
    if x is None:
        return
    y = _partner(b, draw, x)
    if y.bound > _SMALL:
        return
    pair = [x, y] if draw(st.booleans()) else [y, x]
    name = draw(st.sampled_from(["Add", "Sub", "Mul", "Max", "Min"]))
    whole = x.dtype != "float32"
    bound = x.bound * y.bound if name == "Mul" else x.bound + y.bound
    b.add(name, pair, exact=x.exact and y.exact and (whole or name in ("Max", "Min")), bound=bound)


def division(b: GraphBuilder, draw: Draw) -> None:
    """Add a division or power by constants away from zero."""
    x = b.pick(draw, lambda v: v.dtype in ("float32", "int64", "int32") and v.bound <= _SMALL)
    if x is None:
        return
    kept = draw(st.integers(0, len(x.shape)))
    shape = x.shape[len(x.shape) - kept :]
    sizes = b.random.uniform(1, 3, shape)
    if x.dtype == "float32" and draw(st.booleans()):
        b.add("Pow", [x, b.constant(float(draw(st.sampled_from([1, 2, 3]))), "float32")], bound=x.bound**3)
        return
    signs = b.random.choice([-1, 1], shape)
    divisor = b.constant(sizes * signs, x.dtype)
    b.add("Div", [x, divisor], exact=x.exact and x.dtype != "float32", bound=x.bound)


def comparison(b: GraphBuilder, draw: Draw) -> None:
    """Add a comparison, and sometimes a selection by it."""
    x = b.pick(draw, lambda v: v.dtype in ("float32", "int64", "int32") and v.exact)
    if x is None:
        return
    y = _partner(b, draw, x)
    if not y.exact:
        return
    name = draw(st.sampled_from(["Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Equal"]))
    masks = b.add(name, [x, y], exact=True)
    if masks and draw(st.booleans()):
        b.add("Where", [masks[0], x, y], exact=True, bound=max(x.bound, y.bound))


def logic(b: GraphBuilder, draw: Draw) -> None:
    """Add a logical operator."""
    x = b.pick(draw, lambda v: v.dtype == "bool")
    if x is None:
        return
    if draw(st.booleans()):
        b.add("Not", [x], exact=True)
    else:
        b.add(draw(st.sampled_from(["And", "Or", "Xor"])), [x, _partner(b, draw, x)], exact=True)


def cast(b: GraphBuilder, draw: Draw) -> None:
    """Add a cast to a type that holds the values."""
    import onnx

    x = b.pick(draw, lambda v: v.exact and v.bound <= 100 and v.dtype in ("float32", "int64", "int32", "bool"))
    if x is not None:
        to = draw(st.sampled_from(["FLOAT", "INT64", "INT32", "BOOL"]))
        b.add("Cast", [x], exact=True, bound=x.bound, to=getattr(onnx.TensorProto, to))


def movement(b: GraphBuilder, draw: Draw) -> None:
    """Add Reshape, Transpose, Flatten, Squeeze, Unsqueeze, Expand, Tile or Identity."""
    x = b.pick(draw, lambda v: v.dtype in _MOVABLE)
    if x is None:
        return
    rank = len(x.shape)
    kept: dict[str, Any] = {"exact": x.exact, "bound": x.bound}
    kind = draw(
        st.sampled_from(["Transpose", "Reshape", "Flatten", "Unsqueeze", "Squeeze", "Expand", "Tile", "Identity"])
    )
    if kind == "Transpose":
        attributes: dict[str, Any] = {"perm": _order(draw, rank)} if rank and draw(st.booleans()) else {}
        b.add(kind, [x], **kept, **attributes)
    elif kind == "Reshape":
        b.add(kind, [x, b.constant(_other_shape(draw, x), "int64")], **kept)
    elif kind == "Flatten":
        b.add(kind, [x], **kept, axis=draw(st.integers(0, rank)))
    elif kind == "Unsqueeze":
        b.add(kind, [x, b.constant([draw(st.integers(-rank - 1, rank))], "int64")], **kept)
    elif kind == "Squeeze":
        axes = [axis for axis, size in enumerate(x.shape) if size == 1]
        if axes:
            b.add(kind, [x, b.constant([draw(st.sampled_from(axes))], "int64")], **kept)
    elif kind == "Expand":
        more = [draw(st.integers(1, 3))] if draw(st.booleans()) else []
        shape = [draw(st.integers(1, 3)) if size == 1 else size for size in x.shape]
        b.add(kind, [x, b.constant([*more, *shape], "int64")], **kept)
    elif kind == "Tile":
        if rank:
            b.add(kind, [x, b.constant([draw(st.integers(1, 2)) for _ in x.shape], "int64")], **kept)
    else:
        b.add(kind, [x], **kept)


def _other_shape(draw: Draw, x: Value) -> list[int]:
    if x.size == 0:
        return list(x.shape)
    divisors = [d for d in range(1, x.size + 1) if x.size % d == 0]
    first = draw(st.sampled_from(divisors))
    return draw(st.sampled_from([[first, x.size // first], [x.size], [-1, first], [1, -1]]))


def slicing(b: GraphBuilder, draw: Draw) -> None:
    """Add Slice, Gather, GatherElements, Split or Concat."""
    x = b.pick(draw, lambda v: v.dtype in _MOVABLE and len(v.shape) > 0 and v.size > 0)
    if x is None:
        return
    kept: dict[str, Any] = {"exact": x.exact, "bound": x.bound}
    axis = _axis(draw, len(x.shape))
    size = x.shape[axis]
    kind = draw(st.sampled_from(["Slice", "Gather", "GatherElements", "Split", "Concat"]))
    if kind == "Slice":
        start, end = draw(st.integers(-size - 1, size)), draw(st.integers(-size - 1, size + 1))
        step = draw(st.sampled_from([1, 2, -1, -2]))
        constants = [b.constant([number], "int64") for number in (start, end, axis, step)]
        b.add(kind, [x, *constants], **kept)
    elif kind == "Gather":
        count = draw(st.integers(0, 3))
        index = b.random.integers(-size, size, [count] if count else [])
        b.add(kind, [x, b.constant(index, "int64")], **kept, axis=axis)
    elif kind == "GatherElements":
        b.add(kind, [x, b.constant(b.random.integers(-size, size, x.shape), "int64")], **kept, axis=axis)
    elif kind == "Split":
        first = draw(st.integers(0, size))
        b.add(kind, [x, b.constant([first, size - first], "int64")], **kept, axis=axis, outputs=2)
    else:
        others = [v for v in b.values if v.dtype == x.dtype and _joins(v, x, axis)]
        y = draw(st.sampled_from(others))
        b.add(kind, [x, y], exact=x.exact and y.exact, bound=max(x.bound, y.bound), axis=axis)


def _joins(a: Value, b: Value, axis: int) -> bool:
    axis %= len(b.shape)
    return len(a.shape) == len(b.shape) and a.shape[:axis] + a.shape[axis + 1 :] == b.shape[:axis] + b.shape[axis + 1 :]


def padding(b: GraphBuilder, draw: Draw) -> None:
    """Add Pad, Trilu, Clip or CumSum."""
    x = b.pick(draw, lambda v: v.dtype in ("float32", "int64") and len(v.shape) > 0 and v.size > 0)
    if x is None:
        return
    rank = len(x.shape)
    kind = draw(st.sampled_from(["Pad", "Clip", "Trilu", "CumSum"]))
    if kind == "Pad":
        mode = draw(st.sampled_from(["constant", "edge", "reflect"]))
        limits = [size - 1 if mode == "reflect" else 2 for size in x.shape] * 2
        widths = b.constant([draw(st.integers(0, min(2, limit))) for limit in limits], "int64")
        b.add(kind, [x, widths], exact=x.exact, bound=x.bound, mode=mode)
    elif kind == "Clip":
        b.add(kind, [x, b.constant(-1, x.dtype), b.constant(2, x.dtype)], exact=x.exact, bound=2)
    elif kind == "Trilu" and rank >= 2:
        b.add(kind, [x], exact=x.exact, bound=x.bound, upper=draw(st.integers(0, 1)))
    elif kind == "CumSum":
        flags: dict[str, Any] = {"exclusive": draw(st.integers(0, 1)), "reverse": draw(st.integers(0, 1))}
        axis = _axis(draw, rank)
        bound = x.bound * x.shape[axis]
        b.add(kind, [x, b.constant(axis, "int64")], exact=x.exact and x.dtype == "int64", bound=bound, **flags)


def reduction(b: GraphBuilder, draw: Draw) -> None:
    """Add a reduction, or the positions of extrema."""
    x = b.pick(draw, lambda v: _is_float(v) and len(v.shape) > 0 and v.size > 0 and v.bound <= _SMALL)
    if x is None:
        return
    keep = draw(st.integers(0, 1))
    axis = _axis(draw, len(x.shape))
    kind = draw(st.sampled_from(
        ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceSumSquare", "ReduceLogSumExp", "ArgMax",
         "TopK"]
    ))  # fmt: skip
    if kind == "ArgMax":
        if x.exact:
            b.add(draw(st.sampled_from(["ArgMax", "ArgMin"])), [x], exact=True, axis=axis, keepdims=keep)
    elif kind == "TopK":
        if x.exact:
            count = b.constant([draw(st.integers(1, x.shape[axis]))], "int64")
            b.add(kind, [x, count], exact=True, bound=x.bound, outputs=2, axis=axis, largest=draw(st.integers(0, 1)))
    elif kind == "ReduceSum":
        b.add(kind, [x, b.constant([axis], "int64")], bound=x.bound * x.size, keepdims=keep)
    else:
        exact = x.exact and kind in ("ReduceMax", "ReduceMin")
        bound = x.bound * x.bound * x.size if kind == "ReduceSumSquare" else x.bound * x.size + 10
        axes = [axis] if draw(st.booleans()) else sorted(range(len(x.shape)))
        b.add(kind, [x, b.constant(axes, "int64")], exact=exact, bound=bound, keepdims=keep)


def product(b: GraphBuilder, draw: Draw) -> None:
    """Add MatMul or Gemm; the inner size is at least 1, since ONNX Runtime 1.31 leaves sums of nothing unwritten."""
    x = b.pick(draw, lambda v: _is_float(v) and len(v.shape) > 0 and v.shape[-1] > 0 and v.bound <= _SMALL)
    if x is None:
        return
    size, columns = x.shape[-1], draw(st.integers(1, 5))
    bound = x.bound * 4 * max(size, 1) + 16
    if len(x.shape) == 2 and draw(st.booleans()):
        turned = draw(st.integers(0, 1))
        bias = b.weight([columns]) if draw(st.booleans()) else None
        inputs = [x, b.weight([columns, size] if turned else [size, columns]), *([bias] if bias else [])]
        b.add("Gemm", inputs, bound=bound, transB=turned, alpha=draw(st.sampled_from([1.0, 0.5])))
    else:
        b.add("MatMul", [x, b.weight([size, columns] if draw(st.booleans()) else [size])], bound=bound)


def convolution(b: GraphBuilder, draw: Draw) -> None:
    """Add a convolution or pool in one or two dimensions."""
    x = b.pick(draw, lambda v: _is_float(v) and len(v.shape) in (3, 4) and v.size > 0 and v.bound <= _SMALL)
    if x is None:
        return
    channels = x.shape[1]
    kernel = [draw(st.integers(1, min(3, size))) for size in x.shape[2:]]
    pads = [draw(st.integers(0, k // 2)) for k in kernel] * 2
    sizes: dict[str, Any] = {"kernel_shape": kernel, "strides": [draw(st.integers(1, 2)) for _ in kernel], "pads": pads}
    kind = draw(st.sampled_from(["Conv", "MaxPool", "AveragePool", "ConvTranspose", "GlobalAveragePool"]))
    if kind == "Conv":
        groups = draw(st.sampled_from([g for g in (1, 2, channels) if channels % g == 0]))
        weight = b.weight([groups * draw(st.integers(1, 2)), channels // groups, *kernel])
        bias = [b.weight([weight.shape[0]])] if draw(st.booleans()) else []
        b.add(kind, [x, weight, *bias], bound=x.bound * 4 * channels * 9 + 4, group=groups, **sizes)
    elif kind == "ConvTranspose":
        b.add(kind, [x, b.weight([channels, 2, *kernel])], bound=x.bound * 4 * channels * 9, **sizes)
    elif kind == "GlobalAveragePool":
        b.add(kind, [x], bound=x.bound)
    elif kind == "MaxPool":
        b.add(kind, [x], exact=x.exact, bound=x.bound, ceil_mode=draw(st.integers(0, 1)), **sizes)
    else:
        b.add(kind, [x], bound=x.bound, count_include_pad=draw(st.integers(0, 1)), **sizes)


def normalisation(b: GraphBuilder, draw: Draw) -> None:
    """Add Softmax, LogSoftmax, LayerNormalization or BatchNormalization."""
    x = b.pick(draw, lambda v: _is_float(v) and len(v.shape) >= 2 and v.size > 0 and v.bound <= _SMALL)
    if x is None:
        return
    kind = draw(st.sampled_from(["Softmax", "LogSoftmax", "LayerNormalization", "BatchNormalization"]))
    if kind in ("Softmax", "LogSoftmax"):
        b.add(kind, [x], bound=1.0 if kind == "Softmax" else 2 * x.bound + 10, axis=_axis(draw, len(x.shape)))
    elif kind == "LayerNormalization":
        scale = [b.weight([x.shape[-1]]), b.weight([x.shape[-1]])]
        b.add(kind, [x, *scale], bound=4 * x.shape[-1] + 4, epsilon=0.1)
    else:
        channels = [x.shape[1]]
        variance = b.constant(b.random.uniform(0.5, 2, channels), "float32")
        b.add(kind, [x, b.weight(channels), b.weight(channels), b.weight(channels), variance], bound=8 * x.bound + 40)


def recurrence(b: GraphBuilder, draw: Draw) -> None:
    """Add LSTM, GRU or RNN."""
    x = b.pick(draw, lambda v: _is_float(v) and len(v.shape) == 3 and v.size > 0 and v.bound <= _SMALL)
    if x is None:
        return
    kind = draw(st.sampled_from(["LSTM", "GRU", "RNN"]))
    gates, hidden = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind], draw(st.integers(1, 5))
    direction = draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    count = 2 if direction == "bidirectional" else 1
    weights = [b.weight([count, gates * hidden, x.shape[2]]), b.weight([count, gates * hidden, hidden])]
    bias = b.weight([count, 2 * gates * hidden]) if draw(st.booleans()) else None
    lengths = None
    if draw(st.booleans()):
        lengths = b.constant(b.random.integers(1, x.shape[0] + 1, x.shape[1]), "int32")
    state = b.weight([count, x.shape[1], hidden]) if draw(st.booleans()) else None
    attributes: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if kind == "GRU":
        attributes["linear_before_reset"] = draw(st.integers(0, 1))
    b.add(kind, [x, *weights, bias, lengths, state], bound=1.0, outputs=2, **attributes)


def quantisation(b: GraphBuilder, draw: Draw) -> None:
    """Add quantised tensors or their product; inputs must be exact."""
    x = b.pick(draw, lambda v: v.dtype in ("uint8", "int8") or (_is_float(v) and v.exact and v.bound <= _SMALL))
    if x is None:
        return
    if _is_float(x):
        dtype = draw(st.sampled_from(["uint8", "int8"]))
        point = b.constant(draw(st.integers(0, 100)), dtype)
        b.add("QuantizeLinear", [x, b.constant(0.03125, "float32"), point], exact=True, bound=255)
    elif len(x.shape) >= 1 and x.size > 0 and draw(st.booleans()):
        other = b.weight([x.shape[-1], draw(st.integers(1, 4))], draw(st.sampled_from(["uint8", "int8"])))
        zeros = [b.constant(7, x.dtype), b.constant(3, other.dtype)] if draw(st.booleans()) else []
        b.add("MatMulInteger", [x, other, *zeros], exact=True, bound=1e6)
    else:
        b.add("DequantizeLinear", [x, b.constant(0.03125, "float32"), b.constant(5, x.dtype)], exact=True, bound=8)


STEPS = (
    unary, binary, movement, slicing, product, convolution, reduction, normalisation, comparison, division, padding, cast,
    logic, rounding, recurrence, quantisation, tests,
)  # fmt: skip
"""All families; hypothesis shrinks towards the first."""
