"""Use of TVM's converters: for which operators, and checks before and after them.

Corrections of TVM 0.27.0, ``relax/frontend/onnx/onnx_frontend.py``:

- ``Attention``: is the operator of com.microsoft; that of the standard, of the same name, fails.
- ``Mish``: loses the digits of results for inputs below -8, since it adds 1 to ``exp(x)`` before the logarithm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax

from ...errors import UnsupportedNode
from ...tensor_types import known_sizes
from ..constant_examples import refusal, usual_value, value_for
from .nodes import Node, constant_of, find, node_text

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

EXPANDED = {
    "AffineGrid": "TVM's takes constant sizes only",
    "Attention": "TVM's is com.microsoft's operator of the same name",
    "CastLike": "it is a Cast, since the type is known",
    "Mish": "TVM's loses digits below -8",
}
"""Operators converted by the standard's definition although TVM has a converter, and the reason."""

_AXES = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
)  # fmt: skip
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
"""Inputs that decide shapes, axes or modes, and therefore must be constants."""


INFERENCE_ERRS = {"STFT": "the default of onesided is 1, and inference assumes 0"}
"""Operators whose shapes ONNX infers wrongly, and the reason."""


def is_known(node: ir.Node | onnx.NodeProto) -> bool:
    """Whether a node of the standard domain is converted directly, and not by the standard's definition."""
    from tvm.relax.frontend.onnx import onnx_frontend

    if find(node.op_type, node.domain) is not None:
        return True
    return node.op_type in onnx_frontend._get_convert_map() and node.op_type not in EXPANDED


def convert_upstream(node: Node, attributes: Mapping[str, Any] | None = None) -> relax.Expr:
    """Return the result of TVM's converter for a node, possibly with other attributes."""
    return node.convert_as(
        node.operator, node.inputs, node.attributes if attributes is None else attributes, node.opset
    )


def check_constants(
    node: onnx.NodeProto, inputs: Sequence[relax.Expr | None], graph: onnx.GraphProto | None = None
) -> None:
    """Refuse a node that needs a constant input for shapes or axes, and has none.

    Raises
    ------
    UnsupportedNode
        It names the inputs of the model that would have to become constants.
    """
    unknown = [position for position in _decisive(node, inputs) if _is_unknown(inputs, position)]
    if not unknown:
        return
    named = ", ".join(f"{position} ({node.input[position]!r})" for position in unknown)
    subject = f"its input {named} decides" if len(unknown) == 1 else f"its inputs {named} decide"
    problem = f"{node_text(node)}: {subject} shapes, axes or modes, which must be known when the model is compiled"
    declared = {} if graph is None else {item.name: type_and_shape(item) for item in graph.input}
    data = known_sizes(inputs[0]) if isinstance(inputs[0], relax.Expr) else None
    examples: dict[str, Any] = {}
    for position in unknown:
        name = node.input[position]
        if name in declared or graph is None:
            dtype, shape = declared.get(name, ("int64", None))
            examples[name] = value_for(node.op_type, position, dtype, shape, data)
            continue
        for source in sources_of(graph, name):
            examples.setdefault(source, usual_value(*declared[source]))
    raise refusal(problem, declared, examples)


def _is_unknown(inputs: Sequence[relax.Expr | None], position: int) -> bool:
    value = inputs[position] if position < len(inputs) else None
    return value is not None and constant_of(value) is None and not isinstance(value, relax.ShapeExpr)


def type_and_shape(item: onnx.ValueInfoProto) -> tuple[str, tuple[int | None, ...] | None]:
    """Return the type of an input by NumPy's name, and its shape as far as it is known."""
    from onnx.helper import tensor_dtype_to_np_dtype

    kind = item.type.tensor_type
    dims = [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]
    return str(np.dtype(tensor_dtype_to_np_dtype(kind.elem_type)).name), tuple(dims) if kind.HasField("shape") else None


def _decisive(node: onnx.NodeProto, inputs: Sequence[relax.Expr | None]) -> tuple[int, ...]:
    """Return the positions of the inputs that must be constants."""
    if node.op_type == "Dropout":  # the ratio matters in training only
        training = constant_of(inputs[2]) if len(inputs) > 2 and inputs[2] is not None else False
        if training is not None and not training:
            return ()
    return CONSTANTS.get(node.op_type, ())


def sources_of(graph: onnx.GraphProto, name: str) -> list[str]:
    """Return the inputs of the model from which a value is computed."""
    producers = {output: node for node in graph.node for output in node.output}
    inputs = {item.name for item in graph.input}
    seen, left, names = set(), [name], []
    while left:
        value = left.pop()
        if value in seen:
            continue
        seen.add(value)
        if value in inputs:
            names.append(value)
        elif value in producers:
            left.extend(producers[value].input)
    return sorted(names)


def check_results(node: onnx.NodeProto, values: Sequence[Any], inferred: dict[str, onnx.ValueInfoProto]) -> None:
    """Refuse a node whose converted outputs differ in type or shape from ONNX's shape inference.

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
        dtype = str(value.ty.dtype.dtype) if value.ty.dtype is not None else ""
        wanted = np.dtype(tensor_dtype_to_np_dtype(kind.elem_type)).name if kind.elem_type else dtype
        if dtype and dtype != wanted:
            raise UnsupportedNode(
                f"{node_text(node)}: its converter returned output {name!r} as {dtype}, the standard requires {wanted}"
            )
        known = known_sizes(value)
        if known is None or not kind.HasField("shape"):
            continue
        sizes = [d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim]
        if len(known) != len(sizes) or any(
            a is not None and b is not None and a != b for a, b in zip(known, sizes, strict=True)
        ):
            raise UnsupportedNode(
                f"{node_text(node)}: its converter returned output {name!r} in shape {known}, the standard requires {sizes}"
            )
