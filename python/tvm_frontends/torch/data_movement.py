"""Operators of torch.export programs that move or select elements: indexing, slices, windows, and constant tensors.

Corrections of TVM 0.27.0, ``relax/frontend/torch/base_fx_graph_translator.py``:

- ``_index_tensor``: does not count negative indices from the end; indices along dimensions that are not neighbours
  give a wrong shape.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..tensor_types import dtype_of
from .elementwise import common, constant
from .node_calls import Call, converter, is_float, name_of


@converter("cat.default")
def concatenate(call: Call) -> relax.Expr:
    """A tensor of shape (0,) goes with any others, as an empty key-value cache does, and adds nothing."""
    given = [value.meta["val"] for value in call.node.args[0]]
    kept = [k for k, value in enumerate(given) if not (len(value.shape) == 1 and value.shape[0] == 0)] or [0]
    values = [call.cast(call["tensors"][k], call.dtype) for k in kept]
    return values[0] if len(values) == 1 else call.emit(relax.op.concat(values, axis=call["dim"]))


@converter("select.int")
def select(call: Call) -> relax.Expr:
    """One position of a dimension, also counted from its end."""
    x, axis = call.tensor("self"), call["dim"]
    axis %= len(x.ty.shape)
    size, at = x.ty.shape[axis], call["index"]
    if not isinstance(at, int):
        return call.upstream()
    if hasattr(size, "value"):
        at %= int(size)
    elif at < 0:
        at = size + at  # a size that is a symbol: upstream would read before the beginning
    return call.emit(relax.op.squeeze(call.emit(relax.op.strided_slice(x, [axis], [at], [at + 1])), [axis]))


def _whole(call: Call, index: relax.Expr, size: Any) -> relax.Expr:
    """An index in int64, counted from the beginning."""
    index = call.cast(index, "int64")
    if isinstance(index, tvm.ir.GenericConst) and (index.value.numpy() >= 0).all():
        return index
    counted = relax.op.add(index, relax.const(int(size), "int64"))
    return call.emit(relax.op.where(relax.op.less(index, relax.const(0, "int64")), counted, index))


@converter("index.Tensor")
def index(call: Call) -> relax.Expr:
    """By tensors along some dimensions; where these are not neighbours, what they select goes to the front."""
    x = call.tensor("self")
    shape = [int(size) if hasattr(size, "value") else None for size in x.ty.shape]
    named = [(axis, value) for axis, value in enumerate(call["indices"]) if value is not None]
    _refuse_masks(call, [value for _, value in named])
    if any(shape[axis] is None for axis, _ in named):
        return call.upstream()
    axes = [axis for axis, _ in named]
    indices = [_whole(call, value, shape[axis]) for axis, value in named]
    rank = max(len(value.ty.shape) for value in indices)
    if len(axes) == 1:
        return call.emit(relax.op.take(x, indices[0], axes[0], mode="clip"))
    others = [axis for axis in range(len(shape)) if axis not in axes]
    if axes + others != sorted(axes + others):
        x = call.emit(relax.op.permute_dims(x, axes + others))
    found = call.emit(relax.op.index_tensor(x, indices))
    if axes[-1] - axes[0] != len(axes) - 1 or axes[0] == 0:
        return found
    before = list(range(rank, rank + axes[0]))
    after = list(range(rank + axes[0], rank + len(others)))
    return call.emit(relax.op.permute_dims(found, [*before, *range(rank), *after]))


def _refuse_masks(call: Call, indices: list[relax.Expr]) -> None:
    if any(dtype_of(value) in ("bool", "uint8") for value in indices):
        raise call.unsupported(
            "a mask selects as many elements as it has true ones, which depends on the values; use where"
        )


@converter("index_put.default")
def index_put(call: Call) -> relax.Expr:
    """Values that broadcast to what the indices select, along the first dimensions."""
    x = call.tensor("self")
    indices = list(call["indices"])
    masks = [value for value in indices if value is not None and dtype_of(value) in ("bool", "uint8")]
    values = call.tensor("values", call.dtype)
    if len(indices) == len(masks) == 1 and len(values.ty.shape) == 0:
        mask = call.cast(masks[0], "bool")
        missing = len(x.ty.shape) - len(mask.ty.shape)
        if missing:
            mask = call.emit(relax.op.expand_dims(mask, list(range(-missing, 0))))
        changed = call.emit(relax.op.add(x, values)) if call["accumulate"] else values
        return call.emit(relax.op.where(mask, changed, x))
    if masks:
        raise call.unsupported("it writes at a mask as many values as this has true elements; write with where")
    return _written(call, x, [(axis, value) for axis, value in enumerate(indices) if value is not None], values)


def _written(call: Call, x: relax.Expr, named: list[tuple[int, relax.Expr]], values: relax.Expr) -> relax.Expr:
    """A tensor in which the elements at indices along some axes are others, or are added to."""
    shape = [int(size) for size in x.ty.shape]
    axes = [axis for axis, _ in named]
    others = [axis for axis in range(len(shape)) if axis not in axes]
    whole = [_whole(call, value, shape[axis]) for axis, value in named]
    chosen = np.broadcast_shapes(*(tuple(int(size) for size in value.ty.shape) for value in whole))
    stacked = call.emit(relax.op.stack([call.emit(relax.op.broadcast_to(value, chosen)) for value in whole], axis=-1))
    rest = [shape[axis] for axis in others]
    if axes[-1] - axes[0] == len(axes) - 1:  # what they select stands where they stand
        first = axes[0]
        values = call.emit(relax.op.broadcast_to(values, (*rest[:first], *chosen, *rest[first:])))
        rank = len(chosen)
        order = [*range(first, first + rank), *range(first), *range(first + rank, rank + len(rest))]
        values = call.emit(relax.op.permute_dims(values, order)) if first and rank else values
    else:
        values = call.emit(relax.op.broadcast_to(values, (*chosen, *rest)))
    order = [*axes, *others]
    moved = order != sorted(order)
    x = call.emit(relax.op.permute_dims(x, order)) if moved else x
    kind, way = dtype_of(x), "add" if call["accumulate"] else "update"
    if kind == "bool":
        x, values = call.cast(x, "int8"), call.cast(values, "int8")
    made = call.cast(call.emit(relax.op.scatter_nd(x, stacked, values, way)), kind)
    return call.emit(relax.op.permute_dims(made, [order.index(axis) for axis in range(len(order))])) if moved else made


@converter("masked_scatter.default")
def masked_scatter(call: Call) -> relax.Expr:
    """The true elements of a mask, counted from the first, take the elements of the source in their order."""
    x = call.emit(relax.op.broadcast_to(call.tensor("self"), call.shape))
    mask = call.emit(relax.op.broadcast_to(call.tensor("mask", "bool"), call.shape))
    source = call.emit(relax.op.reshape(call.tensor("source", call.dtype), (-1,)))
    counted = relax.op.cumsum(relax.op.reshape(call.cast(mask, "int64"), (-1,)), 0, "int64")
    places = call.emit(relax.op.subtract(call.emit(counted), relax.const(1, "int64")))
    places = call.emit(relax.op.reshape(relax.op.maximum(places, relax.const(0, "int64")), call.shape))
    return call.emit(relax.op.where(mask, call.emit(relax.op.take(source, places, 0, mode="clip")), x))


@converter("unfold.default")
def unfold(call: Call) -> relax.Expr:
    """Windows along a dimension; what is in a window becomes the last dimension."""
    x, step, size = call.tensor("self"), int(call["step"]), int(call["size"])
    if not x.ty.shape:
        return call.emit(relax.op.reshape(x, call.shape))
    axis = call["dimension"] % len(x.ty.shape)
    places = np.arange(call.shape[axis])[:, None] * step + np.arange(size)
    found = call.emit(relax.op.take(x, relax.const(places, "int64"), axis))
    order = [k for k in range(len(call.shape)) if k != axis + 1]
    return call.emit(relax.op.permute_dims(found, [*order, axis + 1]))


@converter("isin.Tensor_Tensor")
def isin(call: Call) -> relax.Expr:
    """Whether each element is one of the others."""
    dtype = common(call, call.node.args[0], call.node.args[1])
    x, others = call.tensor("elements", dtype), call.tensor("test_elements", dtype)
    if 0 in call.node.args[1].meta["val"].shape:
        return call.emit(relax.op.full(call.shape, call.cast(bool(call["invert"]), "bool"), "bool"))
    x = call.emit(relax.op.expand_dims(x, -1))
    same = relax.op.equal(x, call.emit(relax.op.reshape(others, (-1,))))
    found = call.cast(call.emit(relax.op.max(call.cast(call.emit(same), "uint8"), -1)), "bool")
    return call.emit(relax.op.logical_not(found)) if call["invert"] else found


@converter("gather.default")
def gather(call: Call) -> relax.Expr:
    """Gather, where the index may be smaller than the tensor."""
    x, axis, index = call.tensor("self"), call["dim"], call.tensor("index")
    if not x.ty.shape:
        return call.emit(relax.op.reshape(x, call.shape))
    axis %= len(x.ty.shape)
    sizes = [size if k != axis else old for k, (size, old) in enumerate(zip(index.ty.shape, x.ty.shape, strict=True))]
    if any(int(new) != int(old) for new, old in zip(sizes, x.ty.shape, strict=True)):
        ends = [int(size) for size in sizes]
        x = call.emit(relax.op.strided_slice(x, list(range(len(ends))), [0] * len(ends), ends))
    return call.emit(relax.op.gather_elements(x, index, axis))


@converter("full.default", "full_like.default", "scalar_tensor.default", "zeros_like.default", "ones_like.default")
def fill(call: Call) -> relax.Expr:
    """A tensor filled with one number, in the type of torch's result."""
    name = call.node.target.__name__.split("_like")[0].split(".")[0]
    value = {"zeros": 0, "ones": 1}.get(name)
    if value is None:
        value = call.arguments.get("fill_value", call.arguments.get("s"))
    if not isinstance(value, int | float) or any(not isinstance(size, int) for size in call.result.shape):
        return call.upstream()
    number = call.cast(value, call.dtype)
    return number if not call.shape else call.emit(relax.op.full(call.shape, number, call.dtype))


