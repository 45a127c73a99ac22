"""Loop schedules for CPUs: reductions over a tile of accumulators in registers, vectorised along memory.

TVM's default computes one output at a time with strided reads, at 2 GFLOP/s, where a core reaches 50 times as many. One
rule covers convolutions, matrix products and pooling. Elementwise steps become one loop, and a concatenation becomes one
loop per input. Other kernels are not changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from ...ir.loops import depends_on
from ...ir.sizes import size_of
from .parallel import parallelise, parallelise_block
from .transposes import tile_transposes

MAX_LANES = 32
"""Longest vector in elements: two AVX-512 registers in float32."""
TILE = 4
"""Rows of accumulators that share each loaded vector."""
MAX_PARTS = 100
"""Most loops into which a loop is cut."""
MOST_REPEATED = 300
"""Most nodes of an expression that is written several times into its reader."""
_DTYPES = ("float32", "float64", "int32", "int64")
_SPATIAL, _REDUCTION = 0, 2


class UncheckedSchedule(s_tir.Schedule):
    """TVM's schedule without the type checks in Python, which take several times as long as the methods."""


for _name, _method in vars(s_tir.Schedule).items():
    if hasattr(_method, "__wrapped__") and not isinstance(_method, staticmethod):
        setattr(UncheckedSchedule, _name, _method.__wrapped__)


