"""Unrolling of ONNX's ``Loop`` and ``Scan`` if the number of iterations is known."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UnsupportedNode
from .loop_counters import count_iterations

if TYPE_CHECKING:
    import onnx_ir as ir

MAX_NODES = 20_000
"""Most operators that unrolling a loop may create."""

DONE = "tvm_frontends.iterations_done"
"""Entry of a loop's ``meta``: its iterations that are unrolled already."""
ORIGIN = "tvm_frontends.loop"
"""Entry of a loop's ``meta``: its number among the model's loops."""
RUNS = "tvm_frontends.loop_runs"
"""Entry of a loop's ``meta``: data decide when it ends, so that it is not unrolled."""


def unroll_loops(model: ir.Model, in_branches: bool = False) -> bool:
    """Unroll the loops of the main graph whose iteration count is known, in place; nested loops move into the main graph.

    With ``in_branches``, also those in branches of ``If``, at any depth, which may not run: only once nothing else changes.

    A ``Loop`` whose condition follows from counters (`count_iterations`) is unrolled completely, unless it is too long.
    Otherwise, if the body computes the condition, each call unrolls one iteration, and constant folding then decides the
    next one. The remainder of such a loop must not run, since it would count from 0 again (`DONE`).

    Returns
    -------
    bool
        Whether anything changed.

    Raises
    ------
    UnsupportedNode
        A loop never ends.
    """
    changed = False
    for node in nodes_of(model.graph) if in_branches else list(model.graph):
        if node.domain not in ("", "ai.onnx"):
            continue
        if node.op_type == "Loop":
            changed |= _unroll_loop(model, node)
        elif node.op_type == "Scan":
            changed |= _unroll_scan(model, node)
    return changed


def nodes_of(graph: ir.Graph) -> list[ir.Node]:
    """Return the nodes of the branches of ``If`` in a graph, at any depth, the innermost first, then those of the graph."""
    branches = [body for node in graph if node.op_type == "If" for body in bodies(node)]
    return [*(node for body in branches for node in nodes_of(body)), *graph]


def unique_names(model: ir.Model) -> None:
    """Make the names of values in subgraphs unique: ONNX lets two branches use the same names."""
    import onnx_ir as ir

    used = {value.name for value in ir.convenience.create_value_mapping(model.graph, include_subgraphs=False).values()}
    for node in model.graph:
        for body in bodies(node):
            _rename(body, used)


def _unroll_loop(model: ir.Model, node: ir.Node) -> bool:
    body = node.attributes["body"].as_graph()
    done = node.meta.get(DONE, 0)
    count = len(body.inputs) - 2
    trips, going_on = _trips(node, body, done, model.opset_imports.get("", 0))
    if trips is None or node.meta.get(RUNS) or trips * len(list(body.all_nodes())) > MAX_NODES:
        return False
    carried = list(node.inputs[2 : 2 + count])
    collected = list(node.inputs[2 + count :])
    scans = [collected[i * done : (i + 1) * done] for i in range(len(body.outputs) - 1 - count)]
    if not trips and not all(scans) and any(v.uses() or v.is_graph_output() for v in node.outputs[count:]):
        return False  # no iteration: the shape of the scan outputs is unknown
    builder = Builder(model, node)
    condition = node.inputs[1]
    for iteration in range(done, done + trips):
        counters = [builder.constant(np.array(iteration, np.int64)), builder.constant(np.array(True))]
        condition, *outputs = builder.inline(body, [*counters, *carried])
        carried = outputs[:count]
        for scan, value in zip(scans, outputs[count:], strict=True):
            scan.append(builder.unsqueeze(value, 0))
    if going_on:
        values = list(
            builder.continue_loop([condition, *carried, *(v for s in scans for v in s)], done + trips).outputs
        )
    else:
        values = [*carried, *(builder.concat(scan, 0) for scan in scans if scan)]
    builder.replace(values)
    return True


