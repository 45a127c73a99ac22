"""Converter of Resize and Upsample in all modes: one axis at a time, with constant positions and weights.

Positions are exact fractions. The nearest input, and the border of a cropped region, are decided after one rounding to
float32, the type of scales and regions: 0.2 in float32 times 5 is then 1, and not a little more, which ``ceil`` would
round to 2.

Corrections of TVM 0.27.0, ``relax/frontend/onnx/onnx_frontend.py``:

- ``Resize``: ignores the attribute ``antialias``.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import floor

import numpy as np
import numpy.typing as npt
from tvm import relax

from ...errors import MissingConstant
from ...interpolation import cubic, interpolate
from ...tensor_types import dtype_of
from .nodes import Node, converter
from .resize_open import default_coordinates, default_rounding, has_open_sizes, resize_open


@dataclass(frozen=True)
class _Axis:
    """The resizing of one axis: from ``size`` to ``length`` by ``scale``, within a region in fractions of the axis."""

    size: int
    length: int
    scale: Fraction
    region: tuple[Fraction, Fraction] = (Fraction(0), Fraction(1))


@converter("Resize", "Upsample")
def resize(node: Node) -> relax.Expr:
    """Convert Resize (inputs X, roi, scales, sizes; before opset 11 X, scales) and Upsample (X, scales).

    Images enlarged by whole factors use ``resize2d``. Scales or sizes must be constants.
    """
    x = node.input(0)
    shape = node.sizes(x, "its input X")
    if not all(isinstance(size, int) for size in shape) or has_open_sizes(node):
        return resize_open(node, x, shape)
    mode = node.attribute("mode", "nearest")
    axes = _axes(node, shape)
    if any(axis.length == 0 for axis in axes):
        return relax.op.zeros([axis.length for axis in axes], dtype_of(x))
    usual = _usual(node, x, shape, axes, mode)
    if usual is not None:
        return usual
    outside: npt.NDArray[np.bool_] | None = None
    value = x
    for position, axis in enumerate(axes):
        if axis.length == axis.size and axis.scale == 1.0 and not _is_cropped(node, axis):
            continue
        exact = _positions(node, axis)
        rounded = np.array([float(place) for place in exact], np.float32)
        if _is_cropped(node, axis):
            outside_axis = (rounded < 0) | (rounded > axis.size - 1)
            outside_axis = outside_axis.reshape([-1 if i == position else 1 for i in range(len(shape))])
            outside = outside_axis if outside is None else outside | outside_axis
        indices, weights = _taps(node, mode, axis, rounded if mode == "nearest" else np.array(exact, np.float64))
        value = interpolate(node.builder, value, position, indices, weights)
    if outside is not None and outside.any():
        fill = relax.const(node.attribute("extrapolation_value", 0.0), dtype_of(x))
        value = relax.op.where(relax.const(outside, "bool"), fill, value)
    return value


def _axes(node: Node, shape: tuple[int, ...]) -> list[_Axis]:
    """Return the resizing of each axis; ``roi`` holds all starts, then all ends, of the named axes."""
    old = node.operator == "Upsample" or node.opset < 11
    roi, scales, sizes = (None, node.constant(1), None) if old else tuple(node.constant(i) for i in (1, 2, 3))
    if node.operator == "Upsample" and scales is None:
        attribute = node.attribute("scales")
        scales = None if attribute is None else np.array(attribute, np.float32)
    scales = None if scales is None or scales.size == 0 else scales
    sizes = None if sizes is None or sizes.size == 0 else sizes
    if scales is None and sizes is None:
        raise node.unsupported("neither its scales nor its sizes are constants", MissingConstant())
    named = [int(a) % len(shape) for a in node.attribute("axes", tuple(range(len(shape))))]
    result = [_Axis(size, size, Fraction(1)) for size in shape]
    known = scales if scales is not None else sizes
    if known is None or len(known) != len(named):
        raise node.unsupported(
            f"it names {len(named)} axes and has {0 if known is None else len(known)} scales or sizes"
        )
    lengths, factors = _lengths(node, [shape[a] for a in named], scales, sizes)
    cropped = node.attribute("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    for k, axis in enumerate(named):
        region = (Fraction(0), Fraction(1))
        if cropped and roi is not None and roi.size:
            region = (Fraction(float(roi[k])), Fraction(float(roi[k + len(named)])))
        result[axis] = _Axis(shape[axis], lengths[k], factors[k], region)
    return result


def _lengths(
    node: Node, shape: list[int], scales: npt.NDArray[np.generic] | None, sizes: npt.NDArray[np.generic] | None
) -> tuple[list[int], list[Fraction]]:
    if scales is not None:
        pairs = [_scaled(size, float(s)) for size, s in zip(shape, scales, strict=True)]
        return [length for length, _ in pairs], [scale for _, scale in pairs]
    assert sizes is not None
    lengths = [int(s) for s in sizes]
    policy = node.attribute("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return lengths, [Fraction(length, size or 1) for length, size in zip(lengths, shape, strict=True)]
    choose = {"not_larger": min, "not_smaller": max}[policy]
    factor = choose(Fraction(length, size) for length, size in zip(lengths, shape, strict=True) if size)
    return [floor(factor * size + Fraction(1, 2)) for size in shape], [factor] * len(shape)


def _scaled(size: int, scale: float) -> tuple[int, Fraction]:
    """Return the length of a scaled axis, and the scale: the quotient of lengths if that is the same float32 number."""
    length, near = floor(size * Fraction(scale)), round(size * scale)
    same = size and near and np.float32(near / size) == np.float32(scale)
    return length, Fraction(near, size) if same else Fraction(scale)


def _is_cropped(node: Node, axis: _Axis) -> bool:
    return node.attribute("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"


def _positions(node: Node, axis: _Axis) -> list[Fraction]:
    """Return the exact position in the input of each output."""
    at = [Fraction(k) for k in range(axis.length)]
    half, size, scale = Fraction(1, 2), axis.size, axis.scale
    mode = node.attribute("coordinate_transformation_mode", default_coordinates(node))
    exact = scale * size  # the length before rounding down
    if mode == "align_corners":
        return [k * (size - 1) / (exact - 1) if exact != 1 else Fraction(0) for k in at]
    if mode == "asymmetric":
        return [k / scale for k in at]
    if mode == "tf_crop_and_resize":
        start, end = axis.region
        if exact == 1:
            return [(start + end) * (size - 1) / 2 for _ in at]
        return [start * (size - 1) + k * (end - start) * (size - 1) / (exact - 1) for k in at]
    if mode == "pytorch_half_pixel":
        return [-half if exact == 1 else (k + half) / scale - half for k in at]
    if mode == "half_pixel":
        return [(k + half) / scale - half for k in at]
    if mode == "half_pixel_symmetric":
        return [half * size * (1 - axis.length / exact) + (k + half) / scale - half for k in at]
    if mode == "tf_half_pixel_for_nn":
        return [(k + half) / scale for k in at]
    raise node.unsupported(f"coordinate_transformation_mode is {mode!r}, which the standard does not know")


def _taps(
    node: Node, mode: str, axis: _Axis, positions: npt.NDArray[np.floating]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return inputs and weights of each output, two arrays of shape (length, taps)."""
    if mode == "nearest":
        return _nearest(node, positions, axis.size)[:, None], np.ones((len(positions), 1))
    if mode not in ("linear", "bilinear", "cubic"):
        raise node.unsupported(f"mode is {mode!r}; 'nearest', 'linear' and 'cubic' are allowed")
    stretch = min(float(axis.scale), 1.0) if node.attribute("antialias", 0) else 1.0
    reach = (2 if mode == "cubic" else 1) / stretch
    count = 2 * int(np.ceil(reach))
    first = np.floor(positions).astype(np.int64) - count // 2 + 1
    indices = first[:, None] + np.arange(count)
    distance = (indices - positions[:, None]) * stretch
    coefficient = node.attribute("cubic_coeff_a", -0.75)
    weights = cubic(distance, coefficient) if mode == "cubic" else np.maximum(0, 1 - np.abs(distance))
    if node.attribute("exclude_outside", 0):
        weights = np.where((indices < 0) | (indices >= axis.size), 0, weights)
    if stretch != 1.0 or node.attribute("exclude_outside", 0):
        weights = weights / weights.sum(axis=1, keepdims=True)
    return np.clip(indices, 0, axis.size - 1), weights


