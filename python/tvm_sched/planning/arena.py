"""Where buffers lie in the arena of a device: offsets from lifetimes, and who has to wait for whom because of them."""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass, field

from .steps import Step

ALIGNMENT = 64
"""Offsets are multiples of this; the runtime asks for it."""
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
    offset: int = 0

    @property
    def users(self) -> list[Step]:
        """The step that writes it and those that read it."""
        return [self.writer, *self.readers]

    @property
    def end_ns(self) -> int:
        """Planned end of its last user."""
        return FOREVER if self.pinned else max(step.end_ns for step in self.users)

    @property
    def last(self) -> int:
        """Place in the plan of its last user."""
        return FOREVER if self.pinned else max(step.index for step in self.users)


def lay_out(blocks: list[Block], limit: int, warm: bool = False) -> int:
    """Give every block its offset; returns the bytes of the arena.

    Where ``warm`` runs are to be expected, which leave out some transfers and so have other times, only blocks that no
    transfer touches share bytes, as long as that fits: the order of their kernels is the same in every run, so sharing
    makes nobody wait, and parameters can remain.

    First-fit in order of time, which packs well where lifetimes are short; if that takes more than ``limit``, the
    blocks are packed largest first, and the better of both stands. Two blocks share bytes only if the users of one end
    before the other begins, in planned time and in the order of the plan.
    """
    blocks.sort(key=lambda block: block.writer.index)
    arena = _transfers_apart(blocks) if warm else _first_fit(blocks)
    if warm and arena > limit:
        arena = _first_fit(blocks)
    if arena > limit:
        offsets = [block.offset for block in blocks]
        other = _largest_first(blocks)
        if other >= arena:
            for block, offset in zip(blocks, offsets, strict=True):
                block.offset = offset
        arena = min(arena, other)
    _wait_for_former_owners(blocks)
    return arena


def _transfers_apart(blocks: list[Block]) -> int:
    start = end = 0
    others = []
    for block in blocks:
        if block.pinned or any(step.kind != "kernel" for step in block.users):
            block.offset, end = start, start + block.size
            start += -(-block.size // ALIGNMENT) * ALIGNMENT
        else:
            others.append(block)
    if others:
        end = start + _first_fit(others)
    for block in others:
        block.offset += start
    return end


def _first_fit(blocks: list[Block]) -> int:
    arena = 0
    live: list[tuple[int, int, int, int]] = []  # offset, end of bytes, end in time, last user
    for block in blocks:
        begin, index = block.writer.start_ns, block.writer.index
        live = [entry for entry in live if entry[2] > begin or entry[3] >= index]
        block.offset = _gap([(low, high) for low, high, _, _ in live], block.size)
        insort(live, (block.offset, block.offset + block.size, block.end_ns, block.last))
        arena = max(arena, block.offset + block.size)
    return arena


def _largest_first(blocks: list[Block]) -> int:
    arena = 0
    placed: list[Block] = []
    for block in sorted(blocks, key=lambda b: -b.size):
        taken = sorted((b.offset, b.offset + b.size) for b in placed if _overlap(b, block))
        block.offset = _gap(taken, block.size)
        placed.append(block)
        arena = max(arena, block.offset + block.size)
    return arena


def _overlap(a: Block, b: Block) -> bool:
    first, second = (a, b) if a.writer.index < b.writer.index else (b, a)
    return first.end_ns > second.writer.start_ns or first.last >= second.writer.index


def _gap(taken: list[tuple[int, int]], size: int) -> int:
    """Lowest aligned offset of ``size`` free bytes between sorted intervals that may overlap."""
    at = 0
    for low, high in taken:
        if at + size <= low:
            break
        at = max(at, -(-high // ALIGNMENT) * ALIGNMENT)
    return at


def _wait_for_former_owners(blocks: list[Block]) -> None:
    """Make each writer wait for the users of what lay in its bytes before.

    Planned times say that they have ended; real ones may say otherwise. The bytes are kept as a list of segments with
    the users of the last block that lay there: those of earlier blocks ended before its writer began.
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
