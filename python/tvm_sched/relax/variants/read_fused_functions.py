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
    """The heavy kernel of a call in ``main``, and its epilogue."""

    kernel: tvm.ir.GlobalVar
    operands: tuple[relax.Expr, ...]  # of the heavy kernel, in ``main``
    epilogue: tuple[relax.VarBinding, ...]  # the kernels fused to it
    joint: relax.Var  # the heavy kernel's result in the epilogue


def core_of(mod: tvm.IRModule, binding: relax.VarBinding) -> Core | None:
    """Return the heavy kernel of a binding of ``main``, alone or with an epilogue; None if there is none."""
    value = binding.value
    if not isinstance(value, relax.Call) or not isinstance(binding.var.ty, relax.TensorType):
        return None
    if not isinstance(value.op, tvm.ir.GlobalVar):
        return Core(value.args[0], tuple(value.args[1].fields), (), binding.var) if is_kernel_call(value) else None
    function = mod[value.op]
    heavy = heavy_binding(mod, function)
    if heavy is None:
        return None
    arguments = dict(zip(function.params, value.args, strict=True))
    operands = tuple(arguments.get(a, a) if isinstance(a, relax.Var) else a for a in heavy.value.args[1].fields)
    inner = [b.var for b in kernel_calls(function) or []]
    if any(operand.same_as(v) for operand in operands for v in inner):
        return None
    epilogue = tuple(b for b in kernel_calls(function) or [] if not b.var.same_as(heavy.var))
    return Core(heavy.value.args[0], operands, epilogue, heavy.var)


def is_kernel_call(value: Any) -> bool:
    """Whether a value is the call of a PrimFunc without symbolic sizes."""
    return _is_call_tir(value) and len(value.args) == 2


def _is_call_tir(value: Any) -> bool:
    return isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op) and value.op.name == "relax.call_tir"


def fused_kernel(mod: tvm.IRModule, variable: tvm.ir.GlobalVar) -> tvm.tirx.PrimFunc | None:
    """Return the kernel that ``FuseTIR`` makes of a fused function; None if it changes the arguments or their order."""
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
    fused = relax.transform.FuseTIR()(builder.get())
    main = fused["main"]
    (call,) = (b.value for block in main.body.blocks for b in block.bindings if isinstance(b.value, relax.Call))
    operands = list(call.args[1].fields) if is_kernel_call(call) else []
    if len(operands) != len(main.params) or not all(a.same_as(b) for a, b in zip(operands, main.params, strict=True)):
        return None
    return fused[call.args[0]]


def with_type(call: relax.Call, ty: Any) -> relax.Call:
    """Set the type of a call and return it."""
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
    """Return the bindings of a fused function if all are calls of PrimFuncs with one result, else None."""
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    if bindings and isinstance(bindings[-1].value, relax.Var):  # an alias of the output
        bindings = bindings[:-1]
    for binding in bindings:
        if not _is_call_tir(binding.value) or not isinstance(binding.var.ty, relax.TensorType):
            return None
    return bindings


def needs(function: relax.Function) -> dict[Any, set[Any]]:
    """Return all parameters and variables that each variable of a fused function needs."""
    needs: dict[Any, set[Any]] = {p: set() for p in function.params}
    for block in function.body.blocks:
        for binding in block.bindings:
            used = [v for v in relax.analysis.free_vars(binding.value) if v in needs]
            needs[binding.var] = set(used).union(*(needs[v] for v in used))
    return needs


def heavy_binding(mod: tvm.IRModule, function: Any) -> relax.VarBinding | None:
    """Return the binding of a fused function that calls its heavy kernel; None unless there is exactly one."""
    if not isinstance(function, relax.Function) or not function.attrs or "Primitive" not in function.attrs:
        return None
    calls = kernel_calls(function) or []
    heavy = [binding for binding in calls if pattern(mod, binding.value) == HEAVY]
    return heavy[0] if len(heavy) == 1 else None


def pattern(mod: tvm.IRModule, call: relax.Call) -> int:
    """Return TVM's pattern of the called kernel, or -1 if it is unknown."""
    attributes = mod[call.args[0]].attrs
    return int(attributes["op_pattern"]) if attributes and "op_pattern" in attributes else -1
