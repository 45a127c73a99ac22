"""Functions that ``FuseOps`` makes: their kernels, the heavy one among them, and their fusion into one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

HEAVY = 4
"""TVM's pattern of kernels to which elementwise ones are fused: products, convolutions, reductions with a loop of their
own."""


@dataclass(frozen=True)
class Core:
    """The heavy kernel of a call in ``main``.

    Attributes
    ----------
    kernel : tvm.ir.GlobalVar
    operands : tuple of relax.Expr
        What the heavy kernel takes, in ``main``.
    epilogue : tuple of relax.VarBinding
        What was fused to it.
    joint : relax.Var
        Stands for the heavy kernel's result there.
    """

    kernel: tvm.ir.GlobalVar
    operands: tuple[relax.Expr, ...]
    epilogue: tuple[relax.VarBinding, ...]
    joint: relax.Var


def core_of(mod: tvm.IRModule, binding: relax.VarBinding) -> Core | None:
    """The heavy kernel of a binding of ``main``, alone or with what was fused to it; None where there is none."""
    value = binding.value
    if not isinstance(value, relax.Call) or not isinstance(binding.var.ty, relax.TensorType):
        return None
    if not isinstance(value.op, tvm.ir.GlobalVar):
        return Core(value.args[0], tuple(value.args[1].fields), (), binding.var) if is_kernel_call(value) else None
    function = mod[value.op]
    heavy = heavy_binding(mod, function)
    if heavy is None:
        return None
    given = dict(zip(function.params, value.args, strict=True))
    operands = tuple(given.get(a, a) if isinstance(a, relax.Var) else a for a in heavy.value.args[1].fields)
    inner = [b.var for b in kernel_calls(function) or []]
    if any(operand.same_as(v) for operand in operands for v in inner):
        return None
    epilogue = tuple(b for b in kernel_calls(function) or [] if not b.var.same_as(heavy.var))
    return Core(heavy.value.args[0], operands, epilogue, heavy.var)


def is_kernel_call(value: Any) -> bool:
    """Whether a value is the call of a PrimFunc without symbolic sizes."""
    call = isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op) and value.op.name == "relax.call_tir"
    return call and len(value.args) == 2


def fused_kernel(mod: tvm.IRModule, variable: tvm.ir.GlobalVar) -> tvm.tirx.PrimFunc | None:
    """The kernel that ``FuseTIR`` makes of a fused function, with its arguments in order; None where it does not."""
    function = mod[variable]
    kernels = {binding.value.args[0] for binding in kernel_calls(function) or []}
    if not kernels:
        return None
    alone = tvm.IRModule({v: mod[v] for v in (*kernels, variable)})
    builder = relax.BlockBuilder(alone)
    arguments = [relax.Var(f"a{k}", parameter.ty) for k, parameter in enumerate(function.params)]
    with builder.function("main", arguments):
        with builder.dataflow():
            result = builder.emit_output(relax.Call(variable, list(arguments)))
        builder.emit_func_output(result)
    made = relax.transform.FuseTIR()(builder.get())
    (call,) = (b.value for block in made["main"].body.blocks for b in block.bindings if isinstance(b.value, relax.Call))
    given = list(call.args[1].fields) if is_kernel_call(call) else []
    same = len(given) == len(made["main"].params)
    if not same or not all(a.same_as(b) for a, b in zip(given, made["main"].params, strict=True)):
        return None
    return made[call.args[0]]


def with_type(call: relax.Call, ty: Any) -> relax.Call:
    """Give a call its type, which nothing has inferred."""
    relax.expr._update_type(call, ty)
    return call


def fuse(bindings: Sequence[relax.VarBinding], result: relax.Var, params: Sequence[relax.Var]) -> relax.Function:
    """Make a function that ``FuseTIR`` turns into one kernel."""
    block = relax.DataflowBlock(list(bindings))
    new = relax.Var("gv", result.ty)
    body = relax.SeqExpr([relax.DataflowBlock([*block.bindings, relax.VarBinding(new, result)])], new)
    function = relax.Function(list(params), body, result.ty, is_pure=True).with_attr("Primitive", True)
    return relax.utils.copy_with_new_vars(function)


def kernel_calls(function: relax.Function) -> list[relax.VarBinding] | None:
    """The bindings of a fused function if all are calls of PrimFuncs with one result; else None."""
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    if bindings and isinstance(bindings[-1].value, relax.Var):  # the output's other name
        bindings = bindings[:-1]
    for binding in bindings:
        value = binding.value
        call = isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op) and value.op.name == "relax.call_tir"
        if not call or not isinstance(binding.var.ty, relax.TensorType):
            return None
    return bindings


def needs(function: relax.Function) -> dict[Any, set[Any]]:
    """For each variable of a fused function all arguments and variables that it needs."""
    needs: dict[Any, set[Any]] = {p: set() for p in function.params}
    for block in function.body.blocks:
        for binding in block.bindings:
            used = [v for v in relax.analysis.free_vars(binding.value) if v in needs]
            needs[binding.var] = set(used).union(*(needs[v] for v in used))
    return needs


def heavy_binding(mod: tvm.IRModule, function: Any) -> relax.VarBinding | None:
    """The one binding of a fused function that calls a heavy kernel."""
    if not isinstance(function, relax.Function) or not function.attrs or "Primitive" not in function.attrs:
        return None
    calls = kernel_calls(function) or []
    heavy = [binding for binding in calls if pattern(mod, binding.value) == HEAVY]
    return heavy[0] if len(heavy) == 1 else None


def pattern(mod: tvm.IRModule, call: relax.Call) -> int:
    """TVM's pattern of the kernel that is called; -1 where none is known."""
    attributes = mod[call.args[0]].attrs
    return int(attributes["op_pattern"]) if attributes and "op_pattern" in attributes else -1
