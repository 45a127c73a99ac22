"""Converters of torch's reductions, scans and sorts, with torch's result types.

Corrections of TVM 0.27.0, ``relax/frontend/torch/base_fx_graph_translator.py``:

- ``_topk``: refuses ``sorted=False``.
- ``_cumsum``: fails on booleans.
- ``_sort``: fails on int8; ``topi``'s sort knows few types.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from ..tensor_types import dtype_of
from ..vector_norms import vector_norm as norm_along
from .elementwise import constant, emit_log1p, largest
from .node_calls import HALF, Call, converter, is_float


def _axes(call: Call, x: relax.Expr) -> list[int]:
    """Return the dimensions to reduce: the named ones, or all."""
    named, rank = call.arguments.get("dim"), len(x.ty.shape)
    if named is None or named == []:
        return list(range(rank))
    return [axis % rank for axis in (named if isinstance(named, list | tuple) else [named])] if rank else []


def _keep(call: Call) -> bool:
    return bool(call.arguments.get("keepdim", False))


@converter("sum.default", "sum.dim_IntList", "prod.default", "prod.dim_int", "mean.default", "mean.dim")
def sums(call: Call) -> relax.Expr:
    """Convert ``sum``, ``prod`` and ``mean`` in the result's type; small integers and booleans are summed as int64."""
    x = call.tensor("self", call.dtype)
    function = {"sum": relax.op.sum, "prod": relax.op.prod, "mean": relax.op.mean}
    return _reduced(call, x, function[call.node.target.__name__.split(".")[0]])


@converter("amax.default", "amin.default", "max.default", "min.default")
def extrema(call: Call) -> relax.Expr:
    """Convert ``amax``, ``amin``, ``max`` and ``min``; booleans are reduced as bytes."""
    x = call.tensor("self")
    function = relax.op.max if "max" in call.node.target.__name__ else relax.op.min
    if dtype_of(x) != "bool":
        return _reduced(call, x, function)
    return call.cast(_reduced(call, call.cast(x, "uint8"), function), "bool")


def _reduced(call: Call, x: relax.Expr, function: Any) -> relax.Expr:
    axes = _axes(call, x)
    return call.emit(function(x, axes, keepdims=_keep(call))) if axes else x


@converter("any.default", "any.dim", "any.dims")
def any_of(call: Call) -> relax.Expr:
    """Convert ``any``: everything but 0 is true, NaN too."""
    x = call.tensor("self")
    x = x if dtype_of(x) == "bool" else call.emit(relax.op.not_equal(x, constant(0, x)))
    return call.cast(_reduced(call, call.cast(x, "uint8"), relax.op.max), "bool")


@converter("histc.default")
def histogram(call: Call) -> relax.Expr:
    """Convert ``histc`` with constant bounds; the upper bound belongs to the last bin. ``min >= max`` is refused."""
    x, bins, low, high = call.tensor("self"), int(call["bins"]), float(call["min"]), float(call["max"])
    if low >= high:
        raise call.unsupported("its bounds come from the values; pass min below max")
    flat = call.emit(relax.op.reshape(x, (-1, 1)))
    scaled = relax.op.multiply(relax.op.subtract(flat, constant(low, x)), constant(bins, x))
    bin_index = call.emit(relax.op.floor(call.emit(relax.op.divide(scaled, constant(high - low, x)))))
    bin_index = call.emit(relax.op.where(relax.op.equal(flat, constant(high, x)), constant(bins - 1, x), bin_index))
    same = call.emit(relax.op.equal(bin_index, relax.const(np.arange(bins).astype(dtype_of(x)))))
    inside = relax.op.logical_and(
        relax.op.greater_equal(flat, constant(low, x)), relax.op.less_equal(flat, constant(high, x))
    )
    counted = call.emit(relax.op.logical_and(same, call.emit(inside)))
    return call.emit(relax.op.sum(call.cast(counted, call.dtype), [0]))


