"""Matrix products whose constant factor stays packed: integers of 2, 4 or 8 bits, with a scale for each block of a row."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from tvm import te, tirx

PACKED_PRODUCT = "tvm_frontends.packed_product"
"""Attribute of a kernel that `packed_product_kernel` built: its `PackedProduct` as JSON."""


class PackedProduct(msgspec.Struct, frozen=True):
    """A product of rows with ``matrices`` packed matrices of shape ``(columns, terms)``, each of which is transposed.

    Examples
    --------
    >>> from tvm_frontends.kernels.packed_products import PackedProduct
    >>> PackedProduct(bits=4, block=32, terms=60, columns=7).blocks
    2
    """

    bits: int
    """Bits of a number: 2, 4 or 8. The first number of a byte has its lowest bits."""
    block: int
    """Terms that share a scale; a row is filled up to whole blocks, and a block to whole bytes."""
    terms: int
    columns: int
    matrices: int = 1
    zeros: bool = False
    """Whether each block has a zero point. If not, it is half of the range: 2, 8 or 128."""
    bias: bool = False

    @property
    def blocks(self) -> int:
        """Blocks of a row of weights."""
        return -(-self.terms // self.block)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block, without scale and zero point."""
        return self.block * self.bits // 8

    def result_shape(self, rows: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the result for rows of a shape."""
        lead = rows[:-1] if self.matrices == 1 else (self.matrices, *rows[1:-1])
        return (*lead, self.columns)


def packed_product_kernel(about: PackedProduct, rows: tuple[int, ...], dtypes: tuple[str, ...]) -> tirx.PrimFunc:
    """Build the kernel of a product; it computes in float32.

    Its arguments, with ``N = matrices * columns``:

    - rows, float32 of the shape ``rows``, ``(..., terms)``; of several matrices ``(matrices, ..., terms)``, or ``(1, ...,
      terms)`` if each is multiplied by the same rows,
    - numbers, uint8 ``(N, blocks, block_bytes)``,
    - scales, ``(N, blocks)``; zero points, if any, ``(N, blocks)``; of the types ``dtypes``,
    - bias, if any: float32 ``(N,)``,
    - the result, float32 of the shape `PackedProduct.result_shape`.
    """
    blocked = (about.matrices * about.columns, about.blocks)
    x = te.placeholder(rows, "float32", name="rows")
    numbers = te.placeholder((*blocked, about.block_bytes), "uint8", name="numbers")
    scales = te.placeholder(blocked, dtypes[0], name="scales")
    zeros = te.placeholder(blocked, dtypes[1], name="zeros") if about.zeros else None
    bias = te.placeholder(blocked[:1], "float32", name="bias") if about.bias else None
    k = te.reduce_axis((0, about.terms), name="k")

    def row(index: tuple[Any, ...]) -> Any:
        return index[-1] if about.matrices == 1 else index[0] * about.columns + index[-1]

    def term(*index: Any) -> Any:
        block = k // about.block
        byte = numbers[row(index), block, k % about.block // (8 // about.bits)]
        whole = packed_number(byte, k, about.bits)
        zero = float(1 << (about.bits - 1)) if zeros is None else zeros[row(index), block].astype("float32")
        weight = (whole - zero) * scales[row(index), block].astype("float32")
        lead = (0, *index[1:-1]) if about.matrices > 1 and rows[0] == 1 else index[:-1]
        return te.sum(x[(*lead, k)] * weight, axis=k)

    result = te.compute(about.result_shape(rows), term, name="product")
    if bias is not None:
        product = result
        result = te.compute(product.shape, lambda *index: product(*index) + bias[row(index)], name="biased")
    arguments = [each for each in (x, numbers, scales, zeros, bias, result) if each is not None]
    kernel = te.create_prim_func(arguments).without_attr("global_symbol")
    return kernel.with_attr(PACKED_PRODUCT, msgspec.json.encode(about).decode())


def packed_number(byte: Any, place: Any, bits: int) -> Any:
    """Return the number at a place of a packed row, which is in ``byte``, as float32."""
    return (byte.astype("int32") >> (place % (8 // bits) * bits) & ((1 << bits) - 1)).astype("float32")


def packed_product_of(function: Any) -> PackedProduct | None:
    """Return what a kernel of `packed_product_kernel` computes; None for other functions."""
    text = function.attrs.get(PACKED_PRODUCT) if isinstance(function, tirx.PrimFunc) and function.attrs else None
    return None if text is None else msgspec.json.decode(str(text), type=PackedProduct)


def unpacked_weights(
    about: PackedProduct, numbers: npt.NDArray[Any], scales: npt.NDArray[Any], zeros: npt.NDArray[Any] | None = None
) -> npt.NDArray[np.float32]:
    """Return the matrices that packed numbers stand for: float32 ``(matrices, columns, terms)``."""
    whole = unpack(numbers, about.bits).astype(np.float32)
    whole -= np.float32(1 << (about.bits - 1)) if zeros is None else zeros[..., np.newaxis].astype(np.float32)
    whole *= scales[..., np.newaxis].astype(np.float32)
    return np.ascontiguousarray(whole.reshape(about.matrices, about.columns, -1)[..., : about.terms])


def unpack(data: Any, bits: int) -> npt.NDArray[np.uint8]:
    """Return the numbers of 2, 4 or 8 bits in packed bytes, the lowest bits first, along the last axis."""
    data = np.asarray(data).view("uint8")
    parts = [data >> shift & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(*data.shape[:-1], -1)


def packed_product_flops(about: PackedProduct, rows: tuple[int, ...]) -> int:
    """Return the floating-point operations of a product: two for each term."""
    return 2 * math.prod(about.result_shape(rows)) * about.terms
