"""`from_onnx`: prepare and convert an ONNX model; its initializers become parameters under their own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tvm import relax

from tvm_sched.errors import InputError

from ..model import ImportedModel, data_address, lift_constants, main_constants, number_of_inputs
from ..shapes import InputShapes, bind_shapes
from .declared import declared_inputs
from .files import import_onnx, tensors_of
from .prepare import prepare

if TYPE_CHECKING:
    import onnx


def from_onnx(
    model: onnx.ModelProto,
    shapes: InputShapes | None,
    name: str | None,
    where: str,
    constants: Mapping[str, Any] | None = None,
) -> ImportedModel:
    """Import an ONNX model.

    Inputs keep their names. In models of IR version 3 the initializers are among the graph's inputs, too; they are
    parameters here. Initializers become parameters under their own names, except those that the frontend has to know
    (shapes, axes) and scalars. An input named in `constants` has the value given there and is no input any more.

    Raises
    ------
    InputError
        See `load_model`.
    """
    import_onnx(where)
    if model.ir_version < 3:
        raise InputError(
            f"{where}: ONNX IR version {model.ir_version}; 3 and above can be read, convert it with onnx.version_converter"
        )
    declared = [item for item in declared_inputs(model) if item.name not in (constants or {})]
    static, _ = bind_shapes(declared, shapes, where, loose=True)
    prepared = prepare(model, static, constants, where)
    from .convert import check_operators, convert

    check_operators(prepared.model, where)
    try:
        mod, addresses, kept = convert(prepared, static, where)
    except InputError:
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
    return ImportedModel(mod, parameters, name or model.graph.name or "model")


def _check_model(model: onnx.ModelProto, where: str) -> None:
    """Say what ONNX's own checker finds wrong with a model that could not be converted."""
    onnx = import_onnx(where)
    if any(tensor.data_location == tensor.EXTERNAL for tensor in tensors_of(model.graph)):
        return  # the checker would look for the files beside the current folder
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        raise InputError(f"{where}: not a valid ONNX model: {' '.join(str(error).split())}") from None
    except Exception:  # a model above protobuf's 2 GB, say: nothing is known of it
        return
