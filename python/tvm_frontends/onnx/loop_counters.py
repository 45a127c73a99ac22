"""Iteration counts of ``Loop`` nodes whose condition depends on counters, as in loops exported from TensorFlow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx_ir as ir

LARGEST = 1024
"""Most elements of a value from which the condition is computed."""


def count_iterations(body: ir.Graph, first: int, carried: list[ir.Value | None], most: int, opset: int) -> int | None:
    """Count the iterations until the condition is false, by evaluating only the nodes that the condition needs.

    Parameters
    ----------
    body : onnx_ir.Graph
        Body of a loop whose first iteration is known to run.
    first : int
        Number of that iteration.
    carried : list of onnx_ir.Value
        Initial values of the loop-carried variables.
    most : int
        Largest count; counting stops there.
    opset : int
        Version of the standard domain.

    Returns
    -------
    int or None
        None if the condition depends on unknown values.
    """
    dependencies = _behind(body)
    if dependencies is None:
        return None
    nodes, positions, values = dependencies
    state = [_known(carried[position]) for position in positions]
    if any(value is None for value in state):
        return None
    for done in range(1, most + 1):
        values[body.inputs[0]], values[body.inputs[1]] = np.array(first + done - 1, np.int64), np.array(True)
        values.update((body.inputs[2 + position], value) for position, value in zip(positions, state, strict=True))
        try:
            for node in nodes:
                _compute(node, values, opset)
        except Exception:  # the evaluator raises unrelated classes
            return None
        if not bool(np.reshape(values[body.outputs[0]], ())):
            return done
        state = [values[body.outputs[1 + position]] for position in positions]
    return most


def _behind(body: ir.Graph) -> tuple[list[ir.Node], list[int], dict[Any, Any]] | None:
    """Return the nodes that the condition needs in each iteration, positions of carried values, and constants."""
    place = {value: position for position, value in enumerate(body.inputs[2:])}
    counters, waiting = set(body.inputs[:2]), [body.outputs[0]]
    nodes: set[ir.Node] = set()
    positions: list[int] = []
    values: dict[Any, Any] = {}
    seen: set[ir.Value] = set()
    while waiting:
        value = waiting.pop()
        if value in seen or value in counters:
            continue
        seen.add(value)
        producer = value.producer()
        if value in place:
            positions.append(place[value])
            waiting.append(body.outputs[1 + place[value]])
        elif (known := _known(value)) is not None:
            values[value] = known
        elif producer is None or producer.graph is not body or not _is_simple(producer):
            return None
        else:
            nodes.add(producer)
            waiting.extend(source for source in producer.inputs if source is not None)
    return [node for node in body if node in nodes], positions, values


def _is_simple(node: ir.Node) -> bool:
    graphs = any(attribute.type.name in ("GRAPH", "GRAPHS") for attribute in node.attributes.values())
    return node.domain in ("", "ai.onnx") and len(node.outputs) == 1 and not graphs and "Random" not in node.op_type


def _known(value: ir.Value | None) -> Any:
    tensor = None if value is None else value.const_value
    return tensor.numpy() if tensor is not None and tensor.size <= LARGEST else None


def _compute(node: ir.Node, values: dict[Any, Any], opset: int) -> None:
    import onnx.reference.ops

    operator = onnx.reference.ops.load_op("", node.op_type, opset)
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    result = operator.eval(*(None if source is None else values[source] for source in node.inputs), **attributes)
    result = result[0] if isinstance(result, tuple) else result
    if np.size(result) > LARGEST:
        raise ValueError("too large for a counter")
    values[node.outputs[0]] = np.asarray(result)
