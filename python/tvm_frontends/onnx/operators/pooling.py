"""Converters of pooling with positions, regions of interest, and transposed convolutions with a stated size.

Corrections of TVM 0.27.0, ``relax/frontend/onnx/onnx_frontend.py``:

- ``MaxPool``: fails if the second output, the positions, is used; its padding by ``auto_pad`` is below 0 if windows lie
  apart.
- ``LpPool``: with ``ceil_mode`` scales up windows that reach beyond the padding.
- ``GlobalLpPool``: computes powers in the type of the input, so norms of float32 numbers around 1e30 are infinite.
- ``GlobalMaxPool``: loses NaN, and the maximum of minus infinities is -3.4e38.
- ``MaxRoiPool``: loses NaN, and the maximum of minus infinities is -3.4e38.
- ``MaxUnpool``: fails if the input ``output_shape`` is given.
- ``RoiAlign``: with the mode ``max`` interpolates before it takes the maximum; ONNX takes the maximum of the weighted
  corners. Half a pixel is subtracted before regions are scaled; ONNX subtracts it from the scaled ones.
- ``ConvTranspose``: ignores the attribute ``output_shape``.
- ``GridSample``: gives float32 for images of integers and halves.
"""

from __future__ import annotations

import math
from dataclasses import replace

import tvm
from tvm import relax, te

from ...tensor_types import dtype_of
from ...vector_norms import WIDER, vector_norm
from .elementwise import scalar
from .nodes import Node, converter
from .reductions import largest_or_least
from .roi import roi_maximum
from .upstream import convert_upstream


@converter("MaxPool")
def max_pool(node: Node) -> relax.Expr | list[relax.Expr]:
    """Convert MaxPool; if its second output is used, a kernel computes the flat position of the first maximum."""
    node = _with_pads(node)
    if not node.wants(1):
        return convert_upstream(node)
    x = node.input(0)
    # With `ceil_mode`, whether the last window starts in the padding depends on the size.
    shape = (node.shape if node.attribute("ceil_mode", 0) else node.sizes)(x, "its input X")
    kernel = node.attribute("kernel_shape")
    rank = len(kernel)
    strides, dilations = node.attribute("strides", (1,) * rank), node.attribute("dilations", (1,) * rank)
    before, sizes = _windows(node, shape[2:], kernel, strides, dilations)
    kind = dtype_of(x)
    floating = kind.startswith(("float", "bfloat"))
    column_major = bool(node.attribute("storage_order", 0))

    value = node.emit(convert_upstream(node))

    def compute(a: te.Tensor, maximum: te.Tensor) -> te.Tensor:
        inner = [te.reduce_axis((0, size), f"k{d}") for d, size in enumerate(kernel)]
        elsewhere = tvm.tirx.const(2**63 - 1, "int64")

        def element(n: tvm.tirx.Var, c: tvm.tirx.Var, *at: tvm.tirx.Var) -> tvm.tirx.Expr:
            place = [at[d] * strides[d] + inner[d] * dilations[d] - before[d] for d in range(rank)]
            inside = tvm.tirx.all(*(p >= 0 for p in place), *(p < s for p, s in zip(place, shape[2:], strict=True)))
            flat = 0
            for d in range(rank)[::-1] if column_major else range(rank):
                flat = flat * shape[2 + d] + place[d]
            flat = ((n * shape[1] + c) * math.prod(shape[2:]) + flat).astype("int64")
            one = a(n, c, *place)
            chosen = tvm.tirx.EQ(one, maximum(n, c, *at))
            if floating:  # NaN is the maximum of a window with NaN, but equals nothing
                chosen = tvm.tirx.any(chosen, _is_nan(one) == 1)
            return te.min(
                tvm.tirx.if_then_else(inside, tvm.tirx.Select(chosen, flat, elsewhere), elsewhere), axis=inner
            )

        return te.compute((*shape[:2], *sizes), element, name="first_maximum")

    return [value, node.builder.emit_te(compute, x, value, primfunc_name_hint="first_maximum")]


def _is_nan(value: tvm.tirx.Expr) -> tvm.tirx.Expr:
    """Return 1 for NaN, else 0: NaN is not at most infinity."""
    one, zero = tvm.tirx.const(1, "int32"), tvm.tirx.const(0, "int32")
    return tvm.tirx.Select(value <= tvm.tirx.infinity(value.ty.dtype), zero, one)


