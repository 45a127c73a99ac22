"""Converters of torch operators that move or select elements: indexing, slices, windows, constant tensors.

Corrections of TVM 0.27.0, ``relax/frontend/torch/base_fx_graph_translator.py``:

- ``_index_tensor``: does not count negative indices from the end; indices along dimensions that are not neighbours
  give a wrong shape.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax, te

from ..tensor_types import dtype_of
from .elementwise import common, constant
from .node_calls import Call, converter, is_float, name_of
from .selections import masked


@converter("cat.default")
def concatenate(call: Call) -> relax.Expr:
    """Convert ``cat`` to ``concat`` in the result's type.

    Operands of shape (0,), such as empty key-value caches, are left out.
    """
    operands = [value.meta["val"] for value in call.node.args[0]]
    kept = [k for k, value in enumerate(operands) if not (len(value.shape) == 1 and value.shape[0] == 0)] or [0]
    values = [call.cast(call["tensors"][k], call.dtype) for k in kept]
    return values[0] if len(values) == 1 else call.emit(relax.op.concat(values, axis=call["dim"]))


@converter("select.int")
def select(call: Call) -> relax.Expr:
    """Convert ``select`` to a slice of length 1 and ``squeeze``; negative positions count from the end."""
    x, axis = call.tensor("self"), call["dim"]
    axis %= len(x.ty.shape)
    size, at = x.ty.shape[axis], call["index"]
    if not isinstance(at, int):
        return call.upstream()
    if hasattr(size, "value"):
        at %= int(size)
    elif at < 0:
        at = size + at  # symbolic size: TVM's converter would read before the first element
    return call.emit(relax.op.squeeze(call.emit(relax.op.strided_slice(x, [axis], [at], [at + 1])), [axis]))


def _nonnegative_index(call: Call, index: relax.Expr, size: Any) -> relax.Expr:
    """Return an index as int64, with negative values counted from the end."""
    index = call.cast(index, "int64")
    if isinstance(index, tvm.ir.GenericConst) and (index.value.numpy() >= 0).all():
        return index
    counted = relax.op.add(index, relax.const(int(size), "int64"))
    return call.emit(relax.op.where(relax.op.less(index, relax.const(0, "int64")), counted, index))


@converter("index.Tensor")
def index(call: Call) -> relax.Expr:
    """Convert ``x[i, :, j]`` with index tensors to ``take`` or ``index_tensor``, and ``x[mask]``; other masks are refused.

    If the indexed dimensions are not adjacent, the selected dimensions come first, as in torch.
    """
    x = call.tensor("self")
    shape = [int(size) if hasattr(size, "value") else None for size in x.ty.shape]
    named = [(axis, value) for axis, value in enumerate(call["indices"]) if value is not None]
    masks = [value for _, value in named if dtype_of(value) in ("bool", "uint8")]
    if len(named) == len(masks) == 1 and named[0][0] == 0:
        return masked(call, x, masks[0])
    _refuse_masks(call, masks)
    if any(shape[axis] is None for axis, _ in named):
        return call.upstream()
    axes = [axis for axis, _ in named]
    indices = [_nonnegative_index(call, value, shape[axis]) for axis, value in named]
    rank = max(len(value.ty.shape) for value in indices)
    if len(axes) == 1:
        return call.emit(relax.op.take(x, indices[0], axes[0], mode="clip"))
    others = [axis for axis in range(len(shape)) if axis not in axes]
    if axes + others != sorted(axes + others):
        x = call.emit(relax.op.permute_dims(x, axes + others))
    selected = call.emit(relax.op.index_tensor(x, indices))
    if axes[-1] - axes[0] != len(axes) - 1 or axes[0] == 0:
        return selected
    before = list(range(rank, rank + axes[0]))
    after = list(range(rank + axes[0], rank + len(others)))
    return call.emit(relax.op.permute_dims(selected, [*before, *range(rank), *after]))


def _refuse_masks(call: Call, indices: list[relax.Expr]) -> None:
    if any(dtype_of(value) in ("bool", "uint8") for value in indices):
        raise call.unsupported(
            "its mask selects a number of elements that depends on the values; use torch.where instead"
        )


@converter("index_put.default")
def index_put(call: Call) -> relax.Expr:
    """Convert ``index_put``: one mask and a scalar to ``where``, index tensors to ``scatter_nd``.

    Masks with a tensor of values are refused.
    """
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
        raise call.unsupported(
            "it writes a tensor of values at a mask, whose number of true elements is unknown; use torch.where"
        )
    return _write_at(call, x, [(axis, value) for axis, value in enumerate(indices) if value is not None], values)


def _write_at(call: Call, x: relax.Expr, named: list[tuple[int, relax.Expr]], values: relax.Expr) -> relax.Expr:
    """Return a tensor with the elements at the indices replaced by ``values``, or increased by them."""
    shape = [int(size) for size in x.ty.shape]
    axes = [axis for axis, _ in named]
    others = [axis for axis in range(len(shape)) if axis not in axes]
    indices = [_nonnegative_index(call, value, shape[axis]) for axis, value in named]
    index_shape = np.broadcast_shapes(*(tuple(int(size) for size in value.ty.shape) for value in indices))
    stacked_indices = call.emit(
        relax.op.stack([call.emit(relax.op.broadcast_to(value, index_shape)) for value in indices], axis=-1)
    )
    slice_shape = [shape[axis] for axis in others]
    if axes[-1] - axes[0] == len(axes) - 1:  # adjacent axes: the selected dimensions stay in their place
        first = axes[0]
        values = call.emit(relax.op.broadcast_to(values, (*slice_shape[:first], *index_shape, *slice_shape[first:])))
        rank = len(index_shape)
        order = [*range(first, first + rank), *range(first), *range(first + rank, rank + len(slice_shape))]
        values = call.emit(relax.op.permute_dims(values, order)) if first and rank else values
    else:
        values = call.emit(relax.op.broadcast_to(values, (*index_shape, *slice_shape)))
    order = [*axes, *others]
    transposed = order != sorted(order)
    x = call.emit(relax.op.permute_dims(x, order)) if transposed else x
    kind, reduction = dtype_of(x), "add" if call["accumulate"] else "update"
    if kind == "bool":
        x, values = call.cast(x, "int8"), call.cast(values, "int8")
    updated = call.cast(call.emit(relax.op.scatter_nd(x, stacked_indices, values, reduction)), kind)
    return (
        call.emit(relax.op.permute_dims(updated, [order.index(axis) for axis in range(len(order))]))
        if transposed
        else updated
    )


@converter("masked_scatter.default")
def masked_scatter(call: Call) -> relax.Expr:
    """Convert ``masked_scatter``: the k-th true element of the mask takes the k-th element of the source."""
    x = call.emit(relax.op.broadcast_to(call.tensor("self"), call.shape))
    mask = call.emit(relax.op.broadcast_to(call.tensor("mask", "bool"), call.shape))
    source = call.emit(relax.op.reshape(call.tensor("source", call.dtype), (-1,)))
    counted = relax.op.cumsum(relax.op.reshape(call.cast(mask, "int64"), (-1,)), 0, "int64")
    indices = call.emit(relax.op.subtract(call.emit(counted), relax.const(1, "int64")))
    indices = call.emit(relax.op.reshape(relax.op.maximum(indices, relax.const(0, "int64")), call.shape))
    return call.emit(relax.op.where(mask, call.emit(relax.op.take(source, indices, 0, mode="clip")), x))


@converter("unfold.default")
def unfold(call: Call) -> relax.Expr:
    """Convert ``unfold`` to a ``take`` of constant positions; the window becomes the last dimension."""
    x, step, size = call.tensor("self"), int(call["step"]), int(call["size"])
    if not x.ty.shape:
        return call.emit(relax.op.reshape(x, call.shape))
    axis = call["dimension"] % len(x.ty.shape)
    indices = np.arange(call.shape[axis])[:, None] * step + np.arange(size)
    windows = call.emit(relax.op.take(x, relax.const(indices, "int64"), axis))
    order = [k for k in range(len(call.shape)) if k != axis + 1]
    return call.emit(relax.op.permute_dims(windows, [*order, axis + 1]))


@converter("isin.Tensor_Tensor")
def isin(call: Call) -> relax.Expr:
    """Convert ``isin``: compare every element with every test element."""
    dtype = common(call, call.node.args[0], call.node.args[1])
    x, others = call.tensor("elements", dtype), call.tensor("test_elements", dtype)
    if 0 in call.node.args[1].meta["val"].shape:
        return call.emit(relax.op.full(call.shape, call.cast(bool(call["invert"]), "bool"), "bool"))
    x = call.emit(relax.op.expand_dims(x, -1))
    same = relax.op.equal(x, call.emit(relax.op.reshape(others, (-1,))))
    present = call.cast(call.emit(relax.op.max(call.cast(call.emit(same), "uint8"), -1)), "bool")
    return call.emit(relax.op.logical_not(present)) if call["invert"] else present


@converter("gather.default")
def gather(call: Call) -> relax.Expr:
    """Convert ``gather`` to ``gather_elements``; an index smaller than the tensor cuts the tensor first."""
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
    """Convert ``full``, ``full_like``, ``zeros_like``, ``ones_like`` and ``scalar_tensor`` to ``full``."""
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
    *(
        f"{name}_window.{kind}"
        for name in ("bartlett", "blackman", "hamming", "hann")
        for kind in ("default", "periodic")
    ),
    "kaiser_window.default",
    "kaiser_window.periodic",
    "kaiser_window.beta",
)
def constant_tensor(call: Call) -> relax.Expr:
    """Convert ``arange``, ``linspace``, ``eye``, ``tril_indices``, ``triu_indices`` and windows to constants of torch.

    TVM's converter handles operands that are tensors or symbols, and results of more than 65,536 elements.
    """
    import torch

    values = [*call.node.args, *call.node.kwargs.values()]
    if any(isinstance(value, torch.fx.Node) for value in values) or call.result.numel() > 1 << 16:
        return call.upstream()
    tensor = call.node.target(*call.node.args, **{**call.node.kwargs, "device": "cpu"})
    if name_of(tensor.dtype) == "bfloat16":
        return call.cast(relax.const(tensor.float().numpy()), "bfloat16")
    return relax.const(tensor.numpy(), name_of(tensor.dtype))


@converter("slice.Tensor")
def slice_(call: Call) -> relax.Expr:
    """Convert a slice: negative bounds count from the end, and bounds are clamped to the dimension."""
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


_VIEWS = frozenset({
    "_unsafe_view.default", "alias.default", "as_strided.default", "detach.default", "diagonal.default", "expand.default",
    "permute.default", "reshape.default", "select.int", "slice.Tensor", "squeeze.default", "squeeze.dim", "squeeze.dims",
    "t.default", "transpose.int", "unfold.default", "unsqueeze.default", "view.default",
})  # fmt: skip
"""Operators whose result shares the memory of its first operand."""
_SEVERAL_VIEWS = frozenset({"split.Tensor", "split_with_sizes.default", "unbind.int"})
"""Operators all of whose results share the memory of the first operand."""


def _base(node: Any) -> Any:
    """Return the node whose memory a tensor shares, and that is itself no view."""
    while True:
        name = getattr(node.target, "__name__", "")
        if name in _VIEWS:
            node = node.args[0]
        elif name == "getitem" and getattr(node.args[0].target, "__name__", "") in _SEVERAL_VIEWS:
            node = node.args[0].args[0]
        else:
            return node


def _memory_order(call: Call, value: Any) -> list[int]:
    """Return the dimensions of a tensor of torch, outermost in memory first.

    Raises
    ------
    UnsupportedOperator
        Its elements do not fill their part of the memory, each in its own place.
    """
    order = sorted(range(value.dim()), key=lambda axis: -value.stride(axis) if value.shape[axis] > 1 else 0)
    expected = 1
    for axis in reversed(order):
        if value.shape[axis] > 1 and value.stride(axis) != expected:
            raise call.unsupported("the tensor whose memory it reads has gaps in memory; make it contiguous before")
        expected *= value.shape[axis]
    return order


def _places(call: Call, value: Any, sizes: tuple[int, ...]) -> np.ndarray:
    """Return the positions that ``as_strided`` reads, in the elements of a tensor in the order of memory."""
    offset = call["storage_offset"]
    if offset is None:
        offset = call.node.args[0].meta["val"].storage_offset()
    places = np.full(sizes, offset - value.storage_offset())
    for axis, (size, stride) in enumerate(zip(sizes, call["stride"], strict=True)):
        places += np.arange(size).reshape([-1 if k == axis else 1 for k in range(len(sizes))]) * int(stride)
    if places.size and (places.min() < 0 or places.max() >= value.numel()):
        raise call.unsupported("it reads memory beside the tensor that it is a view of")
    return places


def _in_memory_order(call: Call, x: relax.Expr, order: list[int]) -> relax.Expr:
    """Return the elements of a tensor in the order of memory, in one dimension."""
    moved = x if order == sorted(order) else call.emit(relax.op.permute_dims(x, order))
    return call.emit(relax.op.reshape(moved, (-1,)))


@converter("as_strided.default", "as_strided_copy.default")
def as_strided(call: Call) -> relax.Expr:
    """Convert ``as_strided``: a ``take`` of constant positions from the memory that its operand shares.

    That memory is the one of the tensor behind all views, for instance of the whole tensor where the operand is a slice.
    """
    base = _base(call.node.args[0])
    memory = base.meta["val"]
    if not all(isinstance(size, int) for size in (*memory.shape, memory.storage_offset())):
        raise call.unsupported("sizes are symbolic; export the program without dynamic_shapes")
    places = _places(call, memory, call.shape)
    flat = _in_memory_order(call, call.importer.env[base], _memory_order(call, memory))
    first, count = (int(places.flat[0]) if places.size else 0), places.size
    if np.array_equal(places.reshape(-1), np.arange(first, first + count)):
        part = flat if count == memory.numel() else relax.op.strided_slice(flat, [0], [first], [first + count])
        return call.emit(relax.op.reshape(call.emit(part), call.shape))
    return call.emit(relax.op.take(flat, relax.const(places, "int64"), 0, mode="clip"))


@converter("as_strided_scatter.default")
def as_strided_scatter(call: Call) -> relax.Expr:
    """Convert ``as_strided_scatter``: write at constant positions of the operand's memory."""
    x, value = call.tensor("self"), call.node.args[0].meta["val"]
    source = call.tensor("src", call.dtype)
    order = _memory_order(call, value)
    places = _places(call, value, tuple(call["size"]))
    flat = _in_memory_order(call, x, order)
    written = call.emit(relax.op.reshape(source, (-1,)))
    result = call.emit(relax.op.scatter_elements(flat, relax.const(places.reshape(-1), "int64"), written, 0, "update"))
    result = call.emit(relax.op.reshape(result, [call.shape[axis] for axis in order]))
    return call.emit(relax.op.permute_dims(result, np.argsort(order).tolist())) if order else result


