"""The calls of ``main`` after ``FuseOps``: the kernel of each, and the readers of its result."""

from __future__ import annotations

from typing import Any, NamedTuple

import tvm
from tvm import relax

from ..ir.loops import is_scheduled
from .kernel_slicing import share_axis
from .read_fused_functions import HEAVY, fused_kernel, heavy_binding, is_kernel_call, pattern


class Called(NamedTuple):
    """The function that a call in ``main`` calls, the arguments, and the function as one kernel."""

    variable: tvm.ir.GlobalVar
    arguments: tuple[relax.Expr, ...]
    kernel: tvm.tirx.PrimFunc


class Division(NamedTuple):
    """A call that divides a tensor into ``parts`` equal shares along an axis; ``shares`` holds those that are read."""

    operand: relax.Expr
    axis: int
    parts: int
    shares: dict[int, relax.Var]


class MainCalls:
    """The bindings of ``main`` in order, with their variables.

    ``place`` holds the position of each variable. ``users`` holds the variables whose values use a variable, and None if
    the function's result does.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        self.mod = mod
        body = mod["main"].body
        self.bindings = [b for block in body.blocks for b in block.bindings] if isinstance(body, relax.SeqExpr) else []
        self.variables = [binding.var for binding in self.bindings]
        self.place = {variable: k for k, variable in enumerate(self.variables)}
        self.users: dict[Any, set[Any]] = {}
        for binding in self.bindings:
            for used in relax.analysis.free_vars(binding.value):
                self.users.setdefault(used, set()).add(binding.var)
        for used in relax.analysis.free_vars(body.body) if self.bindings else ():
            self.users.setdefault(used, set()).add(None)
        self._kernels: dict[Any, tvm.tirx.PrimFunc | None] = {}
        self._divisions: dict[Any, Division | None] = {}

    def called(self, binding: relax.Binding) -> Called | None:
        """Return what a binding calls; None if it does not call a kernel with one tensor as its result.

        A kernel that has a schedule cannot be cut, so it is None, too.
        """
        value = binding.value
        if not isinstance(value, relax.Call) or not isinstance(binding.var.ty, relax.TensorType):
            return None
        if isinstance(value.op, tvm.ir.GlobalVar):
            variable, arguments = value.op, tuple(value.args)
        elif is_kernel_call(value):
            variable, arguments = value.args[0], tuple(value.args[1].fields)
        else:
            return None
        if variable not in self._kernels:
            function = self.mod[variable]
            fused = isinstance(function, relax.Function)
            self._kernels[variable] = fused_kernel(self.mod, variable) if fused else function
        kernel = self._kernels[variable]
        return None if kernel is None or is_scheduled(kernel) else Called(variable, arguments, kernel)

    def division(self, variable: relax.Var) -> Division | None:
        """Return how the call that a variable is bound to divides a tensor; None if it does not."""
        if variable not in self._divisions:
            self._divisions[variable] = self._division(variable)
        return self._divisions[variable]

    def _division(self, variable: relax.Var) -> Division | None:
        value = self.bindings[self.place[variable]].value
        if not is_kernel_call(value) or not isinstance(variable.ty, tvm.ir.TupleType) or len(value.args[1].fields) != 1:
            return None
        axis = share_axis(self.mod[value.args[0]])
        if axis is None:
            return None
        shares: dict[int, relax.Var] = {}
        for user in self.users.get(variable, ()):
            item = None if user is None else self.bindings[self.place[user]].value
            if not isinstance(item, relax.TupleGetItem) or int(item.index) in shares:
                return None
            shares[int(item.index)] = user
        return Division(value.args[1].fields[0], axis, len(variable.ty.fields), dict(sorted(shares.items())))

    def is_heavy(self, variable: relax.Var) -> bool:
        """Whether a variable is the result of a heavy kernel, alone or fused."""
        value = self.bindings[self.place[variable]].value
        if not isinstance(value, relax.Call):
            return False
        if isinstance(value.op, tvm.ir.GlobalVar):
            return heavy_binding(self.mod, self.mod[value.op]) is not None
        return is_kernel_call(value) and pattern(self.mod, value) == HEAVY
