"""Preparation before import: make an ONNX model static in shape and free of control flow.

Input shapes are bound, the opset is raised, functions are inlined, constants folded, ``If`` decided and loops unrolled.
Weights are neither copied nor serialised by protobuf, whose limit is 2 GB; external files stay memory-mapped.

Corrections of TVM 0.27.0, ``relax/frontend/onnx/onnx_frontend.py``:

- ``Constant``: fails on ``value_int``, ``value_ints``, ``value_float`` and ``value_floats``; all constants are made
  initializers before.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import ModelError, ModelWarning, UnsupportedNode, first_line
from ..logs import quiet
from .expand import expand_functions
from .fold import fold_model
from .loop_operators import DONE, ORIGIN, RUNS, bodies, unique_names
from .operators import is_known
from .sequences import resolve_sequences
from .upgrade_opset import NativeError, upgrade
from .widen import widen_types

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

OPSET = 13
"""Older models are converted to this opset of the standard domain, from which on axes are inputs."""

UNLISTED = 4
"""First version of ONNX's IR in which initializers need not be inputs."""

INLINE_BYTES = 1024
"""Initializers up to this size stay in the model that `prepare` returns; larger ones are returned beside it."""


@dataclass(frozen=True)
class Prepared:
    """A model ready for import."""

    model: onnx.ModelProto
    """The model without its large initializers; shapes are static as far as they could be inferred."""
    weights: dict[str, npt.NDArray[np.generic]] = field(default_factory=dict)
    """The large initializers by name; memory-mapped if they are in external files."""


def prepare(
    model: onnx.ModelProto,
    shapes: Mapping[str, tuple[int | str, ...]],
    constants: Mapping[str, Any] | None,
    where: str,
) -> Prepared:
    """Prepare a model for import.

    Parameters
    ----------
    model : onnx.ModelProto
        A model that passed `check_graph`, made `readable`; it is not changed. `read_onnx` must have located its external
        data.
    shapes : mapping of str to tuple of int
        Shape of every input that is not a constant; names stand for sizes that stay open.
    constants : mapping of str to array_like, optional
        Values of inputs that become constants (a shape, a flag, a sampling rate).
    where : str
        The model in messages.

    Raises
    ------
    ModelError
        The graph is broken, a constant does not fit, or a loop is too long.
    """
    import onnx_ir as ir

    try:
        graph = ir.from_proto(model)
    except Exception as error:
        raise ModelError(f"{where}: not a valid ONNX model: {_cause(error)}") from None
    try:
        for each in graph.graphs():
            each.sort()  # tools that convert to float16 append nodes at the end; ONNX Runtime sorts, too
    except ValueError:
        raise ModelError(f"{where}: its nodes form a cycle; export the model again") from None
    _freeze(graph, shapes, constants or {}, where)
    try:
        graph = _normalise(graph, where)
        expand_functions(graph, is_known)
        graph = _folded(graph, where)
    except UnsupportedNode as error:
        raise ModelError(f"{where}: {error.problem}", error.missing) from None
    widen_types(graph)
    return _to_proto(graph)


def _freeze(
    model: ir.Model, shapes: Mapping[str, tuple[int | str, ...]], constants: Mapping[str, Any], where: str
) -> None:
    """Bind inputs to their shapes and constants, and forget shapes that were inferred from open ones."""
    import onnx_ir as ir

    graph = model.graph
    inputs = [value for value in graph.inputs if value.name not in graph.initializers]
    for name in constants:
        if name not in {value.name for value in inputs}:
            raise ModelError(
                f"{where}: a constant is given for input {name!r}, which the model does not have; its inputs are "
                f"{', '.join(str(value.name) for value in inputs) or 'none'}"
            )
    graph.inputs.clear()
    for value in inputs:
        if value.name in constants:
            tensor = ir.tensor(_constant(value, constants[value.name], where), name=value.name)
            value.const_value, value.shape, value.type = tensor, tensor.shape, ir.TensorType(tensor.dtype)
            graph.register_initializer(value)
            continue
        graph.inputs.append(value)
        if isinstance(value.type, ir.OptionalType):  # compiled models take every input
            value.type = value.type.elem_type
        if value.name in shapes:
            value.shape = ir.Shape(shapes[value.name])
    _forget_shapes(model)


def _forget_shapes(model: ir.Model) -> None:
    for graph in model.graphs():
        for node in graph:
            for value in node.outputs:
                value.shape = None


def _constant(value: ir.Value, constant: Any, where: str) -> npt.NDArray[Any]:
    dtype = np.dtype(value.dtype.numpy()) if value.dtype is not None else None
    try:
        array = np.asarray(constant)
        converted = array if dtype is None else array.astype(dtype)
        whole = dtype is not None and not np.issubdtype(dtype, np.floating)
        if whole and not np.array_equal(converted.astype(np.float64), array.astype(np.float64)):
            raise ValueError(f"{array} is no {dtype}")
    except (TypeError, ValueError) as error:
        raise ModelError(f"{where}: constant {value.name!r}: {constant!r} does not fit ({_cause(error)})") from None
    declared = value.shape
    if declared is None:
        return converted
    fixed = [dim if isinstance(dim, int) else None for dim in declared.dims]
    if converted.ndim == 0 and all(dim in (None, 1) for dim in fixed):
        return converted.reshape((1,) * len(fixed))
    if converted.ndim == len(fixed) and all(
        want in (None, have) for want, have in zip(fixed, converted.shape, strict=True)
    ):
        return converted
    raise ModelError(
        f"{where}: constant {value.name!r} has the shape {converted.shape}; the model declares "
        f"({', '.join('?' if dim is None else str(dim) for dim in fixed)})"
    )


