"""Converters of com.microsoft's operators with weights packed into 2, 4 or 8 bits: MatMulNBits and GatherBlockQuantized."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax, te, tirx

from ...kernels.packed_products import (
    PackedProduct,
    packed_number,
    packed_product_kernel,
    unpack,
)
from ...tensor_types import dtype_of
from .nodes import Node, constant_of, converter
from .quantized_arithmetic import cast

_DOMAIN = "com.microsoft"
_BITS = (2, 4, 8)


@converter("MatMulNBits", domain=_DOMAIN)
def matmul_nbits(node: Node) -> relax.Expr:
    """Convert MatMulNBits of 2, 4 or 8 bits, with any accuracy_level, to a product in float32 whose weights stay packed.

    Inputs: A, B, scales, zero points, g_idx, bias. With g_idx, weights become floats when the model is imported.
    """
    a, b, scales, zeros, groups, bias = (node.input(k) for k in range(6))
    bits, k, n, block = (int(node.attribute(name, 4)) for name in ("bits", "K", "N", "block_size"))
    packed, scale, point = (_weights(node, value) for value in (b, scales, zeros))
    if packed is None or scale is None or node.attribute("weight_prepacked", 0):
        raise node.unsupported("its weights or scales are missing, or packed for one kind of GPU (weight_prepacked)")
    if bits not in _BITS:
        raise node.unsupported(f"its weights have {bits} bits; 2, 4 and 8 are allowed")
    if block < 16 or block & (block - 1) or k < 1 or n < 1:
        raise node.unsupported(
            f"block_size is {block}, K {k}, N {n}; a power of two from 16 and sizes from 1 are needed"
        )
    about = PackedProduct(bits, block, k, n, zeros=point is not None, bias=bias is not None)
    columns, blocks = node.shape(a, "its input A")[-1], about.blocks
    if columns != k:
        raise node.unsupported(f"A has {columns} columns; K = {k} needs {k}")
    why = f"K = {k}, N = {n}, bits = {bits}, block_size = {block}"
    expect(node, "its weights B", packed, ("uint8",), n * blocks * about.block_bytes, why)
    expect(node, "its scales", scale, FLOATS, n * blocks, why)
    numbers = packed.reshape(n, blocks, -1)
    scale = scale.reshape(n, blocks)
    if point is not None:
        if point.dtype.name in FLOATS:
            expect(node, "its zero points in floats", point, FLOATS, n * blocks, why)
            point = point.reshape(n, blocks).astype("float32")
        else:
            expect(node, "its packed zero points", point, ("uint8",), n * -(-blocks * bits // 8), why)
            point = unpack(point.reshape(n, -1), bits)[:, :blocks]
    if bias is not None:
        expect(node, "its bias", bias, FLOATS, n, why)
    if groups is not None:
        weights = _reordered(node, about, numbers, scale, point, _weights(node, groups))
        result = node.emit(relax.op.matmul(a, relax.const(np.ascontiguousarray(weights.T).astype(dtype_of(a)))))
        return result if bias is None else node.emit(relax.op.add(result, bias))
    kept = b if node.shape(b, "its weights B") == numbers.shape else relax.const(np.ascontiguousarray(numbers))
    return packed_product(node, about, a, kept, scale, point, bias)


def packed_product(
    node: Node,
    about: PackedProduct,
    rows: relax.Expr,
    numbers: relax.Expr,
    scales: npt.NDArray[Any],
    zeros: npt.NDArray[Any] | None,
    bias: relax.Expr | None,
) -> relax.Expr:
    """Emit a product of rows with packed weights, computed in float32; see `packed_product_kernel`.

    Raises
    ------
    UnsupportedNode
        A scale or a zero point is infinite or NaN.
    """
    dtype, shape = dtype_of(rows), node.shape(rows, "its rows")
    kept = _finite(node, scales, zeros)
    constants = [np.ascontiguousarray(each) for each in (kept, zeros) if each is not None]
    arguments = [cast(node, rows, "float32"), numbers, *(relax.const(each) for each in constants)]
    if bias is not None:
        arguments.append(cast(node, bias, "float32"))
    kernel = packed_product_kernel(about, shape, tuple(str(each.dtype) for each in constants))
    result = relax.TensorType(about.result_shape(shape), "float32")
    function = node.builder.add_func(kernel, "packed_product")
    return cast(node, node.emit(relax.call_tir(function, arguments, result)), dtype)


FLOATS = ("float32", "float16", "bfloat16", "float64")
"""Types of scales, bias and zero points in floats."""


def expect(
    node: Node, what: str, value: relax.Expr | npt.NDArray[Any], dtypes: tuple[str, ...], size: int, why: str
) -> None:
    """Refuse an operand of another type or number of elements, which a kernel would read as what it is not.

    Parameters
    ----------
    what : str
        The operand in the message: ``"its scales"``.
    why : str
        What the number of elements follows from.
    """
    if isinstance(value, np.ndarray):
        dtype, found = value.dtype.name, value.size
    else:
        dtype, found = dtype_of(value), math.prod(node.shape(value, what))
    if dtype not in dtypes or found != size:
        raise node.unsupported(
            f"{what}: found {found} elements of type {dtype}; {why} need {size} of type {' or '.join(dtypes)}. Export "
            "the model again, or with weights in floats"
        )


def _finite(node: Node, scales: npt.NDArray[Any], zeros: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
    """Return scales in float16 or float32, after a check that the kernels can take them and the zero points."""
    kept = scales if scales.dtype in (np.float32, np.float16) else scales.astype("float32")
    for what, values in (("scales", kept), ("zero points", zeros)):
        wrong = 0 if values is None else int(values.size - np.isfinite(values).sum())
        if wrong:
            raise node.unsupported(
                f"{wrong} of its {what} are infinite or NaN; finite numbers are needed. Quantise the model again, or "
                "export it with weights in floats"
            )
    return kept


def _weights(node: Node, value: relax.Expr | None) -> npt.NDArray[Any] | None:
    known = constant_of(value)
    if known is None and value is not None:
        raise node.unsupported(
            "its weights, or their groups (g_idx), are known only when the model runs: make them initializers, or export "
            "the model with weights in floats"
        )
    return known


def _reordered(node: Node, about: PackedProduct, numbers: Any, scales: Any, zeros: Any, order: Any) -> Any:
    """Return weights ``(N, K)`` of which each has the scale and the zero point of the group that ``order`` names."""
    group = order.reshape(-1)[: about.terms].astype("int64")
    if (
        order.dtype.kind not in "iu"
        or len(group) != about.terms
        or group.min(initial=0) < 0
        or group.max(initial=0) >= about.blocks
    ):
        raise node.unsupported(
            f"g_idx does not name one of {about.blocks} groups for each of K = {about.terms} weights"
        )
    whole = unpack(numbers, about.bits).reshape(about.columns, -1)[:, : about.terms].astype("float32")
    whole -= np.float32(1 << (about.bits - 1)) if zeros is None else zeros.astype("float32")[:, group]
    return whole * scales.astype("float32")[:, group]


@converter("GatherBlockQuantized", domain=_DOMAIN)
def gather_block_quantized(node: Node) -> relax.Expr:
    """Convert GatherBlockQuantized of integers: the table stays packed, and what is taken from it becomes floats.

    Inputs: data, indices, scales, zero points. A negative index counts from the end; one out of range gives zeros.
    """
    data, scales, zeros = (_weights(node, node.input(k)) for k in (0, 2, 3))
    indices = node.input(1)
    if data is None or scales is None or indices is None:
        raise node.unsupported("its data, indices or scales are missing")
    bits, block = int(node.attribute("bits", 4)), int(node.attribute("block_size", 128))
    kind = node.attribute("data_type", "uint8")
    if bits not in _BITS or kind not in ("int4", "uint4", "uint8") or block < 1:
        raise node.unsupported(
            f"its data are {kind} of {bits} bits; int4, uint4, and uint8 of 2, 4 and 8 bits are allowed"
        )
    if kind == "uint8" and any(each is not None and each.dtype != np.uint8 for each in (data, zeros)):
        raise node.unsupported("its data or zero points are not of type uint8. Export the model again")
    table, middle = data, 1 << (bits - 1)
    if kind != "uint8":  # 4 bits that are held in bytes
        middle = 8 if kind == "int4" else 0
        table = (data.astype("int16") + middle).astype("uint8")
        zeros = None if zeros is None else (zeros.astype("int16") + middle).astype("uint8")
        table, bits = (table, 8) if data.shape[-1] % 2 else (table[..., ::2] | table[..., 1::2] << 4, 4)
    elif zeros is not None:
        zeros = unpack(zeros, bits)[..., : scales.shape[-1]]
    rank, each = data.ndim, 8 // bits
    gathered, quantized = (
        int(node.attribute(name, k)) % rank for name, k in (("gather_axis", 0), ("quantize_axis", 1))
    )
    shape = (*table.shape[:-1], table.shape[-1] * each)
    expected = tuple(-(-size // block) if axis == quantized else size for axis, size in enumerate(shape))
    if scales.shape != expected or (zeros is not None and zeros.shape != expected):
        raise node.unsupported(
            f"its scales have the shape {scales.shape}, and zero points that of {None if zeros is None else zeros.shape}; "
            f"{expected} is needed"
        )
    extent, places = shape[gathered], len(node.shape(indices, "its indices"))
    dtype = str(scales.dtype)

    def taken(numbers: te.Tensor, index: te.Tensor, scale: te.Tensor, *zero: te.Tensor) -> te.Tensor:
        def element(*at: Any) -> Any:
            place = index(*at[gathered : gathered + places]).astype("int64")
            place = tirx.if_then_else(place < 0, place + extent, place)
            inside = tirx.all(place >= 0, place < extent)
            place = tirx.max(tirx.min(place, extent - 1), 0)
            where = [*at[:gathered], place, *at[gathered + places :]]
            beside = [at // block if axis == quantized else at for axis, at in enumerate(where)]
            number = packed_number(numbers(*where[:-1], where[-1] // each), where[-1], bits)
            centre = zero[0](*beside).astype("float32") if zero else float(middle)
            value = (number - centre) * scale(*beside).astype("float32")
            return tirx.if_then_else(inside, value, 0.0).astype(dtype)

        index_shape = [int(size) for size in index.shape]
        return te.compute((*shape[:gathered], *index_shape, *shape[gathered + 1 :]), element, name="taken")

    kept = node.input(0) if table is data else relax.const(np.ascontiguousarray(table))
    more = [] if zeros is None else [relax.const(np.ascontiguousarray(zeros))]
    return node.builder.emit_te(taken, kept, indices, node.input(2), *more, primfunc_name_hint="packed_gather")
