"""First-fit layout of arenas: the lowest free offsets, in time that does not grow with the square of the live buffers."""

from __future__ import annotations

from random import Random

import pytest

from tvm_sched.execution_plan import arena
from tvm_sched.execution_plan.arena import Block, lay_out
from tvm_sched.execution_plan.steps import Step


def random_blocks(seed: int) -> list[Block]:
    """Buffers that later steps read, some of them pinned; starts do not always grow with the order of the steps."""
    random, steps, start = Random(seed), [], 0
    for index in range(40):
        start = max(0, start + random.randint(-3, 8))
        steps.append(Step("kernel", f"k{index}", f"q{index % 2}", start, start + random.randint(0, 9), 1, index=index))
    return [
        Block(
            random.randint(0, 500),
            step,
            [reader for reader in steps[k + 1 :] if random.random() < 0.1],
            random.random() < 0.1,
            random.choice([64, 256]),
        )
        for k, step in enumerate(steps)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_each_block_lies_at_the_lowest_offset_between_live_ones(seed: int) -> None:
    blocks = [block for block in random_blocks(seed) if block.size]
    assert lay_out(blocks, 1 << 40) == max(block.offset + block.size for block in blocks)
    live: list[Block] = []
    for block in blocks:
        live = [b for b in live if b.end_ns > block.writer.start_ns or b.last >= block.writer.index]
        starts = [-(-edge // block.alignment) * block.alignment for edge in (0, *(b.offset + b.size for b in live))]
        free = [at for at in starts if all(at + block.size <= b.offset or at >= b.offset + b.size for b in live)]
        assert block.offset == min(free)
        live.append(block)


def test_thousands_of_live_buffers_are_not_compared_with_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [0]
    round_up = arena._round_up

    def counted(value: int, alignment: int) -> int:
        calls[0] += 1
        return round_up(value, alignment)

    monkeypatch.setattr(arena, "_round_up", counted)
    steps = [Step("kernel", f"k{index}", "q", index, index + 1, 1, index=index) for index in range(501)]
    assert lay_out([Block(64, step, steps[-1:]) for step in steps[:-1]], 1 << 40) == 64 * 500
    assert calls[0] <= 1_000
