"""Converters of casts, and of operators that create, index or rearrange tensors.

Corrections of TVM 0.27.0, ``relax/frontend/onnx/onnx_frontend.py``:

- ``Cast``: casts to 8-bit floating point neither round nor saturate, and types below a byte are not known.
- ``Unsqueeze``: fails on axes that are a single number, which functions of the standard write.
- ``EyeLike``: fails if its type differs from that of the input.
- ``SpaceToDepth``: ignores the attribute ``mode``.
- ``Pad``: in mode ``reflect``, widths of the axis or more read beyond the tensor.
- ``Flatten``: with a size of 0 asks for a reshape to an unknown size.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import onnx
import tvm
from tvm import relax, te

from ...errors import MissingConstant
from ...tensor_types import dtype_of, known_sizes
from ..widen import WIDER
from .nodes import Node, constant_of, converter
from .small_floats import FLOAT4, SMALL_FLOATS, decode, encode, round_to_float4
from .upstream import convert_upstream

NUMBERS = {
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32",
    "float64",
}  # fmt: skip
"""Types between which casts have C's semantics."""


@converter("Cast")
def cast(node: Node) -> relax.Expr:
    """Convert Cast between all numeric types; values of types below a byte are kept in a wider type."""
    to = _type(node.attribute("to"))
    x = node.input(0)
    if isinstance(x, relax.ShapeExpr):
        return convert_upstream(node)
    known = dtype_of(x)
    for kind in (to, known):
        if kind not in (allowed := NUMBERS | SMALL_FLOATS | WIDER.keys()):
            raise node.unsupported(
                f"it casts {known} to {to}; types are {', '.join(sorted(allowed))}: export the model with one of these"
            )
    if to in WIDER:
        return _narrow(node, decode(node, x) if known in SMALL_FLOATS else x, to)
    if known == to:
        return x
    if known in SMALL_FLOATS:
        x = decode(node, x)
    if to in SMALL_FLOATS:
        wide = node.emit(relax.op.astype(x, "float32"))
        return encode(node, wide, to, bool(node.attribute("saturate", 1)), node.attribute("round_mode", "up"))
    return relax.op.astype(x, to) if known in SMALL_FLOATS else convert_upstream(node)


def _type(number: int) -> str:
    """Return NumPy's name of an ONNX type number."""
    return str(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number)).name)


def _narrow(node: Node, x: relax.Expr, to: str) -> relax.Expr:
    """Return values of a type below a byte, in the wider type: integers keep their lowest bits, as in ml_dtypes."""
    if to == FLOAT4:
        return round_to_float4(node, node.emit(relax.op.astype(x, "float32")))
    bits = int(to.lstrip("uint"))
    whole = x if dtype_of(x).startswith(("int", "uint", "bool")) else node.emit(relax.op.astype(x, "int32"))
    low = node.emit(relax.op.astype(whole, "int32"))
    low = node.emit(relax.op.bitwise_and(low, relax.const((1 << bits) - 1, "int32")))
    if to.startswith("int"):
        top = relax.const(1 << (bits - 1), "int32")
        low = node.emit(relax.op.subtract(node.emit(relax.op.bitwise_xor(low, top)), top))
    return node.emit(relax.op.astype(low, WIDER[to]))


@converter("Unsqueeze")
def unsqueeze(node: Node) -> relax.Expr:
    """Convert Unsqueeze; its axes may be a scalar, as in function bodies of the standard."""
    axes = node.constant(1)
    if axes is None or isinstance(node.input(0), relax.ShapeExpr):
        return convert_upstream(node)
    return relax.op.expand_dims(node.input(0), [int(axis) for axis in np.atleast_1d(axes)])


@converter("EyeLike")
def eye_like(node: Node) -> relax.Expr:
    """Convert EyeLike of any type to a constant."""
    from tvm.relax.frontend.onnx.onnx_frontend import get_type

    x = node.input(0)
    rows, columns = node.shape(x, "its input")
    kind = node.attribute("dtype")
    dtype = dtype_of(x) if kind is None else get_type(kind)
    return relax.const(np.eye(rows, columns, node.attribute("k", 0)).astype(dtype), dtype)