@converter("argmax.default", "argmin.default")
def position(call: Call) -> relax.Expr:
    """Convert ``argmax`` and ``argmin``; without a dimension, the position is that in the flattened tensor."""
    x, axis, name = call.tensor("self"), call["dim"], call.node.target.__name__
    x = call.cast(x, "uint8") if dtype_of(x) == "bool" else x
    if not x.ty.shape:
        return call.cast(0, "int64")
    function = relax.op.argmax if name.startswith("argmax") else relax.op.argmin
    if axis is None:
        x = call.emit(relax.op.reshape(x, (-1,)))
        index = call.emit(function(x, 0, False))
        return call.emit(relax.op.reshape(index, call.shape)) if call.shape else index
    return call.emit(function(x, axis, _keep(call)))


@converter("max.dim", "min.dim")
def extremum_with_index(call: Call) -> relax.Expr:
    """Convert ``max.dim`` and ``min.dim``: values and the position of the first one."""
    x, axis = call.tensor("self"), call["dim"]
    largest = call.node.target.__name__.startswith("max")
    if not x.ty.shape:
        return relax.Tuple([x, call.cast(0, "int64")])
    wide = call.cast(x, "uint8") if dtype_of(x) == "bool" else x
    index = call.emit((relax.op.argmax if largest else relax.op.argmin)(wide, axis, _keep(call)))
    value = call.emit((relax.op.max if largest else relax.op.min)(wide, axis, keepdims=_keep(call)))
    return relax.Tuple([call.cast(value, dtype_of(x)), index])


@converter("linalg_vector_norm.default")
def vector_norm(call: Call) -> relax.Expr:
    """Convert vector norms of any order, computed so that powers and sums are in range."""
    x = call.tensor("self", call.dtype)
    if not x.ty.shape:
        x, axes, keep = call.emit(relax.op.reshape(x, (1,))), [0], False
    else:
        axes, keep = _axes(call, x), _keep(call)
    return norm_along(call.emit, x, float(call["ord"]), axes, keep)


@converter("var.correction")
def variance(call: Call) -> relax.Expr:
    """Convert ``var`` with the divisor ``count - correction``; a divisor of 0 or less gives a division by 0, as in torch."""
    x = call.tensor("self")
    axes = _axes(call, x)
    count = math.prod(int(x.ty.shape[axis]) for axis in axes)
    if count == 0:
        kept = [1 if axis in axes else size for axis, size in enumerate(x.ty.shape) if _keep(call) or axis not in axes]
        return call.emit(relax.op.full(kept, constant(float("nan"), x), dtype_of(x)))
    correction = 1 if call["correction"] is None else call["correction"]
    factor = count / (count - correction) if count > correction else float("inf")
    if not axes:
        return (
            call.emit(relax.op.multiply(x, constant(float("nan"), x)))
            if correction >= 1
            else call.emit(relax.op.zeros_like(x))
        )
    biased = call.emit(relax.op.variance(x, axes, keepdims=_keep(call)))
    return biased if factor == 1 else call.emit(relax.op.multiply(biased, constant(factor, x)))


@converter("var_mean.correction")
def variance_and_mean(call: Call) -> relax.Expr:
    """Convert ``var_mean``."""
    mean = _reduced(call, call.tensor("self"), relax.op.mean)
    return relax.Tuple([variance(call), mean])


@converter("cumsum.default", "cumprod.default")
def scan(call: Call) -> relax.Expr:
    """Convert ``cumsum`` and ``cumprod``; small integers and booleans are summed in int64, half types in float32."""
    x = call.tensor("self", call.dtype)
    if not x.ty.shape:
        return x
    function = relax.op.cumsum if call.node.target.__name__.startswith("cumsum") else relax.op.cumprod
    wide = "float32" if call.dtype in HALF else call.dtype
    result = call.emit(function(call.cast(x, wide), call["dim"] % len(x.ty.shape), wide))
    return call.cast(result, call.dtype)


