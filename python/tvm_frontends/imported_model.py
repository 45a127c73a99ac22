"""`ImportedModel`, the result of every import, and the conversion of constants to named parameters."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

from .tensor_types import dtype_of

PARAMETERS = "tvm_frontends.parameters"
"""Module attribute: values (``tvm.runtime.Tensor``) of the parameters of ``main`` by name."""
OUTPUT_NAMES = "tvm_frontends.output_names"
"""Module attribute: names of the outputs of ``main`` as the model has them, nested ones flattened."""
_SHARED = 1 << 20
"""Parameters of at least this many bytes are not copied."""
_ALIGNMENT = 64
"""Alignment in bytes that kernels need; a parameter at another address of a file is copied."""


@dataclass(frozen=True)
class ImportedModel:
    """A model as a Relax module and its parameters.

    Examples
    --------
    >>> import tvm_frontends
    >>> imported = tvm_frontends.load_model("model.onnx", {"x": (2, 3)})
    >>> imported.inputs, imported.output_names, sorted(imported.parameters)
    ({'x': ((2, 3), 'float32')}, ('y',), ['w'])
    """

    mod: tvm.IRModule
    """Its ``main`` takes the inputs, then the parameters; the function attribute ``num_input`` says how many inputs.
    All shapes are static."""
    parameters: dict[str, npt.NDArray[np.generic]] = field(default_factory=dict)
    """Values of the parameters by their names in the file, in the order of ``main``'s arguments."""
    name: str = "model"
    """Name of the model: the stem of its file, or the name of its graph."""
    output_names: tuple[str, ...] = ()
    """The model's names of the outputs of ``main``, nested ones flattened; () if the model has none."""

    @property
    def inputs(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of each input that is a tensor, by name."""
        function = self.mod["main"]
        tensors = [v for v in function.params[: number_of_inputs(function)] if isinstance(v.ty, relax.TensorType)]
        return {v.name: (tuple(int(d) for d in v.ty.shape), dtype_of(v)) for v in tensors}

    def with_parameters(self) -> tvm.IRModule:
        """Return the module with the attributes `PARAMETERS` and `OUTPUT_NAMES`, which the passes read."""
        values = {name: _as_tensor(value) for name, value in self.parameters.items()}
        mod = self.mod.with_attr(PARAMETERS, values) if values else self.mod
        return mod.with_attr(OUTPUT_NAMES, list(self.output_names)) if self.output_names else mod


def _as_tensor(value: npt.NDArray[np.generic]) -> tvm.runtime.Tensor:
    """Return an array as a TVM tensor; large arrays are shared, read-only memory maps too.

    DLPack refuses read-only arrays, so the tensor gets a view by address that keeps the array alive.
    """
    value = np.ascontiguousarray(value)
    plain = value.dtype.isnative and value.dtype.kind in "iuf" and value.dtype.type.__module__ == "numpy"
    if value.nbytes < _SHARED or not plain or value.ctypes.data % _ALIGNMENT:
        return tvm.runtime.tensor(value)
    memory = (ctypes.c_byte * value.nbytes).from_address(value.ctypes.data)
    memory.owner = value  # type: ignore[attr-defined]
    return tvm.runtime.from_dlpack(np.frombuffer(memoryview(memory), value.dtype.type).reshape(value.shape))


def number_of_inputs(function: relax.Function) -> int:
    """Return how many arguments of ``main`` are inputs (TVM's attribute ``num_input``); the parameters follow them.

    Examples
    --------
    >>> import tvm_frontends
    >>> from tvm_frontends.imported_model import number_of_inputs
    >>> number_of_inputs(tvm_frontends.load_model("model.onnx", {"x": (2, 3)}).mod["main"])
    1
    """
    if function.attrs and "num_input" in function.attrs:
        return int(function.attrs["num_input"])
    return len(function.params)


def data_address(constant: tvm.ir.GenericConst) -> int:
    """Return the address of a constant's value: two constants that share memory are one parameter.

    Examples
    --------
    >>> import numpy
    >>> import tvm
    >>> from tvm_frontends.imported_model import data_address
    >>> constant = tvm.relax.const(numpy.ones(4, "float32"))
    >>> data_address(constant) == data_address(constant)
    True
    """
    return int(constant.value.data_ptr())


@relax.expr_functor.mutator
class _ConstantLifter(relax.PyExprMutator):
    """Replaces constants by variables."""

    def __init__(self, mod: tvm.IRModule, variables: Mapping[int, relax.Var]) -> None:
        super().__init__(mod)
        self.variables = variables

    def visit_generic_const_(self, op: tvm.ir.GenericConst) -> relax.Expr:
        if not isinstance(op.ty, relax.TensorType):
            return op
        return self.variables.get(data_address(op), op)


def lift_constants(mod: tvm.IRModule, variables: Mapping[int, relax.Var]) -> tvm.IRModule:
    """Turn constants of ``main`` into arguments behind the existing ones.

    Parameters
    ----------
    variables : mapping of int to relax.Var
        The new argument for each constant, by `data_address`; arguments are added in this order.

    Examples
    --------
    >>> import tvm_frontends
    >>> from tvm_frontends.imported_model import lift_constants
    >>> whole = lift_constants(tvm_frontends.load_model("model.onnx", {"x": (2, 3)}).mod, {})
    >>> [variable.name for variable in whole["main"].params]
    ['x', 'w']
    """
    function = mod["main"]
    inputs = number_of_inputs(function)
    body = _ConstantLifter(mod, variables).visit_expr(function.body)
    lifted = relax.Function(
        [*function.params, *variables.values()], body, function.ret_ty, function.is_pure, function.attrs
    )
    result = mod.clone()
    result["main"] = lifted.with_attr("num_input", inputs)
    return result


def main_constants(mod: tvm.IRModule) -> list[tvm.ir.GenericConst]:
    """Return the tensor constants of ``main``, each value once, in order of first use.

    Examples
    --------
    >>> import tvm_frontends
    >>> from tvm_frontends.imported_model import main_constants
    >>> main_constants(tvm_frontends.load_model("model.onnx", {"x": (2, 3)}).mod)
    []
    """
    constants: dict[int, tvm.ir.GenericConst] = {}

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, tvm.ir.GenericConst) and isinstance(expr.ty, relax.TensorType):
            constants.setdefault(data_address(expr), expr)

    relax.analysis.post_order_visit(mod["main"], visit)
    return list(constants.values())
