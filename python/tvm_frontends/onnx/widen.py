"""Replacement of types below a byte by wider types with all of their values, since kernels compute in whole bytes.

Graph inputs and outputs of these types get the wider type, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import onnx_ir as ir

WIDER = {"int2": "int8", "int4": "int8", "uint2": "uint8", "uint4": "uint8", "float4_e2m1fn": "float32"}
"""The wider type of each type below a byte, by the names of ml_dtypes."""


def wider_name(dtype: str | None) -> str | None:
    """Return the wider type of a type below a byte; other types are unchanged."""
    return WIDER.get(dtype, dtype) if dtype is not None else None


def widen_types(model: ir.Model) -> None:
    """Replace types below a byte by wider ones, in place.

    ``Cast`` keeps its attribute ``to`` and ``QuantizeLinear`` gets ``output_dtype``, so that their results stay in the
    range of the smaller type. ``GatherBlockQuantized`` gets ``data_type``, the type of its data.
    """
    import onnx_ir as ir

    for node in model.graph:
        if node.op_type == "GatherBlockQuantized" and node.inputs[0] is not None and node.inputs[0].dtype is not None:
            node.attributes["data_type"] = ir.AttrString("data_type", node.inputs[0].dtype.name.lower())
        if node.op_type == "QuantizeLinear" and len(node.inputs) > 2 and node.inputs[2] is not None:
            zero = node.inputs[2].dtype
            if zero is not None and _wider(zero) is not None:
                node.attributes["output_dtype"] = ir.AttrInt64("output_dtype", int(zero))
        for value in node.outputs:
            _widen(value)
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        _widen(value)


def _widen(value: ir.Value) -> None:
    import onnx_ir as ir

    wide = _wider(value.dtype) if value.dtype is not None else None
    if wide is None:
        return
    value.type = ir.TensorType(ir.DataType.from_numpy(np.dtype(wide)))
    if value.const_value is not None:
        value.const_value = ir.tensor(value.const_value.numpy().astype(wide), name=value.name)


def _wider(dtype: ir.DataType) -> str | None:
    try:
        return WIDER.get(dtype.numpy().name)
    except TypeError:  # text, or an unknown type
        return None
