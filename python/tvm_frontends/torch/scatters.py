"""Converters of torch operators that write or add at positions in a tensor: scatters and embedding bags."""

from __future__ import annotations

import numpy as np
import tvm_ffi
from tvm import relax

from ..tensor_types import dtype_of
from .elementwise import constant
from .node_calls import Call, converter, is_float

_REDUCTIONS = {
    "sum": "add",
    "prod": "mul",
    "amax": "max",
    "amin": "min",
    "mean": "add",
    "add": "add",
    "multiply": "mul",
}


@converter(
    "scatter.src",
    "scatter.value",
    "scatter.reduce",
    "scatter.value_reduce",
    "scatter_add.default",
    "scatter_reduce.two",
)
def scatter(call: Call) -> relax.Expr:
    """Convert the ``scatter`` operators: replace, or combine by sum, product, minimum, maximum or mean."""
    x, axis, index = call.tensor("self"), call["dim"], call.tensor("index")
    name = call.node.target.__name__
    scalar = not x.ty.shape
    if scalar:
        x = call.emit(relax.op.reshape(x, (1,)))
    if not index.ty.shape:
        index = call.emit(relax.op.reshape(index, (1,)))
    sizes = list(index.ty.shape)  # may be symbolic
    if "value" in call.arguments:
        values = call.emit(relax.op.full(sizes, call.cast(call["value"], call.dtype), call.dtype))
    else:
        values = call.tensor("src", call.dtype)
        if not values.ty.shape:
            values = call.emit(relax.op.reshape(values, (1,)))
        if not tvm_ffi.structural_equal(list(values.ty.shape), sizes):
            sizes = [int(size) for size in sizes]
            values = call.emit(relax.op.strided_slice(values, list(range(len(sizes))), [0] * len(sizes), sizes))
    if name == "scatter_reduce.two":
        scattered = _reduced(call, x, index, values)
        return call.emit(relax.op.reshape(scattered, ())) if scalar else scattered
    reduction = "add" if name == "scatter_add.default" else "update"
    if "reduce" in call.arguments:
        reduction = _REDUCTIONS[call["reduce"]]
    if dtype_of(x) == "bool":
        x, values = call.cast(x, "int8"), call.cast(values, "int8")
    scattered = call.cast(call.emit(relax.op.scatter_elements(x, index, values, axis, reduction)), call.dtype)
    return call.emit(relax.op.reshape(scattered, ())) if scalar else scattered


def _neutral(reduction: str, kind: str) -> float:
    """Return the neutral element of a reduction in a type."""
    if reduction in ("add", "mul"):
        return 0 if reduction == "add" else 1
    if is_float(kind):
        return -float("inf") if reduction == "max" else float("inf")
    limits = np.iinfo(kind)
    return int(limits.min if reduction == "max" else limits.max)


def _reduced(call: Call, x: relax.Expr, index: relax.Expr, values: relax.Expr) -> relax.Expr:
    """Convert ``scatter_reduce``: combine written elements, with the old one if ``include_self``."""
    mode, axis, kind = call["reduce"], call["dim"], dtype_of(x)
    reduction = _REDUCTIONS.get(mode, "")
    if not reduction or kind == "bool":
        raise call.unsupported(f"it reduces {kind} by {mode!r}, which is not supported; cast to int32 before it")
    initial, written = x, None
    if not call["include_self"]:
        zero = call.emit(relax.op.zeros([int(size) for size in x.ty.shape], "int32"))
        one = call.emit(relax.op.ones([int(size) for size in index.ty.shape], "int32"))
        marks = call.emit(relax.op.scatter_elements(zero, index, one, axis, "update"))
        written = call.cast(marks, "bool")
        initial = call.emit(relax.op.where(written, constant(_neutral(reduction, kind), x), x))
    combined = call.emit(relax.op.scatter_elements(initial, index, values, axis, reduction))
    if mode != "mean":
        return combined
    ones = call.emit(relax.op.ones_like(values))
    start = call.emit(relax.op.ones_like(x))
    if written is not None:
        start = call.emit(relax.op.where(written, constant(0, x), start))
    count = call.emit(relax.op.scatter_elements(start, index, ones, axis, "add"))
    return call.emit((relax.op.divide if is_float(kind) else relax.op.floor_divide)(combined, count))


@converter("_embedding_bag.default", "_embedding_bag_forward_only.default")
def embedding_bag(call: Call) -> relax.Expr:
    """Convert ``embedding_bag``: sums, means or maxima of table rows, a bag from each offset to the next.

    Refused if the program reads another result than the bags.
    """
    if any(user.args[1] for user in call.node.users):
        raise call.unsupported("a result beside the bags is read, which is not supported; use the first one only")
    table, indices = call.tensor("weight"), call.tensor("indices", "int64")
    bags, width = (int(size) for size in call.result[0].shape)
    count, kind = int(indices.ty.shape[0]), dtype_of(table)
    if bags == 0 or count == 0:
        return relax.Tuple([call.emit(relax.op.zeros((bags, width), kind))])
    positions = call.emit(relax.op.expand_dims(relax.const(np.arange(count), "int64"), -1))
    started = call.cast(call.emit(relax.op.less_equal(call.tensor("offsets", "int64"), positions)), "int64")
    bag = call.emit(relax.op.subtract(call.emit(relax.op.sum(started, [1], keepdims=True)), relax.const(1, "int64")))
    if call["padding_idx"] >= 0:  # padding goes to an extra bag, which is cut off
        padding = call.emit(relax.op.equal(indices, relax.const(int(call["padding_idx"]), "int64")))
        bag = call.emit(relax.op.where(relax.op.expand_dims(padding, -1), relax.const(bags, "int64"), bag))
    rows = call.emit(relax.op.take(table, indices, 0, mode="clip"))
    if call["per_sample_weights"] is not None:
        rows = call.emit(relax.op.multiply(rows, relax.op.expand_dims(call.tensor("per_sample_weights", kind), -1)))
    largest = call["mode"] == 2
    start = call.emit(relax.op.full((bags + 1, width), constant(-float("inf") if largest else 0, rows), kind))
    pooled = call.emit(relax.op.scatter_nd(start, bag, rows, "max" if largest else "add"))
    if call["mode"] != 0:
        none = call.emit(relax.op.zeros((bags + 1, 1), kind))
        ones = call.emit(relax.op.ones((count, 1), kind))
        counts = call.emit(relax.op.scatter_nd(none, bag, ones, "add"))
        if largest:
            pooled = call.emit(
                relax.op.where(relax.op.greater(counts, constant(0, counts)), pooled, constant(0, pooled))
            )
        else:
            pooled = call.emit(relax.op.divide(pooled, relax.op.maximum(counts, constant(1, counts))))
    return relax.Tuple([call.emit(relax.op.strided_slice(pooled, [0], [0], [bags]))])
