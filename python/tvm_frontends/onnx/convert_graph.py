"""Conversion of a prepared ONNX graph to Relax: each node by our converter if there is one, else by TVM's.

Corrections of TVM 0.27.0, ``relax/frontend/onnx/onnx_frontend.py``:

- ``ONNXGraphImporter``: hands converters neither the node's name nor its domain, so operators of different domains
  with one name are confused.
"""

from __future__ import annotations

import contextlib
import io
import traceback
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from ..errors import ModelError, UnsupportedNode, first_line, text_input_error
from ..flow_calls import BODIES
from ..imported_model import data_address
from ..tensor_types import known_sizes
from .control_flow import ControlFlow, names_of_bodies
from .operators import Node, find
from .operators.nodes import STANDARD, constant_of, node_text
from .operators.upstream import check_constants, check_results
from .prepare import Prepared, prepare
from .shape_values import Values, agreeing, constant_values, converted, expression_of, is_floating, tensor_of, values_of
from .sizes_from_data import SIZES, SizesFromData

if TYPE_CHECKING:
    import onnx

STRING = 8
"""ONNX's number of the type string."""

LAYOUT = "com.microsoft.nchwc"
"""Domain of operators on blocked layouts, whose block is the vector width of the machine that saved the model."""

BLIND: dict[str, tuple[int, ...]] = {
    "Add": (0, 1), "Conv": (0, 1), "ConvTranspose": (0, 1), "Gather": (0,), "Gemm": (0, 1), "MatMul": (0, 1),
    "Mul": (0, 1), "Transpose": (0,),
}  # fmt: skip
"""Inputs of which TVM's converters use the shape only, not the values."""

_TAKES_SHAPE = {"Resize": 3, "GroupQueryAttention": 6}
"""The input whose sizes our converter takes as a shape: the sizes of a picture, the total length of a sequence."""

_RANDOM = (
    "draws random numbers, and compiled models must be repeatable: draw them outside, and make them an input of the "
    "model"
)
_TRAINING = "belongs to training, and models are compiled for inference: export the model without it"
_TEXT = "works on text or encoded pictures, not on tensors of numbers: do that before, and cut the model behind it"
_SPARSE = (
    "attends to the blocks of keys that its tables name, for which there is no kernel: export the model with "
    "GroupQueryAttention, which attends to all keys before a token or to a window of them"
)
_OUTSIDE = {
    **dict.fromkeys(
        ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"), _RANDOM
    ),
    **dict.fromkeys(("ai.onnx.preview.training", "ai.onnx.training"), _TRAINING),
    **dict.fromkeys(
        ("ImageDecoder", "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer"), _TEXT
    ),
    "SparseAttention": _SPARSE,
}
"""Operators and domains that are refused on principle, and the reason."""

CONTROL_FLOW = ("If", "Loop")
"""Operators with bodies, of which data decide what runs."""

ARGUMENT_BYTES = 1 << 20
"""Weights of at least this many bytes are not copied if that can be avoided."""


def check_operators(model: onnx.ModelProto, where: str) -> None:
    """Refuse a model with an operator that has no converter.

    Raises
    ------
    ModelError
        It names the first such operators and the reason.
    """
    for item in model.graph.input:
        if item.type.tensor_type.elem_type == STRING:
            raise text_input_error(where, item.name)
    unknown = unknown_nodes(model)
    for node in unknown:
        if node.domain in _OUTSIDE or (node.domain in (*STANDARD, "com.microsoft") and node.op_type in _OUTSIDE):
            why = _OUTSIDE.get(node.op_type) or _OUTSIDE[node.domain]
            raise ModelError(f"{where}: {node_text(node)} {why}")
    if any(node.domain == LAYOUT for node in unknown):
        raise ModelError(
            f"{where}: ONNX Runtime saved it with layouts of one kind of processor ({node_text(unknown[0])}); save it at "
            "the level ORT_ENABLE_EXTENDED or below, or pass the original model"
        )
    if unknown:
        names = ", ".join(node_text(node) for node in unknown[:5])
        raise ModelError(
            f"{where}: TVM's ONNX frontend does not know the operators {names}{' ...' if len(unknown) > 5 else ''}; "
            "nor does the ONNX standard define them by other operators: export the model without them, or cut it there"
        )


