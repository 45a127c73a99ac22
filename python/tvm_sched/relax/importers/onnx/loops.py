"""Unrolling of ONNX's ``Loop`` and ``Scan`` where the number of iterations is known."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from .operators import UnsupportedNode

if TYPE_CHECKING:
    import onnx_ir as ir

MAX_NODES = 20_000
"""Most operators that the unrolling of one loop may make."""

_START = "tvm_sched.first_iteration"


def unroll_loops(model: ir.Model) -> bool:
    """Unroll the loops of the main graph whose iterations are known, in place; loops inside them appear in it.

    A ``Loop`` whose condition its body computes is unrolled by one iteration a call: constant folding then says whether
    the condition of the next one is known.

    Returns
    -------
    bool
        Whether anything changed.

    Raises
    ------
    UnsupportedNode
        A loop that is too long.
    """
    changed = False
    for node in list(model.graph):
        if node.domain not in ("", "ai.onnx"):
            continue
        if node.op_type == "Loop":
            changed |= _unroll_loop(model, node)
        elif node.op_type == "Scan":
            changed |= _unroll_scan(model, node)
    return changed


def check_loops(model: ir.Model) -> None:
    """Refuse a loop of which only the first iterations could be unrolled: what is left of it counts from 0 again.

    Raises
    ------
    UnsupportedNode
    """
    for node in model.graph:
        if _START in node.meta:
            raise UnsupportedNode(
                f"Loop (node {_name(node)!r}) goes on as long as its data say; the number of iterations must be known: give "
                "the input that decides it with --constant NAME=VALUE"
            )


def unique_names(model: ir.Model) -> None:
    """Give the values inside subgraphs names of their own: ONNX lets two branches use the same."""
    import onnx_ir as ir

    used = {value.name for value in ir.convenience.create_value_mapping(model.graph, include_subgraphs=False).values()}
    for node in model.graph:
        for body in _bodies(node):
            _rename(body, used)


def _unroll_loop(model: ir.Model, node: ir.Node) -> bool:
    body = node.attributes["body"].as_graph()
    limit, condition = _scalar(node.inputs[0]), _scalar(node.inputs[1])
    if (node.inputs[0] is not None and limit is None) or (node.inputs[1] is not None and condition is None):
        return False
    start = node.meta.get(_START, 0)
    left = np.inf if limit is None else max(0, int(limit) - start)
    if condition is not None and not condition:
        left = 0
    following = body.outputs[0]
    known = body.inputs[1] is following or _scalar(following) is not None
    if known and following is not body.inputs[1] and not _scalar(following):
        left = min(left, 1)
    trips = left if known else min(left, 1)
    if trips == np.inf:
        raise UnsupportedNode(
            f"Loop (node {_name(node)!r}) never ends: it has no trip count and its condition stays true"
        )
    _check_size(node, body, int(trips))
    carried = list(node.inputs[2:])
    scans: list[list[ir.Value]] = [[] for _ in body.outputs[1 + len(carried) :]]
    builder = _Builder(model, node)
    for iteration in range(start, start + int(trips)):
        condition_in = builder.constant(np.array(True))
        outputs = builder.inline(body, [builder.constant(np.array(iteration, np.int64)), condition_in, *carried])
        following, carried = outputs[0], outputs[1 : 1 + len(carried)]
        for scan, value in zip(scans, outputs[1 + len(carried) :], strict=True):
            scan.append(builder.unsqueeze(value, 0))
    if not known and trips:
        tail = builder.continue_loop(following, carried, start + 1)
        carried = list(tail.outputs[: len(carried)])
        for scan, value in zip(scans, tail.outputs[len(carried) :], strict=True):
            scan.append(value)
    if not all(scans) and any(value.uses() or value.is_graph_output() for value in node.outputs[len(carried) :]):
        return False  # no iteration: the shape of what it would have collected is not known
    stacked = [builder.concat(scan, 0) for scan in scans if scan]
    builder.replace([*carried, *stacked])
    return True


def _unroll_scan(model: ir.Model, node: ir.Node) -> bool:
    body = node.attributes["body"].as_graph()
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    count: int = attributes["num_scan_inputs"]
    states: list[Any] = list(node.inputs[: len(node.inputs) - count])
    sources: list[Any] = list(node.inputs[len(node.inputs) - count :])
    axes = attributes.get("scan_input_axes") or [0] * count
    shapes = [None if v is None else v.shape for v in sources]
    known = all(s is not None and isinstance(s[axis], int) for s, axis in zip(shapes, axes, strict=True))
    if model.opset_imports.get("", 0) < 9 or not known:
        return False
    lengths = {shape[axis] for shape, axis in zip(shapes, axes, strict=True) if shape is not None}
    if len(lengths) != 1 or not isinstance(length := lengths.pop(), int) or length == 0:
        return False
    _check_size(node, body, length)
    backward = attributes.get("scan_input_directions") or [0] * count
    made = len(body.outputs) - len(states)
    output_axes = attributes.get("scan_output_axes") or [0] * made
    output_backward = attributes.get("scan_output_directions") or [0] * made
    scans: list[list[ir.Value]] = [[] for _ in range(made)]
    builder = _Builder(model, node)
    for step in range(length):
        elements = [
            builder.take(value, length - 1 - step if reverse else step, axis)
            for value, axis, reverse in zip(sources, axes, backward, strict=True)
        ]
        outputs = builder.inline(body, [*states, *elements])
        states = outputs[: len(states)]
        for scan, value, axis in zip(scans, outputs[len(states) :], output_axes, strict=True):
            scan.append(builder.unsqueeze(value, axis))
    stacked = [
        builder.concat(scan[::-1] if reverse else scan, axis)
        for scan, axis, reverse in zip(scans, output_axes, output_backward, strict=True)
    ]
    builder.replace([*states, *stacked])
    return True


class _Builder:
    """Makes the nodes that take the place of a loop."""

    def __init__(self, model: ir.Model, node: ir.Node) -> None:
        import onnx_ir as ir

        self.ir, self.model, self.node = ir, model, node
        self.nodes: list[ir.Node] = []
        self.used = {n for g in model.graphs() for n in ir.convenience.create_value_mapping(g, include_subgraphs=False)}

    def name(self, stem: str) -> str:
        return _fresh(stem, self.used)

    def constant(self, array: np.ndarray) -> ir.Value:
        ir = self.ir
        tensor = ir.tensor(array, name=self.name(f"{_name(self.node)}_constant"))
        value = ir.Value(name=tensor.name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
        self.model.graph.register_initializer(value)
        return value

    def emit(self, operator: str, inputs: list[ir.Value], attributes: dict[str, Any], stem: str | None) -> ir.Value:
        node = self.ir.node(operator, inputs, attributes, name=self.name(f"{_name(self.node)}_{operator}"))
        node.outputs[0].name = self.name(f"{stem or _name(self.node)}_{operator}")
        self.nodes.append(node)
        return node.outputs[0]

    def unsqueeze(self, value: ir.Value, axis: int) -> ir.Value:
        if self.model.opset_imports.get("", 0) < 13:
            return self.emit("Unsqueeze", [value], {"axes": [axis]}, value.name)
        return self.emit("Unsqueeze", [value, self.constant(np.array([axis], np.int64))], {}, value.name)

    def take(self, value: ir.Value, index: int, axis: int) -> ir.Value:
        return self.emit("Gather", [value, self.constant(np.array(index, np.int64))], {"axis": axis}, value.name)

    def concat(self, values: list[ir.Value], axis: int) -> ir.Value:
        return self.emit("Concat", values, {"axis": axis}, None)

    def inline(self, body: ir.Graph, arguments: list[Any]) -> list[ir.Value]:
        """Copy the nodes of a body that reads the arguments; returns its outputs."""
        graph = body.clone(allow_outer_scope_values=True)
        _rename(graph, self.used)
        given = dict(zip(graph.inputs, arguments, strict=True))
        outputs = [given.get(value, value) for value in graph.outputs]
        graph.outputs.clear()
        for formal, actual in given.items():
            self.ir.convenience.replace_all_uses_with(formal, actual)
        nodes = list(graph)
        graph.remove(nodes)
        self.nodes.extend(nodes)
        return outputs

    def continue_loop(self, condition: ir.Value, carried: list[Any], start: int) -> ir.Node:
        """A loop that goes on after the iterations that were unrolled; its body still counts from 0 in `_START`."""
        node = self.node
        attributes = [
            self.ir.AttrGraph("body", node.attributes["body"].as_graph().clone(allow_outer_scope_values=True))
        ]
        tail = self.ir.Node(
            "", "Loop", [node.inputs[0], condition, *carried], attributes, num_outputs=len(node.outputs), name=node.name
        )
        tail.meta[_START] = start
        for old, new in zip(node.outputs, tail.outputs, strict=True):
            new.name, new.type = self.name(old.name or "loop"), old.type
        self.nodes.append(tail)
        return tail

    def replace(self, values: list[Any]) -> None:
        """Put the nodes in the place of the loop."""
        node = self.node
        self.model.graph.insert_before(node, self.nodes)
        for old, new in zip(node.outputs, values, strict=False):
            if old.is_graph_output() and (new.is_graph_input() or new.is_initializer() or new.is_graph_output()):
                copy = self.ir.node("Identity", [new])
                self.model.graph.insert_before(node, [copy])
                new = copy.outputs[0]
            if old.is_graph_output():
                new.name, old.name = old.name, None
                new.shape, new.type = old.shape or new.shape, old.type or new.type
            self.ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        self.model.graph.remove(node, safe=True)


def _bodies(node: ir.Node) -> list[ir.Graph]:
    return [
        body
        for attribute in node.attributes.values()
        if not attribute.is_ref() and attribute.type.name in ("GRAPH", "GRAPHS")
        for body in ([attribute.as_graph()] if attribute.type.name == "GRAPH" else attribute.as_graphs())
    ]


def _rename(graph: ir.Graph, used: set[str]) -> None:
    """Rename every value that a graph and the graphs inside it write."""
    for value in graph.inputs:
        value.name = _fresh(value.name or "value", used)
    for value in list(graph.initializers.values()):
        graph.initializers.pop(value.name)
        value.name = _fresh(value.name or "value", used)
        graph.register_initializer(value)
    for node in graph:
        for value in node.outputs:
            value.name = _fresh(value.name or "value", used)
        for body in _bodies(node):
            _rename(body, used)


def _fresh(stem: str, used: set[str]) -> str:
    name = stem
    if name in used:
        stem = stem.split("__")[0] or "value"
        name = next(text for i in itertools.count(len(used)) if (text := f"{stem}__{i}") not in used)
    used.add(name)
    return name


def _check_size(node: ir.Node, body: ir.Graph, trips: int) -> None:
    size = trips * len(list(body.all_nodes()))
    if size > MAX_NODES:
        raise UnsupportedNode(
            f"{node.op_type} (node {_name(node)!r}) runs {trips} times, which unrolled are {size} operators; {MAX_NODES} "
            "are allowed: use a shorter input, or split the model around the loop"
        )


def _scalar(value: ir.Value | None) -> Any:
    """Value of a constant of one element, or None."""
    if value is None or value.const_value is None or value.const_value.size != 1:
        return None
    return value.const_value.numpy().reshape(()).item()


def _name(node: ir.Node) -> str:
    return node.name or "->".join(value.name or "" for value in node.outputs)