def schedule_for_cpu(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Rearrange the loops of a kernel; returns the same function object if no rule fits.

    A step with one reader that computes as many elements is inlined into it, which saves a pass through memory. A reduction
    is vectorised if its output's last dimension is the last dimension, with any step, of exactly one input and indexes no
    other input. The order of summation does not change. A loop whose position is compared with constants (a concatenation)
    is cut at the constants. The outer loops of large steps become parallel (`parallelise`).
    """
    try:
        schedule = UncheckedSchedule(tvm.IRModule({"main": function}))
        root = schedule.get_sblock("root")
        changed = [_compute_in_reader(schedule, block) for block in schedule.get_child_blocks(root)]
        for block in schedule.get_child_blocks(root):
            changed.append(
                _schedule_block(schedule, block)
                or _add_along_memory(schedule, block)
                or _cut_loop(schedule, block)
                or (_spatial(schedule, block) and tile_transposes(schedule, block))
            )
        changed.append(parallelise(schedule))
    except (RuntimeError, ValueError):  # a schedule primitive refused the kernel
        return function
    return schedule.mod["main"] if any(changed) else function


def _compute_in_reader(schedule: s_tir.Schedule, block: Any) -> bool:
    """Inline a step into its only reader if both compute as many elements.

    A reader such as Softplus reads an element several times, and a chain of them grows exponentially (`MOST_REPEATED`).
    """
    readers = schedule.get_consumers(block)
    if len(readers) != 1 or not _spatial(schedule, block) or not _spatial(schedule, readers[0]):
        return False
    loops, others = schedule.get_loops(block), schedule.get_loops(readers[0])
    if _volume(schedule, loops) != _volume(schedule, others):
        return False
    step, result = schedule.get(block), schedule.get(block).writes[0].source
    reads = _count(schedule.get(readers[0]).body, tvm.ir.TensorLoad, lambda load: load.source.same_as(result))
    if reads > 1 and reads * _count(step.body, tvm.ir.Expr) > MOST_REPEATED:
        return False
    try:
        schedule.compute_inline(block)
    except s_tir.ScheduleError:  # for instance, it writes several tensors
        return False
    return True


def _count(part: Any, kind: type, predicate: Callable[[Any], bool] = lambda node: True) -> int:
    """Count the nodes of a class; one that occurs in several places counts at each."""
    found = 0

    def look(node: Any) -> None:
        nonlocal found
        found += predicate(node)

    tvm_ffi.structural_walk(part, (kind, look))
    return found


def _spatial(schedule: s_tir.Schedule, block: Any) -> bool:
    return all(int(item.iter_type) == _SPATIAL for item in schedule.get(block).iter_vars)


def _volume(schedule: s_tir.Schedule, loops: list[Any]) -> Any:
    return math.prod(_extent(schedule, loop) for loop in loops)


def _cut_loop(schedule: s_tir.Schedule, block: Any) -> bool:
    """Cut a loop whose position is compared with constants into loops between the constants."""
    step, loops = schedule.get(block), schedule.get_loops(block)
    if len(loops) != len(step.iter_vars) or not isinstance(step.body, tirx.BufferStore) or not loops:
        return False
    if not _spatial(schedule, block) or not _constant(schedule, loops):
        return False
    thresholds = _thresholds(step.body.value)
    for position, (item, loop) in enumerate(zip(step.iter_vars, loops, strict=True)):
        extent = _extent(schedule, loop)
        cuts = sorted({cut for what, cut in thresholds if what.same_as(item.var) and 0 < cut < extent})
        if cuts and len(cuts) < MAX_PARTS:
            sizes = [after - before for before, after in pairwise([0, *cuts, extent])]
            parallelise_block(schedule, block, most=position)
            schedule.loop_partition(loop, [*sizes[:-1], None])
            return True
    return False


def _thresholds(expression: Any) -> list[tuple[Any, int]]:
    """Return the variables v and constants c of all comparisons ``v < c`` and ``c <= v`` in an expression."""
    thresholds = []

    def look(part: Any) -> None:
        smaller, larger = part.a, part.b
        reaches = isinstance(part, tirx.LE)
        if isinstance(larger, tirx.IntImm):
            thresholds.append((smaller, int(larger) + reaches))
        elif isinstance(smaller, tirx.IntImm):
            thresholds.append((larger, int(smaller) + (not reaches)))

    tvm_ffi.structural_walk(expression, ((tirx.LT, tirx.LE), look))
    return thresholds


def _schedule_block(schedule: s_tir.Schedule, block: Any) -> bool:
    step = schedule.get(block)
    loops = schedule.get_loops(block)
    kinds = [int(item.iter_type) for item in step.iter_vars]
    if len(loops) != len(kinds) or set(kinds) != {_SPATIAL, _REDUCTION} or len(step.writes) != 1 or step.match_buffers:
        return False
    if str(step.writes[0].source.dtype) not in _DTYPES:
        return False
    variables = [item.var for item in step.iter_vars]
    vector, read = _vector_axis(step, variables, kinds)
    if vector is None or not _constant(schedule, [loops[vector]]):
        return False
    lanes = _lanes(_extent(schedule, loops[vector]))
    if lanes < 4:
        return False
    outer = [k for k, kind in enumerate(kinds) if kind == _SPATIAL and k != vector]
    shared = [
        k
        for k in outer
        if _constant(schedule, [loops[k]]) and _extent(schedule, loops[k]) >= 2 and not _occurs(variables[k], read)
    ]
    rows = None
    order = [loops[k] for k in outer]
    if shared:
        tiled = max(shared, key=lambda k: _extent(schedule, loops[k]))
        size = _divisor(_extent(schedule, loops[tiled]), TILE)
        if size > 1:
            order[outer.index(tiled)], rows = schedule.split(loops[tiled], factors=[None, size])
    tail, lane = schedule.split(loops[vector], factors=[None, lanes])
    reductions = [loops[k] for k, kind in enumerate(kinds) if kind == _REDUCTION]
    schedule.reorder(*order, tail, *reductions, *([rows] if rows is not None else []), lane)
    sums = schedule.cache_write(block, 0, "local")
    schedule.reverse_compute_at(sums, tail)
    schedule.vectorize(schedule.get_loops(sums)[-1])
    schedule.vectorize(lane)
    if rows is not None:
        schedule.unroll(rows)
    parallelise_block(schedule, block)
    schedule.decompose_reduction(block, reductions[0])
    return True


def _add_along_memory(schedule: s_tir.Schedule, block: Any) -> bool:
    """Fuse the innermost reduction loops that run along memory of all inputs, and initialise the sum before them.

    `vectorise_reductions` adds accumulators to the fused loop when the kernel is compiled.
    """
    step, loops = schedule.get(block), schedule.get_loops(block)
    kinds = [int(item.iter_type) for item in step.iter_vars]
    first = next((k for k, kind in enumerate(kinds) if kind == _REDUCTION), len(kinds))
    if len(loops) != len(kinds) or first == len(kinds):
        return False
    if _SPATIAL in kinds[first:] or any(kind not in (_SPATIAL, _REDUCTION) for kind in kinds):
        return False
    parallelise_block(schedule, block)
    loops = schedule.get_loops(block)
    schedule.decompose_reduction(block, loops[-kinds.count(_REDUCTION)])
    count = _together(step, [item.var for item in step.iter_vars[first:]])
    if count > 1:
        schedule.fuse(*loops[-count:])
    return True


def _together(block: Any, variables: list[Any]) -> int:
    """Return how many of the last variables span whole last dimensions of every tensor that one of them indexes."""
    count = len(variables)
    for read in block.reads:
        if not any(_occurs(variable, read) for variable in variables):
            continue
        extents = {item.var: item.dom.extent for item in block.iter_vars}
        whole = 0
        pairs = zip(list(read.region)[::-1], list(read.source.shape)[::-1], strict=True)
        for variable, (entry, size) in zip(variables[::-1], pairs, strict=False):
            if not entry.min.same_as(variable):
                break
            whole += 1
            if size_of(extents[variable]) != size_of(size):
                break
        count = min(count, whole)
    return count


def _vector_axis(block: Any, variables: list[Any], kinds: list[int]) -> tuple[int | None, Any]:
    """Return the loop that runs along memory in the output and one input, and the region that it reads in the input."""
    last = block.writes[0].region[-1].min if len(block.writes[0].region) else None
    axis = next((k for k, v in enumerate(variables) if last is not None and last.same_as(v)), None)
    if axis is None or kinds[axis] != _SPATIAL:
        return None, None
    along = None
    for read in block.reads:
        if read.source.same_as(block.writes[0].source) or not _occurs(variables[axis], read):
            continue
        if along is not None or any(depends_on(entry.min, variables[axis]) for entry in read.region[:-1]):
            return None, None
        along = read
    return (axis, along) if along is not None else (None, None)


def _occurs(variable: Any, region: Any) -> bool:
    return any(depends_on(entry.min, variable) for entry in region.region)


def _constant(schedule: s_tir.Schedule, loops: list[Any]) -> bool:
    return all(isinstance(schedule.get(loop).extent, tirx.IntImm) for loop in loops)


def _extent(schedule: s_tir.Schedule, loop: Any) -> Any:
    return size_of(schedule.get(loop).extent)


def _lanes(size: int) -> int:
    return size if size <= MAX_LANES else _divisor(size, MAX_LANES)


def _divisor(size: int, limit: int) -> int:
    """Return the largest divisor up to a limit."""
    return max(d for d in range(1, min(size, limit) + 1) if size % d == 0)
