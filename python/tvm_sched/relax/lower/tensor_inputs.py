"""A function of any name, inputs and results becomes a ``main`` of tensors, which plans take; callers see the former."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tvm
from tvm import relax, tirx

from tvm_frontends.relax_modules import replace_variables

_INNER = "main_of_tensors"


def tensor_inputs(mod: tvm.IRModule) -> tuple[tvm.IRModule, Callable[[tvm.IRModule], tvm.IRModule]]:
    """Put tensors in place of other inputs and results; also return a function that gives callers the former function.

    A shape (n, m) becomes a tensor of the shape (n, m, 0), a number n one of the shape (n, 0). These have no elements, and
    are made at each call. Numbers are sizes of 0 or more. So does a tensor of unknown type that is read for its sizes alone.
    Results that are shapes or numbers are computed from the sizes of the inputs, and inputs that are none of these
    are returned, beside the schedule. Without ``main``, the only public function of tensors stands for it.
    """
    entry = _entry(mod)
    if entry is None:
        return mod, lambda made: made
    main = relax.transform.ToNonDataflow()(mod)[entry]  # whose tensors can all be returned
    params, sizes = list(main.params), dict[int, list[Any]]()
    known: dict[relax.Var, relax.Expr] = {}
    read = set(relax.analysis.free_vars(main.body))
    for position, variable in enumerate(main.params):
        found = _sizes_of(variable, variable in read)
        if found is None:
            continue
        sizes[position] = found
        params[position] = relax.Var(variable.name, relax.TensorType([*found, tirx.IntImm("int64", 0)], "bool"))
        if isinstance(variable.ty, relax.ShapeType):
            known[variable] = relax.ShapeExpr(found)
    result, tensors = _split_result(main)
    if entry == "main" and not sizes and not tensors:
        return mod, lambda made: made
    body = relax.SeqExpr(main.body.blocks, relax.Tuple(tensors)) if tensors else main.body
    changed = mod.clone()
    del changed[mod.get_global_var(entry)]
    changed["main"] = replace_variables(main, params, known, body).with_attr("global_symbol", "main")

    def undo(made: tvm.IRModule) -> tvm.IRModule:
        if sizes or tensors:
            made = _with_arguments(made, list(main.params), sizes, result if tensors else None)
        if entry != "main":
            made, function = made.clone(), made["main"]
            del made[made.get_global_var("main")]
            made[entry] = function.with_attr("global_symbol", entry)
        return made

    return changed, undo


def _entry(mod: tvm.IRModule) -> str | None:
    """Return the name of the function to schedule: ``main``, or else the only one that others may call with tensors."""
    functions = {v.name_hint: f for v, f in mod.functions_items() if isinstance(f, relax.Function)}
    if "main" in functions:
        return "main"
    public = {name: function for name, function in functions.items() if "global_symbol" in (function.attrs or ())}
    found = [
        name for name, function in public.items() if any(_has_tensors(variable.ty) for variable in function.params)
    ]
    return found[0] if len(found) == 1 else None


def _has_tensors(ty: Any) -> bool:
    return isinstance(ty, relax.TensorType) or any(map(_has_tensors, getattr(ty, "fields", ())))


def _sizes_of(variable: relax.Var, is_read: bool) -> list[Any] | None:
    """Return the sizes that an input gives, if it is a shape with an open size, or a whole number."""
    ty = variable.ty
    if isinstance(ty, tvm.ir.PrimType) and str(ty.dtype) == "int64":
        return [variable]
    if isinstance(ty, relax.TensorType):
        unread = ty.dtype is None and isinstance(ty.shape, relax.ShapeExpr) and not is_read
        return list(ty.shape.values) if unread else None
    if not isinstance(ty, relax.ShapeType) or (ty.values is None and ty.ndim < 0):
        return None
    if ty.values is None:
        return [tirx.Var(f"{variable.name}_{axis}", "int64") for axis in range(ty.ndim)]
    return list(ty.values) if any(not isinstance(size, tirx.IntImm) for size in ty.values) else None


def _split_result(main: relax.Function) -> tuple[Any, list[relax.Expr]]:
    """Return the result in nested tuples with numbers in place of tensors, and the tensors.

    The other parts are parameters, or sizes of these. There are no tensors if all parts are, or if a run gives another.
    """
    bound = {binding.var: binding.value for block in main.body.blocks for binding in block.bindings}
    sizes = [size for param in main.params for size in _sizes_in(param.ty)]
    known = {*main.params, *(v for size in sizes for v in tirx.analysis.undefined_vars(size))}
    tensors, others = list[relax.Expr](), list[bool]()

    def visit(expr: relax.Expr) -> Any:
        while isinstance(expr, relax.Var) and not isinstance(bound.get(expr, main), (relax.Call, relax.Function)):
            expr = bound[expr]
        if isinstance(expr.ty, relax.TupleType):
            fields = expr.fields if isinstance(expr, relax.Tuple) else map(expr.__getitem__, range(len(expr.ty.fields)))
            return tuple(map(visit, fields))
        if isinstance(expr.ty, relax.TensorType):
            tensors.append(expr)
            return len(tensors) - 1
        if isinstance(expr.ty, relax.ShapeType) and expr.ty.values is not None:
            expr = relax.ShapeExpr(expr.ty.values)
        parts = expr.values if isinstance(expr, relax.ShapeExpr) else [expr]
        free = [v for e in parts for v in (tirx.analysis.undefined_vars(e) if tvm.ir.is_prim_expr(e) else [e])]
        others.append(known.issuperset(free))
        return expr

    result = visit(main.body.body)
    return result, tensors if others and all(others) else []


def _sizes_in(ty: Any) -> Iterator[Any]:
    if isinstance(ty, relax.TupleType):
        for part in ty.fields:
            yield from _sizes_in(part)
    elif isinstance(ty, relax.TensorType):
        yield from getattr(ty.shape, "values", ())
    elif isinstance(ty, relax.ShapeType):
        yield from ty.values or ()


def _with_arguments(
    made: tvm.IRModule, given: list[relax.Var], sizes: Mapping[int, list[Any]], result: Any
) -> tvm.IRModule:
    """Put a ``main`` with the ``given`` parameters, and ``result`` if it is not None, before the one of tensors alone."""
    inner, variable = made["main"], tvm.ir.GlobalVar(_INNER)
    pairs = enumerate(zip(given, inner.params, strict=False))  # values of parameters may be held
    params = [old if k in sizes or result is not None else relax.Var(old.name, new.ty) for k, (old, new) in pairs]
    builder = relax.BlockBuilder()
    with builder.function("main", params, private=True):
        arguments: list[relax.Expr] = []
        for position, param in enumerate(params):
            if position not in sizes:
                arguments.append(param)
                continue
            if isinstance(param.ty, relax.ShapeType) and param.ty.values is None:
                builder.match_cast(param, relax.ShapeType(sizes[position]))
            shape = relax.ShapeExpr([*sizes[position], tirx.IntImm("int64", 0)])
            arguments.append(builder.emit(relax.op.builtin.alloc_tensor(shape, "bool", 0)))
        relax.expr._update_type(variable, inner.ty)
        returned = builder.emit(relax.Call(variable, arguments, ty_args=[]))

        def part(of: Any) -> relax.Expr:
            return (
                relax.Tuple(list(map(part, of)))
                if isinstance(of, tuple)
                else returned[of]
                if isinstance(of, int)
                else of
            )

        builder.emit_func_output(returned if result is None else part(result))
    changed = made.clone()
    del changed[made.get_global_var("main")]
    changed[variable] = inner.with_attr("global_symbol", _INNER)
    changed["main"] = builder.get()["main"].with_attrs({**inner.attrs, "global_symbol": "main"})
    return changed
