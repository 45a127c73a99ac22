"""Constant folding of ONNX graphs by onnxscript, with a limit on the size of results, alternating with loop unrolling."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..logs import quiet
from .branches import check_control_flow, has_control_flow, select_branches, select_iterations
from .check_nodes import check_operands
from .loop_operators import unroll_loops
from .sequences import resolve_sequences
from .windows import hide_pools, settle_pools

if TYPE_CHECKING:
    import onnx_ir as ir

LIKE_INPUT = frozenset({
    "BiasAdd", "BiasGelu", "FastGelu", "Gelu", "GroupNorm", "QuickGelu", "RotaryEmbedding", "SimplifiedLayerNormalization",
    "SkipLayerNormalization", "SkipSimplifiedLayerNormalization",
})  # fmt: skip
"""Operators whose first output has the shape and type of the first input."""


def _infer_shape(node: ir.Node) -> None:
    """Set the shapes of an operator of com.microsoft that follow from its inputs."""
    if node.domain != "com.microsoft" or not node.outputs or node.outputs[0].shape is not None:
        return
    if node.op_type in LIKE_INPUT:
        _set_shape(node, 0, _dims(node, 0))
    elif node.op_type == "DynamicQuantizeLSTM":
        _infer_recurrent(node)


def _infer_together(model: ir.Model) -> bool:
    """Set the static shapes that ONNX infers from the whole graph, and onnxscript not node by node; return whether any was.

    They are those behind control flow, and in the bodies of control flow in bodies.
    """
    import onnx_ir as ir
    from onnx_ir.passes import common

    inferred, changed = model.clone(), False
    with quiet("onnx_ir"):
        common.ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(inferred)
    for graph, other in zip(model.graphs(), inferred.graphs(), strict=True):
        found = ir.convenience.create_value_mapping(other, include_subgraphs=False)
        for name, value in ir.convenience.create_value_mapping(graph, include_subgraphs=False).items():
            shape = found[name].shape
            if shape is not None and shape.is_static() and not (value.shape is not None and value.shape.is_static()):
                value.shape, value.type, changed = shape, value.type or found[name].type, True
    return changed


def _infer_recurrent(node: ir.Node) -> None:
    x, weights = _dims(node, 0), _dims(node, 2)
    if x is None or weights is None:
        return
    steps, batch = x[:2]
    directions, hidden = weights[:2]
    _set_shape(node, 0, [steps, directions, batch, hidden])
    for position in (1, 2):
        _set_shape(node, position, [directions, batch, hidden])


def _dims(node: ir.Node, position: int) -> list[int] | None:
    value = node.inputs[position]
    shape = value.shape if value is not None else None
    return [int(dim) for dim in shape.numpy()] if shape is not None and shape.is_static() else None


def _set_shape(node: ir.Node, position: int, dims: list[int] | None) -> None:
    import onnx_ir as ir

    first = node.inputs[0]
    if dims is not None and first is not None and position < len(node.outputs):
        value = node.outputs[position]
        value.shape, value.type = ir.Shape(dims), first.type


ROUNDS = 200
"""Most rounds of folding and unrolling. A round unrolls one level of nested loops, or one iteration of a loop with a
condition."""

_INPUT_LIMIT, _OUTPUT_LIMIT = 8192, 512 * 512
"""Most elements of operands and results that onnxscript folds where `_should_fold` leaves the choice to it."""

ALWAYS_BYTES = 1 << 20
"""A folded value of up to this size is kept whatever the size of its inputs."""

GROWTH = 4
"""A larger folded value may have this many times the bytes of its constants (8-bit weights become 32-bit)."""

REARRANGING = frozenset({
    "Add", "And", "Cast", "CastLike", "Concat", "ConstantOfShape", "DequantizeLinear", "Div", "Equal", "Expand", "Flatten",
    "Gather", "Greater", "Identity", "Less", "Mul", "Neg", "Not", "Or", "Pad", "Pow", "Range", "Reciprocal", "Reshape",
    "Shape", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Tile", "Transpose", "Unsqueeze", "Where",
})  # fmt: skip
"""Operators whose cost is that of reading and writing their tensors: folded on large constants too."""


def fold_model(model: ir.Model) -> None:
    """Fold constants, decide ``If`` and unroll loops, in place, until nothing changes.

    Raises
    ------
    Exception
        Any error of onnxscript; the model is then in an undefined state.
    UnsupportedNode
        A loop is too long to unroll, or control flow depends on data.
    """
    from onnx_ir.passes import common

    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    common.LiftSubgraphInitializersToMainGraphPass()(model)
    for _ in range(ROUNDS):
        resolved = resolve_sequences(model)  # before onnxscript's, which heeds keepdims beside sizes
        pools = hide_pools(model)
        with quiet("onnxscript"):  # it logs nodes that it cannot evaluate; they stay
            result: Any = _checking_pass()(
                shape_inference=True,
                input_size_limit=_INPUT_LIMIT,
                output_size_limit=_OUTPUT_LIMIT,
                should_fold=_should_fold,
            )(model)
        common.LiftSubgraphInitializersToMainGraphPass()(model)
        changed = settle_pools(pools) or result.modified or resolved
        changed |= _fold_several_outputs(model) | _fold_empty(model)
        changed |= unroll_loops(model)
        common.RemoveUnusedNodesPass()(model)
        changed = changed or unroll_loops(model, in_branches=True) or select_branches(model) or select_iterations(model)
        if not changed and not (has_control_flow(model) and _infer_together(model)):
            break
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    _lift_outputs(model)
    check_control_flow(model)
    common.IdentityEliminationPass()(model)
    common.RemoveUnusedNodesPass()(model)
    common.RemoveUnusedOpsetsPass()(model)


@cache
def _checking_pass() -> Any:
    """Return onnxscript's folding pass that first checks each node, since shape inference may crash on wrong ones.

    It also infers the shapes of operators of com.microsoft.
    """
    from onnxscript.optimizer._constant_folding import FoldConstantsPass

    class CheckedFolding(FoldConstantsPass):
        def process_node(self, node: ir.Node, is_function: bool) -> Any:
            check_operands(node, self._opset_imports.get("", 1))
            _infer_shape(node)  # in the same visit, so that a chain of such operators takes one round
            return super().process_node(node, is_function)

    return CheckedFolding


def _lift_outputs(model: ir.Model) -> None:
    """Turn Constant nodes that are outputs into initializers, which onnx_ir's pass does not do."""
    import onnx_ir as ir

    for node in list(model.graph):
        value = node.outputs[0]
        tensor = ir.convenience.get_const_tensor(value) if node.op_type == "Constant" else None
        if tensor is not None:
            _replace_by_constant(model, value, ir.tensor(tensor.numpy(), name=value.name))
            model.graph.remove(node, safe=True)


