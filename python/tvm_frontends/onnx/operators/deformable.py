"""Converter of DeformConv: a convolution with shifted sampling positions."""

from __future__ import annotations

import tvm
from tvm import relax, te

from ...tensor_types import dtype_of
from .nodes import Node, converter


@converter("DeformConv")
def deform_conv(node: Node) -> relax.Expr:
    """Convert DeformConv of images in float32 or float64 to one kernel.

    Taps between pixels are bilinear; taps outside of the image are 0.
    """
    x, weights, offset, bias, mask = (node.input(i) for i in range(5))
    shape, kernel = node.shape(x, "its input X"), node.shape(weights, "its weights W")
    if len(shape) != 4 or dtype_of(x) not in ("float32", "float64"):
        raise node.unsupported(
            f"its input has {len(shape)} axes of {dtype_of(x)}; allowed are 4 axes of float32 or float64"
        )
    arguments = [x, weights, offset] + ([mask] if mask is not None else [])
    result = node.builder.emit_te(_Taps(node, shape, kernel), *arguments, primfunc_name_hint="deform_conv")
    return result if bias is None else relax.op.add(result, relax.op.reshape(bias, (1, kernel[0], 1, 1)))


class _Taps:
    """The tensor expression of DeformConv for a node's attributes."""

    def __init__(self, node: Node, shape: tuple[int, ...], kernel: tuple[int, ...]) -> None:
        self.shape, self.kernel = shape, kernel
        self.strides, self.dilations = node.attribute("strides", (1, 1)), node.attribute("dilations", (1, 1))
        self.pads = node.attribute("pads", (0, 0, 0, 0))
        self.groups, self.offset_groups = node.attribute("group", 1), node.attribute("offset_group", 1)
        self.size = node.shape(node.input(2), "its offset")[2:]

    def __call__(self, x: te.Tensor, w: te.Tensor, offset: te.Tensor, *mask: te.Tensor) -> te.Tensor:
        channels, rows, columns = self.kernel[1:]
        c = te.reduce_axis((0, channels), "c")
        p, q = te.reduce_axis((0, rows), "p"), te.reduce_axis((0, columns), "q")

        def element(n: tvm.tirx.Var, o: tvm.tirx.Var, i: tvm.tirx.Var, j: tvm.tirx.Var) -> tvm.tirx.Expr:
            channel = tvm.tirx.floordiv(o, self.kernel[0] // self.groups) * channels + c
            group = tvm.tirx.floordiv(channel, self.shape[1] // self.offset_groups)
            tap = (group * rows + p) * columns + q
            at = [
                (place * self.strides[k] - self.pads[k] + inner * self.dilations[k]).astype(x.dtype)
                + offset[n, tap * 2 + k, i, j]
                for k, (place, inner) in enumerate(((i, p), (j, q)))
            ]
            value = self._between(x, n, channel, at) * w[o, c, p, q]
            return te.sum(value * mask[0][n, tap, i, j] if mask else value, axis=[c, p, q])

        return te.compute((self.shape[0], self.kernel[0], *self.size), element, name="deform_conv")

    def _between(self, x: te.Tensor, n: tvm.tirx.Var, channel: tvm.tirx.Expr, at: list[tvm.tirx.Expr]) -> tvm.tirx.Expr:
        floors = [tvm.tirx.floor(place) for place in at]
        result = tvm.tirx.const(0, x.dtype)
        for down in (0, 1):
            for right in (0, 1):
                corner = [floors[0].astype("int64") + down, floors[1].astype("int64") + right]
                inside = tvm.tirx.all(
                    *(v >= 0 for v in corner), *(v < s for v, s in zip(corner, self.shape[2:], strict=True))
                )
                weight = tvm.tirx.const(1, x.dtype)
                for k, step in enumerate((down, right)):
                    beyond = at[k] - floors[k]
                    weight = weight * (beyond if step else 1 - beyond)
                value = tvm.tirx.if_then_else(inside, x[n, channel, corner[0], corner[1]], tvm.tirx.const(0, x.dtype))
                result = result + weight * value
        return result
