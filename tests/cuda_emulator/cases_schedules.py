"""Random schedules and pipelines on four unequal GPUs; `test_emulated_gpu` runs this in processes that emulate these."""

import os
from random import Random

import msgspec
import numpy as np
import pytest

from gpu_models import branches, image, model
from tvm_sched.relax import compile, compile_pipeline
from tvm_sched.relax.api import make_problem
from tvm_sched.relax.autoload import register
from tvm_sched_bench.testing import random_schedule, random_streams
from tvm_sched_runtime.problem import load_topology
from tvm_sched_runtime.schedule.indexed import ScheduleIndex

register()
pytestmark = pytest.mark.gpu
MODELS = {"branches": (branches, (32, 64)), "image": (image, (1, 3, 16, 16))}
LIBRARIES = ("", "handwritten_cuda,nvidia")  # the kernels that TVM generates; those of libraries first
CASES = [
    pytest.param(seed, kernels, marks=[] if seed < 2 and (kernels == "") == (seed == 0) else pytest.mark.thorough)
    for seed in range(10)
    for kernels in LIBRARIES
]


def topology():
    """Four GPUs of different memory, speed and architecture, as `test_emulated_gpu` sets up the emulated ones."""
    four = load_topology("v100-server")
    archs = os.environ["FAKE_CUDA_ARCHS"].split(",")
    devices = tuple(
        msgspec.structs.replace(
            device, memory=(64 - 16 * d) << 20, memory_bandwidth=device.memory_bandwidth / (d + 1), arch=arch
        )
        for d, (device, arch) in enumerate(zip(four.devices, archs, strict=True))
    )
    return msgspec.structs.replace(four, name="unequal", devices=devices)


def evicting(problem, schedule, random):
    """The schedule in which half of the loaded parameters, at least one, leave their device after the last reader."""
    index = ScheduleIndex.of(problem, schedule)
    kinds = [tensor.kind for tensor in problem.graph.tensors]
    moved = sorted(set(zip(index.transfer_item, index.transfer_device, strict=True)))
    parameters = [(t, d) for t, d in moved if kinds[t] == "parameter"]
    assert parameters, "nothing to evict"
    return index.with_evicted(set(random.sample(parameters, (len(parameters) + 1) // 2))).to_schedule()


def close(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max())


@pytest.fixture(scope="module", params=MODELS)
def case(request):
    """A module, two inputs, and what our artifact for CPUs makes of them."""
    function, shape = MODELS[request.param]
    mod = model(function, shape)
    inputs = [np.random.default_rng(seed).standard_normal(shape).astype("float32") for seed in (7, 8)]
    cpu = compile(mod, "cpu1", "single").module
    return mod, inputs, [cpu.run(x) for x in inputs]


@pytest.mark.parametrize(("seed", "kernels"), CASES)
def test_random_schedules(case, seed, kernels, monkeypatch):
    """Issued and as graphs, cold, warm and with parameters that leave their devices."""
    monkeypatch.setenv("TVM_SCHED_KERNEL_LIBRARIES", kernels)
    mod, inputs, expected = case
    where, random = topology(), Random(seed)
    problem = make_problem(mod, where, backend="cuda")
    schedule = random_schedule(problem, seed)
    if seed % 2:
        schedule = random_streams(problem, schedule, seed)
    for chosen in (schedule, evicting(problem, schedule, random)):
        made = compile(mod, where, schedule=chosen, backend="cuda").module
        for resident in (0.0, 1.0):
            for graph in (False, True):
                made.configure(resident=resident, graph=graph)
                for turn in range(4):
                    close(made.run(inputs[turn % 2]), expected[turn % 2])


@pytest.mark.parametrize("kernels", ["handwritten_cuda,nvidia", pytest.param("", marks=pytest.mark.thorough)])
def test_pipelines(case, kernels, monkeypatch):
    monkeypatch.setenv("TVM_SCHED_KERNEL_LIBRARIES", kernels)
    mod, inputs, expected = case
    made = compile_pipeline(mod, topology(), 3, "equal-split", backend="cuda")
    assert len(made.stages) > 1
    for turn, result in enumerate(made.stream([inputs[turn % 2] for turn in range(6)])):
        close(result.value(), expected[turn % 2])
