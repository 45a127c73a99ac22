"""Products with packed weights: calls of a kernel of ``cpp/kernels/language``, or products of dequantised weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

from tvm_frontends.kernels.packed_products import (
    PackedProduct,
    packed_product_flops,
    packed_product_of,
    unpacked_weights,
)

from ...ir.tensor_types import dtype_of, known_shape
from .kernel_library import KernelSet, Names
from .rewrite import Rewriter, constant_value

_COLUMNS = 16
"""Columns of a tile."""
_WORD = 4
"""Bytes in which the terms of a column lie side by side."""


def claim_packed_products(mod: tvm.IRModule, kernels: KernelSet, names: Names) -> tvm.IRModule:
    """Replace products with packed weights by calls of the library's kernel, with the weights in its order."""
    return _Claimer(mod, kernels, names).run() if _has_packed_product(mod) else mod


def expand_packed_products(mod: tvm.IRModule, kernels: KernelSet, names: Names) -> tvm.IRModule:
    """Replace products with packed weights by products with dequantised weights."""
    return _Expander(mod, kernels, names).run() if _has_packed_product(mod) else mod


def _has_packed_product(mod: tvm.IRModule) -> bool:
    return any(packed_product_of(function) is not None for function in mod.functions.values())


class _Replacer(Rewriter):
    """Hands each product whose weights are constants to `replace`."""

    def __init__(self, mod: tvm.IRModule, kernels: KernelSet, names: Names) -> None:
        super().__init__(mod)
        self.kernels, self.names = kernels, names

    def visit(self, variable: Any, value: Any) -> Any:
        """Rewrite one binding."""
        call_tir = isinstance(value, relax.Call) and value.op == tvm.ir.Op.get("relax.call_tir")
        about = packed_product_of(self.mod[value.args[0]]) if call_tir else None
        if about is not None:
            rows, numbers, scales, *more = value.args[1].fields
            constants = [numbers, scales, *more[: int(about.zeros)]]
            known = [constant_value(self.resolve(each)) for each in constants]
            if all(each is not None for each in known):
                bias = self.value(more[-1]) if about.bias else None
                return self.emit(self.replace(about, value, self.value(rows), self.resolve(numbers), known, bias))
        return super().visit(variable, value)

    def replace(
        self, about: PackedProduct, call: Any, rows: Any, source: Any, known: list[npt.NDArray[Any]], bias: Any
    ) -> Any:
        """Return the expression that computes ``call``; ``known`` are numbers, scales and any zero points."""
        raise NotImplementedError


class _Claimer(_Replacer):
    def replace(
        self, about: PackedProduct, call: Any, rows: Any, source: Any, known: list[npt.NDArray[Any]], bias: Any
    ) -> Any:
        shape = known_shape(rows)
        if about.block_bytes % _WORD or 0 in (*shape, about.columns):
            return self.rebuild(call)
        types = [str(each.dtype) for each in known[1:]]
        kernel = {
            "kind": "packed", "bits": about.bits, "block": about.block, "terms": about.terms, "columns": about.columns,
            "matrices": about.matrices, "shared": shape[0] == 1 or about.matrices == 1, "scales": types[0],
            "zeros": types[1] if about.zeros else "middle", "bias": about.bias,
        }  # fmt: skip
        suffixes = ("tiles", "scales", "zeros")
        operands = [
            self.kernels.derived_constant(_tiles(about, each), source, self.names, f".{suffix}")
            for each, suffix in zip((_words(known[0]), *known[1:]), suffixes, strict=False)
        ]
        arguments = [rows, *operands, *([] if bias is None else [bias])]
        return self.kernels.call("packed", kernel, arguments, call.ty, packed_product_flops(about, shape))


def _words(numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(numbers).reshape(len(numbers), -1).view("<u4")


def _tiles(about: PackedProduct, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return what each row of weights has as (matrices, tiles of 16 rows, ..., 16)."""
    rows = values.reshape(about.matrices, about.columns, -1)
    rows = np.pad(rows, ((0, 0), (0, -about.columns % _COLUMNS), (0, 0)))
    return np.ascontiguousarray(rows.reshape(about.matrices, -1, _COLUMNS, rows.shape[-1]).swapaxes(2, 3))


class _Expander(_Replacer):
    def replace(
        self, about: PackedProduct, call: Any, rows: Any, source: Any, known: list[npt.NDArray[Any]], bias: Any
    ) -> Any:
        weights = unpacked_weights(about, *known).swapaxes(1, 2)
        weights = np.ascontiguousarray(weights if about.matrices > 1 else weights[0])
        factor = self.kernels.derived_constant(weights, source, self.names)
        product = self.emit(relax.op.matmul(rows, factor))
        if bias is None:
            return product
        if about.matrices > 1:
            bias = self.emit(relax.op.reshape(bias, (about.matrices, 1, about.columns)))
        assert dtype_of(bias) == "float32"
        return relax.op.add(product, bias)
