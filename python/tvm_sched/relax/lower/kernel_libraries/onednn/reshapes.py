"""Remove reshapes of the operands and results of kernels, which only need the number of elements."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ....ir.sizes import sizes_of
from ..kernel_library import KernelSet
from ..rewrite import RESHAPES, Rewriter, is_float32, operation


class WithoutReshapes(Rewriter):
    """Makes kernels read operands before a reshape and write results in the shape after a reshape.

    Every remaining reshape is a copy.
    """

    operators = ("call_dps_packed", *RESHAPES)

    def __init__(self, mod: Any, kernels: KernelSet) -> None:
        super().__init__(mod)
        self.kernels = kernels

    def visit(self, variable: Any, value: Any) -> Any:
        """Rewrite one binding."""
        if self._is_kernel(value):
            return self.emit(self._kernel(variable, value))
        if operation(value) in RESHAPES and is_float32(value):
            source = self.value(value.args[0])
            if isinstance(source, relax.Var) and sizes_of(source) == sizes_of(value):
                return source
        return super().visit(variable, value)

    def _is_kernel(self, value: Any) -> bool:
        return operation(value) == "call_dps_packed" and str(value.args[0].global_symbol) in self.kernels.documents

    def _kernel(self, variable: Any, call: Any) -> Any:
        arguments = call.args[1]
        arguments = self.definitions.get(arguments, arguments) if isinstance(arguments, relax.Var) else arguments
        read = relax.Tuple([self.value(self._source(argument)) for argument in arguments.fields])
        shape = self._wanted(variable, sizes_of(call) or ())
        shapes = [*(sizes_of(argument) or () for argument in read.fields), shape]
        if not self.kernels.takes_shapes(str(call.args[0].global_symbol), shapes):
            return self.rebuild(call)
        return relax.call_dps_packed(call.args[0], read, out_ty=relax.TensorType(shape, call.ty_args[0].dtype.dtype))

    def _source(self, expr: Any) -> Any:
        """Return the value before reshapes."""
        expr = self.resolve(expr)
        call = self.defined(expr)
        while operation(call) in RESHAPES and is_float32(call.args[0]):
            expr = self.resolve(call.args[0])
            call = self.defined(expr)
        return expr

    def _wanted(self, variable: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape to which all users but kernels reshape a result; its own shape if they differ."""
        shapes = set()
        for user in self.uses[variable]:
            value = self.definitions.get(user)  # None for the function's result
            if operation(value) in RESHAPES:
                shapes.add(sizes_of(value))
            elif not self._is_kernel(value):
                return shape
        reshaped = next(iter(shapes)) if len(shapes) == 1 else None
        return shape if reshaped is None else reshaped