@converter("cummax.default", "cummin.default")
def running_extremum(call: Call) -> relax.Expr:
    """Convert ``cummax`` and ``cummin``: running extrema and their last positions.

    For n elements, log2(n) steps compare the tensor with itself shifted by 1, 2, 4, ...
    """
    x, largest = call.tensor("self"), call.node.target.__name__.startswith("cummax")
    if not x.ty.shape:
        return relax.Tuple([x, call.cast(0, "int64")])
    kind, axis = dtype_of(x), call["dim"] % len(x.ty.shape)
    shape = [int(size) for size in x.ty.shape]
    value = call.cast(x, "uint8") if kind == "bool" else x
    along = np.arange(shape[axis]).reshape([-1 if k == axis else 1 for k in range(len(shape))])
    index = call.emit(relax.op.broadcast_to(relax.const(along, "int64"), shape))
    reach = 1
    while reach < shape[axis]:
        before, index_before = (_shifted(call, tensor, axis, reach) for tensor in (value, index))
        stays = (relax.op.greater_equal if largest else relax.op.less_equal)(value, before)
        if is_float(kind):
            stays = relax.op.logical_or(stays, call.emit(relax.op.isnan(value)))
        stays = call.emit(stays)
        value = call.emit(relax.op.where(stays, value, before))
        index = call.emit(relax.op.where(stays, index, index_before))
        reach *= 2
    return relax.Tuple([call.cast(value, kind), index])


@converter("logcumsumexp.default")
def running_log_sum(call: Call) -> relax.Expr:
    """Convert ``logcumsumexp``: logarithms of running sums of exponentials, half types in float32.

    For n elements, log2(n) steps add the tensor shifted by 1, 2, 4, ...; each takes the larger logarithm out of the sum.
    """
    x = call.tensor("self", call.dtype)
    if not x.ty.shape:
        return x
    axis = call["dim"] % len(x.ty.shape)
    shape = [int(size) for size in x.ty.shape]
    along = np.arange(shape[axis]).reshape([-1 if k == axis else 1 for k in range(len(shape))])
    value = call.cast(x, "float32" if call.dtype in HALF else call.dtype)
    reach = 1
    while reach < shape[axis]:
        before = _shifted(call, value, axis, reach)
        most = largest(call, value, before, True)
        distance = call.emit(relax.op.abs(call.emit(relax.op.subtract(value, before))))
        more = emit_log1p(call, call.emit(relax.op.exp(call.emit(relax.op.negative(distance)))))
        # The distance of equal infinities is NaN.
        total = call.emit(relax.op.where(relax.op.isinf(most), most, call.emit(relax.op.add(most, more))))
        value = call.emit(relax.op.where(relax.const(along >= reach, "bool"), total, value))
        reach *= 2
    return call.cast(value, call.dtype)


def _shifted(call: Call, x: relax.Expr, axis: int, count: int) -> relax.Expr:
    """Return a tensor shifted by ``count`` positions; the first ones are unchanged."""
    size = int(x.ty.shape[axis])
    first, shifted = (relax.op.strided_slice(x, [axis], [0], [end]) for end in (count, size - count))
    return call.emit(relax.op.concat([call.emit(first), call.emit(shifted)], axis))


def _order(call: Call, x: relax.Expr, axis: int, down: bool) -> relax.Expr:
    wide = (
        call.cast(x, "int32") if dtype_of(x) in ("bool", "int8", "uint8", "int16") else x
    )  # types that TVM's sort knows
    return call.emit(relax.op.argsort(wide, axis, down, dtype="int64"))


@converter("sort.default", "sort.stable")
def sort(call: Call) -> relax.Expr:
    """Convert ``sort``, always stable: values and positions."""
    x = call.tensor("self")
    if not x.ty.shape:
        return relax.Tuple([x, call.cast(0, "int64")])
    axis = call["dim"] % len(x.ty.shape)
    indices = _order(call, x, axis, bool(call["descending"]))
    return relax.Tuple([_gathered(call, x, indices, axis), indices])


