"""At what rate kernels for GPUs compute: tensor cores are the libraries'; kernels that TVM makes add up in float32."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ..cost_model.occupancy_model import BY_LAUNCHES
from ..problem import Costs, OpGraph, Topology
from .passes.half import HALF
from .processor import TF32, precision

CostModel = Callable[[OpGraph, Topology], Costs]
_PRODUCTS = ("nvidia.matmul", "nvidia.conv2d")
BY_RATE = ("roofline", *BY_LAUNCHES, "learned")
"""Cost models that take a device's rate for the type of an operator's result."""


def of_kernels(cost_model: CostModel) -> CostModel:
    """A cost model that is told of each operator the type in which its kernel multiplies, in place of its result's."""
    return lambda graph, topology: cost_model(computing_types(graph), topology)


def computing_types(graph: OpGraph) -> OpGraph:
    """The same graph, its results of the types in which the kernels multiply; their bytes stay.

    TVM's kernels for half precision multiply in float32; a library's multiply what they read, and NVIDIA's round float32 to
    TF32 where that is asked for.
    """
    kinds = {tensor.name: tensor.dtype for tensor in graph.tensors}
    changed: dict[str, str] = {}
    for operator in graph.operators:
        library = "." in operator.kind
        read = kinds[operator.inputs[0]] if operator.inputs else ""
        for name in operator.outputs:
            if read == "float32" and operator.kind.startswith(_PRODUCTS) and precision() == TF32:
                changed[name] = TF32
            elif library and read in HALF:
                changed[name] = read
            elif not library and kinds[name] in HALF:
                changed[name] = "float32"
    tensors = tuple(
        msgspec.structs.replace(tensor, dtype=changed[tensor.name]) if tensor.name in changed else tensor
        for tensor in graph.tensors
    )
    return msgspec.structs.replace(graph, tensors=tensors)
