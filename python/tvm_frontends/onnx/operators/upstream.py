"""Which of TVM's converters are used, and checks of a node before that, since they were written for common models.

Corrections of TVM 0.27.0, ``relax/frontend/onnx/onnx_frontend.py``:

- ``Attention``: is the operator of com.microsoft; that of the standard, of the same name, fails.
- ``Mish``: loses the digits of results for inputs below -8, since it adds 1 to ``exp(x)`` before the logarithm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax

from ...errors import MissingConstant, UnsupportedNode
from ...tensor_types import known_sizes
from .nodes import Node, constant_of, find, node_text

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

EXPANDED = {
    "AffineGrid": "sizes as run-time values only where TVM's own operator takes them",
    "Attention": "TVM's is com.microsoft's operator of the same name",
    "CastLike": "the type is known: a Cast",
    "Mish": "loses digits below -8",
}
"""Operators whose definition in the standard is used although TVM has a converter, and why."""

_AXES = (
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
)
CONSTANTS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys((*_AXES, "ReduceSum", "ReduceSumSquare"), (1,)),
    "AffineGrid": (1,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "CumProd": (1,),
    "CumSum": (1,),
    "DFT": (1, 2),
    "Expand": (1,),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "Dropout": (1, 2),
    "OneHot": (1,),
    "Pad": (1, 2, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "SplitToSequence": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
    **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow"), (0,)),
}
"""Inputs that decide shapes, axes or modes: they have to be known when the model is compiled."""


INFERENCE_ERRS = {"STFT": "onnx takes onesided for 0 where nothing is said, against its own definition"}
"""Operators whose shapes ONNX's inference does not get right, and how."""


def is_known(node: ir.Node | onnx.NodeProto) -> bool:
    """Whether a node of the standard domain is converted as it is, and not by the standard's definition of it."""
    from tvm.relax.frontend.onnx import onnx_frontend

    if find(node.op_type, node.domain) is not None:
        return True
    return node.op_type in onnx_frontend._get_convert_map() and node.op_type not in EXPANDED


def convert_upstream(node: Node, attributes: Mapping[str, Any] | None = None) -> relax.Expr:
    """The result of TVM's converter for a node, for our converters that only change its attributes."""
    return node.convert_as(
        node.operator, node.inputs, node.attributes if attributes is None else attributes, node.opset
    )


def check_constants(
    node: onnx.NodeProto, inputs: Sequence[relax.Expr | None], graph: onnx.GraphProto | None = None
) -> None:
    """Refuse a node one of whose shapes or axes is known only when the model runs.

    Raises
    ------
    UnsupportedNode
        It says how to freeze the input, where the value is an input of the model.
    """
    for position in _decisive(node, inputs):
        value = inputs[position] if position < len(inputs) else None
        if value is None or constant_of(value) is not None or isinstance(value, relax.ShapeExpr):
            continue
        name = node.input[position]
        sources = _sources(graph, name) if graph is not None else [name]
        problem = (
            f"{node_text(node)}: its input {position} ({name!r}) decides shapes, axes or modes, which have to be known when "
            "the model is compiled"
        )
        if sources:
            raise UnsupportedNode(problem, MissingConstant(tuple(sources)))
        raise UnsupportedNode(f"{problem}; change the model so that it is a constant")


def _decisive(node: onnx.NodeProto, inputs: Sequence[relax.Expr | None]) -> tuple[int, ...]:
    """Positions of the inputs that have to be known."""
    if node.op_type == "Dropout":  # without training its ratio says nothing
        training = constant_of(inputs[2]) if len(inputs) > 2 and inputs[2] is not None else False
        if training is not None and not training:
            return ()
    return CONSTANTS.get(node.op_type, ())


def _sources(graph: onnx.GraphProto, name: str) -> list[str]:
    """The inputs of the model from which a value is computed."""
    producers = {output: node for node in graph.node for output in node.output}
    inputs = {item.name for item in graph.input}
    seen, left, found = set(), [name], []
    while left:
        value = left.pop()
        if value in seen:
            continue
        seen.add(value)
        if value in inputs:
            found.append(value)
        elif value in producers:
            left.extend(producers[value].input)
    return sorted(found)


def check_results(node: onnx.NodeProto, values: Sequence[Any], inferred: dict[str, onnx.ValueInfoProto]) -> None:
    """Refuse a node whose converted outputs have other types or shapes than ONNX's shape inference says.

    Raises
    ------
    UnsupportedNode
    """
    from onnx.helper import tensor_dtype_to_np_dtype

    for name, value in zip(node.output, values, strict=False):
        expected = inferred.get(name)
        if (
            expected is None
            or node.op_type in INFERENCE_ERRS
            or not expected.type.HasField("tensor_type")
            or not isinstance(value, relax.Expr)
        ):
            continue
        kind = expected.type.tensor_type
        if not isinstance(value.ty, relax.TensorType):
            continue
        found = str(value.ty.dtype.dtype) if value.ty.dtype is not None else ""
        wanted = np.dtype(tensor_dtype_to_np_dtype(kind.elem_type)).name if kind.elem_type else found
        if found and found != wanted:
            raise UnsupportedNode(
                f"{node_text(node)}: its converter gives output {name!r} the type {found}, not {wanted}"
            )
        known = known_sizes(value)
        if known is None or not kind.HasField("shape"):
            continue
        sizes = [d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim]
        if len(known) != len(sizes) or any(
            a is not None and b is not None and a != b for a, b in zip(known, sizes, strict=True)
        ):
            raise UnsupportedNode(
                f"{node_text(node)}: its converter gives output {name!r} the shape {known}, not {sizes} as the standard says"
            )
