"""Remove reshapes next to kernels that only depend on the number of elements."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ....ir.tensor_types import static_shape
from ..kernel_library import KernelSet
from ..rewrite import RESHAPES, Rewriter, is_float32, operation


class WithoutReshapes(Rewriter):
    """Lets kernels read what was to be reshaped, and write what is reshaped afterwards in its last shape.

    A reshape that remains is a copy.
    """

    wanted = ("call_dps_packed", *RESHAPES)

    def __init__(self, mod: Any, kernels: KernelSet) -> None:
        super().__init__(mod)
        self.kernels = kernels

    def visit(self, variable: Any, value: Any) -> Any:
        """Rewrite one binding."""
        if self._is_kernel(value):
            return self.emit(self._kernel(variable, value))
        if operation(value) in RESHAPES and is_float32(value):
            made = self.value(value.args[0])
            if isinstance(made, relax.Var) and static_shape(made) == static_shape(value):
                return made
        return super().visit(variable, value)

    def _is_kernel(self, value: Any) -> bool:
        return operation(value) == "call_dps_packed" and str(value.args[0].global_symbol) in self.kernels.documents

    def _kernel(self, variable: Any, call: Any) -> Any:
        arguments = call.args[1]
        arguments = self.definitions.get(arguments, arguments) if isinstance(arguments, relax.Var) else arguments
        read = relax.Tuple([self.value(self._source(argument)) for argument in arguments.fields])
        ty = call.ty_args[0]
        return relax.call_dps_packed(
            call.args[0],
            read,
            out_ty=relax.TensorType(self._wanted(variable, static_shape(call) or ()), ty.dtype.dtype),
        )

    def _source(self, expr: Any) -> Any:
        """The value in front of reshapes."""
        expr = self.resolve(expr)
        call = self.defined(expr)
        while operation(call) in RESHAPES and is_float32(call.args[0]):
            expr = self.resolve(call.args[0])
            call = self.defined(expr)
        return expr

    def _wanted(self, variable: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape to which all users that look at it reshape a result, or the one that it has."""
        shapes = set()
        for user in self.uses[variable]:
            value = self.definitions.get(user)  # none of the function's result
            if operation(value) in RESHAPES:
                shapes.add(static_shape(value))
            elif not self._is_kernel(value):
                return shape
        found = next(iter(shapes)) if len(shapes) == 1 else None
        return shape if found is None else found
