"""`ModelSource` of an ONNX model, which is converted separately for each set of shapes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..constants import Values
from ..model import ImportedModel
from ..shapes import StaticShapes
from ..source import Description, ModelSource
from .checks import check_graph, node_text
from .declared import declared_inputs, declared_value
from .files import import_onnx, tensors_of
from .frontend import from_onnx
from .operators.registry import STANDARD

if TYPE_CHECKING:
    import onnx


def open_onnx(model: onnx.ModelProto, name: str | None, where: str) -> ModelSource:
    """The model with its declared inputs; what folds, and which branches remain, depends on the shapes."""
    import_onnx(where)
    check_graph(model.graph, where)

    def import_with(shapes: StaticShapes, constants: Values) -> ImportedModel:
        return from_onnx(model, shapes, name, where, constants)

    inputs = declared_inputs(model)
    return ModelSource(
        name or model.graph.name or "model", where, inputs, import_with, lambda: _describe(model), loose=True
    )


def _describe(model: onnx.ModelProto) -> Description:
    """Counts nodes of branches and loops, too; what is unknown may still fold away once shapes are given."""
    from .convert import unknown_nodes

    operators = Counter(_kind(node) for node in _nodes(model.graph))
    tensors = list(tensors_of(model.graph))
    opsets = ", ".join(f"{item.domain or 'ai.onnx'} {item.version}" for item in model.opset_import)
    about = {
        "opset": opsets, "IR version": str(model.ir_version),
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
    }  # fmt: skip
    functions = {(function.domain, function.name) for function in model.functions}
    refused = tuple(
        (node_text(node), "there is no converter for this operator")
        for node in unknown_nodes(model)
        if (node.domain, node.op_type) not in functions and node.op_type not in _RESOLVED
    )
    return Description(
        "onnx",
        {key: text for key, text in about.items() if text},
        tuple(declared_value(item) for item in model.graph.output),
        dict(operators.most_common()),
        len(tensors),
        sum(_size(tensor) for tensor in tensors),
        refused,
    )


_RESOLVED = ("Loop", "Scan", "If", "Constant", "SequenceConstruct")
"""Operators that preparation may take out of the graph, so that nothing is refused before it has tried."""


def _kind(node: onnx.NodeProto) -> str:
    return node.op_type if node.domain in STANDARD else f"{node.domain}.{node.op_type}"


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for body in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from _nodes(body)


def _size(tensor: onnx.TensorProto) -> int:
    from onnx import TensorProto, helper

    if tensor.data_type in (TensorProto.STRING, TensorProto.UNDEFINED):
        return 0
    return math.prod(tensor.dims) * int(helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
