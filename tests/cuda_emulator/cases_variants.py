"""Heads, columns then rows, channels, batches: models in parts on four GPUs, as `test_emulated_gpu` emulates them."""

import numpy as np
import pytest

from parallel_models import decoder, forced, given, pictures, two_convolutions
from tvm_sched.relax import compile
from tvm_sched.relax.api import make_problem
from tvm_sched.relax.autoload import register
from tvm_sched.relax.variants import cut_products, row_regions

register()


pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("make", "way"),
    [
        pytest.param(decoder, "tensor/4", marks=pytest.mark.thorough),
        pytest.param(decoder, "tensor-tree/4", marks=pytest.mark.thorough),
        (two_convolutions, "tensor/2"),
        (two_convolutions, "channels/4"),
        (pictures, "batch/4"),
    ],
)
def test_parts_on_gpus(make, way, monkeypatch):
    monkeypatch.setattr(cut_products, "LEAST_WEIGHTS", 0 if make is not pictures else 1 << 20)
    monkeypatch.setattr(row_regions, "LEAST_FLOPS", 0)
    monkeypatch.setattr(row_regions, "FLOPS_FOR_A_BYTE_COPIED", 0)
    monkeypatch.setenv("TVM_SCHED_KERNEL_LIBRARIES", "")  # kernels of libraries are not cut
    expected = compile(make(), "cpu1", "single").module.run(given(make))
    rows = make is pictures
    problem = make_problem(make(), "v100-server", backend="cuda", rows=rows)
    schedule = forced(problem, way)
    assert way in schedule.choice.values()
    assert len({placement.device for placement in schedule.placements}) > 1
    made = compile(make(), "v100-server", schedule=schedule, backend="cuda", rows=rows)
    np.testing.assert_allclose(made.module.run(given(make)), expected, rtol=1e-3, atol=1e-4)