@converter("view.dtype")
def view_as_type(call: Call) -> relax.Expr:
    """Convert ``view`` to another type: the same bytes. The last dimension grows or shrinks with the width of the type."""
    x, to = call.tensor("self"), call.dtype
    kind = dtype_of(x)
    if "bool" in (kind, to):
        x = call.cast(x, "uint8") if kind == "bool" else x
        kind = dtype_of(x)
    of, bits = (int(tvm.DataType("uint8" if name == "bool" else name).bits) for name in (kind, to))
    shape = call.shape

    def compute(a: te.Tensor) -> te.Tensor:
        def read(*i: Any) -> tvm.tirx.Expr:
            return a(*i) if kind == f"uint{of}" else tvm.tirx.reinterpret(f"uint{of}", a(*i))

        def element(*i: tvm.tirx.Var) -> tvm.tirx.Expr:
            if bits == of:
                raw = read(*i)
            elif bits < of:
                share = of // bits
                shift = (tvm.tirx.floormod(i[-1], share) * bits).astype(f"uint{of}")
                raw = (read(*i[:-1], tvm.tirx.floordiv(i[-1], share)) >> shift).astype(f"uint{bits}")
            else:
                raw = tvm.tirx.const(0, f"uint{bits}")
                for k in range(bits // of):
                    part = read(*i[:-1], i[-1] * (bits // of) + k).astype(f"uint{bits}")
                    raw = raw | (part << tvm.tirx.const(k * of, f"uint{bits}"))
            if to == "bool":
                return raw != tvm.tirx.const(0, "uint8")
            return raw if to == f"uint{bits}" else tvm.tirx.reinterpret(to, raw)

        return te.compute(shape, element, name="view_as_type")

    return call.emit_te(compute, x, name="view_as_type")


@converter("repeat.default")
def repeat(call: Call) -> relax.Expr:
    """Convert ``repeat`` to ``tile``."""
    return call.emit(relax.op.tile(call.tensor("self"), [int(count) for count in call["repeats"]]))


@converter("bucketize.Tensor", "bucketize.Scalar", "searchsorted.Tensor", "searchsorted.Scalar")
def bucketize(call: Call) -> relax.Expr:
    """Convert ``bucketize`` and ``searchsorted``: count the boundaries below each value. A sorter is refused.

    With ``right``, boundaries equal to the value count, too. NaN comes after all boundaries.
    """
    right = bool(call["right"]) or call.arguments.get("side") == "right"
    if call.arguments.get("sorter") is not None:
        raise call.unsupported("its argument sorter is not supported; sort the sequence before it")
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
    """Return an empty tensor as the result of an operator."""
    return call.emit(relax.op.full(call.shape, constant(0, relax.const(0, call.dtype)), call.dtype))
