"""Random torch modules against torch; `distributions/frontends/benchmarks/torch_fuzz.py` runs hundreds."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import hypothesis
import numpy as np
import torch
from torch.nn import functional

import tvm_sched.relax
from frontends.fuzz.torch_modules import RandomModule, difference, torch_modules
from strategies import fuzzed
from tvm_sched_runtime.errors import InputError

_verdicts: list[bool] = []


def _run(program: Any, feeds: list[Any]) -> list[Any]:
    result = tvm_sched.relax.compile(program, "cpu2", "heft", cost_model="roofline").run(*feeds)
    return result if isinstance(result, list) else [result]


@pytest.mark.filterwarnings("ignore")
@fuzzed(30)
@hypothesis.given(torch_modules(steps=3))
@pytest.mark.thorough
def test_random_modules_are_right_or_refused(module: RandomModule) -> None:
    try:
        told = difference(module, _run)
    except InputError:
        _verdicts.append(False)
        return
    assert not told
    _verdicts.append(True)


def test_few_of_them_are_refused() -> None:
    """Run after the test above: a compiler that refuses everything would pass that one."""
    if not _verdicts:
        pytest.skip("needs test_random_modules_are_right_or_refused in the same process")
    assert sum(_verdicts) >= 0.8 * len(_verdicts)


class Pools(torch.nn.Module):
    """Average pools whose last windows reach beyond the padding, or whose divisor is given; without a batch, too."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pool, row = functional.avg_pool2d, x[0, 0]
        wide = [pool(x, 3, 2, pad, True, counted) for pad in (0, 1) for counted in (True, False)]
        divided = [pool(x, 2, 3, 1, ceil, True, 5) for ceil in (True, False)]
        single = [pool(x[0], 2, 2, 0, True), functional.adaptive_avg_pool1d(row, 2)]
        return (*wide, *divided, *single, functional.avg_pool1d(row, 4, 3, 1, True, False))


@pytest.mark.filterwarnings("ignore")
def test_average_pools() -> None:
    x, pools = torch.randn(2, 3, 6, 8), Pools()
    found = _run(torch.export.export(pools, (x,)), [x.numpy()])
    for mine, right in zip(found, pools(x), strict=True):
        np.testing.assert_allclose(mine, right.numpy(), atol=1e-6)
