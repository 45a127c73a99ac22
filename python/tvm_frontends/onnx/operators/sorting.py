"""Converter of TopK for all types; TVM sorts some of them only.

Corrections of TVM 0.27.0, ``relax/frontend/onnx/onnx_frontend.py``:

- ``TopK``: refuses ``sorted=0``; and ``topi``'s sort refuses bool, int16, uint16, uint32 and uint64, and takes
  bfloat16 for integers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import tvm
from tvm import relax, te

from ...tensor_types import dtype_of
from .nodes import Node, converter
from .upstream import convert_upstream

SORTED = {"bool": "int32", "int16": "int32", "uint16": "int32", "uint32": "int64", "bfloat16": "float32"}
"""Types that are sorted as a wider type with all of their values."""


@converter("TopK")
def top_k(node: Node) -> list[relax.Expr]:
    """Convert TopK: the largest or smallest elements and their positions, sorted even with ``sorted=0``."""
    x = node.input(0)
    kind = dtype_of(x)
    count = node.constant(1)
    if count is not None and int(np.ravel(count)[0]) == 0:
        shape = list(node.shape(x, "its input"))
        shape[int(node.attribute("axis", -1))] = 0
        return [node.emit(relax.op.zeros(shape, each)) for each in (kind, "int64")]
    keys = relax.op.astype(x, SORTED[kind]) if kind in SORTED else x
    if kind == "uint64":
        keys = _flipped(node, x, "int64")
    attributes = {name: value for name, value in node.attributes.items() if name != "sorted"}
    pair = convert_upstream(replace(node, inputs=(node.emit(keys), *node.inputs[1:])), attributes)
    values, positions = (node.emit(relax.TupleGetItem(pair, position)) for position in (0, 1))
    if kind == "uint64":
        values = _flipped(node, values, "uint64")
    elif kind in SORTED:
        values = relax.op.astype(values, kind)
    return [node.emit(values), positions]


def _flipped(node: Node, x: relax.Expr, kind: str) -> relax.Expr:
    """Flip the sign bit of 64-bit integers, which maps the order of unsigned numbers to that of signed ones."""

    def compute(a: te.Tensor) -> te.Tensor:
        def element(*i: tvm.tirx.Var) -> tvm.tirx.Expr:
            bits = tvm.tirx.bitwise_xor(tvm.tirx.reinterpret("uint64", a(*i)), tvm.tirx.const(1 << 63, "uint64"))
            return tvm.tirx.reinterpret(kind, bits)

        return te.compute(a.shape, element, name="flipped")

    return node.builder.emit_te(compute, x, primfunc_name_hint="flipped")
