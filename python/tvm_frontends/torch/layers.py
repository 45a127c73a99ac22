"""Converters of torch layers: convolutions, average and adaptive pools, grid sampling and resizing.

Corrections of TVM 0.27.0, ``relax/frontend/torch/base_fx_graph_translator.py``:

- ``_convolution``: returns float32 for every type.
- ``_avg_pool2d``: ignores ``divisor_override``.
- ``_max_pool2d_with_indices``: gives zeros as the positions of the maxima.

Corrections of TVM 0.27.0, ``relax/frontend/torch/exported_program_translator.py``:

- ``_upsample_nearest2d``: with a factor that is not whole takes other pixels than torch.
- ``_grid_sampler_2d``: reads the positions along the second axis; they lie along the last.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx, topi

from ..interpolation import cubic, interpolate
from ..tensor_types import dtype_of
from .node_calls import Call, converter, is_float

_CONVOLUTION = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}
_TRANSPOSED = {1: relax.op.nn.conv1d_transpose, 2: relax.op.nn.conv2d_transpose, 3: relax.op.nn.conv3d_transpose}
_AVERAGE = {1: relax.op.nn.avg_pool1d, 2: relax.op.nn.avg_pool2d, 3: relax.op.nn.avg_pool3d}
_SPATIAL = {1: "W", 2: "HW", 3: "DHW"}


def _all(values: Any, count: int) -> list[int]:
    """Return one number for each dimension."""
    numbers = [int(value) for value in values]
    return numbers * count if len(numbers) == 1 else numbers


@converter("convolution.default")
def convolution(call: Call) -> relax.Expr:
    """Convert 1- to 3-dimensional convolutions, also transposed, of floating point; half types are computed in float32."""
    dims = len(call.result.shape) - 2
    if dims not in _CONVOLUTION:
        raise call.unsupported(f"it has {dims} spatial dimensions; 1 to 3 are allowed")
    wide = "float64" if call.dtype == "float64" else "float32"
    if not is_float(call.dtype):
        raise call.unsupported(f"its type is {call.dtype}; cast to float32 before it")
    x, weight = call.tensor("input", wide), call.tensor("weight", wide)
    where = _SPATIAL[dims]
    padding = _all(call["padding"], dims)
    options: dict[str, Any] = {
        "strides": _all(call["stride"], dims),
        "padding": padding * 2,
        "dilation": _all(call["dilation"], dims),
        "groups": int(call["groups"]),
        "data_layout": f"NC{where}",
        "out_dtype": wide,
    }
    if call["transposed"]:
        more = _all(call["output_padding"], dims)
        result = _TRANSPOSED[dims](x, weight, output_padding=more, kernel_layout=f"IO{where}", **options)
    else:
        result = _CONVOLUTION[dims](x, weight, kernel_layout=f"OI{where}", **options)
    result = call.emit(result)
    if call["bias"] is not None:
        bias = call.emit(relax.op.reshape(call.tensor("bias", wide), (1, -1, *[1] * dims)))
        result = call.emit(relax.op.add(result, bias))
    return call.cast(result, call.dtype)


@converter("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def average_pool(call: Call) -> relax.Expr:
    """Convert average pools by TVM's converter, or with ``ceil_mode`` or ``divisor_override`` in floating point only.

    The input is then padded with zeros, so that all windows are whole, and each average is multiplied by a constant:
    torch does not count elements beyond the padding, and TVM does.
    """
    dims = int(call.node.target.__name__[8])
    x = call.tensor("self")
    divisor = call.arguments.get("divisor_override")
    if divisor is None and not call["ceil_mode"]:
        return call.upstream()
    lengths = call.sizes(-dims)
    kernel, padding = _all(call["kernel_size"], dims), _all(call["padding"], dims)
    strides = _all(call["stride"] or call["kernel_size"], dims)
    sizes = [int(size) for size in list(x.ty.shape)[-dims:]]
    windows = [
        _windows(*axis, bool(call["count_include_pad"]))
        for axis in zip(sizes, lengths, kernel, strides, padding, strict=True)
    ]
    end_padding = [more for _, more in windows]
    if not is_float(dtype_of(x)):
        raise call.unsupported(
            f"it has ceil_mode or divisor_override, and type {dtype_of(x)}; cast to float32 before it"
        )
    batched = len(x.ty.shape) == dims + 2
    if not batched:
        x = call.emit(relax.op.expand_dims(x, 0))
    if any(padding) or any(end_padding):
        pad_width = [width for ends in zip(padding, end_padding, strict=True) for width in ends]
        x = call.emit(relax.op.nn.pad(x, [0, 0, 0, 0, *pad_width]))
    pooled = call.emit(_AVERAGE[dims](x, pool_size=kernel, strides=strides, layout=f"NC{_SPATIAL[dims]}"))
    counts = np.ones([1] * dims)
    for axis, (count, _) in enumerate(windows):
        counts = counts * count.reshape([-1 if k == axis else 1 for k in range(dims)])
    factors = math.prod(kernel) / (counts if divisor is None else np.full([1] * dims, float(divisor)))
    if (factors != 1).any():
        pooled = call.emit(relax.op.multiply(pooled, call.cast(factors[None, None], dtype_of(x))))
    return pooled if batched else call.emit(relax.op.squeeze(pooled, [0]))


def _windows(size: int, length: int, kernel: int, stride: int, pad: int, padded: bool) -> tuple[Any, int]:
    """Return how many elements torch counts in each window of an axis, shape (length,), and the padding behind."""
    first = np.arange(length) * stride - pad
    last = np.minimum(first + kernel, size + pad)
    count = last - first if padded else np.minimum(last, size) - np.maximum(first, 0)
    return count, max(0, (length - 1) * stride + kernel - size - pad)


@converter("adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def adaptive_max_pool(call: Call) -> relax.Expr:
    """Convert 2- and 3-dimensional adaptive max pools; refused if the program reads the positions."""
    x = call.tensor("self")
    dims = int(call.node.target.__name__[17])
    if any(user.args[1] for user in call.node.users):
        raise call.unsupported("its second result, the positions of the maxima, is not supported; use the values only")
    pool = topi.nn.adaptive_pool if dims == 2 else topi.nn.adaptive_pool3d
    batched = len(x.ty.shape) == dims + 2
    x = x if batched else call.emit(relax.op.expand_dims(x, 0))
    size = [int(length) for length in call["output_size"]]
    pooled = call.emit_te(lambda a: pool(a, size, "max", f"NC{_SPATIAL[dims]}"), x, name="adaptive_max_pool")
    return relax.Tuple([pooled if batched else call.emit(relax.op.squeeze(pooled, [0]))])


@converter("max_pool2d_with_indices.default")
def max_pool_with_positions(call: Call) -> relax.Expr:
    """Convert 2-dimensional max pools, with the positions of the maxima if the program reads them."""
    values = call.upstream()
    if isinstance(values.ty, relax.TupleType):
        values = call.emit(relax.TupleGetItem(values, 0))
    if not any(user.args[1] for user in call.node.users):
        return relax.Tuple([values])
    x = call.tensor("self")
    *_, height, width = (int(size) for size in x.ty.shape)
    kernel = _pair(call["kernel_size"])
    strides, padding, dilation = (_pair(call[name]) for name in ("stride", "padding", "dilation"))
    strides = strides or kernel
    shape = [int(size) for size in call.result[1].shape]

    floating = dtype_of(x).startswith(("float", "bfloat"))
    smallest = tirx.const(-math.inf, dtype_of(x)) if floating else tvm.te.min_value(dtype_of(x))

    def larger(a: Any, b: Any) -> Any:  # of equal values the first; the last NaN, as in torch
        first = tirx.any(a[1] > b[1], tirx.all(a[1] == b[1], a[0] <= b[0]))
        if floating:
            one, other = tirx.isnan(a[1]), tirx.isnan(b[1])
            first = tirx.Select(other, tirx.all(one, a[0] >= b[0]), tirx.any(one, first))
        return tirx.Select(first, a[0], b[0]), tirx.Select(first, a[1], b[1])

    def least(position: Any, value: Any) -> Any:
        return tirx.const(height * width, position), smallest

    def compute(a: te.Tensor) -> te.Tensor:
        rows, columns = (te.reduce_axis((0, size), name=f"k{axis}") for axis, size in enumerate(kernel))
        reducer = te.comm_reducer(larger, least, name="largest")

        def element(*index: Any) -> Any:
            row = index[-2] * strides[0] - padding[0] + rows * dilation[0]
            column = index[-1] * strides[1] - padding[1] + columns * dilation[1]
            inside = tirx.all(row >= 0, row < height, column >= 0, column < width)
            position = tirx.if_then_else(inside, row * width + column, height * width).astype("int64")
            value = tirx.if_then_else(inside, a(*index[:-2], row, column), smallest)
            return reducer((position, value), axis=[rows, columns])

        return te.compute(shape, element, name="positions")[0]

    return relax.Tuple([values, call.emit_te(compute, x, name="max_pool_positions")])


def _pair(sizes: Any) -> tuple[int, ...]:
    """Return the two sizes of a pool, of which torch allows one for both, or none."""
    numbers = [int(size) for size in (sizes if isinstance(sizes, (list, tuple)) else [sizes])]
    return tuple(numbers * 2 if len(numbers) == 1 else numbers)


_SAMPLING = ("bilinear", "nearest", "bicubic")
_OUTSIDE = ("zeros", "border", "reflection")


@converter("grid_sampler_2d.default", "grid_sampler_3d.default", "grid_sampler.default")
def grid_sample(call: Call) -> relax.Expr:
    """Convert ``grid_sample`` in all modes: TVM's kernel reads the positions along the second axis, torch along the last."""
    dims = len(call.result.shape) - 2
    x, grid = call.tensor("input"), call.tensor("grid")
    grid = call.emit(relax.op.permute_dims(grid, [0, dims + 1, *range(1, dims + 1)]))
    method, outside = _SAMPLING[call["interpolation_mode"]], _OUTSIDE[call["padding_mode"]]
    corners = bool(call["align_corners"])

    def compute(a: te.Tensor, at: te.Tensor) -> te.Tensor:
        return topi.image.grid_sample(a, at, method, f"NC{_SPATIAL[dims]}", outside, corners)

    return call.emit_te(compute, x, grid, name="grid_sample")


