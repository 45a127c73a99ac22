"""Tile loops that read across memory and write along it, as transposes do.

A cache line that is read holds elements for many positions of the output. Without tiles, the line is evicted before its
next element is read, even sooner if rows are a power of two apart. A tile reads each of its lines whole and once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import s_tir, tirx

from ...ir.loops import depends_on

TILE = 16
"""Side of a tile in elements: a cache line of float32."""
LONGEST = 256
"""Longest side of a tile if an extent has no divisor near `TILE`."""
LEAST = 4
"""Shortest side that is worth a tile."""


@dataclass(frozen=True)
class _Crossing:
    """A tensor read across memory: its index among the reads, and the dimension that the innermost loop indexes."""

    read: int
    dimension: int
    rank: int
    row: int
    """The loop that runs along this tensor's memory."""


def tile_transposes(schedule: s_tir.Schedule, block: Any) -> bool:
    """Tile a step that reads tensors across memory, gathering each tile locally; return False if there are none."""
    step, loops = schedule.get(block), schedule.get_loops(block)
    if len(loops) != len(step.iter_vars) or len(loops) < 2 or len(step.writes) != 1:
        return False
    extents = [schedule.get(loop).extent for loop in loops]
    if not isinstance(step.body, tirx.BufferStore) or not all(isinstance(e, tirx.IntImm) for e in extents):
        return False
    variables = [item.var for item in step.iter_vars]
    if not step.body.indices or not step.body.indices[-1].same_as(variables[-1]):
        return False
    crossings = [c for k, read in enumerate(step.reads) if (c := _crossing(k, read, variables)) is not None]
    rows = {crossing.row for crossing in crossings}
    if len(rows) != 1:
        return False
    (row,) = rows
    long, across = _side(int(extents[row])), _side(int(extents[-1]))
    if long < LEAST or across < LEAST:
        return False
    row_outer, row_inner = schedule.split(loops[row], factors=[None, long])
    outer, inner = schedule.split(loops[-1], factors=[None, across])
    outers = [*loops[:-1], outer]
    outers[row] = row_outer
    order = [outers[k] for k in _order_of_reads(step.reads[crossings[0].read], variables)]
    schedule.reorder(*order, row_inner, inner)
    for crossing in crossings:
        tile = schedule.cache_read(block, crossing.read, "local")
        schedule.compute_at(tile, order[-1])
        if long > 2 * TILE:  # else LLVM shuffles whole rows in registers, which takes it a second to compile
            *_, line, element = schedule.get_loops(tile)
            schedule.reorder(element, line)
        schedule.transform_layout(tile, ("write", 0), _moved_last(crossing))
    return True


def _crossing(position: int, read: Any, variables: list[Any]) -> _Crossing | None:
    indices = [entry.min for entry in read.region]
    if len(indices) < 2 or any(not isinstance(e.extent, tirx.IntImm) or int(e.extent) != 1 for e in read.region):
        return None
    row = next((k for k, v in enumerate(variables[:-1]) if indices[-1].same_as(v)), None)
    moved = [k for k, index in enumerate(indices) if depends_on(index, variables[-1])]
    if row is None or len(moved) != 1 or not indices[moved[0]].same_as(variables[-1]):
        return None
    if any(depends_on(index, variables[row]) for index in indices[:-1]):
        return None
    return _Crossing(position, moved[0], len(indices), row)


def _order_of_reads(read: Any, variables: list[Any]) -> list[int]:
    """Return the loops in the order of a tensor's dimensions, other loops first, so that tiles are consecutive in memory."""
    indices = [entry.min for entry in read.region]
    return sorted(
        range(len(variables)),
        key=lambda k: max((d for d, index in enumerate(indices) if depends_on(index, variables[k])), default=-1),
    )


def _side(extent: int) -> int:
    """Return `TILE` or another divisor near it; the extent itself if it has none and is at most `LONGEST`."""
    if extent % TILE == 0:
        return TILE
    best = max(d for d in range(1, min(extent, 2 * TILE) + 1) if extent % d == 0)
    return best if best >= TILE // 2 or extent > LONGEST else extent


def _moved_last(crossing: _Crossing) -> tirx.IndexMap:
    def moved(*indices: Any) -> list[Any]:
        kept = [index for k, index in enumerate(indices) if k != crossing.dimension]
        return [*kept, indices[crossing.dimension]]

    return tirx.IndexMap.from_func(moved, ndim=crossing.rank)
