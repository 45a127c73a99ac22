"""Kernels for the CPU: loops that several threads can run at once, and their compilation."""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import s_tir, tirx

from .cpu_schedule import schedule_for_cpu
from .flops import FLOPS, count_flops


def prepare_kernel(function: tirx.PrimFunc, schedule: bool = True) -> tirx.PrimFunc:
    """Make a kernel fit to run beside others, in one thread, and note its floating-point operations.

    Parameters
    ----------
    function : tvm.tirx.PrimFunc
    schedule : bool
        Whether its loops are rearranged for a CPU (`schedule_for_cpu`).
    """
    function = function.with_attr(FLOPS, tirx.IntImm("int64", count_flops(function)))
    function = function.with_body(_serial(function.body))
    return schedule_for_cpu(function) if schedule else function


def compile_kernels(functions: Mapping[str, tirx.PrimFunc], host: tvm.target.Target) -> tvm.runtime.Module:
    """Compile kernels into one module.

    Parameters
    ----------
    functions : mapping of str to PrimFunc
        By the name under which the module will hold them.
    """
    named = {name: function.with_attr("global_symbol", name) for name, function in functions.items()}
    return tvm.tirx.build(tvm.IRModule(named), target=host)


def _serial(stmt: tirx.Stmt) -> tirx.Stmt:
    """Make parallel loops serial: each device is one thread, and TVM's thread pool would take the others' cores.

    TVM has no statement functor in Python, so the kinds of statements that can hold a loop are gone through here.
    """
    if isinstance(stmt, tirx.For):
        kind = tirx.ForKind.SERIAL if stmt.kind == tirx.ForKind.PARALLEL else stmt.kind
        body = _serial(stmt.body)
        if kind == stmt.kind and body.same_as(stmt.body):
            return stmt
        return tirx.For(
            stmt.loop_var,
            stmt.min,
            stmt.extent,
            kind,
            body,
            stmt.thread_binding,
            stmt.annotations,
            stmt.step,
            stmt.span,
        )
    if isinstance(stmt, tirx.SeqStmt):
        parts = [_serial(part) for part in stmt.seq]
        same = all(new.same_as(old) for new, old in zip(parts, stmt.seq, strict=True))
        return stmt if same else tirx.SeqStmt(parts, stmt.span)
    if isinstance(stmt, tirx.IfThenElse):
        then = _serial(stmt.then_case)
        other = None if stmt.else_case is None else _serial(stmt.else_case)
        if then.same_as(stmt.then_case) and (other is None or other.same_as(stmt.else_case)):
            return stmt
        return tirx.IfThenElse(stmt.condition, then, other, stmt.span)
    if isinstance(stmt, s_tir.SBlockRealize):
        block, body = stmt.block, _serial(stmt.block.body)
        if body.same_as(block.body):
            return stmt
        block = s_tir.SBlock(
            block.iter_vars, block.reads, block.writes, block.name_hint, body, block.init, block.alloc_buffers,
            block.match_buffers, block.annotations, block.span,
        )  # fmt: skip
        return s_tir.SBlockRealize(stmt.iter_values, stmt.predicate, block, stmt.span)
    if isinstance(stmt, (tirx.AttrStmt, tirx.While)):
        body = _serial(stmt.body)
        if body.same_as(stmt.body):
            return stmt
        if isinstance(stmt, tirx.While):
            return tirx.While(stmt.condition, body, stmt.span)
        return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, body, stmt.span)
    return stmt
