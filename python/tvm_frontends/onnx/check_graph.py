"""Validity checks of an ONNX graph: values written twice or never, inputs that are not tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..errors import ModelError
from .check_tensors import check_tensor
from .onnx_files import subgraphs, tensors_of
from .operators.nodes import node_text

if TYPE_CHECKING:
    import onnx


def check_graph(graph: onnx.GraphProto, where: str) -> None:
    """Refuse an invalid graph.

    Raises
    ------
    ModelError
        A value is written twice, or read but never written; or an input is not a tensor of numbers.
    """
    initializers = {tensor.name for tensor in (*graph.initializer, *(t.values for t in graph.sparse_initializer))}
    for item in graph.input:
        kind = item.type.WhichOneof("value")
        if kind == "optional_type":
            kind = item.type.optional_type.elem_type.WhichOneof("value")
        if item.name not in initializers and kind not in ("tensor_type", None):
            raise ModelError(
                f"{where}: input {item.name!r} is of the kind {kind.removesuffix('_type')}; tensors are allowed: "
                "cut the model behind it"
            )
    for tensor in tensors_of(graph):
        check_tensor(tensor, where)
    for item in (*graph.input, *graph.output):
        if not item.name:
            raise ModelError(f"{where}: an input or output of the graph has no name; export the model again")
    if not graph.output:
        raise ModelError(f"{where}: its graph has no outputs, so there is nothing to compute; export the model again")
    _check_scope(graph, set(), where, "the graph")


def _check_scope(graph: onnx.GraphProto, outer: set[str], where: str, place: str) -> None:
    inputs = [item.name for item in graph.input]
    _check_unique(inputs, f"as an input of {place}", where)
    initializers = [t.name for t in graph.initializer] + [t.values.name for t in graph.sparse_initializer]
    _check_unique(initializers, f"as an initializer of {place}", where)
    known = outer | set(inputs) | set(initializers) | {name for node in graph.node for name in node.output if name}
    written = dict.fromkeys((*inputs, *initializers), "an input or an initializer")
    for node in graph.node:
        for name in node.input:
            if name and name not in known:
                raise ModelError(
                    f"{where}: {node_text(node)} reads {name!r}, which nothing writes; the file is broken: export it again"
                )
        for attribute in node.attribute:
            for body in subgraphs(attribute):
                _check_scope(body, known, where, f"the {attribute.name} of {node_text(node)}")
        for name in node.output:
            if name in written:
                raise ModelError(
                    f"{where}: {node_text(node)} writes {name!r}, which {written[name]} writes already; a name has one "
                    "value in ONNX: export the model again"
                )
            if name:
                written[name] = node_text(node)
    for item in graph.output:
        if item.name not in known:
            raise ModelError(f"{where}: output {item.name!r} of {place} is written by no node; export the model again")


def _check_unique(names: Iterable[str], what: str, where: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ModelError(
                f"{where}: {name!r} occurs twice {what}; a name has one value in ONNX: export the model again"
            )
        seen.add(name)
