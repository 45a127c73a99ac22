"""Positions of extrema that are right for NaN and the least and greatest numbers.

TVM's ``argmax`` and ``argmin`` start from such a number at position -1, which a row of nothing else does not replace, and
forget what came before NaN.
"""

from __future__ import annotations

import tvm
from tvm import relax, te, topi

from ..ir.tensor_types import dtype_of, static_shape
from .half_precision import HALF, Legalize


def legalizations() -> dict[str, Legalize]:
    """Return legalization functions for `LegalizeOps`; NaN is the extremum of what it is in, as in NumPy and PyTorch.

    On GPUs, whose reductions have to be TVM's to be shared among threads, only the position -1 is corrected. Kernels of CPUs
    that are scheduled for GPUs all the same, to know their launches, get one thread per result.
    """
    return {f"relax.{name}": _legalize for name in ("argmax", "argmin")}


def _legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    name, axis, keep = call.op.name.removeprefix("relax."), call.attrs.axis, bool(call.attrs.keepdims)
    x = call.args[0]
    shape, kind = static_shape(x), dtype_of(x)
    if kind in HALF:
        x, kind = builder.emit(builder.call_te(topi.cast, x, "float32", primfunc_name_hint="cast")), "float32"
    if shape is None or axis is None or str(tvm.target.Target.current().kind) == "cuda":

        def compute(a: te.Tensor) -> te.Tensor:
            usual = getattr(topi, name)(a, axis, keep)
            return te.compute(usual.shape, lambda *i: tvm.tirx.max(usual(*i), tvm.tirx.const(0, usual.dtype)))

    else:
        axis = int(axis) % len(shape)

        def compute(a: te.Tensor) -> te.Tensor:
            return _first_extremum(a, kind, axis, keep, name == "argmax")

    return builder.call_te(compute, x, primfunc_name_hint=name)


def _first_extremum(a: te.Tensor, kind: str, axis: int, keep: bool, largest: bool) -> te.Tensor:
    floating = kind.startswith("float")
    least, greatest = (
        (tvm.tirx.const(sign * float("inf"), kind) for sign in (-1, 1))
        if floating
        else (tvm.tirx.min_value(kind), tvm.tirx.max_value(kind))
    )
    nowhere = tvm.tirx.max_value("int64")

    def earlier(p: tuple[tvm.tirx.Expr, ...], q: tuple[tvm.tirx.Expr, ...]) -> tuple[tvm.tirx.Expr, ...]:
        (at_p, p_value), (at_q, q_value) = p, q
        beyond = p_value > q_value if largest else p_value < q_value
        first = tvm.tirx.any(beyond, tvm.tirx.all(p_value == q_value, at_p < at_q))
        if floating:
            nan_p, nan_q = (
                (value <= greatest).astype("int8") == tvm.tirx.const(0, "int8") for value in (p_value, q_value)
            )
            first = tvm.tirx.any(
                tvm.tirx.all(nan_p, tvm.tirx.any(at_p < at_q, tvm.tirx.Not(nan_q))),
                tvm.tirx.all(tvm.tirx.Not(nan_q), first),
            )
        return tvm.tirx.Select(first, at_p, at_q), tvm.tirx.Select(first, p_value, q_value)

    reducer = te.comm_reducer(earlier, lambda *_: (nowhere, least if largest else greatest), name="first_extremum")
    inner = te.reduce_axis((0, a.shape[axis]), "k")

    def element(*i: tvm.tirx.Var) -> tuple[tvm.tirx.Expr, ...]:
        place = (*i[:axis], inner, *i[axis + keep :])
        return reducer((inner.var.astype("int64"), a(*place)), axis=inner)

    shape = (*a.shape[:axis], *([1] if keep else []), *a.shape[axis + 1 :])
    position, _ = te.compute(shape, element, name="extremum")
    return te.compute(shape, lambda *i: position(*i), name="position")
