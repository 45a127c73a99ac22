"""Rewriting of what onnx_ir does not read: dictionaries, sparse tensors, and bodies that return values of an outer graph."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from ..errors import ModelError, first_line
from .onnx_files import subgraphs

if TYPE_CHECKING:
    import onnx

MAX_BYTES = 1 << 30
"""Most bytes of a sparse tensor when all its elements are stored, since protobuf holds less than 2 GB."""


def readable(model: onnx.ModelProto, where: str) -> onnx.ModelProto:
    """Return the model, or an equivalent copy that onnx_ir reads.

    - ZipMap becomes Identity: the result is the tensor in place of the dictionaries that it makes of it. Exporters of
      scikit-learn put ZipMap at the end of classifiers: a dictionary from class to probability for each row. The tensor
      has a column for each class, in the order of ZipMap's labels.
    - Sparse initializers, and constants that are sparse tensors, become dense.
    - A body (of If, Loop, Scan) that returns an initializer, or a value of an outer graph, returns an Identity of it.

    Raises
    ------
    ModelError
        A sparse tensor is broken or too large, or its values are in external data.
    """
    if not any(_is_rewritten(graph, nested) for graph, nested in _graphs(model.graph)):
        return model
    changed = type(model)()
    changed.CopyFrom(model)
    _without_maps(changed)
    names = {name for graph, _ in _graphs(changed.graph) for name in _names(graph)}
    for graph, nested in list(_graphs(changed.graph)):
        _without_sparse(graph, where)
        if nested:
            _with_identities(graph, names)
    return changed


def _graphs(graph: onnx.GraphProto, nested: bool = False) -> Iterator[tuple[onnx.GraphProto, bool]]:
    """Yield a graph and the bodies in it, and whether each is a body."""
    yield graph, nested
    for node in graph.node:
        for attribute in node.attribute:
            for body in subgraphs(attribute):
                yield from _graphs(body, True)


def _is_rewritten(graph: onnx.GraphProto, nested: bool) -> bool:
    return bool(
        graph.sparse_initializer
        or any(_is_map(node) or _sparse_value(node) is not None for node in graph.node)
        or (nested and any(item.name not in _written(graph) for item in graph.output))
    )


def _names(graph: onnx.GraphProto) -> set[str]:
    return {tensor.name for tensor in graph.initializer} | _written(graph)


def _written(graph: onnx.GraphProto) -> set[str]:
    """Return the names of a graph's inputs and of the values that its nodes write."""
    return {item.name for item in graph.input} | {name for node in graph.node for name in node.output}


def _is_map(node: onnx.NodeProto) -> bool:
    return node.op_type == "ZipMap" and node.domain == "ai.onnx.ml"


def _without_maps(model: onnx.ModelProto) -> None:
    zipped = [node for node in model.graph.node if _is_map(node)]
    for node in zipped:
        node.op_type, node.domain = "Identity", ""
        del node.attribute[:]
    written = {node.output[0] for node in zipped}
    for output in model.graph.output:
        if output.name in written:
            output.type.tensor_type.elem_type = 1  # float32
    if zipped and all(each.domain for each in model.opset_import):
        model.opset_import.add(domain="", version=13)


def _sparse_value(node: onnx.NodeProto) -> onnx.AttributeProto | None:
    """Return the attribute of a Constant that is a sparse tensor."""
    if node.op_type != "Constant":
        return None
    return next((each for each in node.attribute if each.name == "sparse_value"), None)


def _without_sparse(graph: onnx.GraphProto, where: str) -> None:
    graph.initializer.extend(_dense(sparse, where) for sparse in graph.sparse_initializer)
    del graph.sparse_initializer[:]
    for node in graph.node:
        attribute = _sparse_value(node)
        if attribute is not None:
            tensor = _dense(attribute.sparse_tensor, where)
            attribute.Clear()
            attribute.name, attribute.type = "value", attribute.TENSOR
            attribute.t.CopyFrom(tensor)


def _dense(sparse: onnx.SparseTensorProto, where: str) -> onnx.TensorProto:
    """Return a tensor with all elements, those that are not stored as 0."""
    from onnx import numpy_helper

    shape = tuple(sparse.dims)
    subject = f"{where}: sparse tensor {sparse.values.name!r} of the shape {shape}"
    if any(tensor.data_location == tensor.EXTERNAL for tensor in (sparse.values, sparse.indices)):
        raise ModelError(f"{subject} has external data, which is not supported; save the model with them inside")
    try:
        values, indices = (numpy_helper.to_array(tensor) for tensor in (sparse.values, sparse.indices))
    except Exception as error:  # onnx raises unrelated classes
        raise ModelError(f"{subject} is broken ({first_line(error)}); export the model again") from None
    if (size := math.prod(shape) * values.itemsize) > MAX_BYTES:
        raise ModelError(f"{subject} has {size} bytes with all its elements; {MAX_BYTES} are allowed: make it smaller")
    if indices.ndim == 2 and indices.shape == (values.size, len(shape)):
        columns = list(indices.T)
    elif indices.shape == (values.size,):
        columns = list(np.unravel_index(indices, shape)) if _inside([indices], (math.prod(shape),)) else []
    else:
        columns = []
    if len(columns) != len(shape) or not _inside(columns, shape):
        raise ModelError(
            f"{subject}: its indices, of the shape {indices.shape}, are not {values.size} positions in it; export the "
            "model again"
        )
    array = np.zeros(shape, values.dtype)
    array[tuple(columns)] = values.reshape(-1)
    tensor = numpy_helper.from_array(array, sparse.values.name)
    tensor.data_type = sparse.values.data_type
    return tensor


def _inside(columns: list[np.ndarray], shape: tuple[int, ...]) -> bool:
    return all(((column >= 0) & (column < size)).all() for column, size in zip(columns, shape, strict=True))


def _with_identities(graph: onnx.GraphProto, names: set[str]) -> None:
    """Let a body return Identities of what neither its inputs nor its nodes are; ``names`` are taken."""
    written = _written(graph)
    for item in graph.output:
        if item.name not in written:
            name = next(text for k in itertools.count() if (text := f"{item.name}_{k}") not in names)
            names.add(name)
            graph.node.add(op_type="Identity", input=[item.name], output=[name], name=name)
            item.name = name
