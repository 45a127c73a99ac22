"""Shape inference for operators of ONNX Runtime's domain, at which ONNX's own inference, and so folding, would stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

LIKE_INPUT = frozenset(
    {
        *("BiasAdd", "BiasGelu", "FastGelu", "Gelu", "GroupNorm", "QuickGelu", "RotaryEmbedding"),
        *("SimplifiedLayerNormalization", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"),
    }
)
"""Operators whose first output has the shape and type of the first input."""


def infer_shapes(model: ir.Model) -> bool:
    """Set shapes that can be inferred now; whether there were any."""
    changed = False
    for node in model.graph:
        if node.domain != "com.microsoft" or not node.outputs or node.outputs[0].shape is not None:
            continue
        if node.op_type in LIKE_INPUT:
            changed |= _give(node, 0, _dims(node, 0))
        elif node.op_type == "DynamicQuantizeLSTM":
            changed |= _recurrent(node)
    return changed


def _recurrent(node: ir.Node) -> bool:
    x, weights = _dims(node, 0), _dims(node, 2)
    if x is None or weights is None:
        return False
    steps, batch = x[:2]
    directions, hidden = weights[:2]
    changed = _give(node, 0, [steps, directions, batch, hidden])
    for position in (1, 2):
        changed |= _give(node, position, [directions, batch, hidden])
    return changed


def _dims(node: ir.Node, position: int) -> list[int] | None:
    value = node.inputs[position]
    shape = value.shape if value is not None else None
    return [int(dim) for dim in shape.numpy()] if shape is not None and shape.is_static() else None


def _give(node: ir.Node, position: int, dims: list[int] | None) -> bool:
    import onnx_ir as ir

    first = node.inputs[0]
    if dims is None or first is None or position >= len(node.outputs):
        return False
    value = node.outputs[position]
    value.shape, value.type = ir.Shape(dims), first.type
    return True