@converter(
    "arange.start_step",
    "arange.default",
    "arange.start",
    "linspace.default",
    "eye.default",
    "eye.m",
    "tril_indices.default",
    "triu_indices.default",
)
def computed(call: Call) -> relax.Expr:
    """Tensors that depend on numbers alone: torch computes them; long ones are computed when the model runs."""
    import torch

    values = [*call.node.args, *call.node.kwargs.values()]
    if any(isinstance(value, torch.fx.Node) for value in values) or call.result.numel() > 1 << 16:
        return call.upstream()
    made = call.node.target(*call.node.args, **{**call.node.kwargs, "device": "cpu"})
    if name_of(made.dtype) == "bfloat16":
        return call.cast(relax.const(made.float().numpy()), "bfloat16")
    return relax.const(made.numpy(), name_of(made.dtype))


@converter("slice.Tensor")
def slice_(call: Call) -> relax.Expr:
    """Bounds count from the end where they are negative, and are kept inside."""
    x, axis = call.tensor("self"), call["dim"]
    axis %= max(1, len(x.ty.shape))
    size = x.ty.shape[axis]
    bounds = (call["start"], call["end"], call["step"])
    if not hasattr(size, "value") or any(value is not None and not isinstance(value, int) for value in bounds):
        return call.upstream()
    start, end, step = slice(*bounds).indices(int(size))
    if (start, end, step) == (0, int(size), 1):
        return x
    return call.emit(relax.op.strided_slice(x, [axis], [start], [max(start, end)], [step]))