def _gathered(call: Call, x: relax.Expr, indices: relax.Expr, axis: int) -> relax.Expr:
    if dtype_of(x) != "bool":
        return call.emit(relax.op.gather_elements(x, indices, axis))
    return call.cast(call.emit(relax.op.gather_elements(call.cast(x, "uint8"), indices, axis)), "bool")


@converter("topk.default")
def topk(call: Call) -> relax.Expr:
    """Convert ``topk`` to the head of a sort, also with ``sorted=False``."""
    x = call.tensor("self")
    if not x.ty.shape:
        return relax.Tuple([x, call.cast(0, "int64")])
    axis, count = call["dim"] % len(x.ty.shape), int(call["k"])
    indices = _order(call, x, axis, bool(call["largest"]))
    indices = call.emit(relax.op.strided_slice(indices, [axis], [0], [count]))
    return relax.Tuple([_gathered(call, x, indices, axis), indices])


@converter("median.default", "median.dim", "kthvalue.default", "nanmedian.default", "nanmedian.dim")
def median(call: Call) -> relax.Expr:
    """Convert ``median``, ``nanmedian`` and ``kthvalue``; the median of an even number of elements is the lower middle one.

    ``nanmedian`` ignores NaN, and is NaN if all elements are.
    """
    x, name = call.tensor("self"), call.node.target.__name__
    whole = name.endswith("median.default")
    if not x.ty.shape:
        return x if whole else relax.Tuple([x, call.cast(0, "int64")])
    if whole:
        x = call.emit(relax.op.reshape(x, (-1,)))
    axis = 0 if whole else call["dim"] % len(x.ty.shape)
    if name.startswith("nan"):
        indices = _median_of_numbers(call, x, axis)
    else:
        rank = int(call["k"]) - 1 if "k" in call.arguments else (int(x.ty.shape[axis]) - 1) // 2
        indices = call.emit(relax.op.strided_slice(_order(call, x, axis, False), [axis], [rank], [rank + 1]))
    values = _gathered(call, x, indices, axis)
    if whole:
        return call.emit(relax.op.squeeze(values, [0]))
    if not _keep(call):
        values, indices = (call.emit(relax.op.squeeze(value, [axis])) for value in (values, indices))
    return relax.Tuple([values, indices])


def _median_of_numbers(call: Call, x: relax.Expr, axis: int) -> relax.Expr:
    """Return the position of the lower median of the elements that are not NaN; the axis keeps length 1."""
    indices, count = _numbers_first(call, x, axis)
    median = call.emit(relax.op.floor_divide(relax.op.subtract(count, call.cast(1, "int64")), call.cast(2, "int64")))
    position = call.emit(relax.op.maximum(median, call.cast(0, "int64")))
    return call.emit(relax.op.gather_elements(indices, position, axis))


def _numbers_first(call: Call, x: relax.Expr, axis: int) -> tuple[relax.Expr, relax.Expr]:
    """Return the positions that sort an axis with NaN last, after infinity, and the number of elements that are not NaN."""
    if not is_float(dtype_of(x)):
        sizes = [1 if k == axis else int(size) for k, size in enumerate(x.ty.shape)]
        count = relax.op.full(sizes, call.cast(int(x.ty.shape[axis]), "int64"), "int64")
        return _order(call, x, axis, False), call.emit(count)
    is_nan = call.emit(relax.op.isnan(x))
    indices = _order(call, call.emit(relax.op.where(is_nan, constant(float("inf"), x), x)), axis, False)
    nan_last = call.emit(relax.op.gather_elements(call.cast(is_nan, "int32"), indices, axis))
    indices = call.emit(relax.op.gather_elements(indices, _order(call, nan_last, axis, False), axis))
    is_number = call.cast(call.emit(relax.op.logical_not(is_nan)), "int64")
    return indices, call.emit(relax.op.sum(is_number, [axis], keepdims=True))