def _nearest(node: Node, positions: npt.NDArray[np.floating], size: int) -> npt.NDArray[np.int64]:
    mode = node.attribute("nearest_mode", default_rounding(node))
    rounded = {
        "round_prefer_floor": np.ceil(positions - 0.5),
        "round_prefer_ceil": np.floor(positions + 0.5),
        "floor": np.floor(positions),
        "ceil": np.ceil(positions),
    }.get(mode)
    if rounded is None:
        raise node.unsupported(f"nearest_mode is {mode!r}, which the standard does not know")
    return np.clip(rounded, 0, size - 1).astype(np.int64)


def _usual(node: Node, x: relax.Expr, shape: tuple[int, ...], axes: list[_Axis], mode: str) -> relax.Expr | None:
    """Return TVM's ``resize2d``, one kernel for both axes, if it computes the node's mode, else None."""
    coordinates = node.attribute("coordinate_transformation_mode", "half_pixel" if node.opset >= 11 else "asymmetric")
    rounding = node.attribute("nearest_mode", "round_prefer_floor" if node.opset >= 11 else "floor")
    exact = all(axis.scale * axis.size == axis.length for axis in axes)
    whole = exact and (axes[2].length % shape[2], axes[3].length % shape[3]) == (0, 0) if len(shape) == 4 else False
    if not whole or axes[0].scale != 1.0 or axes[1].scale != 1.0 or dtype_of(x) != "float32":
        return None
    if node.attribute("exclude_outside", 0):
        return None
    nearest = mode == "nearest" and (coordinates, rounding) == ("asymmetric", "floor")
    linear = mode in ("linear", "bilinear") and coordinates in ("half_pixel", "asymmetric", "align_corners")
    if not (nearest or linear):
        return None
    return relax.op.image.resize2d(
        x,
        size=relax.ShapeExpr([axes[2].length, axes[3].length]),
        layout="NCHW",
        method="nearest_neighbor" if nearest else "linear",
        coordinate_transformation_mode=coordinates,
        rounding_method=rounding if nearest else "",
    )
