"""Layers of torch.export programs: convolutions of all types and dimensions, norms without weights, pools, resizing."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from .interpolation import cubic, interpolate
from .torch_registry import Call, converter, dtype_of, is_float

_CONVOLUTION = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}
_TRANSPOSED = {1: relax.op.nn.conv1d_transpose, 2: relax.op.nn.conv2d_transpose, 3: relax.op.nn.conv3d_transpose}
_SPATIAL = {1: "W", 2: "HW", 3: "DHW"}


def _all(values: Any, count: int) -> list[int]:
    """One number for all dimensions, or one for each."""
    given = [int(value) for value in values]
    return given * count if len(given) == 1 else given


@converter("convolution.default")
def convolution(call: Call) -> relax.Expr:
    """In float32 where the type is half of that; TVM's converter gives float32 whatever the type."""
    dims = len(call.result.shape) - 2
    if dims not in _CONVOLUTION:
        raise call.unsupported(f"a convolution of {dims} dimensions; 1 to 3 are allowed")
    wide = "float64" if call.dtype == "float64" else "float32"
    if not is_float(call.dtype):
        raise call.unsupported(f"a convolution of {call.dtype}; cast to float32 before it")
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
        made = _TRANSPOSED[dims](x, weight, output_padding=more, kernel_layout=f"IO{where}", **options)
    else:
        made = _CONVOLUTION[dims](x, weight, kernel_layout=f"OI{where}", **options)
    made = call.emit(made)
    if call["bias"] is not None:
        bias = call.emit(relax.op.reshape(call.tensor("bias", wide), (1, -1, *[1] * dims)))
        made = call.emit(relax.op.add(made, bias))
    return call.cast(made, call.dtype)


@converter("native_group_norm.default")
def group_norm(call: Call) -> relax.Expr:
    """Without weights, too."""
    x = call.tensor("input")
    channels = int(x.ty.shape[1])
    kind = dtype_of(x)
    weight, bias = (
        relax.const(np.full(channels, value), kind) if call[name] is None else call.tensor(name)
        for name, value in (("weight", 1.0), ("bias", 0.0))
    )
    axes = list(range(2, len(x.ty.shape)))
    return call.emit(relax.op.nn.group_norm(x, weight, bias, int(call["group"]), 1, axes, epsilon=float(call["eps"])))


@converter("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def average_pool(call: Call) -> relax.Expr:
    """With a divisor of its own, the average of full windows is scaled."""
    divisor = call.arguments.get("divisor_override")
    if divisor is not None:
        raise call.unsupported("divisor_override is not written; multiply by a constant behind it")
    dims = int(call.node.target.__name__[8])
    if call["ceil_mode"] and _hangs_over(call, dims):
        raise call.unsupported(
            "with ceil_mode, its last windows reach beyond the padding; pad the input, or leave ceil_mode out"
        )
    return call.upstream()


def _hangs_over(call: Call, dims: int) -> bool:
    """Whether a last window ends behind the padded input, where TVM divides by another count than torch."""
    sizes = [int(size) for size in call.tensor("self").ty.shape][-dims:]
    kernels = _all(call["kernel_size"], dims)
    strides = _all(call["stride"] or call["kernel_size"], dims)
    pads = _all(call["padding"], dims)
    return any(
        (size + 2 * pad - kernel) % stride != 0
        for size, pad, kernel, stride in zip(sizes, pads, kernels, strides, strict=True)
    )


_LINEAR = ("upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec", "upsample_bicubic2d.vec")


@converter(
    *(f"upsample_nearest{dims}.vec" for dims in ("1d", "2d", "3d")),
    *(f"_upsample_nearest_exact{dims}.vec" for dims in ("1d", "2d", "3d")),
    *_LINEAR,
)
def resize(call: Call) -> relax.Expr:
    """An axis at a time, by positions and weights that are constants; pictures by whole factors as TVM does it."""
    name = call.node.target.__name__
    x = call.tensor("input")
    shape = [int(size) for size in x.ty.shape]
    dims = len(shape) - 2
    lengths = list(call.shape)[2:]
    corners = bool(call.arguments.get("align_corners", False))
    given = call.arguments.get("scale_factors")
    if "nearest" not in name and not is_float(dtype_of(x)):
        raise call.unsupported(f"interpolation of {dtype_of(x)}; cast to float32 before it")
    whole = dims == 2 and all(length % size == 0 for length, size in zip(lengths, shape[2:], strict=True))
    if whole and dtype_of(x) == "float32" and name in ("upsample_nearest2d.vec", "upsample_bilinear2d.vec"):
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
        scale = 1 / float(given[k]) if given else shape[2 + k] / lengths[k]
        if lengths[k] == shape[2 + k] and scale == 1:
            continue
        indices, weights = _taps(name, shape[2 + k], lengths[k], scale, corners)
        x = call.emit(interpolate(call.importer.block_builder, x, 2 + k, indices, weights))
    return x


def _taps(name: str, size: int, length: int, scale: float, corners: bool) -> tuple[Any, Any]:
    """Inputs and weights of each output, both of shape (length, taps); positions in float32, as torch computes them."""
    at = np.arange(length)
    if "nearest" in name:
        moved = at + 0.5 if "exact" in name else at
        chosen = np.floor((moved * np.float32(scale)).astype("float32")).astype("int64")
        return np.minimum(chosen, size - 1)[:, None], np.ones((length, 1))
    places = at * ((size - 1) / (length - 1) if length > 1 else 0.0) if corners else (at + 0.5) * scale - 0.5
    if "cubic" in name:
        indices = np.floor(places).astype("int64")[:, None] + np.arange(-1, 3)
        return np.clip(indices, 0, size - 1), cubic(indices - places[:, None], -0.75)
    places = np.maximum(places, 0)
    first = np.minimum(np.floor(places).astype("int64"), size - 1)
    indices = np.stack([first, np.minimum(first + 1, size - 1)], axis=1)
    rest = np.clip(places - first, 0, 1)
    return indices, np.stack([1 - rest, rest], axis=1)
