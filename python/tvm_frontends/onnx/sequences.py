"""Resolution of ONNX's sequences: lists of tensors whose length is known become the tensors, which have static shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .loop_operators import scalar

if TYPE_CHECKING:
    import onnx_ir as ir

SPLIT_INPUT = 13
"""First opset in which the sizes of Split are an input."""


def resolve_sequences(model: ir.Model) -> bool:
    """Replace operators on sequences of known length, in place, by operators on tensors; return whether anything changed.

    Only SequenceConstruct is left of them, which disappears if nothing reads it. Operators stay if a length or position is
    known only when the model runs, or outside of the sequence. An optional value has an element unless it is made empty.
    """
    changed = False
    for graph in model.graphs():
        for node in list(graph):
            if node.domain in ("", "ai.onnx") and node.op_type in _RESOLVERS:
                result = _RESOLVERS[node.op_type](node, model.opset_imports.get("", 1))
                if result is not None:
                    _replace(node, *result)
                    changed = True
    return changed


def _replace(node: ir.Node, nodes: list[ir.Node], value: ir.Value) -> None:
    import onnx_ir as ir

    graph, old = node.graph, node.outputs[0]
    assert graph is not None
    if old.is_graph_output():
        nodes = [*nodes, _node("Identity", [value])]
        value = nodes[-1].outputs[0]
        value.shape, value.type = old.shape, old.type
    graph.insert_before(node, nodes)
    if old.is_graph_output():
        value.name, old.name = old.name, None
    ir.convenience.replace_all_uses_with(old, value, replace_graph_outputs=True)
    graph.remove(node, safe=True)


def _node(operator: str, inputs: list[ir.Value | None], outputs: int = 1, **attributes: Any) -> ir.Node:
    import onnx_ir as ir

    return ir.node(operator, inputs, attributes, num_outputs=outputs)


def _constant(array: np.ndarray) -> ir.Node:
    import onnx_ir as ir

    return _node("Constant", [], value=ir.tensor(array))


def _items(sequence: ir.Value | None) -> list[ir.Value | None] | None:
    """Return the tensors of a sequence, or None if they are not known."""
    producer = sequence.producer() if sequence is not None else None
    if producer is None or producer.op_type not in ("Identity", "SequenceConstruct", "SequenceEmpty"):
        return None
    return _items(producer.inputs[0]) if producer.op_type == "Identity" else list(producer.inputs)


_Result = tuple[list["ir.Node"], "ir.Value"] | None
"""New nodes and the value that replaces the output of the old one; None if nothing changes."""


def _last(node: ir.Node, *before: ir.Node) -> _Result:
    return [*before, node], node.outputs[0]


def _position(node: ir.Node, index: int, default: int) -> int | None:
    """Return the position that an input says, the default if it is left out, and None if it is not constant."""
    if len(node.inputs) <= index or node.inputs[index] is None:
        return default
    position = scalar(node.inputs[index])
    return None if position is None else int(position)


def _insert(node: ir.Node, opset: int) -> _Result:
    items = _items(node.inputs[0])
    position = _position(node, 2, len(items or ()))
    if items is None or position is None or not -len(items) <= position <= len(items):
        return None
    items.insert(position, node.inputs[1])
    return _last(_node("SequenceConstruct", items))


def _erase(node: ir.Node, opset: int) -> _Result:
    items, position = _items(node.inputs[0]), _position(node, 1, -1)
    if items is None or position is None or not -len(items) <= position < len(items):
        return None
    del items[position]
    return _last(_node("SequenceConstruct", items))


def _at(node: ir.Node, opset: int) -> _Result:
    items, position = _items(node.inputs[0]), _position(node, 1, -1)
    if items is None or position is None or not -len(items) <= position < len(items):
        return None
    value = items[position]
    return None if value is None else ([], value)


def _length(node: ir.Node, opset: int) -> _Result:
    items = _items(node.inputs[0])
    return None if items is None else _last(_constant(np.array(len(items), np.int64)))


def _concat(node: ir.Node, opset: int) -> _Result:
    items, axis = _items(node.inputs[0]), node.attributes["axis"].as_int()
    if not items or opset < SPLIT_INPUT:
        return None
    if not ("new_axis" in node.attributes and node.attributes["new_axis"].as_int()):
        return _last(_node("Concat", items, axis=axis))
    axes = _constant(np.array([axis], np.int64))
    wider = [_node("Unsqueeze", [item, axes.outputs[0]]) for item in items]
    return _last(_node("Concat", [each.outputs[0] for each in wider], axis=axis), axes, *wider)


def _split(node: ir.Node, opset: int) -> _Result:
    x = node.inputs[0]
    given = node.inputs[1] if len(node.inputs) > 1 else None
    if x is None or x.shape is None or opset < SPLIT_INPUT or (given is not None and given.const_value is None):
        return None
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
    size = x.shape[axis]
    parts = np.array(1) if given is None or given.const_value is None else given.const_value.numpy()
    if not isinstance(size, int) or parts.ndim > 1 or ((parts <= 0).any() and parts.ndim == 0):
        return None
    if parts.ndim == 0:
        parts = np.array([min(int(parts), size - start) for start in range(0, size, int(parts))])
    sizes = _constant(parts.astype(np.int64))
    split = _node("Split", [x, sizes.outputs[0]], len(parts), axis=axis)
    items: list[ir.Value | None] = list(split.outputs)
    # Where sizes are given, keepdims is ignored.
    if given is not None or "keepdims" not in node.attributes or node.attributes["keepdims"].as_int():
        return _last(_node("SequenceConstruct", items), *([sizes, split] if items else []))
    axes = _constant(np.array([axis], np.int64))
    narrow = [_node("Squeeze", [item, axes.outputs[0]]) for item in items]
    made = _node("SequenceConstruct", [each.outputs[0] for each in narrow])
    return _last(made, *([sizes, split, axes, *narrow] if items else []))


def _has_element(node: ir.Node, opset: int) -> _Result:
    value = node.inputs[0] if node.inputs else None
    producer = value.producer() if value is not None else None
    if producer is not None and producer.op_type in ("If", "Loop", "Identity"):
        return None
    empty = value is None or (producer is not None and producer.op_type == "Optional" and not producer.inputs)
    return _last(_constant(np.array(not empty)))


def _get_element(node: ir.Node, opset: int) -> _Result:
    value = node.inputs[0]
    producer = value.producer() if value is not None else None
    if producer is None or producer.op_type != "Optional" or not producer.inputs or producer.inputs[0] is None:
        return None
    return [], producer.inputs[0]


_RESOLVERS = {
    "ConcatFromSequence": _concat,
    "OptionalGetElement": _get_element,
    "OptionalHasElement": _has_element,
    "SequenceAt": _at,
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SequenceLength": _length,
    "SplitToSequence": _split,
}