@converter("SpaceToDepth")
def space_to_depth(node: Node) -> relax.Expr:
    """Convert SpaceToDepth: blocks become channels, in the order of ``mode`` (DCR or CRD)."""
    x, block = node.input(0), int(node.attribute("blocksize"))
    n, c, h, w = node.sizes(x, "its input")
    if any(isinstance(size, int) and size % block for size in (h, w)):
        raise node.unsupported(f"height {h} and width {w} cannot be divided by blocksize {block}")
    parts = node.emit(relax.op.reshape(x, (n, c, h // block, block, w // block, block)))
    order = [0, 1, 3, 5, 2, 4] if node.attribute("mode", "DCR") == "CRD" else [0, 3, 5, 1, 2, 4]
    moved = node.emit(relax.op.permute_dims(parts, order))
    return relax.op.reshape(moved, (n, c * block * block, h // block, w // block))


@converter("Pad")
def pad(node: Node) -> relax.Expr:
    """Convert Pad; a reflection as wide as its axis or wider goes to and fro, as in NumPy."""
    x, mode = node.input(0), node.attribute("mode", "constant")
    sizes, widths = known_sizes(x), node.constant(1) if node.opset >= 11 else np.array(node.attribute("pads"))
    if mode == "constant" or sizes is None or widths is None:
        return convert_upstream(node)
    named = node.constant(3)
    axes = list(range(len(sizes))) if named is None else [int(axis) % len(sizes) for axis in named.reshape(-1)]
    ends = {axis: (int(a), int(b)) for axis, (a, b) in zip(axes, widths.reshape(2, -1).T, strict=True)}
    if any(sizes[axis] == 0 and max(pair) > 0 for axis, pair in ends.items()):
        raise node.unsupported(f"it pads an axis without elements in mode {mode!r}; use mode 'constant'")
    if mode != "reflect" or all(max(pair) < (sizes[axis] or 0) for axis, pair in ends.items()):
        return convert_upstream(node)

    def compute(a: te.Tensor) -> te.Tensor:
        def element(*i: tvm.tirx.Var) -> tvm.tirx.Expr:
            source = list(i)
            for axis, (before, _) in ends.items():
                period = 2 * a.shape[axis] - 2
                place = tvm.tirx.floormod(i[axis] - before, tvm.tirx.max(period, tvm.tirx.const(1, "int64")))
                source[axis] = tvm.tirx.min(place, period - place)
            return a(*source)

        shape = [size + sum(ends.get(axis, (0, 0))) for axis, size in enumerate(a.shape)]
        return te.compute(shape, element, name="reflect")

    return node.builder.emit_te(compute, x, primfunc_name_hint="reflect")


@converter("TensorScatter")
def tensor_scatter(node: Node) -> relax.Expr:
    """Convert TensorScatter: write an update into a cache at a position for each sequence; ``circular`` wraps around."""
    cache, update, write_indices = node.input(0), node.input(1), node.input(2)
    shape, new = node.shape(cache, "its past cache"), node.shape(update, "its update")
    axis = node.attribute("axis", -2) % len(shape)
    circular = node.attribute("mode", "linear") == "circular"
    if write_indices is None:
        write_indices = relax.op.zeros((shape[0],), "int64")

    def compute(cache_tensor: te.Tensor, update_tensor: te.Tensor, starts: te.Tensor) -> te.Tensor:
        def element(*i: tvm.tirx.Var) -> tvm.tirx.Expr:
            distance = i[axis] - starts[i[0]].astype("int64")
            if circular:
                distance = tvm.tirx.floormod(distance, shape[axis])
            inside = tvm.tirx.all(distance >= 0, distance < new[axis])
            source = tuple(distance if k == axis else i[k] for k in range(len(shape)))
            return tvm.tirx.if_then_else(inside, update_tensor[source], cache_tensor(*i))

        return te.compute(shape, element, name="tensor_scatter")

    return node.builder.emit_te(compute, cache, update, node.emit(write_indices), primfunc_name_hint="tensor_scatter")


@converter("Col2Im")
def col2im(node: Node) -> relax.Expr:
    """Convert Col2Im with constant sizes: sum overlapping blocks at their positions in the image."""
    x = node.input(0)
    constants = [node.constant(i) for i in (1, 2)]
    if constants[0] is None or constants[1] is None:
        raise node.unsupported("the sizes of the image and of the blocks are not constants", MissingConstant())
    image, block = (tuple(int(v) for v in sizes) for sizes in constants if sizes is not None)
    batch, rows, _ = node.shape(x, "its input")
    rank = len(image)
    pads = node.attribute("pads", (0,) * (2 * rank))
    strides, dilations = node.attribute("strides", (1,) * rank), node.attribute("dilations", (1,) * rank)
    counts = [
        (image[d] + pads[d] + pads[d + rank] - dilations[d] * (block[d] - 1) - 1) // strides[d] + 1 for d in range(rank)
    ]
    taps = math.prod(block)

    def compute(a: te.Tensor) -> te.Tensor:
        inner = [te.reduce_axis((0, size), f"k{d}") for d, size in enumerate(block)]

        def element(n: tvm.tirx.Var, c: tvm.tirx.Var, *at: tvm.tirx.Var) -> tvm.tirx.Expr:
            row, column, inside = 0, 0, []
            for d in range(rank):
                moved = at[d] + pads[d] - inner[d] * dilations[d]
                place = tvm.tirx.floordiv(moved, strides[d])
                inside += [moved >= 0, tvm.tirx.floormod(moved, strides[d]) == 0, place < counts[d]]
                row, column = row * block[d] + inner[d], column * counts[d] + place
            value = tvm.tirx.if_then_else(
                tvm.tirx.all(*inside), a[n, c * taps + row, column], tvm.tirx.const(0, a.dtype)
            )
            return te.sum(value, axis=inner)

        return te.compute((batch, rows // taps, *image), element, name="col2im")

    return node.builder.emit_te(compute, x, primfunc_name_hint="col2im")


@converter("Det")
def determinant(node: Node) -> relax.Expr:
    """Convert Det of up to 4 rows to the sum over all permutations."""
    x = node.input(0)
    shape = node.shape(x, "its input X")
    n = shape[-1]
    if n > 4:
        raise node.unsupported(f"its matrices have {n} rows; up to 4 are supported")

    def compute(a: te.Tensor) -> te.Tensor:
        def element(*i: tvm.tirx.Var) -> tvm.tirx.Expr:
            total = tvm.tirx.const(0, a.dtype)
            for order in itertools.permutations(range(n)):
                swaps = sum(order[p] > order[q] for p in range(n) for q in range(p + 1, n))
                term = tvm.tirx.const((-1) ** swaps, a.dtype)
                for row, column in enumerate(order):
                    term = term * a[(*i, row, column)]
                total = total + term
            return total

        return te.compute(shape[:-2], element, name="determinant")

    return node.builder.emit_te(compute, x, primfunc_name_hint="determinant")


@converter("Gather")
def gather(node: Node) -> relax.Expr:
    """Convert Gather to ``take``, with negative indices counted from the end of a static size."""
    x, indices = node.input(0), node.input(1)
    if x is None or isinstance(x, relax.ShapeExpr) or isinstance(indices, relax.ShapeExpr):
        return convert_upstream(node)
    if not isinstance(x.ty.shape, relax.ShapeExpr):
        return convert_upstream(node)
    axis = int(node.attribute("axis", 0))
    size, known = x.ty.shape.values[axis], constant_of(indices)
    if not isinstance(size, tvm.tirx.IntImm) or (known is not None and constant_of(x) is not None):
        return convert_upstream(node)
    if known is not None:
        values = known.astype(np.int64)
        if values.size and not (-int(size) <= values.min() and values.max() < int(size)):
            raise node.unsupported(
                f"its indices are {values.min()} to {values.max()}; axis {axis} has {int(size)} elements"
            )
        nonnegative = relax.const(np.where(values < 0, values + int(size), values).astype(known.dtype))
    else:
        from_end = relax.op.add(indices, relax.const(int(size), dtype_of(indices)))
        nonnegative = node.emit(
            relax.op.where(relax.op.less(indices, relax.const(0, dtype_of(indices))), from_end, indices)
        )
    return relax.op.take(x, nonnegative, axis)


@converter("GatherND")
def gather_nd(node: Node) -> relax.Expr:
    """Convert GatherND; indices are cast to int64, the only type that TVM's converter takes."""
    indices = node.input(1)
    if isinstance(indices, relax.ShapeExpr) or dtype_of(indices) == "int64":
        return convert_upstream(node)
    wide = node.emit(relax.op.astype(indices, "int64"))
    return convert_upstream(replace(node, inputs=(node.input(0), wide)))


@converter("OneHot")
def one_hot(node: Node) -> relax.Expr:
    """Convert OneHot of a constant depth; indices outside of it give a row of the off value."""
    indices, depth, values = node.input(0), node.constant(1), node.input(2)
    shape, count = node.sizes(indices, "its indices"), int(np.asarray(depth).reshape(-1)[0])
    axis = int(node.attribute("axis", -1)) % (len(shape) + 1)
    nonnegative = node.emit(relax.op.astype(indices, "int64"))
    counted = relax.op.add(nonnegative, relax.const(count, "int64"))
    nonnegative = node.emit(relax.op.where(relax.op.less(nonnegative, relax.const(0, "int64")), counted, nonnegative))
    positions = np.arange(count, dtype="int64").reshape([count if d == axis else 1 for d in range(len(shape) + 1)])
    chosen = node.emit(relax.op.equal(node.emit(relax.op.expand_dims(nonnegative, axis)), relax.const(positions)))
    off, on = (node.emit(relax.op.take(values, relax.const(position, "int64"), 0)) for position in (0, 1))
    return relax.op.where(chosen, on, off)


@converter("Trilu")
def trilu(node: Node) -> relax.Expr:
    """Convert Trilu, also of empty matrices, on which TVM's converter fails."""
    x = node.input(0)
    empty = any(isinstance(size, int) and size == 0 for size in node.sizes(x, "its input"))
    return x if empty else convert_upstream(node)


@converter("Flatten")
def flatten(node: Node) -> relax.Expr:
    """Convert Flatten, also with a size of 0, which TVM's converter reads as unknown."""
    x = node.input(0)
    shape = node.shape(x, "its input")
    axis = int(node.attribute("axis", 1))
    if not -len(shape) <= axis <= len(shape):
        raise node.unsupported(f"its axis {axis} is outside of a tensor of rank {len(shape)}")
    axis += len(shape) if axis < 0 else 0
    flat = (math.prod(shape[:axis]), math.prod(shape[axis:]))
    if 0 in flat:  # a reshape reads 0 as the size that the input has there
        return relax.op.zeros(flat, dtype_of(x))
    return relax.op.reshape(x, flat)
