"""Inception-v3 and NASNet-A compute what torch computes, in parallel on logical CPU devices."""

import numpy as np
import pytest

from tvm_sched.relax import compile
from tvm_sched.schedule import verify

from .conftest import TOLERANCE, relative_difference

torch = pytest.importorskip("torch")
branched = pytest.importorskip("tvm_sched.testing.branched")


def normalising(module, size):
    """The module with batch normalisation fitted to noise: with random weights alone, images fade from layer to layer."""
    for layer in module.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = 1.0
    with torch.no_grad():
        module.train()(torch.randn(4, 3, size, size))
    return module.eval()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size", "operators"),
    [
        ("inception_v3", 107, 125),
        pytest.param("nasnet_mobile", 64, 561, marks=pytest.mark.thorough),
        pytest.param("nasnet_large", 32, 771, marks=pytest.mark.thorough),
    ],
)
def test_branched_networks_compute_the_same_values(name, size, operators):
    torch.manual_seed(0)
    program = branched.exported(normalising(getattr(branched, name)(), size), size)
    x, other = np.random.default_rng(0).standard_normal((2, 1, 3, size, size), dtype=np.float32)
    with torch.no_grad():
        expected, of_other = (program.module()(torch.from_numpy(image)).numpy() for image in (x, other))
    assert relative_difference(of_other, expected) > 100 * TOLERANCE  # the image gets through to the result
    compiled = compile(program, "cpu2", "heft")
    verify(compiled.problem, compiled.schedule)
    assert len(compiled.problem.graph.operators) == operators
    assert {placement.device for placement in compiled.schedule.placements} == {"cpu0", "cpu1"}
    assert relative_difference(compiled.run(x), expected) < TOLERANCE
