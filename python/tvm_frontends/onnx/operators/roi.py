"""Kernel of RoiAlign with the maximum over its samples."""

from __future__ import annotations

import tvm
from tvm import relax, te

from ...tensor_types import dtype_of
from .nodes import Node


def roi_maximum(node: Node) -> relax.Expr:
    """Emit RoiAlign in mode ``max``: the largest corner of all samples of a bin, each times its bilinear weight.

    ``sampling_ratio`` 0, where each region decides, is refused.
    """
    x, regions, batch = node.inputs
    samples = int(node.attribute("sampling_ratio", 0))
    if samples <= 0:
        raise node.unsupported(
            "it has mode 'max' and sampling_ratio 0, where each region decides; set a number of samples"
        )
    channels, height, width = node.shape(x, "its input X")[1:]
    bins = int(node.attribute("output_height", 1)), int(node.attribute("output_width", 1))
    count = node.shape(regions, "its regions")[0]
    scale = float(node.attribute("spatial_scale", 1.0))
    default = "half_pixel" if node.opset >= 16 else "output_half_pixel"
    half = node.attribute("coordinate_transformation_mode", default) == "half_pixel"

    def compute(a: te.Tensor, r: te.Tensor, b: te.Tensor) -> te.Tensor:
        kind = dtype_of(x)

        def number(value: float) -> tvm.tirx.Expr:
            return tvm.tirx.const(value, kind)

        def place(n: tvm.tirx.Var, axis: int, bin: tvm.tirx.Var, sample: tvm.tirx.Var) -> tvm.tirx.Expr:
            begin, end = (r[n, k] * number(scale) - number(0.5 if half else 0.0) for k in (1 - axis, 3 - axis))
            size = end - begin if half else tvm.tirx.max(end - begin, number(1.0))
            step = size / number(bins[axis])
            return begin + bin.astype(kind) * step + (sample.astype(kind) + number(0.5)) * step / number(samples)

        def corners(at: tvm.tirx.Expr, size: int) -> tuple[list[tuple[tvm.tirx.Expr, tvm.tirx.Expr]], tvm.tirx.Expr]:
            inside = tvm.tirx.all(at >= number(-1.0), at <= number(size))
            at = tvm.tirx.max(at, number(0.0))
            low = tvm.tirx.min(at.astype("int64"), tvm.tirx.const(size - 1, "int64"))
            fraction = tvm.tirx.if_then_else(low >= size - 1, number(0.0), at - low.astype(kind))
            high = tvm.tirx.min(low + 1, tvm.tirx.const(size - 1, "int64"))
            low = tvm.tirx.max(low, tvm.tirx.const(0, "int64"))
            return [(low, number(1.0) - fraction), (high, fraction)], inside

        inner = [te.reduce_axis((0, samples), name) for name in ("sy", "sx")]

        def element(n: tvm.tirx.Var, c: tvm.tirx.Var, i: tvm.tirx.Var, j: tvm.tirx.Var) -> tvm.tirx.Expr:
            rows, above = corners(place(n, 0, i, inner[0]), height)
            columns, beside = corners(place(n, 1, j, inner[1]), width)
            values = [v * w * a[b[n], c, y, x] for y, v in rows for x, w in columns]
            largest = values[0]
            for value in values[1:]:
                largest = tvm.tirx.max(largest, value)
            return te.max(tvm.tirx.if_then_else(tvm.tirx.all(above, beside), largest, number(0.0)), axis=inner)

        return te.compute((count, channels, *bins), element, name="roi_maximum")

    return node.builder.emit_te(compute, x, regions, batch, primfunc_name_hint="roi_maximum")