def _trips(node: ir.Node, body: ir.Graph, done: int, opset: int) -> tuple[int | None, bool]:
    """Return how many iterations can be unrolled now (None if unknown), and whether others may follow."""
    limit, condition = scalar(node.inputs[0]), scalar(node.inputs[1])
    if (node.inputs[0] is not None and limit is None) or (node.inputs[1] is not None and condition is None):
        return None, False
    left = np.inf if limit is None else max(0, int(limit) - done)
    if condition is False or left == 0:
        return 0, False
    following = _behind_identities(body.outputs[0])
    if following is body.inputs[1] or scalar(following):
        if left == np.inf:
            raise UnsupportedNode(
                f"Loop (node {node_name(node)!r}) never ends: it has no trip count and its condition stays true; correct it"
            )
        return int(left), False
    if scalar(following) is not None:
        return 1, False
    most = int(min(left, MAX_NODES // max(1, len(body)) + 1))
    counted = count_iterations(body, done, list(node.inputs[2:]), most, opset)
    return (1, left > 1) if counted is None else (counted, False)


def _behind_identities(value: ir.Value) -> ir.Value:
    while (producer := value.producer()) is not None and producer.op_type == "Identity":
        source = producer.inputs[0]
        if source is None:
            break
        value = source
    return value


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
    scan_count = len(body.outputs) - len(states)
    output_axes = attributes.get("scan_output_axes") or [0] * scan_count
    output_backward = attributes.get("scan_output_directions") or [0] * scan_count
    scans: list[list[ir.Value]] = [[] for _ in range(scan_count)]
    builder = Builder(model, node)
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


class Builder:
    """Builds the nodes that replace a node with subgraphs."""

    def __init__(self, model: ir.Model, node: ir.Node) -> None:
        import onnx_ir as ir

        self.ir, self.model, self.node = ir, model, node
        self.nodes: list[ir.Node] = []
        self.used = {n for g in model.graphs() for n in ir.convenience.create_value_mapping(g, include_subgraphs=False)}

    def name(self, stem: str) -> str:
        """Return an unused name."""
        return _fresh(stem, self.used)

    def constant(self, array: np.ndarray) -> ir.Value:
        """Add an initializer."""
        ir = self.ir
        tensor = ir.tensor(array, name=self.name(f"{node_name(self.node)}_constant"))
        value = ir.Value(name=tensor.name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
        self.model.graph.register_initializer(value)
        return value

    def emit(self, operator: str, inputs: list[ir.Value], attributes: dict[str, Any], stem: str | None) -> ir.Value:
        """Add a node with one output."""
        node = self.ir.node(operator, inputs, attributes, name=self.name(f"{node_name(self.node)}_{operator}"))
        node.outputs[0].name = self.name(f"{stem or node_name(self.node)}_{operator}")
        self.nodes.append(node)
        return node.outputs[0]

    def unsqueeze(self, value: ir.Value, axis: int) -> ir.Value:
        """Add a dimension to a value."""
        if self.model.opset_imports.get("", 0) < 13:
            return self.emit("Unsqueeze", [value], {"axes": [axis]}, value.name)
        return self.emit("Unsqueeze", [value, self.constant(np.array([axis], np.int64))], {}, value.name)

    def take(self, value: ir.Value, index: int, axis: int) -> ir.Value:
        """Select one slice of a value, without its axis."""
        return self.emit("Gather", [value, self.constant(np.array(index, np.int64))], {"axis": axis}, value.name)

    def concat(self, values: list[ir.Value], axis: int) -> ir.Value:
        """Join values along an axis."""
        return self.emit("Concat", values, {"axis": axis}, None)

    def inline(self, body: ir.Graph, arguments: list[Any]) -> list[ir.Value]:
        """Copy the nodes of a body, with its inputs bound to the arguments; return its outputs."""
        graph = body.clone(allow_outer_scope_values=True)
        _rename(graph, self.used)
        bindings = dict(zip(graph.inputs, arguments, strict=True))
        outputs = [bindings.get(value, value) for value in graph.outputs]
        graph.outputs.clear()
        for value in list(graph.initializers.values()):
            graph.initializers.pop(value.name)
            self.model.graph.register_initializer(value)
        for formal, actual in bindings.items():
            self.ir.convenience.replace_all_uses_with(formal, actual)
        nodes = list(graph)
        graph.remove(nodes)
        self.nodes.extend(nodes)
        return outputs

    def continue_loop(self, inputs: list[Any], done: int) -> ir.Node:
        """Add a loop that continues after ``done`` iterations.

        Against ONNX's rules, the scan outputs collected so far follow its inputs.
        """
        node = self.node
        body = node.attributes["body"].as_graph().clone(allow_outer_scope_values=True)
        tail = self.ir.Node(
            "",
            "Loop",
            [node.inputs[0], *inputs],
            [self.ir.AttrGraph("body", body)],
            num_outputs=len(node.outputs),
            name=node.name,
        )
        tail.meta.update({**node.meta, DONE: done})
        for old, new in zip(node.outputs, tail.outputs, strict=True):
            new.name, new.type = self.name(old.name or "loop"), old.type
        self.nodes.append(tail)
        return tail

    def replace(self, values: list[Any]) -> None:
        """Replace the node by the new nodes, and its outputs by ``values``."""
        node, graph = self.node, self.node.graph
        assert graph is not None
        graph.insert_before(node, self.nodes)
        for old, new in zip(node.outputs, values, strict=False):
            outer = new.producer() is None or new.producer().graph is not graph
            if old.is_graph_output() and (outer or new.is_graph_output()):
                copy = self.ir.node("Identity", [new])
                graph.insert_before(node, [copy])
                new = copy.outputs[0]
            if old.is_graph_output():
                new.name, old.name = old.name, None
                new.shape, new.type = old.shape or new.shape, old.type or new.type
            self.ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        graph.remove(node, safe=True)


def bodies(node: ir.Node) -> list[ir.Graph]:
    """Return the subgraphs in a node's attributes."""
    return [
        body
        for attribute in node.attributes.values()
        if not attribute.is_ref() and attribute.type.name in ("GRAPH", "GRAPHS")
        for body in ([attribute.as_graph()] if attribute.type.name == "GRAPH" else attribute.as_graphs())
    ]


def _rename(graph: ir.Graph, used: set[str]) -> None:
    """Rename every value that a graph and its subgraphs write."""
    for value in graph.inputs:
        value.name = _fresh(value.name or "value", used)
    for value in list(graph.initializers.values()):
        graph.initializers.pop(value.name)
        value.name = _fresh(value.name or "value", used)
        graph.register_initializer(value)
    for node in graph:
        for value in node.outputs:
            value.name = _fresh(value.name or "value", used)
        for body in bodies(node):
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
            f"{node.op_type} (node {node_name(node)!r}) runs {trips} times, which unrolled are {size} operators; "
            f"{MAX_NODES} are allowed: use a shorter input, or split the model around the loop"
        )


def scalar(value: ir.Value | None) -> Any:
    """Return the value of a constant of one element, or None."""
    if value is None or value.const_value is None or value.const_value.size != 1:
        return None
    return value.const_value.numpy().reshape(()).item()


def node_name(node: ir.Node) -> str:
    """Return a node's name, or the names of its outputs if it has none."""
    return node.name or "->".join(value.name or "" for value in node.outputs)