def _normalise(model: ir.Model, where: str) -> ir.Model:
    """Inline functions and raise the opset to `OPSET`."""
    import onnx_ir as ir
    from onnx_ir.passes import common

    if model.functions:
        common.InlinePass()(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    unique_names(model)
    common.LiftSubgraphInitializersToMainGraphPass()(model)
    for node in model.graph.all_nodes():
        if node.op_type == "STFT" and "onesided" not in node.attributes:
            node.attributes["onesided"] = ir.AttrInt64("onesided", 1)  # ONNX's shape inference assumes 0
    if model.opset_imports.get("", OPSET) >= OPSET:
        return model
    model.ir_version = max(model.ir_version, UNLISTED)
    tensors = {name: value.const_value for name, value in model.graph.initializers.items()}
    inputs = [value.name for value in model.graph.inputs]
    try:
        newer = ir.from_proto(upgrade(_skeleton(model), OPSET))
    except NativeError as error:
        version = model.opset_imports[""]
        if any("broadcast" in node.attributes for node in model.graph):
            raise ModelError(
                f"{where}: opset {version} has other rules of broadcasting, and could not be converted: {first_line(error)}"
            ) from None
        warnings.warn(f"{where}: stays at opset {version}: {first_line(error)}", ModelWarning, stacklevel=2)
        return model
    _forget_shapes(newer)  # ONNX inferred them, some wrongly (`hide_pools`)
    graph = newer.graph
    if model.opset_imports[""] < 11:
        _keep_positions(graph)
    for value in [value for value in graph.inputs if value.name not in inputs]:
        graph.inputs.remove(value)
        value.const_value = tensors[value.name]
        graph.register_initializer(value)
    return newer


def _keep_positions(graph: ir.Graph) -> None:
    """Set the coordinates of Upsample and of Resize of opset 10, which ONNX's version converter changes."""
    import onnx_ir as ir

    for node in graph.all_nodes():
        if node.op_type == "Resize" and node.domain in ("", "ai.onnx"):
            for name, value in (("coordinate_transformation_mode", "asymmetric"), ("nearest_mode", "floor")):
                node.attributes[name] = ir.AttrString(name, value)


def _skeleton(model: ir.Model) -> onnx.ModelProto:
    """Return the model with its large initializers as inputs."""
    return _to_proto(model, as_inputs=True).model


def _folded(model: ir.Model, where: str) -> ir.Model:
    """Fold constants; if onnxscript fails, use only ONNX's own shape inference."""
    from onnx_ir.passes import common

    loops = [node for node in model.graph.all_nodes() if node.op_type == "Loop"]
    for number, node in enumerate(loops):
        node.meta[ORIGIN] = number
    folded = model.clone()
    try:
        fold_model(folded)
        while begun := {node.meta[ORIGIN] for node in folded.graph.all_nodes() if DONE in node.meta}:
            for number in begun:  # data decide when it ends
                loops[number].meta[RUNS] = True
            folded = model.clone()
            fold_model(folded)
    except UnsupportedNode:
        raise
    except Exception as error:  # onnxscript raises unrelated classes
        warnings.warn(f"{where}: its constants are not folded: {_cause(error)}", ModelWarning, stacklevel=2)
        folded = model
        with quiet("onnx_ir"):
            common.ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(folded)
        resolve_sequences(folded)
    _copy_outer_results(folded.graph, {})
    common.NameFixPass()(folded)
    return folded


def _copy_outer_results(graph: ir.Graph, visible: Mapping[str | None, ir.Value]) -> None:
    """Make copies of values of the graphs around that bodies return, in place: onnx_ir would rename such results."""
    import onnx_ir as ir

    own = {*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs)}
    for position, value in enumerate(graph.outputs):
        if value not in own and value.name in visible:
            copy = ir.node("Identity", [visible[value.name]])
            copy.outputs[0].type, copy.outputs[0].name = value.type, f"{value.name}_copy"
            graph.append(copy)
            graph.outputs[position] = copy.outputs[0]
    inner = {**visible, **{value.name: value for value in own}}
    for node in graph:
        for body in bodies(node):
            _copy_outer_results(body, inner)


def _to_proto(model: ir.Model, as_inputs: bool = False) -> Prepared:
    """Serialise the model without its large initializers."""
    import onnx_ir as ir

    graph = model.graph
    large = {
        name: value
        for name, value in graph.initializers.items()
        if value.const_value is not None and value.const_value.nbytes > INLINE_BYTES
    }
    for name, value in graph.initializers.items():
        if name not in large and isinstance(value.const_value, ir.ExternalTensor):
            value.const_value = ir.Tensor(value.const_value.numpy().copy(), name=name)
    for name, value in large.items():
        del graph.initializers[name]
        if as_inputs:
            value.shape, value.type = value.const_value.shape, ir.TensorType(value.const_value.dtype)
            graph.inputs.append(value)
    proto = ir.to_proto(model)
    weights = {name: value.const_value.numpy() for name, value in large.items()}
    for value in large.values():
        if as_inputs:
            graph.inputs.remove(value)
        graph.register_initializer(value)
    return Prepared(proto, weights)


def _cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)
