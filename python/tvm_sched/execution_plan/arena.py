"""Lay out buffers in the arena of a device: offsets from lifetimes, and the waits that shared memory requires."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from .steps import Step

ALIGNMENT = 64
"""Offsets are multiples of this, as the runtime requires."""
GPU_ALIGNMENT = 256
"""Offsets on GPUs of buffers whose size is a multiple of this are, too: cuBLASLt has faster kernels for such tensors."""
FOREVER = 1 << 62


@dataclass
class Block:
    """A buffer in an arena and its life: from the start of the step that writes it to the end of its last reader.

    ``pinned`` buffers (loaded parameters) live to the end of the run.
    """

    size: int
    writer: Step
    readers: list[Step] = field(default_factory=list)
    pinned: bool = False
    alignment: int = ALIGNMENT
    offset: int = 0

    @property
    def users(self) -> list[Step]:
        """The steps that write and read the buffer."""
        return [self.writer, *self.readers]

    @property
    def end_ns(self) -> int:
        """Planned end of its last user."""
        return FOREVER if self.pinned else max(step.end_ns for step in self.users)

    @property
    def last(self) -> int:
        """Place in the plan of its last user."""
        return FOREVER if self.pinned else max(step.index for step in self.users)


class Order:
    """The steps of a plan that have ended when another begins, by queues and waits, for any durations."""

    def __init__(self, steps: list[Step]) -> None:
        self._before: list[int] = []  # for each step, a set of steps as bits
        last: dict[str, int] = {}
        for step in steps:
            known = last.get(step.queue, 0)
            for other in (*step.waits, *step.after):
                # A warm run may leave out an optional step and its waits.
                known |= 1 << other.index | (0 if other.optional else self._before[other.index])
            self._before.append(known)
            if not step.optional:
                last[step.queue] = known | 1 << step.index

    def over(self, former: Block, block: Block) -> bool:
        """Return whether all users of a block have ended when another block is written."""
        if former.pinned:
            return False
        before = self._before[block.writer.index]
        return all(before >> step.index & 1 for step in former.users)


def lay_out(blocks: list[Block], limit: int, warm: bool = False, order: Order | None = None) -> int:
    """Set the offset of every block; return the bytes of the arena.

    First-fit in order of time; if that takes more than ``limit``, also largest first, and the better of both. Two blocks
    share bytes only if the users of one end before the other begins, in planned time and in the order of the plan.

    If it fits, sharing is restricted further. With ``warm`` runs, which leave out transfers and so have other times, only
    blocks that no transfer touches share bytes. With ``order``, for a device whose streams overlap, blocks share bytes only
    if no stream then waits for another.
    """
    blocks.sort(key=lambda block: block.writer.index)
    fit = _first_fit if order is None else partial(_place, over=order.over)
    arena = _transfers_apart(blocks, fit) if warm else fit(blocks)
    if arena > limit and (warm or order):
        arena = _first_fit(blocks)
    if arena > limit:
        offsets = [block.offset for block in blocks]
        other = _place(sorted(blocks, key=lambda block: -block.size), _apart)
        if other >= arena:
            for block, offset in zip(blocks, offsets, strict=True):
                block.offset = offset
        arena = min(arena, other)
    _wait_for_former_owners(blocks)
    return arena


def _transfers_apart(blocks: list[Block], fit: Callable[[list[Block]], int]) -> int:
    end = 0
    others = []
    for block in blocks:
        if block.pinned or any(step.kind != "kernel" for step in block.users):
            block.offset = _round_up(end, block.alignment)
            end = block.offset + block.size
        else:
            others.append(block)
    start = _round_up(end, max((block.alignment for block in others), default=ALIGNMENT))
    if others:
        end = start + fit(others)
    for block in others:
        block.offset += start
    return end


def _first_fit(blocks: list[Block]) -> int:
    """Place each block at the lowest offset that is free when it begins; time grows with blocks times gaps."""
    arena = 0
    gaps = [(0, FOREVER)]  # sorted, apart from each other
    running: list[tuple[int, int, int, int]] = []  # heap of live blocks: end in time, last user, offset, end of bytes
    ended: list[tuple[int, int, int, int]] = []  # heap of those over in time, not in the plan's order: last user first
    for block in blocks:
        while running and running[0][0] <= block.writer.start_ns:
            end, last, low, high = heapq.heappop(running)
            heapq.heappush(ended, (last, end, low, high))
        while ended and ended[0][0] < block.writer.index:
            last, end, low, high = heapq.heappop(ended)
            if end <= block.writer.start_ns:
                _free(gaps, low, high)
            else:  # the plan's order is not that of its times
                heapq.heappush(running, (end, last, low, high))
        block.offset = _take(gaps, block)
        if block.size:
            heapq.heappush(running, (block.end_ns, block.last, block.offset, block.offset + block.size))
        arena = max(arena, block.offset + block.size)
    return arena


def _take(gaps: list[tuple[int, int]], block: Block) -> int:
    for k, (low, high) in enumerate(gaps):
        at = _round_up(low, block.alignment)
        if at + block.size <= high:
            gaps[k : k + 1] = [gap for gap in ((low, at), (at + block.size, high)) if gap[0] < gap[1]]
            return at
    raise AssertionError("the last gap has no end")


def _free(gaps: list[tuple[int, int]], low: int, high: int) -> None:
    k = bisect_left(gaps, (low, high))
    if k < len(gaps) and gaps[k][0] == high:
        high = gaps.pop(k)[1]
    if k > 0 and gaps[k - 1][1] == low:
        k -= 1
        low = gaps.pop(k)[0]
    gaps.insert(k, (low, high))


def _place(blocks: list[Block], over: Callable[[Block, Block], bool]) -> int:
    """Place each block at the lowest offset free of earlier blocks that are not ``over`` when it begins."""
    arena = 0
    placed: list[Block] = []
    for block in blocks:
        taken = sorted((b.offset, b.offset + b.size) for b in placed if not over(b, block))
        block.offset = _gap(taken, block)
        placed.append(block)
        arena = max(arena, block.offset + block.size)
    return arena


def _apart(a: Block, b: Block) -> bool:
    """Return whether one of two blocks ends before the other begins, in planned time and in the order of the plan."""
    first, second = (a, b) if a.writer.index < b.writer.index else (b, a)
    return first.end_ns <= second.writer.start_ns and first.last < second.writer.index


def _gap(taken: list[tuple[int, int]], block: Block) -> int:
    """Return the lowest aligned offset that is free for a block between sorted intervals that may overlap."""
    at = 0
    for low, high in taken:
        if at + block.size <= low:
            break
        at = max(at, _round_up(high, block.alignment))
    return at


def _round_up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


def _wait_for_former_owners(blocks: list[Block]) -> None:
    """Make each writer wait for the users of the earlier blocks in its bytes, which may run longer than planned.

    Segments of bytes have the users of their last block; users of earlier blocks ended before its writer began.
    """
    starts: list[int] = []
    segments: list[tuple[int, int, list[Step]]] = []
    for block in blocks:
        low, high = block.offset, block.offset + block.size
        if low == high:
            continue
        first = max(bisect_right(starts, low) - 1, 0)
        last = first
        kept: list[tuple[int, int, list[Step]]] = []
        while last < len(segments) and segments[last][0] < high:
            begin, end, users = segments[last]
            if end > low:
                block.writer.waits.extend(step for step in users if step is not block.writer)
            if begin < low:
                kept.append((begin, min(end, low), users))
            if end > high:
                kept.append((high, end, users))
            last += 1
        kept.append((low, high, block.users))
        kept.sort(key=lambda segment: segment[0])
        segments[first:last] = kept
        starts[first:last] = [segment[0] for segment in kept]