def _fold_empty(model: ir.Model) -> bool:
    """Replace results without elements by constants, so that nothing before them is computed."""
    import onnx_ir as ir

    changed = False
    for node in model.graph:
        for value in node.outputs:
            if _bytes(value) == 0 and value.const_value is None and (value.uses() or value.is_graph_output()):
                empty = np.zeros(value.shape.numpy(), value.dtype.numpy())
                _replace_by_constant(model, value, ir.tensor(empty, dtype=value.dtype, name=value.name))
                changed = True
    return changed


def _replace_by_constant(model: ir.Model, value: ir.Value, tensor: ir.TensorProtocol) -> None:
    import onnx_ir as ir

    constant = ir.Value(name=value.name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
    ir.convenience.replace_all_uses_with(value, constant, replace_graph_outputs=True)
    value.name = None
    model.graph.register_initializer(constant)


def _should_fold(node: ir.Node) -> bool | None:
    """Whether to evaluate a node of constants; None leaves the choice to onnxscript's rules for small tensors."""
    if node.domain not in ("", "ai.onnx") or node.op_type not in REARRANGING:
        return None
    result_bytes = sum(_bytes(value) for value in node.outputs)
    if result_bytes <= ALWAYS_BYTES:
        return True
    constant_bytes = sum(v.const_value.nbytes for v in node.inputs if v is not None and v.const_value is not None)
    return result_bytes <= GROWTH * constant_bytes


def _bytes(value: ir.Value) -> float:
    """Return the size of a value in bytes, infinite if its shape is unknown."""
    if value.shape is None or value.dtype is None or not value.shape.is_static():
        return float("inf")
    size = value.dtype.itemsize
    for dim in value.shape.numpy():
        size *= dim
    return size


def _equal_parts(size: int, count: int) -> npt.NDArray[np.int64]:
    """Return the sizes of the parts of a Split without sizes, which the evaluator of opset 13 to 17 needs."""
    part = -(-size // count)
    return np.array([part] * (count - 1) + [size - part * (count - 1)], np.int64)


def _fold_several_outputs(model: ir.Model) -> bool:
    """Fold nodes with several outputs (Split, TopK), which onnxscript does not fold."""
    import onnx.reference.ops
    import onnx_ir as ir

    changed = False
    for node in list(model.graph):
        if len(node.outputs) < 2 or node.domain not in ("", "ai.onnx") or node.op_type not in REARRANGING | {"TopK"}:
            continue
        constants = [None if v is None else v.const_value for v in node.inputs]
        if any(v is not None and v.const_value is None for v in node.inputs) or not _should_fold(node):
            continue
        try:
            operator = onnx.reference.ops.load_op("", node.op_type, model.opset_imports[""])
            attributes = {name: attribute.value for name, attribute in node.attributes.items()}
            arguments: list[Any] = [None if c is None else c.numpy() for c in constants]
            if node.op_type == "Split" and (len(arguments) < 2 or arguments[1] is None):
                arguments = [
                    arguments[0],
                    _equal_parts(arguments[0].shape[attributes.get("axis", 0)], len(node.outputs)),
                ]
                attributes.pop("num_outputs", None)
            results = operator.eval(*arguments, **attributes)
        except Exception:  # the evaluator raises unrelated classes; the node stays
            continue
        for value, array in zip(node.outputs, results, strict=True):
            _replace_by_constant(model, value, ir.tensor(array, name=value.name))
        model.graph.remove(node, safe=True)
        changed = True
    return changed