def unknown_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the nodes whose operator has no converter."""
    return [node for node in model.graph.node if not _is_known(node)]


def convert(
    prepared: Prepared, shapes: Mapping[str, tuple[Any, ...]], where: str
) -> tuple[tvm.IRModule, dict[str, int], list[Any]]:
    """Convert a graph.

    Returns
    -------
    mod : tvm.IRModule
    addresses : dict of str to int
        Data address of each initializer's constant.
    kept : list
        The constants, which keep the addresses valid.

    Raises
    ------
    ModelError
        A node cannot be converted; it names operator, node and reason.
    """
    model = prepared.model
    importer = _Importer(prepared, shapes)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):  # the frontend prints failures
            warnings.simplefilter("ignore")
            mod = importer.from_onnx(model.graph, importer.opsets.get("", 1))
    except UnsupportedNode as error:
        _close(importer.bb)
        raise ModelError(f"{where}: {error.problem}", error.missing) from None
    except Exception as error:
        _close(importer.bb)
        raise ModelError(f"{where}: TVM's ONNX frontend failed: {reason(error)}") from error
    return mod, importer.addresses, importer.kept


def _convert_body(
    model: onnx.ModelProto, shapes: Mapping[str, tuple[Any, ...]], constants: Mapping[str, Any], where: str
) -> tvm.IRModule:
    """Convert a body of control flow, which is a model of its own."""
    named = {
        name: tuple(size if isinstance(size, int) else size.name for size in each) for name, each in shapes.items()
    }
    try:
        prepared = prepare(model, named, constants, where)
        check_operators(prepared.model, where)
    except ModelError as error:
        raise UnsupportedNode(str(error), error.missing) from None
    importer = _Importer(prepared, shapes, is_body=True)
    try:
        return importer.from_onnx(prepared.model.graph, importer.opsets.get("", 1))
    except Exception:
        _close(importer.bb)
        raise


def _close(builder: relax.BlockBuilder) -> None:
    """End the block that TVM leaves open after an error; it prints a warning of its own otherwise."""
    with contextlib.suppress(Exception):
        builder._end_block()


def reason(error: BaseException) -> str:
    """Return the reason of an error of TVM's frontend; for a bare assertion, the asserted condition."""
    if str(error).strip():
        return first_line(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.line!r} does not hold in {frame.filename.rsplit('/', 1)[-1]}"