def _windows(
    node: Node, shape: tuple[int, ...], kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...]
) -> tuple[list[int], list[int]]:
    """Return the padding at the start, and the number of windows, of each axis."""
    rank = len(kernel)
    pads = node.attribute("pads", (0,) * (2 * rank))
    automatic = node.attribute("auto_pad", "NOTSET")
    round_up = bool(node.attribute("ceil_mode", 0))
    before, sizes = [], []
    for d in range(rank):
        reach = (kernel[d] - 1) * dilations[d] + 1
        if automatic in ("SAME_UPPER", "SAME_LOWER"):
            size = -(-shape[d] // strides[d])
            total = max(0, (size - 1) * strides[d] + reach - shape[d])
            before.append(total // 2 if automatic == "SAME_UPPER" else total - total // 2)
            sizes.append(size)
            continue
        first, last = (0, 0) if automatic == "VALID" else (pads[d], pads[d + rank])
        span = shape[d] + first + last - reach
        size = (-(-span // strides[d]) if round_up else span // strides[d]) + 1
        if round_up and (size - 1) * strides[d] >= shape[d] + first:
            size -= 1  # no window may start in the padding at the end
        before.append(first)
        sizes.append(size)
    return before, sizes


def _with_pads(node: Node) -> Node:
    """Return the node with the padding that ``auto_pad`` stands for, which TVM takes below 0 if windows lie apart."""
    if node.attribute("auto_pad", "NOTSET") not in ("SAME_UPPER", "SAME_LOWER"):
        return node
    shape, kernel = node.shape(node.input(0), "its input X")[2:], node.attribute("kernel_shape")
    strides, dilations = (node.attribute(name, (1,) * len(kernel)) for name in ("strides", "dilations"))
    before, sizes = _windows(node, shape, kernel, strides, dilations)
    after = [
        max(0, (sizes[d] - 1) * strides[d] + (kernel[d] - 1) * dilations[d] + 1 - shape[d] - before[d])
        for d in range(len(kernel))
    ]
    attributes = {name: value for name, value in node.attributes.items() if name not in ("auto_pad", "ceil_mode")}
    return replace(node, attributes={**attributes, "pads": (*before, *after)})


@converter("GlobalMaxPool")
def global_max_pool(node: Node) -> relax.Expr:
    """Convert GlobalMaxPool to ReduceMax over the spatial axes."""
    x = node.input(0)
    rank = len(node.sizes(x, "its input X"))
    if not dtype_of(x).startswith(("float", "bfloat")):
        return convert_upstream(node)
    return largest_or_least(node, x, list(range(2, rank)), keep=True, largest=True)


@converter("LpPool")
def lp_pool(node: Node) -> relax.Expr:
    """Convert LpPool; with ``ceil_mode`` the input is padded with zeros, so that all windows are whole.

    Powers are computed in a wider type (`WIDER`), so that they are in range where the norm is.
    """
    node, kind = _with_pads(node), dtype_of(node.input(0))
    if kind in WIDER:
        wide = node.emit(relax.op.astype(node.input(0), WIDER[kind]))
        return relax.op.astype(node.emit(lp_pool(replace(node, inputs=(wide,)))), kind)
    if not node.attribute("ceil_mode", 0):
        return convert_upstream(node)
    x = node.input(0)
    shape, kernel = node.shape(x, "its input X"), node.attribute("kernel_shape")
    rank = len(kernel)
    strides, dilations = node.attribute("strides", (1,) * rank), node.attribute("dilations", (1,) * rank)
    before, sizes = _windows(node, shape[2:], kernel, strides, dilations)
    widths = [0, 0, 0, 0]
    for d in range(rank):
        reach = (sizes[d] - 1) * strides[d] + (kernel[d] - 1) * dilations[d] + 1
        widths += [before[d], max(0, reach - shape[2 + d] - before[d])]
    padded = node.emit(relax.op.nn.pad(x, widths))
    attributes = {
        name: value for name, value in node.attributes.items() if name not in ("ceil_mode", "pads", "auto_pad")
    }
    return convert_upstream(replace(node, inputs=(padded,)), attributes)


@converter("GlobalLpPool")
def global_lp_pool(node: Node) -> relax.Expr:
    """Convert GlobalLpPool to norms over the spatial axes."""
    x = node.input(0)
    axes = list(range(2, len(node.sizes(x, "its input X"))))
    return vector_norm(node.emit, x, float(node.attribute("p", 2)), axes, keep=True)


@converter("MaxUnpool")
def max_unpool(node: Node) -> relax.Expr:
    """Convert MaxUnpool; a larger ``output_shape`` is filled with zeros, a smaller one is refused."""
    wanted = node.constant(2)
    unpooled = convert_upstream(replace(node, inputs=node.inputs[:2]))
    if wanted is None:
        return unpooled
    extra = [int(w) - size for w, size in zip(wanted, node.shape(unpooled, "its result"), strict=True)]
    if min(extra) < 0:
        raise node.unsupported(
            f"its output_shape {wanted.tolist()} is smaller than the result by its pooling attributes"
        )
    return relax.op.nn.pad(unpooled, [width for after in extra for width in (0, after)])


@converter("MaxRoiPool")
def max_roi_pool(node: Node) -> relax.Expr:
    """Convert MaxRoiPool; a second pooling tells which regions have NaN, and which have minus infinities only."""
    x = node.input(0)
    kind = dtype_of(x)

    def number(value: float) -> relax.Expr:
        return relax.const(value, kind)

    def choose(condition: relax.Expr, first: relax.Expr, second: relax.Expr) -> relax.Expr:
        return node.emit(relax.op.where(node.emit(condition), first, second))

    marks = choose(relax.op.greater(x, number(-math.inf)), number(1), number(0))
    marks = choose(relax.op.isnan(x), number(2), marks)
    value = node.emit(convert_upstream(node))
    mark = node.emit(convert_upstream(replace(node, inputs=(marks, *node.inputs[1:]))))
    filled = node.emit(relax.op.less(value, number(0)))  # and no empty region, which gives 0
    nothing = relax.op.logical_and(filled, node.emit(relax.op.less(mark, number(1))))
    value = choose(nothing, number(-math.inf), value)
    return choose(relax.op.greater(mark, number(1)), number(math.nan), value)


@converter("RoiAlign")
def roi_align(node: Node) -> relax.Expr:
    """Convert RoiAlign: TVM's converter for the mean, `roi_maximum` for the maximum."""
    if node.attribute("mode", "avg") != "avg":
        return roi_maximum(node)
    scale = float(node.attribute("spatial_scale", 1.0))
    default = "half_pixel" if node.opset >= 16 else "output_half_pixel"
    if scale == 1 or node.attribute("coordinate_transformation_mode", default) != "half_pixel":
        return convert_upstream(node)
    x, regions, *others = node.inputs
    moved = node.emit(relax.op.add(regions, scalar(0.5 - 0.5 / scale, regions)))  # TVM subtracts 0.5 before it scales
    return convert_upstream(replace(node, inputs=(x, moved, *others)))


@converter("GridSample")
def grid_sample(node: Node) -> relax.Expr:
    """Convert GridSample; other images than float32 ones keep their type, integers rounded towards zero, as NumPy casts.

    Integers and halves are sampled in float32.
    """
    x = node.input(0)
    kind = dtype_of(x)
    if kind in ("float32", "float64"):
        return convert_upstream(node)
    wide = node.emit(relax.op.astype(x, "float32"))
    return relax.op.astype(node.emit(convert_upstream(replace(node, inputs=(wide, *node.inputs[1:])))), kind)


@converter("ConvTranspose")
def conv_transpose(node: Node) -> relax.Expr:
    """Convert ConvTranspose; ``output_shape`` determines the padding.

    With dilations, halves are multiplied in float32, for which there is a library: TVM's own kernel also multiplies by the
    zeros that it puts between the weights, which makes NaN of infinity.
    """
    kind = dtype_of(node.input(0))
    if kind in ("float16", "bfloat16") and any(each > 1 for each in node.attribute("dilations", ())):
        wide = tuple(None if each is None else node.emit(relax.op.astype(each, "float32")) for each in node.inputs)
        return relax.op.astype(node.emit(conv_transpose(replace(node, inputs=wide))), kind)
    wanted = node.attribute("output_shape")
    if wanted is None:
        return convert_upstream(node)
    shape = node.shape(node.input(0), "its input X")[2:]
    kernel = node.shape(node.input(1), "its weights W")[2:]
    rank = len(shape)
    wanted = wanted[-rank:]
    strides, dilations = node.attribute("strides", (1,) * rank), node.attribute("dilations", (1,) * rank)
    extra = list(node.attribute("output_padding", (0,) * rank))
    upper = node.attribute("auto_pad", "NOTSET") == "SAME_UPPER"
    pads = [0] * (2 * rank)
    for d in range(rank):
        total = strides[d] * (shape[d] - 1) + extra[d] + (kernel[d] - 1) * dilations[d] + 1 - wanted[d]
        if total < 0:
            extra[d], total = extra[d] - total, 0
        half = total // 2 if upper else total - total // 2
        pads[d], pads[d + rank] = half, total - half
    attributes = {k: v for k, v in node.attributes.items() if k not in ("output_shape", "auto_pad")}
    return convert_upstream(node, {**attributes, "pads": tuple(pads), "output_padding": tuple(extra)})
