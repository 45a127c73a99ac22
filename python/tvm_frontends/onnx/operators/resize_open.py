"""Resize of axes of open size, or to open sizes: positions and weights are computed when the model runs."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import tvm
from tvm import relax, te
from tvm.sym import Analyzer

from ...errors import MissingConstant
from ...interpolation import interpolate
from ..shape_values import EXACT
from .nodes import Node


def has_open_sizes(node: Node) -> bool:
    """Whether the new sizes are expressions of symbols."""
    return isinstance(node.input(3), relax.ShapeExpr) and node.constant(3) is None


def resize_open(node: Node, x: relax.Expr, shape: tuple[Any, ...]) -> relax.Expr:
    """Resize axes of open size: positions and weights are computed when the model runs, in float64.

    A scale must be a fraction with numerator and denominator up to 1024; float32 then has the new length of any size up to
    16,384 exactly.
    """
    coordinates = node.attribute("coordinate_transformation_mode", default_coordinates(node))
    if node.attribute("antialias", 0) or node.attribute("exclude_outside", 0) or coordinates == "tf_crop_and_resize":
        raise node.unsupported(
            "it has antialias, exclude_outside or tf_crop_and_resize, which are not taken with open dimensions; give "
            "its input sizes"
        )
    for axis, (length, up, down) in enumerate(_open_lengths(node, shape)):
        size = shape[axis]
        if up is down or (isinstance(up, int) and up == down):
            continue

        def place(
            k: tvm.tirx.Var, size: Any, length: Any, up: Any, down: Any, coordinates: str = coordinates
        ) -> tvm.tirx.Expr:
            return _open_position(node, coordinates, k, size, length, up, down)

        x = _interpolate_open(node, x, axis, place, (size, length, up, down))
    return x


def _open_lengths(node: Node, shape: tuple[Any, ...]) -> list[tuple[Any, Any, Any]]:
    """Return the new size of each axis, and its scale as a quotient of two whole numbers."""
    old = node.operator == "Upsample" or node.opset < 11
    scales = node.constant(1 if old else 2)
    if node.operator == "Upsample" and scales is None and node.attribute("scales") is not None:
        scales = np.array(node.attribute("scales"), np.float32)
    named = [int(axis) % len(shape) for axis in node.attribute("axes", tuple(range(len(shape))))]
    result: list[tuple[Any, Any, Any]] = [(size, 1, 1) for size in shape]
    if scales is not None and scales.size:
        for axis, scale in zip(named, scales, strict=True):
            exact = Fraction(float(scale))
            up, down = exact.numerator, exact.denominator
            if not 0 < up <= EXACT or down > EXACT:
                raise node.unsupported(
                    f"its scale {scale:g} is rounded for some sizes of axis {axis}; give its input sizes"
                )
            result[axis] = (shape[axis] * up // down, up, down)
        return result
    sizes = node.input(3)
    lengths = list(sizes.values) if isinstance(sizes, relax.ShapeExpr) else node.constant(3)
    if lengths is None or len(lengths) != len(named):
        raise node.unsupported("neither its scales nor its sizes are known before the model runs", MissingConstant())
    if node.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise node.unsupported("keep_aspect_ratio_policy is not taken with open dimensions; give its input sizes")
    analyzer = Analyzer()
    for axis, length in zip(named, lengths, strict=True):
        length = tvm.tirx.IntImm("int64", int(length)) if isinstance(length, (int, np.integer)) else length
        if not analyzer.can_prove_equal(length, shape[axis]):
            result[axis] = (length, length, shape[axis])
    return result


def _open_position(node: Node, mode: str, k: Any, size: Any, length: Any, up: Any, down: Any) -> tvm.tirx.Expr:
    """Return the position in the input of an output, as `_positions`; the scale is ``up / down``."""

    def real(value: Any) -> tvm.tirx.Expr:
        return tvm.tirx.const(value, "float64") if isinstance(value, (int, float)) else value.astype("float64")

    half, one = real(0.5), real(1)
    exact = real(size) * real(up) / real(down)
    if mode == "align_corners":
        return tvm.tirx.Select(exact == one, real(0), real(k) * (real(size) - one) / tvm.tirx.max(exact - one, half))
    if mode == "asymmetric":
        return real(k) * real(down) / real(up)
    centred = (real(k) + half) * real(down) / real(up)
    if mode == "pytorch_half_pixel":
        return tvm.tirx.Select(exact == one, -half, centred - half)
    if mode == "half_pixel":
        return centred - half
    if mode == "half_pixel_symmetric":
        return half * real(size) * (one - real(length) / exact) + centred - half
    if mode == "tf_half_pixel_for_nn":
        return centred
    raise node.unsupported(f"coordinate_transformation_mode is {mode!r}, which the standard does not know")


def _interpolate_open(
    node: Node, x: relax.Expr, axis: int, position: Callable[..., tvm.tirx.Expr], about: tuple[Any, ...]
) -> relax.Expr:
    """Emit positions and weights of all outputs of an axis, and what they select; ``about`` begins with its size."""
    mode = node.attribute("mode", "nearest")
    if mode not in ("nearest", "linear", "bilinear", "cubic"):
        raise node.unsupported(f"mode is {mode!r}; 'nearest', 'linear' and 'cubic' are allowed")
    coefficient = float(node.attribute("cubic_coeff_a", -0.75))
    taps = {"nearest": 1, "cubic": 4}.get(mode, 2)

    def compute(*sizes: Any) -> list[te.Tensor]:
        size, length = sizes[:2]
        first, last = tvm.tirx.const(0, "int64"), size - 1

        def index(k: tvm.tirx.Var, tap: tvm.tirx.Var) -> tvm.tirx.Expr:
            place = position(k, *sizes)
            if mode == "nearest":
                chosen = _nearest(node, place.astype("float32")).astype("int64")
            else:
                chosen = tvm.tirx.floor(place).astype("int64") - taps // 2 + 1 + tap
            return tvm.tirx.max(tvm.tirx.min(chosen, last), first)

        def weight(k: tvm.tirx.Var, tap: tvm.tirx.Var) -> tvm.tirx.Expr:
            place = position(k, *sizes)
            near = tvm.tirx.floor(place) - tvm.tirx.const(taps // 2 - 1, "float64") + tap.astype("float64")
            distance, one = tvm.tirx.abs(near - place), tvm.tirx.const(1, "float64")
            if mode != "cubic":
                return tvm.tirx.max(one - distance, tvm.tirx.const(0, "float64")).astype("float32")
            d, a = distance, tvm.tirx.const(coefficient, "float64")
            inner = ((a + 2.0) * d - (a + 3.0)) * d * d + one
            outer = ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a
            return tvm.tirx.Select(d <= one, inner, outer).astype("float32")

        places = te.compute((length, taps), index, name="places")
        return [places] if taps == 1 else [places, te.compute((length, taps), weight, name="weights")]

    sizes = [tvm.tirx.IntImm("int64", value) if isinstance(value, int) else value for value in about]
    found = node.emit(node.builder.call_te(compute, *sizes, primfunc_name_hint="resize_places"))
    places, weights = (found, found) if taps == 1 else [node.emit(relax.TupleGetItem(found, k)) for k in range(2)]
    return node.emit(interpolate(node.builder, x, axis, places, weights))


def _nearest(node: Node, place: tvm.tirx.Expr) -> tvm.tirx.Expr:
    """Return the whole number that ``nearest_mode`` takes for a position."""
    half = tvm.tirx.const(0.5, place.ty.dtype)
    mode = node.attribute("nearest_mode", default_rounding(node))
    rounded = {
        "round_prefer_floor": lambda: tvm.tirx.ceil(place - half),
        "round_prefer_ceil": lambda: tvm.tirx.floor(place + half),
        "floor": lambda: tvm.tirx.floor(place),
        "ceil": lambda: tvm.tirx.ceil(place),
    }.get(mode)
    if rounded is None:
        raise node.unsupported(f"nearest_mode is {mode!r}, which the standard does not know")
    return rounded()


def default_coordinates(node: Node) -> str:
    """Return the coordinate_transformation_mode that a node has without the attribute."""
    return "half_pixel" if node.opset >= 11 and node.operator == "Resize" else "asymmetric"


def default_rounding(node: Node) -> str:
    """Return its nearest_mode without the attribute."""
    return "round_prefer_floor" if node.opset >= 11 and node.operator == "Resize" else "floor"
