"""Scheduled executables of real networks give the answers of ONNX Runtime and PyTorch, on one and four devices."""

import numpy as np
import pytest

from tvm_sched.relax import compile
from tvm_sched_runtime.schedule import verify

from .conftest import TOLERANCE, Case, relative_difference

FAST = {"work": 0.3, "time_limit": 20}

ONNX = ["inception_v1", "squeezenet", "resnet50", "densenet121"]
TORCH = ["llama", "gpt2", "minilm"]


EVERY = [(name, devices) for name in ONNX + TORCH for devices in (1, 4)]
CHOSEN = [(name, 4) for name in ("inception_v1", "squeezenet", "llama")]
"""Networks of `make test`; operators that they lack, such as ResNet's sums, are in `tests/relax`."""


def marks(name: str, devices: int) -> tuple[pytest.MarkDecorator, ...]:
    return (pytest.mark.xdist_group(name), *(() if (name, devices) in CHOSEN else (pytest.mark.thorough,)))


@pytest.mark.parametrize(
    ("case", "devices"), [pytest.param(*each, marks=marks(*each)) for each in EVERY], indirect=["case"]
)
def test_values_equal_the_peers(case: Case, devices: int) -> None:
    compiled = compile(case.model, f"cpu{devices}", options=FAST)
    verify(compiled.problem, compiled.schedule)
    assert relative_difference(compiled.run(case.x), case.expected) < TOLERANCE
    assert relative_difference(compiled.run(case.x), case.expected) < TOLERANCE, "the second run differs from the first"
    used = {placement.device for placement in compiled.schedule.placements}
    assert 1 <= len(used) <= devices


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [pytest.param("inception_v1", marks=pytest.mark.xdist_group("inception_v1"))], indirect=True
)
def test_branches_run_on_several_devices(case: Case) -> None:
    compiled = compile(case.model, "cpu3", options=FAST)
    assert len({placement.device for placement in compiled.schedule.placements}) == 3


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "case", [pytest.param("squeezenet", marks=pytest.mark.xdist_group("squeezenet"))], indirect=True
)
@pytest.mark.parametrize("topology", ["v100-server", pytest.param("a6000-server", marks=pytest.mark.thorough), "p4d"])
def test_emulated_servers_compute_the_same_values(case: Case, topology: str) -> None:
    compiled = compile(case.model, topology, options=FAST)
    compiled.module.configure(trace=True)
    assert relative_difference(compiled.run(case.x), case.expected) < TOLERANCE
    planned = compiled.schedule.certificate.latency
    assert compiled.module.latency() >= 0.999 * planned, "an emulated run cannot be shorter than its plan"


@pytest.mark.parametrize(
    "case", [pytest.param("squeezenet", marks=pytest.mark.xdist_group("squeezenet"))], indirect=True
)
def test_other_schedulers_compute_the_same_values(case: Case) -> None:
    compiled = compile(case.model, "cpu2", "single")
    assert relative_difference(compiled.run(case.x), case.expected) < TOLERANCE


def test_values_do_not_depend_on_earlier_inputs() -> None:
    from .conftest import onnx_case

    case = onnx_case("squeezenet")
    compiled = compile(case.model, "cpu2", options=FAST)
    compiled.run(np.full_like(case.x, 1e3))
    assert relative_difference(compiled.run(case.x), case.expected) < TOLERANCE
