"""Conversion of ``If`` and ``Loop`` whose condition is known only at run time: compute everything and select results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import numpy as np

from ..errors import UnsupportedNode
from .loop_operators import DONE, MAX_NODES, Builder, bodies, node_name, nodes_of, scalar

if TYPE_CHECKING:
    import onnx_ir as ir

UNSAFE = frozenset({
    "Compress", "ConcatFromSequence", "OneHot", "Resize", "CenterCropPad", "SequenceAt", "SequenceErase", "SequenceInsert",
    "TensorScatter",
})  # fmt: skip
"""Operators that may fail or read outside of a tensor in the branch that is not taken."""

_INDICES = ("Gather", "GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND", "Slice")
"""Operators that cannot fail if their positions are constants."""


_HEAVY = frozenset({
    "Attention", "Conv", "ConvInteger", "ConvTranspose", "Einsum", "Gemm", "GRU", "LSTM", "MatMul", "MatMulInteger",
    "MultiHeadAttention", "QLinearConv", "QLinearMatMul", "RNN",
})  # fmt: skip
_PER_ELEMENT = 64
"""Operations of these operators for each element of a result, roughly."""
_CHEAP = 1 << 17
"""Most operations of what runs although data may not need it, if the executor can leave it out: some 0.1 ms."""
_CAN_RUN: ContextVar[bool] = ContextVar("tvm_frontends.branches_can_run", default=False)


@contextmanager
def running_branches(possible: bool) -> Iterator[None]:
    """Whether models that are imported meanwhile are for an executor that runs branches and loops as data decide.

    Else, whatever can be selected is: `select_branches`, `select_iterations`.
    """
    token = _CAN_RUN.set(possible)
    try:
        yield
    finally:
        _CAN_RUN.reset(token)


def _is_cheap(graphs: list[ir.Graph], times: int = 1) -> bool:
    nodes = [node for graph in graphs for node in graph.all_nodes()]
    operations = sum(
        _elements_of(value) * (_PER_ELEMENT if node.op_type in _HEAVY else 1)
        for node in nodes
        for value in node.outputs
    )
    return not _CAN_RUN.get() or operations * times <= _CHEAP


def _elements_of(value: ir.Value) -> int:
    known = value.shape is not None and value.shape.is_static()
    return int(np.prod(value.shape.numpy())) if known and value.shape is not None else 1 << 10


def select_branches(model: ir.Model) -> bool:
    """Replace each ``If`` of the main graph by both of its branches and a ``Where`` for each output, in place.

    Branches have no side effects, so the values are the same; the time is that of both. An ``If`` is replaced if each
    output has one static shape and one element type in both branches, or is a sequence of equally many such tensors, and
    if no operator in them can fail (`UNSAFE`).

    Returns
    -------
    bool
        Whether anything changed.
    """
    return _replace_each(model, "If", _can_select, _select)


def select_iterations(model: ir.Model) -> bool:
    """Replace each ``Loop`` of the main graph that data may end early by as many iterations as it may have, in place.

    After the condition is false, its values stay as they are. A ``Loop`` is replaced if its most iterations are known, it
    collects no outputs, each value keeps a static shape, and no operator in it can fail (`UNSAFE`).

    Returns
    -------
    bool
        Whether anything changed.
    """
    return _replace_each(model, "Loop", _can_select_iterations, _select_iterations)


def _replace_each(
    model: ir.Model, kind: str, possible: Callable[[ir.Node], bool], replace: Callable[[ir.Model, ir.Node], None]
) -> bool:
    """Replace the nodes of a kind for which that is possible, also in branches; return whether there was one."""
    changed = False
    for node in nodes_of(model.graph):
        if node.op_type == kind and node.domain in ("", "ai.onnx") and possible(node):
            replace(model, node)
            changed = True
    return changed


def _is_control_flow(node: ir.Node) -> bool:
    return node.domain in ("", "ai.onnx") and node.op_type in ("If", "Loop", "Scan")


def has_control_flow(model: ir.Model) -> bool:
    """Whether the main graph has ``If``, ``Loop`` or ``Scan``."""
    return any(map(_is_control_flow, model.graph))


def check_control_flow(model: ir.Model) -> None:
    """Refuse a ``Scan`` that is still in the graph; ``If`` and ``Loop`` run as data decide.

    Raises
    ------
    UnsupportedNode
    """
    for node in model.graph:
        if _is_control_flow(node) and node.op_type == "Scan":
            raise UnsupportedNode(
                f"Scan (node {node_name(node)!r}): how often it runs could not be determined; export the model without it"
            )


def _can_select_iterations(node: ir.Node) -> bool:
    import onnx_ir as ir

    body = node.attributes["body"].as_graph()
    limit, count = scalar(node.inputs[0]), len(body.inputs) - 2
    if limit is None or len(body.outputs) != count + 1 or len(node.inputs) != count + 2:
        return False
    if (int(limit) - node.meta.get(DONE, 0)) * len(list(body.all_nodes())) > MAX_NODES:
        return False
    if not _is_cheap([body], int(limit) - node.meta.get(DONE, 0)):
        return False
    going_on = body.outputs[0]
    if going_on.shape is None or tuple(going_on.shape) != ():
        return False
    for given, result in zip(node.inputs[2:], body.outputs[1:], strict=True):
        if (
            given is None
            or not isinstance(given.type, ir.TensorType)
            or given.shape is None
            or not given.shape.is_static()
            or given.shape != result.shape
            or given.dtype != result.dtype
        ):
            return False
    return all(_is_safe(inner) for inner in body)


def _select_iterations(model: ir.Model, node: ir.Node) -> None:
    builder = Builder(model, node)
    body = node.attributes["body"].as_graph()
    true = builder.constant(np.array(True))
    going_on, carried = _as_scalar(builder, node.inputs[1] or true), list(node.inputs[2:])
    for iteration in range(node.meta.get(DONE, 0), int(scalar(node.inputs[0]))):
        following, *results = builder.inline(body, [builder.constant(np.array(iteration, np.int64)), true, *carried])
        for position, (old, new) in enumerate(zip(carried, results, strict=True)):
            assert old is not None
            value = builder.emit("Where", [going_on, new, old], {}, new.name)
            value.shape, value.type = old.shape, old.type
            carried[position] = value
        going_on = builder.emit("And", [going_on, following], {}, following.name)
    builder.replace(carried)


def _can_select(node: ir.Node) -> bool:
    import onnx_ir as ir

    condition = node.inputs[0]
    if condition is None or condition.shape is None or not condition.shape.is_static():
        return False
    graphs = [node.attributes[name].as_graph() for name in ("then_branch", "else_branch")]
    pairs: list[tuple[ir.Value, ir.Value]] = []
    for outputs in zip(graphs[0].outputs, graphs[1].outputs, strict=True):
        (kind, items), (other, others) = map(_elements, outputs)
        if kind != other or len(items) != len(others):
            return False
        pairs += zip(items, others, strict=True)
    for first, second in pairs:
        if (
            not isinstance(first.type, ir.TensorType)
            or first.shape is None
            or not first.shape.is_static()
            or first.shape != second.shape
            or first.dtype != second.dtype
        ):
            return False
        if first.dtype is None:
            return False
    return _is_cheap(graphs) and all(_is_safe(inner) for graph in graphs for inner in graph)


def _is_safe(node: ir.Node) -> bool:
    if node.op_type in UNSAFE or node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type in _INDICES:
        last = 2 if node.op_type.startswith(("Gather", "Scatter")) else None
        return all(value is None or value.const_value is not None for value in node.inputs[1:last])
    if node.op_type in ("Div", "Mod"):  # integer division by 0 ends the process
        divided, divisor = node.inputs[0], node.inputs[1]
        if divided is None or divisor is None:
            return False
        return divisor.const_value is not None or bool(divided.dtype and divided.dtype.is_floating_point())
    return all(_is_safe(inner) for body in bodies(node) for inner in body)


def _elements(value: ir.Value) -> tuple[str, list[ir.Value]]:
    """Return the tensors of a sequence or optional value, and the operator that makes it of them; ``""`` for a tensor."""
    producer = value.producer()
    if producer is None or producer.op_type not in ("SequenceConstruct", "Optional"):
        return "", [value]
    return producer.op_type, [item for item in producer.inputs if item is not None]


def _select(model: ir.Model, node: ir.Node) -> None:
    builder = Builder(model, node)
    assert node.inputs[0] is not None
    condition = _as_scalar(builder, node.inputs[0])
    chosen = builder.inline(node.attributes["then_branch"].as_graph(), [])
    other = builder.inline(node.attributes["else_branch"].as_graph(), [])
    values: list[ir.Value] = []
    for one, another in zip(chosen, other, strict=True):
        (kind, items), (_, others) = _elements(one), _elements(another)
        selected: list[ir.Value] = []
        for first, second in zip(items, others, strict=True):
            value = builder.emit("Where", [condition, first, second], {}, first.name)
            value.shape, value.type = first.shape, first.type
            selected.append(value)
        values.append(builder.emit(kind, selected, {}, one.name) if kind else selected[0])
        values[-1].shape, values[-1].type = one.shape, one.type
    builder.replace(values)


def _as_scalar(builder: Builder, condition: ir.Value) -> ir.Value:
    """Return a condition, which may have several dimensions of 1, without dimensions."""
    if condition.shape is not None and tuple(condition.shape) == ():
        return condition
    return builder.emit("Reshape", [condition, builder.constant(np.array([], np.int64))], {}, condition.name)
