"""Open and import ONNX models."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm import relax, tirx

from ..constants import Constants, Values
from ..errors import ModelError, first_line
from ..imported_model import ImportedModel, data_address, lift_constants, main_constants, number_of_inputs
from ..shapes import DeclaredInput, Dimension, InputShapes, StaticShapes, bind_shapes
from ..source import Description, ModelSource
from .check_graph import check_graph
from .check_nodes import check_nodes
from .onnx_files import import_onnx, read_onnx, subgraphs, tensors_of
from .operators.nodes import STANDARD, node_text
from .prepare import Prepared, prepare
from .readable import readable
from .size_hints import size_hints, trial
from .widen import wider_name

if TYPE_CHECKING:
    import onnx


def load(
    model: str | os.PathLike[str] | onnx.ModelProto,
    shapes: InputShapes | None = None,
    *,
    constants: Constants | None = None,
    name: str | None = None,
) -> ImportedModel:
    """Import an ONNX file or model with static shapes; parameters and errors are those of `tvm_frontends.load_model`.

    Examples
    --------
    >>> import tvm_frontends
    >>> imported = tvm_frontends.onnx.load("model.onnx", shapes={"x": (2, 3)})
    >>> imported.inputs
    {'x': ((2, 3), 'float32')}
    >>> {name: value.shape for name, value in imported.parameters.items()}
    {'w': (3, 2)}
    >>> [variable.name for variable in imported.mod["main"].params]
    ['x', 'w']
    """
    if not isinstance(model, (str, os.PathLike)):
        return open_onnx(model, name, f"model {name!r}" if name else "model").load(shapes, constants)
    path = Path(model)
    return open_onnx(read_onnx(path), name or path.stem, str(path)).load(shapes, constants)


def open_onnx(model: onnx.ModelProto, name: str | None, where: str) -> ModelSource:
    """Return the model with its declared inputs; folding and branches depend on the shapes, and happen at the import."""
    import_onnx(where)
    check_graph(model.graph, where)
    check_nodes(model, where)
    model = readable(model, where)

    def import_with(shapes: StaticShapes, constants: Values) -> ImportedModel:
        return from_onnx(model, shapes, name, where, constants)

    inputs = declared_inputs(model)
    title = name or model.graph.name or "model"
    texts = _texts(model.graph)
    return ModelSource(
        title,
        where,
        inputs,
        import_with,
        lambda: _describe(model),
        loose=True,
        hints=lambda: size_hints(model, where),
        fits=trial(lambda shapes, constants: prepare(model, shapes, constants, where)),
        texts=texts,
        symbolic=lambda constants: _symbolic(model, inputs, name, where, constants),
    )


def _symbolic(
    model: onnx.ModelProto, declared: Sequence[DeclaredInput], name: str | None, where: str, constants: Values
) -> ImportedModel:
    """Import with symbols: each named dimension is one symbol, each other open dimension has its own."""
    variables: dict[str, tirx.Var] = {}
    named: dict[str, tuple[int | str, ...]] = {}
    for item in declared:
        if item.name in constants:
            continue
        if item.shape is None:
            raise ModelError(f"{where}: the model does not say how many dimensions input {item.name!r} has")
        named[item.name] = tuple(
            size if isinstance(size, int) else str(size or f"{item.name}_{axis}")
            for axis, size in enumerate(item.shape)
        )
    for size in (size for shape in named.values() for size in shape if isinstance(size, str)):
        variables.setdefault(size, tirx.Var(re.sub(r"\W", "_", size), "int64"))
    symbols = {n: tuple(variables[d] if isinstance(d, str) else d for d in shape) for n, shape in named.items()}
    return _imported(model, prepare(model, named, constants, where), symbols, name, where)


def _texts(graph: onnx.GraphProto) -> tuple[str, ...]:
    """Return the inputs of strings that operators read."""
    from onnx import TensorProto

    read = {name for node in _nodes(graph) for name in node.input}
    kinds = ((item.name, tensor_type(item.type).elem_type) for item in graph.input)
    return tuple(name for name, kind in kinds if kind == TensorProto.STRING and name in read)


def _describe(model: onnx.ModelProto) -> Description:
    """Describe a model; nodes of branches and loops count, and unknown operators may fold away once shapes are known."""
    from .convert_graph import unknown_nodes

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


_RESOLVED = ("Loop", "Scan", "If", "Constant", "SequenceConstruct", "ZipMap")
"""Operators that preparation may remove from the graph, so they are not refused before it."""


def _kind(node: onnx.NodeProto) -> str:
    return node.op_type if node.domain in STANDARD else f"{node.domain}.{node.op_type}"


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for body in subgraphs(attribute):
                yield from _nodes(body)


def _size(tensor: onnx.TensorProto) -> int:
    from onnx import TensorProto, helper

    if tensor.data_type in (TensorProto.STRING, TensorProto.UNDEFINED):
        return 0
    return math.prod(tensor.dims) * int(helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def from_onnx(
    model: onnx.ModelProto,
    shapes: InputShapes | None,
    name: str | None,
    where: str,
    constants: Mapping[str, Any] | None = None,
) -> ImportedModel:
    """Import an ONNX model that was made `readable`.

    Inputs keep their names. Initializers become parameters under their names, except scalars and those that the frontend
    must know (shapes, axes). In models of IR version 3, initializers are graph inputs, too; here they are parameters. An
    input named in `constants` becomes a constant.

    Raises
    ------
    ModelError
        See `load_model`.
    """
    import_onnx(where)
    if model.ir_version < 3:
        raise ModelError(
            f"{where}: ONNX IR version {model.ir_version}; 3 and above can be read, convert it with onnx.version_converter"
        )
    declared = [item for item in declared_inputs(model) if item.name not in (constants or {})]
    static, _ = bind_shapes(declared, shapes, where, loose=True)
    return _imported(model, prepare(model, static, constants, where), static, name, where)


def _imported(
    model: onnx.ModelProto, prepared: Prepared, shapes: Mapping[str, tuple[Any, ...]], name: str | None, where: str
) -> ImportedModel:
    """Convert a prepared model."""
    from .convert_graph import check_operators, convert

    check_operators(prepared.model, where)
    try:
        mod, addresses, kept = convert(prepared, shapes, where)
    except ModelError as error:
        if error.missing is None:
            _check_model(model, where)
        raise
    names = {address: tensor for tensor, address in addresses.items()}
    variables: dict[int, relax.Var] = {}
    arguments = mod["main"].params[number_of_inputs(mod["main"]) :]
    parameters = {variable.name: prepared.weights[variable.name] for variable in arguments}
    for constant in main_constants(mod):
        address = data_address(constant)
        if address in names and len(constant.ty.shape) > 0:
            variables[address] = relax.Var(names[address], constant.ty)
            parameters[names[address]] = constant.value.numpy()
    mod = lift_constants(mod, variables)
    del kept
    outputs = tuple(item.name for item in model.graph.output)
    return ImportedModel(mod, parameters, name or model.graph.name or "model", outputs)


def _check_model(model: onnx.ModelProto, where: str) -> None:
    """Raise the errors that ONNX's own checker finds in a model that could not be converted.

    The checker wants types and shapes, if only of open sizes, for all inputs and outputs, which models need not have.
    """
    onnx = import_onnx(where)
    if any(tensor.data_location == tensor.EXTERNAL for tensor in tensors_of(model.graph)):
        return  # the checker would look for the files in the current folder
    bare, model = model, type(model)()
    model.CopyFrom(bare)
    for item in (*model.graph.input, *model.graph.output):
        if item.type.WhichOneof("value") in ("tensor_type", None):
            item.type.tensor_type.shape.SetInParent()
            item.type.tensor_type.elem_type = item.type.tensor_type.elem_type or onnx.TensorProto.FLOAT
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        raise ModelError(f"{where}: not a valid ONNX model: {first_line(error)}") from None
    except Exception:  # for instance a model above protobuf's 2 GB
        return


def declared_inputs(model: onnx.ModelProto) -> tuple[DeclaredInput, ...]:
    """Return the graph's inputs without initializers, which are listed as inputs in models of IR version 3."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    return tuple(declared_value(item) for item in model.graph.input if item.name not in initializers)


def declared_value(item: onnx.ValueInfoProto) -> DeclaredInput:
    """Return an input or output with its declared shape; a size of 0 is an empty tensor, a negative one is unknown."""
    tensor = tensor_type(item.type)
    dtype = wider_name(_dtype(tensor.elem_type))
    if not tensor.HasField("shape"):
        return DeclaredInput(item.name, None, dtype)
    dims: list[Dimension] = []
    for dim in tensor.shape.dim:
        dims.append(int(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param)
    return DeclaredInput(item.name, tuple(dims), dtype)


def tensor_type(kind: onnx.TypeProto) -> onnx.TypeProto.Tensor:
    """Return the type of a tensor or of an optional tensor, which is always present in compiled models."""
    return kind.optional_type.elem_type.tensor_type if kind.HasField("optional_type") else kind.tensor_type


def _dtype(element_type: int) -> str | None:
    from onnx import helper

    try:
        return str(helper.tensor_dtype_to_np_dtype(element_type).name)
    except KeyError:  # not a tensor, or a type that this version of onnx does not know
        return None
