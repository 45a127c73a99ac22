"""Calls of the runtime module's functions from ``main`` and from a dynamic tail."""

from __future__ import annotations

from typing import Any

from tvm import relax

_COPY = "tvm_sched.copy"
"""Function of the runtime module that returns a tensor's values in memory of their own."""


def emit_call(
    builder: relax.BlockBuilder, name: str, arguments: list[relax.Expr], types: list[Any]
) -> list[relax.Expr]:
    """Emit the call of a runtime module's function, which returns one tensor or an array; return the tensors."""
    result = builder.emit(
        relax.call_pure_packed(name, *arguments, ty_args=types[0] if len(types) == 1 else relax.TupleType(types))
    )
    return [result] if len(types) == 1 else [builder.emit(relax.TupleGetItem(result, k)) for k in range(len(types))]


def emit_copy(builder: relax.BlockBuilder, tensor: relax.Expr) -> relax.Expr:
    """Emit a copy of a tensor that the caller, the executable or another result has already."""
    return builder.emit(copy_call(tensor))


def copy_call(tensor: relax.Expr) -> relax.Call:
    """Return the call that copies a tensor."""
    return relax.call_pure_packed(_COPY, tensor, ty_args=tensor.ty)


def is_copy(call: relax.Call) -> bool:
    """Return whether a call is one of `copy_call`."""
    return isinstance(call.op, relax.ExternFunc) and call.op.global_symbol == _COPY