@converter("repeat.default")
def repeat(call: Call) -> relax.Expr:
    """Copies along each dimension, new ones in front."""
    return call.emit(relax.op.tile(call.tensor("self"), [int(count) for count in call["repeats"]]))


@converter("bucketize.Tensor", "bucketize.Scalar", "searchsorted.Tensor", "searchsorted.Scalar")
def bucketize(call: Call) -> relax.Expr:
    """How many boundaries are below, or not above, each value; NaN is behind all."""
    right = bool(call["right"]) or call.arguments.get("side") == "right"
    if call.arguments.get("sorter") is not None:
        raise call.unsupported("a sorter is not supported; sort the sequence before it")
    name = "boundaries" if "boundaries" in call.arguments else "sorted_sequence"
    position = {a.name: k for k, a in enumerate(call.node.target._schema.arguments)}
    dtype = common(call, call.node.args[position["self"]], call.node.args[position[name]])
    x, edges = call.tensor("self", dtype), call.tensor(name, dtype)
    if len(edges.ty.shape) > 1:  # each row of the sequence goes with the same row of values
        edges = call.emit(relax.op.expand_dims(edges, -2))
    x = call.emit(relax.op.expand_dims(x, -1))
    below = relax.op.greater_equal(x, edges) if right else relax.op.greater(x, edges)
    if is_float(dtype_of(x)):
        below = relax.op.logical_or(below, call.emit(relax.op.isnan(x)))
    return call.emit(relax.op.sum(relax.op.astype(below, call.dtype), -1))


def zeros(call: Call) -> relax.Expr:
    """An empty result, for any operator."""
    return call.emit(relax.op.full(call.shape, constant(0, relax.const(0, call.dtype)), call.dtype))
