"""Replacement of operators without a correct converter by their function bodies from the ONNX standard.

The standard defines many operators as functions of simpler ones, some only for certain types and attributes. A node whose
operator is not `known` is replaced by its body, and so are the nodes of the body.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedNode
from ..logs import quiet

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

DOMAIN = "tvm_frontends.expanded"
"""Domain of the function bodies until they are inlined."""

STANDARD = ("", "ai.onnx", "ai.onnx.preview", "ai.onnx.ml", "ai.onnx.preview.training")

SEQUENCES = ("SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceMap", "SplitToSequence")
"""Operators whose result is a sequence of tensors."""

ROUNDS = 8
"""Deepest nesting of functions; the standard's are two levels deep."""


def expand_functions(model: ir.Model, known: Callable[[ir.Node], bool]) -> bool:
    """Replace nodes by the standard's definition of their operators, in place.

    Parameters
    ----------
    known : callable
        Whether a node needs no replacement.

    Returns
    -------
    bool
        Whether anything changed. Operators without a definition are unchanged.
    """
    from onnx_ir.passes import common

    changed = False
    for _ in range(ROUNDS):
        nodes = [node for graph in model.graphs() for node in graph if _has_body(model, node) and not known(node)]
        if not nodes:
            return changed
        if any(_context_dependent(model, node) for node in nodes):
            with quiet("onnx_ir"):  # it logs a traceback where inference fails
                common.ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)
        replaced = [_replace(model, node, number) for number, node in enumerate(nodes)]
        if not any(replaced):
            return changed
        operators = sorted({node.op_type.rsplit("_", 1)[0] for node in nodes})
        try:
            common.InlinePass()(model)
        except Exception as error:  # a subgraph of the node may refer to values outside of the function
            raise UnsupportedNode(
                f"{', '.join(operators)}: the ONNX standard's definition of the operator could not be inlined; export the "
                "model with simpler operators"
            ) from error
        changed = True
    return changed


def _schema(model: ir.Model, node: ir.Node) -> Any:
    import onnx

    version = model.opset_imports.get(node.domain, model.opset_imports.get("", 1) if node.domain == "ai.onnx" else 1)
    try:
        return onnx.defs.get_schema(node.op_type, version, "" if node.domain == "ai.onnx" else node.domain)
    except onnx.defs.SchemaError:
        return None


def _has_body(model: ir.Model, node: ir.Node) -> bool:
    if node.domain not in STANDARD:
        return False
    schema = _schema(model, node)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def _context_dependent(model: ir.Model, node: ir.Node) -> bool:
    schema = _schema(model, node)
    return bool(schema.has_context_dependent_function and not schema.has_function)


def _replace(model: ir.Model, node: ir.Node, number: int) -> bool:
    """Turn a node into a call of its function body; return False if the standard has no body for it."""
    import onnx_ir as ir

    schema = _schema(model, node)
    proto = _body(schema, node, model.opset_imports.get("", 1))
    if proto is None:
        return False
    if not _match_outputs(proto, node):
        return False
    proto.domain, proto.name = DOMAIN, f"{node.op_type}_{number}"
    del proto.opset_import[:]  # `_body` chose the version for the model's opset
    entry = proto.opset_import.add()
    entry.version = model.opset_imports.get("", 1)
    function = ir.from_proto(proto)
    assert isinstance(function, ir.Function)
    for name, attribute in schema.attributes.items():
        if name not in node.attributes and attribute.default_value.name:
            node.attributes[name] = ir.from_proto(attribute.default_value)
    for name in [n for n, a in node.attributes.items() if a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)]:
        del node.attributes[name]  # the body contains them
    model.functions[function.identifier()] = function
    model.opset_imports[DOMAIN] = 1
    node.domain, node.op_type = DOMAIN, proto.name
    return True


def _match_outputs(proto: onnx.FunctionProto, node: ir.Node) -> bool:
    """Give the body as many outputs as the node has; return False if the body lacks one that is used."""
    written = {name for inner in proto.node for name in inner.output} | set(proto.input)
    outputs = []
    for name, value in zip(proto.output, node.outputs, strict=False):
        if name not in written and (value.uses() or value.is_graph_output()):
            return False
        outputs.append(name if name in written else proto.output[0])
    del proto.output[:]
    proto.output.extend(outputs)
    return True


def _body(schema: Any, node: ir.Node, opset: int) -> onnx.FunctionProto | None:
    """Return the function that defines a node in a version of the standard domain."""
    import onnx
    import onnx_ir as ir

    if schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= opset]
        text = schema.get_function_with_opset_version(max(versions)) if versions else b""
    else:
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
        types = [_type(value) for value in node.inputs]
        proto = ir.to_proto(node)
        for attribute in proto.attribute:
            if attribute.HasField("g"):
                _write_constants(attribute.g, node.attributes[attribute.name].as_graph())
        try:
            text = (
                schema.get_context_dependent_function_with_opset_version(
                    max(versions), proto.SerializeToString(), [t.SerializeToString() for t in types]
                )
                if versions
                else b""
            )
        except (RuntimeError, ValueError):  # the builder needs an unknown type
            text = b""
    return onnx.FunctionProto.FromString(text) if text else None


def _write_constants(proto: onnx.GraphProto, graph: ir.Graph) -> None:
    """Turn the constants that a graph reads into Constant nodes: a function body has no initializers."""
    import onnx
    import onnx_ir as ir

    read = {v.name: v.const_value for node in graph for v in node.inputs if v is not None and v.producer() is None}
    tensors = {str(name): ir.to_proto(tensor) for name, tensor in read.items() if tensor is not None}
    nodes = [onnx.helper.make_node("Constant", [], [name], value=tensor) for name, tensor in tensors.items()]
    nodes += proto.node
    del proto.initializer[:]
    del proto.node[:]
    proto.node.extend(nodes)


def _type(value: ir.Value | None) -> onnx.TypeProto:
    import onnx
    import onnx_ir as ir

    if value is None or value.type is None:
        return onnx.TypeProto()
    found = ir.to_proto(value).type
    producer = value.producer()
    if producer is not None and producer.op_type in SEQUENCES and found.HasField("tensor_type"):
        return onnx.helper.make_sequence_type_proto(found)  # onnx_ir names the type of the elements
    return found
