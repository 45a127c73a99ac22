"""`Rewriter`: the base class of the kernel libraries' passes, which rewrites ``main`` binding by binding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ...ir.sizes import sizes_of
from ...ir.tensor_types import dtype_of

RESHAPES = ("reshape", "expand_dims", "squeeze", "flatten")
"""Operators that keep the order of the elements."""


def operation(expr: Any) -> str:
    """Return the name of the operator of a call (``"nn.conv2d"``), or an empty string."""
    if isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op):
        return str(expr.op.name).removeprefix("relax.")
    return ""


def axis_order(call: Any) -> tuple[int, ...]:
    """Return the axes of a ``permute_dims``, as numbers from 0 to rank - 1."""
    rank = int(call.args[0].ty.ndim)
    axes = call.attrs.axes
    return tuple(reversed(range(rank))) if axes is None else tuple(int(axis) % rank for axis in axes)


def is_tensor_of(expr: Any, types: Collection[str]) -> bool:
    """Whether an expression is a tensor of one of these types with a shape that is known and not always empty."""
    if dtype_of(expr) not in types:
        return False
    shape = sizes_of(expr)
    return shape is not None and 0 not in shape


def is_float32(expr: Any) -> bool:
    """Whether an expression is a float32 tensor with a shape that is known and not always empty."""
    return is_tensor_of(expr, ("float32",))


def constant_value(expr: Any) -> Any:
    """Return the numpy array of a constant, else None."""
    if isinstance(expr, tvm.ir.GenericConst) and isinstance(expr.ty, relax.TensorType):
        return expr.value.numpy()
    return None


class Rewriter:
    """Visits the bindings of ``main`` in order and emits each again; subclasses override `visit` to emit something else.

    Attributes
    ----------
    builder : relax.BlockBuilder
        Emits into the new function.
    definitions : dict of relax.Var to relax.Expr
        The old value of each variable.
    uses : dict of relax.Var to list of relax.Var
        The variables whose old values use a variable, once per use; ``None`` stands for the function's result.
    operators : collection of str, optional
        A function without any of these operators is left unchanged. None: every function is visited.
    """

    operators: Collection[str] | None = None

    def __init__(self, mod: tvm.IRModule) -> None:
        self.mod = mod
        self.builder = relax.BlockBuilder()
        self.function = mod["main"]
        self.definitions: dict[Any, Any] = {}
        self.uses: dict[Any, list[Any]] = defaultdict(list)
        self.values: dict[Any, Any] = {}
        self.name = ""  # of the variable that is being replaced

    def run(self) -> tvm.IRModule:
        """Return the module with a new ``main``; the same module if `operators` or control flow rules a rewrite out."""
        bindings = self._bindings()
        if bindings is None or not self._has_operator(bindings):
            return self.mod
        function = self.function
        attributes = dict(function.attrs.items()) if function.attrs else {}
        with self.builder.function("main", list(function.params), attributes):
            with self.builder.dataflow():
                for binding in bindings:
                    self.name = binding.var.name
                    self.values[binding.var] = self.visit(binding.var, binding.value)
                result = self.value(function.body.body)
                result = self.builder.emit_output(result, getattr(function.body.body, "name", ""))
            self.builder.emit_func_output(result)
        changed = self.mod.clone()
        changed.update_func(self.mod.get_global_var("main"), self.builder.get()["main"])
        cleanup = [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()]
        return tvm.transform.Sequential(cleanup)(changed)

    def _has_operator(self, bindings: list[Any]) -> bool:
        return self.operators is None or any(operation(binding.value) in self.operators for binding in bindings)

    def visit(self, variable: Any, value: Any) -> Any:
        """Return the replacement of a variable; called in order."""
        return self.emit(self.rebuild(value))

    def emit(self, expr: Any) -> Any:
        """Bind an expression to a new variable; variables and constants are returned unchanged."""
        if isinstance(expr, (relax.Var, tvm.ir.GenericConst)):
            return expr
        return self.builder.emit(expr, self.name)

    def value(self, expr: Any) -> Any:
        """Return an old expression with new variables in place of old ones."""
        if isinstance(expr, relax.Var):
            return self.values.get(expr, expr)
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self.value(part) for part in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(self.value(expr.tuple_value), expr.index)
        return expr

    def rebuild(self, expr: Any) -> Any:
        """Return the same call on the new variables."""
        if isinstance(expr, relax.Call):
            return relax.Call(expr.op, [self.value(a) for a in expr.args], expr.attrs, expr.ty_args)
        return self.value(expr)

    def resolve(self, expr: Any) -> Any:
        """Follow aliases of an old variable to the variable or constant that they name."""
        while isinstance(expr, relax.Var) and expr in self.definitions:
            value = self.definitions[expr]
            if not isinstance(value, (relax.Var, tvm.ir.GenericConst)):
                break
            expr = value
        return expr

    def defined(self, expr: Any) -> Any:
        """Return the call that computes an old value, or None."""
        value = self.definitions.get(self.resolve(expr)) if isinstance(expr, relax.Var) else None
        return value if isinstance(value, relax.Call) else None

    def number(self, expr: Any) -> float | None:
        """Return the value of an old constant of one element, else None."""
        value = constant_value(self.resolve(expr))
        return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else None

    def _bindings(self) -> list[Any] | None:
        body = self.function.body
        if not isinstance(body, relax.SeqExpr):
            return None
        bindings = [binding for block in body.blocks for binding in block.bindings]
        for binding in bindings:
            if not isinstance(binding, relax.VarBinding) or isinstance(binding.value, (relax.If, relax.Function)):
                return None
            self.definitions[binding.var] = binding.value
            for used in _variables(binding.value):
                self.uses[used].append(binding.var)
        for used in _variables(body.body):
            self.uses[used].append(None)
        return bindings


def _variables(expr: Any) -> list[Any]:
    """Return the variables of an expression, once per occurrence."""
    if isinstance(expr, relax.Var):
        return [expr]
    if isinstance(expr, relax.Call):
        return [v for argument in expr.args for v in _variables(argument)]
    if isinstance(expr, relax.Tuple):
        return [v for part in expr.fields for v in _variables(part)]
    if isinstance(expr, relax.TupleGetItem):
        return _variables(expr.tuple_value)
    return []


def transpose_constant(value: Any, axes: tuple[int, ...]) -> Any:
    """Broadcast a constant to the rank of ``axes`` and transpose it."""
    return np.ascontiguousarray(np.transpose(value.reshape((1,) * (len(axes) - value.ndim) + value.shape), axes))
