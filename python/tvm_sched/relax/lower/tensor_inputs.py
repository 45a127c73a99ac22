"""Inputs of ``main`` that are shapes or whole numbers become tensors, which plans take; callers still pass the former."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import relax, tirx

from tvm_frontends.relax_modules import replace_variables

_INNER = "main_of_tensors"


def tensor_inputs(mod: tvm.IRModule) -> tuple[tvm.IRModule, Callable[[tvm.IRModule], tvm.IRModule]]:
    """Put tensors in place of shapes and numbers; also return a function that gives ``main`` its parameters back.

    A shape (n, m) becomes a tensor of the shape (n, m, 0), a number n one of the shape (n, 0). These have no elements, and
    are made at each call. Numbers are sizes of 0 or more.
    """
    unchanged = mod, lambda made: made
    names = [variable.name_hint for variable in mod.get_global_vars()]
    main = mod["main"] if "main" in names else None
    if not isinstance(main, relax.Function):
        return unchanged
    params, sizes = list(main.params), dict[int, list[Any]]()
    known: dict[relax.Var, relax.Expr] = {}
    for position, variable in enumerate(main.params):
        found = _sizes_of(variable)
        if found is None:
            continue
        sizes[position] = found
        params[position] = relax.Var(variable.name, relax.TensorType([*found, tirx.IntImm("int64", 0)], "bool"))
        if isinstance(variable.ty, relax.ShapeType):
            known[variable] = relax.ShapeExpr(found)
    if not sizes:
        return unchanged
    result = mod.clone()
    result["main"] = replace_variables(main, params, known)

    def undo(made: tvm.IRModule) -> tvm.IRModule:
        return _with_arguments(made, list(main.params), sizes)

    return result, undo


def _sizes_of(variable: relax.Var) -> list[Any] | None:
    """Return the sizes that an input gives, if it is a shape with an open size, or a whole number."""
    ty = variable.ty
    if isinstance(ty, tvm.ir.PrimType) and str(ty.dtype) == "int64":
        return [variable]
    if not isinstance(ty, relax.ShapeType) or (ty.values is None and ty.ndim < 0):
        return None
    if ty.values is None:
        return [tirx.Var(f"{variable.name}_{axis}", "int64") for axis in range(ty.ndim)]
    return list(ty.values) if any(not isinstance(size, tirx.IntImm) for size in ty.values) else None


def _with_arguments(made: tvm.IRModule, given: list[relax.Var], sizes: Mapping[int, list[Any]]) -> tvm.IRModule:
    """Put a ``main`` with the ``given`` parameters before the one that takes tensors alone."""
    inner, variable = made["main"], tvm.ir.GlobalVar(_INNER)
    pairs = enumerate(zip(given, inner.params, strict=True))
    params = [relax.Var(old.name, old.ty if k in sizes else new.ty) for k, (old, new) in pairs]
    builder = relax.BlockBuilder()
    with builder.function("main", params, private=True):
        arguments: list[relax.Expr] = []
        for position, param in enumerate(params):
            if position in sizes and isinstance(param.ty, relax.ShapeType):
                numbers = [tirx.Var(f"{param.name}_{axis}", "int64") for axis in range(len(sizes[position]))]
                builder.match_cast(param, relax.ShapeType(numbers))
            elif position in sizes:
                numbers = [param]
            else:
                arguments.append(param)
                continue
            shape = relax.ShapeExpr([*numbers, tirx.IntImm("int64", 0)])
            arguments.append(builder.emit(relax.op.builtin.alloc_tensor(shape, "bool", 0)))
        call = relax.Call(variable, arguments, ty_args=[])
        relax.expr._update_type(variable, inner.ty)
        builder.emit_func_output(builder.emit(call))
    result = made.clone()
    del result[result.get_global_var("main")]
    result[variable] = inner.with_attr("global_symbol", _INNER)
    result["main"] = builder.get()["main"].with_attrs({**inner.attrs, "global_symbol": "main"})
    return result
