"""On real configurations no plan is slower than what the runtime does by itself, over memory, or below the bound."""

from __future__ import annotations

import pytest

from plans import RUNTIMES, SETTINGS, plan
from tvm_sched_runtime.errors import InfeasibleError


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: f"{s.model}-{s.machine}-{s.dtype}")
@pytest.mark.sampled(9)
def test_ours_is_never_slower_and_never_over_memory(setting, runtime, tmp_path):
    try:
        made = plan(setting, runtime, tmp_path)
    except InfeasibleError as error:
        assert runtime == "vllm", "the others can use the host's memory"
        _says_what_would_fit(str(error))
        return
    assert made.ours.fits
    assert all(size <= made.ours.limit[place] for place, size in made.ours.held.items())
    for row in made.defaults:
        assert not row.fits or made.ours.total_ns <= row.total_ns
        assert row.fits == all(size <= row.limit[place] for place, size in row.held.items())
    assert 0 < made.lower_bound_ns <= made.ours.total_ns


def _says_what_would_fit(text):
    assert "GPUs like" in text


def test_the_configurations_are_as_many_and_as_different_as_asked():
    assert len({(s.model, s.machine) for s in SETTINGS}) >= 6
    assert {s.machine for s in SETTINGS} >= {"v100-server", "p4d", "cards", "v100-hetero"}
