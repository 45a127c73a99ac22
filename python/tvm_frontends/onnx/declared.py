"""Declared inputs and outputs of an ONNX model, before it is prepared and converted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..shapes import DeclaredInput, Dimension
from .widen import wider_name

if TYPE_CHECKING:
    import onnx


def declared_inputs(model: onnx.ModelProto) -> tuple[DeclaredInput, ...]:
    """The graph's inputs without the initialisers, which are among them in models of IR version 3."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    return tuple(declared_value(item) for item in model.graph.input if item.name not in initializers)


def declared_value(item: onnx.ValueInfoProto) -> DeclaredInput:
    """An input or output with its declared shape: a size of 0 is an empty tensor, a negative one is unknown."""
    tensor = tensor_type(item.type)
    dtype = wider_name(_dtype(tensor.elem_type))
    if not tensor.HasField("shape"):
        return DeclaredInput(item.name, None, dtype)
    dims: list[Dimension] = []
    for dim in tensor.shape.dim:
        dims.append(int(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param)
    return DeclaredInput(item.name, tuple(dims), dtype)


def tensor_type(kind: onnx.TypeProto) -> onnx.TypeProto.Tensor:
    """The type of a tensor or of an optional tensor; compiled models always take it."""
    return kind.optional_type.elem_type.tensor_type if kind.HasField("optional_type") else kind.tensor_type


def _dtype(element_type: int) -> str | None:
    from onnx import helper

    try:
        return str(helper.tensor_dtype_to_np_dtype(element_type).name)
    except KeyError:  # of something else than tensors, or of a type that is newer than onnx
        return None
