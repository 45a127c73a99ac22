"""Cut loops of open extent into parts of constant extent, which the passes for constant loops vectorise."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ...ir.loops import part_of_loop
from ...ir.statements import contains, map_loops, with_body

PARTS = (256, 32)
"""Extents of the parts, the largest first; fewer iterations remain a loop of open extent. A sum is added part by part."""


def cut_open_loops(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Cut the innermost serial loops whose extent is an expression.

    Parameters
    ----------
    function : tvm.tirx.PrimFunc
        Without blocks and with flat buffers, before `block_sums`.
    """
    return with_body(function, map_loops(function.body, _cut))


def _cut(loop: tirx.For) -> Any:
    innermost = not contains(loop.body, (tirx.For,)) and loop.kind == tirx.ForKind.SERIAL
    if isinstance(loop.extent, tirx.IntImm) or not innermost or not _begins_at_0(loop):
        return loop
    kind = str(loop.loop_var.ty.dtype)
    begin: Any = tirx.IntImm(kind, 0)
    statements = []
    for size in (tirx.IntImm(kind, part) for part in PARTS):
        count = (loop.extent - begin) // size
        part = tirx.Var("part", kind)
        inner = part_of_loop(loop, begin + part * size, size)
        statements.append(tirx.For(part, tirx.IntImm(kind, 0), count, tirx.ForKind.SERIAL, inner))
        begin = loop.extent // size * size
    return tirx.SeqStmt([*statements, part_of_loop(loop, begin, loop.extent - begin)])


def _begins_at_0(loop: tirx.For) -> bool:
    return isinstance(loop.min, tirx.IntImm) and int(loop.min) == 0