@converter(
    *(f"upsample_nearest{dims}.vec" for dims in ("1d", "2d", "3d")),
    *(f"_upsample_nearest_exact{dims}.vec" for dims in ("1d", "2d", "3d")),
    *("upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec", "upsample_bicubic2d.vec"),
)
def resize(call: Call) -> relax.Expr:
    """Convert the ``upsample`` operators: nearest and nearest-exact, linear (1 to 3 dimensions) and bicubic.

    Images enlarged by whole factors use ``resize2d``. Otherwise each axis is interpolated with constant positions and
    weights; integers are refused, except for nearest.
    """
    name = call.node.target.__name__
    x = call.tensor("input")
    sizes = [int(size) for size in list(x.ty.shape)[2:]]
    dims, lengths = len(sizes), call.sizes(2)
    corners = bool(call.arguments.get("align_corners", False))
    factors = call.arguments.get("scale_factors")
    if "nearest" not in name and not is_float(dtype_of(x)):
        raise call.unsupported(f"it interpolates {dtype_of(x)}; cast to float32 before it")
    whole_factors = dims == 2 and all(length % size == 0 for length, size in zip(lengths, sizes, strict=True))
    if factors:  # torch computes positions with the exact factor, such as 2.1
        whole_factors = whole_factors and all(g * size == n for g, size, n in zip(factors, sizes, lengths, strict=True))
    if whole_factors and dtype_of(x) == "float32" and name in ("upsample_nearest2d.vec", "upsample_bilinear2d.vec"):
        nearest = name == "upsample_nearest2d.vec"
        method = (
            ("nearest_neighbor", "asymmetric") if nearest else ("linear", "align_corners" if corners else "half_pixel")
        )
        size = relax.ShapeExpr(lengths)
        options = {"rounding_method": "floor" if nearest else ""}
        resized = relax.op.image.resize2d(
            x, size, layout="NCHW", method=method[0], coordinate_transformation_mode=method[1], **options
        )
        return call.emit(resized)
    for k in range(dims):
        scale = 1 / float(factors[k]) if factors else sizes[k] / lengths[k]
        unchanged = lengths[k] == sizes[k]
        if name == "upsample_nearest2d.vec" and (unchanged or lengths[k] == 2 * sizes[k]):
            scale = sizes[k] / lengths[k]  # torch ignores the exact factor in these two cases
        if unchanged and (scale == 1 or "linear" in name):
            continue
        indices, weights = _taps(name, sizes[k], lengths[k], scale, corners)
        x = call.emit(interpolate(call.importer.block_builder, x, 2 + k, indices, weights))
    return x


def _taps(name: str, size: int, length: int, scale: float, corners: bool) -> tuple[Any, Any]:
    """Return inputs and weights of each output, both of shape (length, taps); positions are float32, as in torch."""
    outputs = np.arange(length)
    if "nearest" in name:
        centres = outputs + 0.5 if "exact" in name else outputs
        nearest = np.floor((centres * np.float32(scale)).astype("float32")).astype("int64")
        return np.minimum(nearest, size - 1)[:, None], np.ones((length, 1))
    positions = (
        outputs * ((size - 1) / (length - 1) if length > 1 else 0.0) if corners else (outputs + 0.5) * scale - 0.5
    )
    if "cubic" in name:
        indices = np.floor(positions).astype("int64")[:, None] + np.arange(-1, 3)
        return np.clip(indices, 0, size - 1), cubic(indices - positions[:, None], -0.75)
    positions = np.maximum(positions, 0)
    first = np.minimum(np.floor(positions).astype("int64"), size - 1)
    indices = np.stack([first, np.minimum(first + 1, size - 1)], axis=1)
    fraction = np.clip(positions - first, 0, 1)
    return indices, np.stack([1 - fraction, fraction], axis=1)
