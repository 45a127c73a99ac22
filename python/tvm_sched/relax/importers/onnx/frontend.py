"""Import of ONNX models through TVM's frontend and our own converters, with the names of their initialisers kept."""

from __future__ import annotations

import contextlib
import io
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

from ....errors import InputError
from ..model import ImportedModel, data_address, lift_constants, main_constants
from ..shapes import DeclaredInput, InputShapes, bind_shapes
from .operators import Node, UnsupportedNode, find

if TYPE_CHECKING:
    import onnx


def read_onnx(path: Path) -> onnx.ModelProto:
    """Read an ONNX file and the external data it names."""
    onnx = _import_onnx(str(path))
    try:
        model = onnx.load(path)
    except Exception as error:  # protobuf and onnx raise several unrelated classes
        raise InputError(f"{path}: not a readable ONNX file ({_first_line(error)})") from None
    if not model.graph.node and not model.graph.output:
        raise InputError(f"{path}: not a readable ONNX file (its graph is empty)")
    return model


def from_onnx(model: onnx.ModelProto, shapes: InputShapes | None, name: str | None, where: str) -> ImportedModel:
    """Import an ONNX model.

    Inputs keep their names. In models of IR version 3 the initialisers stand among the graph's inputs, too; they are
    parameters here. Initialisers become parameters under their own names, except those that the frontend has to know
    (shapes, axes) and scalars.
    """
    _import_onnx(where)
    initializers = {tensor.name for tensor in model.graph.initializer}
    declared = [_declared(item) for item in model.graph.input if item.name not in initializers]
    static, _ = bind_shapes(declared, shapes, where)
    mod, values = _convert(model, static, where)
    names = {address: tensor for tensor, address in values.items()}
    variables: dict[int, relax.Var] = {}
    parameters: dict[str, npt.NDArray[np.generic]] = {}
    for constant in main_constants(mod):
        address = data_address(constant)
        if address in names and len(constant.ty.shape) > 0:
            variables[address] = relax.Var(names[address], constant.ty)
            parameters[names[address]] = constant.value.numpy()
    mod = lift_constants(mod, variables)
    return ImportedModel(mod, parameters, name or model.graph.name or "model")


def _convert(
    model: onnx.ModelProto, shapes: dict[str, tuple[int, ...]], where: str
) -> tuple[tvm.IRModule, dict[str, int]]:
    """Run TVM's frontend; returns the module and the data address of each initialiser's constant."""
    from tvm.relax.frontend.onnx import onnx_frontend

    values: dict[str, int] = {}

    opsets = {("" if i.domain == "ai.onnx" else i.domain): i.version for i in model.opset_import}

    class Importer(onnx_frontend.ONNXGraphImporter):
        """Prefers our converters, and notes which constant an initialiser became: the frontend forgets their names."""

        def _check_for_unsupported_ops(self, graph: Any) -> None:
            known = onnx_frontend._get_convert_map()
            unknown = [n for n in graph.node if not (n.op_type in known or find(n.op_type, n.domain))]
            super()._check_for_unsupported_ops(type(graph)(node=unknown))

        def _construct_nodes(self, graph: Any) -> None:
            # Node by node, so that our converters see what the frontend does not hand on: name, domain, outputs.
            for node in graph.node:
                convert = find(node.op_type, node.domain)
                if convert is None:
                    super()._construct_nodes(type(graph)(node=[node]))
                else:
                    self._convert_with(convert, node)

        def _convert_with(self, convert: Any, node: Any) -> None:
            inputs = tuple(self._nodes[i] if i else None for i in node.input)
            attributes = self._parse_attr(node.attribute)
            version = opsets.get("" if node.domain == "ai.onnx" else node.domain, opset)
            made = convert(Node(node.op_type, node.name, inputs, attributes, tuple(node.output), version, self.bb))
            values = [made] if isinstance(made, relax.Expr) else list(made)
            for name, value in zip(node.output, values, strict=False):
                self._nodes[name] = self.bb.normalize(value)

        def _parse_graph_initializers(self, graph: Any) -> None:
            super()._parse_graph_initializers(graph)
            for tensor in graph.initializer:
                node = self._nodes[tensor.name]
                if isinstance(node, tvm.ir.GenericConst):
                    kept.append(node)
                    values[tensor.name] = data_address(node)

    kept: list[Any] = []  # an address names a constant only while the constant lives
    if model.ir_version < 3:
        raise InputError(
            f"{where}: ONNX IR version {model.ir_version}; 3 and above can be read, convert it with onnx.version_converter"
        )
    opset = next((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), 1)
    importer = Importer({n: list(s) for n, s in shapes.items()}, "float32", keep_params_in_input=False, sanitize=False)
    output = io.StringIO()  # the frontend prints what it was doing when it failed
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(output):
            warnings.simplefilter("ignore")
            mod = importer.from_onnx(model.graph, opset)
    except tvm.error.OpNotImplemented as error:
        raise InputError(f"{where}: {_unsupported(model, onnx_frontend, error)}") from None
    except UnsupportedNode as error:
        raise InputError(f"{where}: {error}") from None
    except Exception as error:
        _check_model(model, where)
        doing = output.getvalue().split(", with inputs")[0].strip()
        raise InputError(
            f"{where}: TVM's ONNX frontend failed: {_first_line(error)}" + (f" ({doing})" if doing else "")
        ) from error
    return mod, values


def _check_model(model: onnx.ModelProto, where: str) -> None:
    """Say what ONNX's own checker finds wrong with a model that the frontend stumbled over."""
    onnx = _import_onnx(where)
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        raise InputError(f"{where}: not a right ONNX model: {' '.join(str(error).split())}") from None
    except Exception:  # a model above protobuf's 2 GB, say: nothing is known of it
        return


def _unsupported(model: onnx.ModelProto, frontend: Any, error: Exception) -> str:
    known = frontend._get_convert_map()
    nodes = [
        f"{n.op_type} (node {n.name or '->'.join(n.output)!r})"
        for n in model.graph.node
        if n.op_type not in known and find(n.op_type, n.domain) is None
    ]
    nodes = [text for text in nodes if not text.startswith(("If ", "Constant "))]
    if not nodes:
        return f"TVM's ONNX frontend cannot convert it: {_first_line(error)}"
    return f"TVM's ONNX frontend does not know the operators {', '.join(nodes[:5])}{' ...' if len(nodes) > 5 else ''}"


def _declared(item: onnx.ValueInfoProto) -> DeclaredInput:
    tensor = item.type.tensor_type
    if not tensor.HasField("shape"):
        return DeclaredInput(item.name, None)
    dims: list[int | str | None] = []
    for dim in tensor.shape.dim:
        dims.append(dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else dim.dim_param or None)
    return DeclaredInput(item.name, tuple(dims))


def _import_onnx(where: str) -> Any:
    try:
        import onnx
    except ImportError:
        raise InputError(
            f"{where}: reading ONNX models needs the package onnx: pip install 'tvm_sched[onnx]'"
        ) from None
    return onnx


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0]
