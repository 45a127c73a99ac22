"""Make outer loops of large kernels parallel.

A parallel loop runs on the threads that the executor gives its operator; with one thread it is a plain loop.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import s_tir, tirx

from ...ir.loops import depends_on
from ...ir.sizes import example_of, size_of
from ...ir.statements import any_expression, map_statement, realizations_in_loops
from .elementary import is_replaced

LEAST_NANOSECONDS = 30_000
"""Least estimated time of a parallel step on one thread; waking another thread takes a few microseconds."""
ACCESS, FUNCTION = 0.2, 1.0
"""Estimated nanoseconds per element of a load or store, and of an elementary function, in vector code."""
PARTS = 16
"""Fewest iterations of a parallel loop, so that its threads end at about the same time."""
MOST_PARTS = 256
OPEN_EXTENT = 128
"""Size of a symbol for which a step of open extents is large or not."""
_SPATIAL = 0


def parallelise(schedule: s_tir.Schedule) -> bool:
    """Make the outermost loops of a kernel's large steps parallel; return whether there are any."""
    changed = [parallelise_block(schedule, block) for block in _blocks(schedule, schedule.get_sblock("root"))]
    return any(changed)


def parallelise_block(schedule: s_tir.Schedule, block: Any, most: int | None = None) -> bool:
    """Fuse up to ``most`` outermost loops of a large step and make them parallel; return whether that succeeded.

    `Schedule.parallel` proves that each iteration writes its own elements. It needs reductions that are not decomposed.
    """
    loops = schedule.get_loops(block)
    if not loops or not all(_is_known(schedule, loop) for loop in loops):
        return False
    extents = [_extent(schedule, loop) for loop in loops]
    if math.prod(extents) * _nanoseconds(schedule.get(block)) < LEAST_NANOSECONDS:
        return False
    if _in_parallel_loop(schedule, block):
        return False
    outer = _outer(schedule, block, loops, len(loops) if most is None else most)
    if outer is None:
        return False
    try:
        schedule.parallel(outer)
    except s_tir.ScheduleError:
        return False
    return True


def _is_known(schedule: s_tir.Schedule, loop: Any) -> bool:
    """Whether the extent of a loop depends on no data."""
    return not any_expression(schedule.get(loop).extent, lambda part: isinstance(part, tvm.ir.TensorLoad))


def _extent(schedule: s_tir.Schedule, loop: Any) -> int:
    """Return the extent of a loop, with `OPEN_EXTENT` for each symbol."""
    return example_of(size_of(schedule.get(loop).extent), OPEN_EXTENT)


def _in_parallel_loop(schedule: s_tir.Schedule, block: Any) -> bool:
    """Whether a loop around a block, or around a block that it is part of, is parallel."""
    around = schedule.get_sref(block).parent
    while around is not None:
        if isinstance(around.stmt, tirx.For) and around.stmt.kind == tirx.ForKind.PARALLEL:
            return True
        around = around.parent
    return False


def worth_threads(function: tirx.PrimFunc) -> bool:
    """Whether a kernel with its own parallel loops (a sort) moves enough elements to keep them parallel."""
    shapes = [list(param.shape) for param in function.params if isinstance(param.ty, tirx.buffer.BufferType)]
    if not all(isinstance(size, tirx.IntImm) for shape in shapes for size in shape):
        return True
    return sum(math.prod(int(size) for size in shape) for shape in shapes) * FUNCTION >= LEAST_NANOSECONDS


def _blocks(schedule: s_tir.Schedule, parent: Any) -> list[Any]:
    """Return the innermost blocks."""
    blocks = []
    for block in schedule.get_child_blocks(parent):
        blocks += _blocks(schedule, block) or [block]
    return blocks


def _outer(schedule: s_tir.Schedule, block: Any, loops: list[Any], most: int) -> Any:
    """Return one loop with enough iterations, fused or split from the outermost spatial loops; None if there is none."""
    spatial = _spatial_loops(schedule, block, loops)[:most]
    extents = [_extent(schedule, loop) for loop in spatial]
    open_loops = [k + 1 for k, loop in enumerate(spatial) if not isinstance(schedule.get(loop).extent, tirx.IntImm)]
    count = next((k + 1 for k in range(len(extents)) if math.prod(extents[: k + 1]) >= PARTS), len(extents))
    count = max(count, *open_loops[-1:], 0)  # a loop of open extent may have one iteration
    if count == len(loops):  # the innermost loop is kept for vectors
        count -= 1
    while count > 0 and math.prod(extents[:count]) > 1:
        try:
            return schedule.fuse(*spatial[:count]) if count > 1 else spatial[0]
        except s_tir.ScheduleError:  # something else stands between them
            count -= 1
    if len(spatial) != len(loops) or open_loops:
        return None
    parts = max((d for d in range(1, min(extents[-1], MOST_PARTS) + 1) if extents[-1] % d == 0), default=1)
    return schedule.split(spatial[-1], factors=[parts, None])[0] if 1 < parts < extents[-1] else None


def _spatial_loops(schedule: s_tir.Schedule, block: Any, loops: list[Any]) -> list[Any]:
    """Return the outermost serial loops before the first reduction loop."""
    target = schedule.get(block)
    realize = next(r for r, _ in realizations_in_loops(schedule.mod["main"].body) if r.block.same_as(target))
    sums = [
        value
        for item, value in zip(target.iter_vars, realize.iter_values, strict=True)
        if int(item.iter_type) != _SPATIAL
    ]
    outer = []
    for loop in loops:
        node = schedule.get(loop)
        if node.kind != tirx.ForKind.SERIAL or any(depends_on(value, node.loop_var) for value in sums):
            break
        outer.append(loop)
    return outer


def _nanoseconds(block: Any) -> float:
    """Estimate the nanoseconds of one iteration of a step."""
    functions = 0

    def count(part: Any) -> bool:
        nonlocal functions
        functions += is_replaced(part)
        return False

    def look(value: Any) -> tuple[list[Any], Any]:
        any_expression(value, count)
        return [], value

    map_statement(block.body, look)
    return ACCESS * (len(block.reads) + len(block.writes)) + FUNCTION * functions
