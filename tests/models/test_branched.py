"""Inception-v3 and NASNet-A compute what torch computes, in parallel on logical CPU devices."""

import numpy as np
import pytest

from tvm_sched.relax import compile
from tvm_sched_runtime.schedule import verify

from .conftest import TOLERANCE, relative_difference

torch = pytest.importorskip("torch")
branched = pytest.importorskip("tvm_sched_bench.testing.branched")


def normalising(module, size):
    """The module with batch normalisation fitted to noise: with random weights alone, images fade from layer to layer."""
    for layer in module.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = 1.0
    with torch.no_grad():
        module.train()(torch.randn(4, 3, size, size))
    return module.eval()


def inception_v3_of_one_block_each():
    """Inception-v3 without blocks that repeat those before them: each kind of block is there once."""
    return torch.nn.Sequential(*(layer for k, layer in enumerate(branched.inception_v3()) if k not in REPEATS)).eval()


REPEATS = (6, 9, 10, 11, 14)
NETWORKS = {
    "inception_v3_of_one_block_each": inception_v3_of_one_block_each,
    "inception_v3": branched.inception_v3,
    "nasnet_mobile": branched.nasnet_mobile,
    "nasnet_large": branched.nasnet_large,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size", "operators"),
    [
        ("inception_v3_of_one_block_each", 107, 67),
        pytest.param("inception_v3", 107, 125, marks=pytest.mark.thorough),
        pytest.param("nasnet_mobile", 64, 561, marks=pytest.mark.thorough),
        pytest.param("nasnet_large", 32, 771, marks=pytest.mark.thorough),
    ],
)
@pytest.mark.thorough
def test_branched_networks_compute_the_same_values(name, size, operators):
    torch.manual_seed(0)
    program = branched.exported(normalising(NETWORKS[name](), size), size)
    x, other = np.random.default_rng(0).standard_normal((2, 1, 3, size, size), dtype=np.float32)
    with torch.no_grad():
        expected, of_other = (program.module()(torch.from_numpy(image)).numpy() for image in (x, other))
    assert relative_difference(of_other, expected) > 100 * TOLERANCE  # the image gets through to the result
    compiled = compile(program, "cpu2", "heft")
    verify(compiled.problem, compiled.schedule)
    assert len(compiled.problem.graph.operators) == operators
    assert {placement.device for placement in compiled.schedule.placements} == {"cpu0", "cpu1"}
    assert relative_difference(compiled.run(x), expected) < TOLERANCE