class _Importer(onnx_frontend.ONNXGraphImporter):
    """TVM's importer that prefers our converters, and records the constant of each initializer."""

    def __init__(self, prepared: Prepared, shapes: Mapping[str, tuple[Any, ...]], is_body: bool = False) -> None:
        super().__init__({n: list(s) for n, s in shapes.items()}, "float32", keep_params_in_input=False, sanitize=False)
        self.model, self.weights = prepared.model, prepared.weights
        self.arguments = [] if is_body else _arguments(prepared)
        self.opsets = {("" if i.domain in STANDARD else i.domain): i.version for i in prepared.model.opset_import}
        self.inferred = {item.name: item for item in (*prepared.model.graph.value_info, *prepared.model.graph.output)}
        self.read = {name for node in prepared.model.graph.node for name in node.input}
        self.read |= {item.name for item in prepared.model.graph.output}
        self.symbolic = any(not isinstance(size, int) for shape in shapes.values() for size in shape)
        self.sizes: dict[str, Values] = {}
        self.from_data = SizesFromData(self.bb, {name: node for node in self.model.graph.node for name in node.output})
        self.control_flow = ControlFlow(self.bb, self.model, self._known, _convert_body)
        self.addresses: dict[str, int] = {}
        self.kept: list[Any] = []

    def from_onnx(self, graph: Any, opset: int) -> tvm.IRModule:
        mod = super().from_onnx(graph, opset)
        return mod.with_attr(BODIES, self.control_flow.bodies) if self.control_flow.bodies else mod

    def _parse_graph_input(self, graph: Any) -> None:
        super()._parse_graph_input(graph)
        for name in self.arguments:
            array = self.weights[name]
            self._inputs[name] = self._nodes[name] = relax.Var(name, relax.TensorType(array.shape, str(array.dtype)))

    def _check_for_unsupported_ops(self, graph: Any) -> None:
        """Do nothing: `check_operators` checks the operators with their domains."""

    def _construct_nodes(self, graph: Any) -> None:
        # Node by node, so that our converters get the node's name, domain and outputs.
        for node in graph.node:
            converter = find(node.op_type, node.domain)
            try:
                if node.op_type in CONTROL_FLOW and node.domain in STANDARD:
                    self._nodes.update(zip(node.output, self.control_flow.results(node), strict=True))
                    self.symbolic = True
                    continue
                if self.symbolic and self._compute_sizes(node):
                    check_results(node, [self._nodes.get(name) for name in node.output], self.inferred)
                    continue
                if len(node.input) > (position := _TAKES_SHAPE.get(node.op_type, len(node.input))):
                    node = self._with_shape(node, position)
                self._emit_sizes(node.input)
                if (node := self._with_sizes_from_data(node)) is None:
                    continue
                if self.symbolic:
                    node = self._agreeing(node)
                check_constants(node, [self._nodes[i] if i else None for i in node.input], self.model.graph)
                if self._is_empty(node):
                    self._nodes.update(self._empty_results(node))
                elif converter is None:
                    super()._construct_nodes(type(graph)(node=[node]))
                else:
                    self._convert_with(converter, node)
                self._bind_results(node)
                # Shape inference gives outputs without a name one shape, so what nobody reads is not compared.
                results = [self._nodes.get(name) if name in self.read else None for name in node.output]
                check_results(node, results, self.inferred)
                self.symbolic |= any(
                    isinstance(each, relax.Expr) and None in (known_sizes(each) or ()) for each in results
                )
            except UnsupportedNode:
                raise
            except Exception as error:
                who = "TVM's ONNX frontend" if converter is None else "its converter"
                raise UnsupportedNode(f"{node_text(node)}: {who} failed: {reason(error)}") from error
        self._emit_sizes(item.name for item in graph.output)

    def _known(self, name: str) -> relax.Expr:
        self._emit_sizes([name])
        return self._nodes[name]

    def _compute_sizes(self, node: Any) -> bool:
        """Convert a node that computes sizes from symbolic shapes, or takes such; return whether it is one."""
        if node.domain not in STANDARD:
            return False
        values = [self._values(name) for name in node.input]
        data = self._nodes.get(node.input[0]) if node.input else None
        ty = data.ty if isinstance(data, relax.Expr) else None
        known = isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr)
        computed = any(name in self.sizes for name in node.input)
        if node.op_type in ("Shape", "Size") or computed:
            found = values_of(node, values, list(ty.shape.values) if ty is not None and known else None)
            if found is not None:
                self.sizes[node.output[0]] = found
                return True
        if not computed and node.op_type not in ("Reshape", "Flatten"):
            return False
        data = data if known and node.input[0] not in self.sizes else None
        result = converted(node, data, values, self._inferred_dtype(node.output[0]))
        if result is not None:
            self._nodes[node.output[0]] = self.bb.emit(result)
        return result is not None

    def _with_sizes_from_data(self, node: Any) -> Any:
        """Convert a node whose sizes tensors say, and return None; else return it, with them as a shape if it takes one."""
        positions = SIZES.get(node.op_type, ()) if node.domain in STANDARD else ()
        operands = [self._nodes.get(name) if name else None for name in node.input]
        computed = [k for k in positions if k < len(operands) and operands[k] is not None]
        if all(constant_of(operands[k]) is not None or isinstance(operands[k], relax.ShapeExpr) for k in computed):
            return node
        values = [
            self.from_data.elements(name, self._nodes, self._values) if k in computed else None
            for k, name in enumerate(node.input)
        ]
        if any(values[k] is None for k in computed):
            return node
        attributes = self._parse_attr(node.attribute)
        dtype = self._inferred_dtype(node.output[0])
        found = self.from_data.convert(node, operands, values, self._nodes, attributes, dtype)
        if found is None:
            return node
        self.symbolic = True
        if isinstance(found, relax.ShapeExpr):
            return self._with_inputs(node, {len(node.input) - 1: self.bb.normalize(found)})
        for name, value in zip(node.output, found, strict=False):
            self._nodes[name] = self.bb.emit(value) if not isinstance(value, relax.Var) else value
        check_results(node, [self._nodes.get(name) for name in node.output], self.inferred)
        return None

    def _agreeing(self, node: Any) -> Any:
        """Return a node whose operands have one size where sizes have to be equal."""
        operands = [self._nodes.get(name) if name else None for name in node.input]
        agree = agreeing(self.bb, node, operands)
        pairs = enumerate(zip(operands, agree, strict=True))
        others = {k: new for k, (old, new) in pairs if new is not None and new is not old}
        return self._with_inputs(node, others) if others else node

    def _with_shape(self, node: Any, position: int) -> Any:
        """Return a node to which sizes are handed over as a shape, from which its converter takes the expressions."""
        values = self.sizes.get(node.input[position])
        if values is None or values.ndim > 1 or is_floating(values):
            return node
        shape = self.bb.normalize(relax.ShapeExpr([expression_of(value) for value in values.reshape(-1)]))
        return self._with_inputs(node, {position: shape})

    def _with_inputs(self, node: Any, inputs: Mapping[int, relax.Expr]) -> Any:
        """Return a node with other inputs, which no other node reads."""
        changed = type(node)()
        changed.CopyFrom(node)
        for position, value in inputs.items():
            changed.input[position] = f"{node.input[position]} as input {position} of {node.output[0]}"
            self._nodes[changed.input[position]] = value
        return changed

    def _emit_sizes(self, names: Iterable[str]) -> None:
        """Emit what has been computed of sizes as tensors, for nodes that compute with them."""
        for name in names:
            if name in self.sizes and name not in self._nodes:
                self._nodes[name] = self.bb.emit(tensor_of(self.bb, self.sizes[name], self._inferred_dtype(name)))

    def _inferred_dtype(self, name: str) -> str | None:
        kind = self.inferred[name].type.tensor_type.elem_type if name in self.inferred else 0
        return str(onnx_frontend.get_type(kind)) if kind else None

    def _values(self, name: str) -> Values | None:
        node = self._nodes.get(name)
        constant = node.value.numpy() if isinstance(node, tvm.ir.GenericConst) else None
        return self.sizes.get(name) if name in self.sizes else constant_values(constant)

    def _is_empty(self, node: Any) -> bool:
        """Whether no result that is read has an element, so that nothing is computed."""
        names = [name for name in node.output if name in self.read]
        return bool(names) and all(0 in self._inferred_sizes(name) for name in names)

    def _inferred_sizes(self, name: str) -> list[int]:
        """Return the sizes that ONNX infers for a tensor; [] if its type or a size is unknown."""
        kind = self.inferred[name].type.tensor_type if name in self.inferred else None
        if kind is None or not kind.elem_type or not all(dim.HasField("dim_value") for dim in kind.shape.dim):
            return []
        return [dim.dim_value for dim in kind.shape.dim]

    def _empty_results(self, node: Any) -> dict[str, relax.Expr]:
        """Return the results of a node that has no elements as constants, which may also be shapes or axes."""
        results = {}
        for name in node.output:
            if name in self.read:
                kind = self.inferred[name].type.tensor_type.elem_type
                dtype = onnx_frontend.get_type(kind)
                results[name] = relax.const(np.zeros(self._inferred_sizes(name), dtype), dtype)
        return results

    def _bind_results(self, node: Any) -> None:
        """Bind results that are calls or fields of tuples to variables.

        A call would otherwise be bound where it is first read, so that its inputs stay in memory until then. Fields of
        tuples TVM's arithmetic would take for constants.
        """
        for name in node.output:
            value = self._nodes.get(name)
            computed = isinstance(value, relax.Call) and isinstance(value.ty, relax.TensorType)
            if computed or isinstance(value, relax.TupleGetItem):
                self._nodes[name] = self.bb.emit(value)

    def _convert_with(self, converter: Any, node: Any) -> None:
        inputs = tuple(self._nodes[i] if i else None for i in node.input)
        attributes, version = self._parse_attr(node.attribute), self.opsets.get(node.domain, self.opsets.get("", 1))
        outputs = tuple(name if name in self.read or not k else "" for k, name in enumerate(node.output))
        result = converter(Node(node.op_type, node.name, inputs, attributes, outputs, version, self.bb))
        values = [result] if isinstance(result, relax.Expr) else list(result)
        for name, value in zip(node.output, values, strict=False):
            self._nodes[name] = self.bb.normalize(value)

    def _parse_graph_initializers(self, graph: Any) -> None:
        super()._parse_graph_initializers(graph)
        for name, array in self.weights.items():
            if name not in self.arguments:
                # From a NumPy array, relax.const would make int32 of int64 and float32 of float64.
                self._nodes[name] = relax.const(tvm.runtime.tensor(array))
        for name, node in self._nodes.items():
            if isinstance(node, tvm.ir.GenericConst):
                self.kept.append(node)
                self.addresses[name] = data_address(node)


def _arguments(prepared: Prepared) -> list[str]:
    """Return the large weights that become arguments of ``main`` directly, so that they are not copied.

    Only nodes whose converters do not use their values (`BLIND`) may read them; all other weights become constants first.
    """
    large = {name for name, array in prepared.weights.items() if array.nbytes >= ARGUMENT_BYTES}
    large -= {item.name for item in prepared.model.graph.output}
    for node in prepared.model.graph.node:
        large -= set(names_of_bodies(node))
        blind = BLIND.get(node.op_type, ()) if find(node.op_type, node.domain) is None else ()
        large -= {name for position, name in enumerate(node.input) if position not in blind}
    return [name for name in prepared.weights if name in large]


def _is_known(node: onnx.NodeProto) -> bool:
    if find(node.op_type, node.domain) is not None:
        return True
    known = node.op_type in onnx_frontend._get_convert_map() or node.op_type in ("Constant", *CONTROL_FLOW)
    return node.domain in STANDARD and known
