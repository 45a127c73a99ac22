"""Values are those of the CPU, step by step and replayed as a graph, by every way a tensor can take.

On a GPU, or on an emulated one (`tests/cuda_emulator`).
"""

import numpy as np
import pytest

from gpu_models import branches, image, model
from tvm_sched.relax import compile, compile_pipeline
from tvm_sched.relax.api import make_problem
from tvm_sched.relax.codegen.cuda import find_nvcc
from tvm_sched.relax.lower.kernel_libraries import get_library
from tvm_sched_bench.testing import random_schedule
from tvm_sched_runtime.problem import load_topology

pytestmark = pytest.mark.gpu

MODELS = {"branches": (branches, (32, 64)), "image": (image, (1, 3, 16, 16))}


@pytest.fixture(autouse=True)
def compiles_here(gpu, monkeypatch):
    find_nvcc()
    monkeypatch.setenv("TVM_SCHED_CUDA_ARCHS", gpu)


@pytest.fixture(params=["", "nvidia"])
def libraries(request, monkeypatch):
    if request.param and (reason := get_library("nvidia").why_not()):
        pytest.skip(reason)
    monkeypatch.setenv("TVM_SCHED_KERNEL_LIBRARIES", request.param)


def reference(mod, *inputs):
    return compile(mod, "cpu1", "single").module.run(*inputs)


def close(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3 * np.abs(b).max())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("libraries")
def test_four_devices_on_one_gpu(name):
    function, shape = MODELS[name]
    mod = model(function, shape)
    x = np.random.default_rng(7).standard_normal(shape).astype("float32")
    expected = reference(mod, x)
    made = compile(mod, "v100-server", "anytime", {"time_limit": 1}, backend="cuda")
    made.module.configure(devices=[0, 0, 0, 0])
    for turn in range(3):
        made.module.configure(graph=turn > 0)
        close(made.module.run(x), expected)
    close(made.module.run(2 * x), reference(mod, 2 * x))  # a graph reads the new inputs


def test_a_warm_graph_moves_nothing_and_is_right():
    mod = model(branches, (32, 64))
    x = np.ones((32, 64), "float32")
    made = compile(mod, "v100-server", "single", backend="cuda")
    made.module.configure(devices=[0, 0, 0, 0], resident=1.0, graph=True)
    for _ in range(5):
        close(made.module.run(x), reference(mod, x))


@pytest.mark.usefixtures("libraries")
def test_every_way_that_a_tensor_can_take():
    """Random schedules: loads, peer copies, loads through a neighbour, parameters read in host memory."""
    mod = model(branches, (32, 64))
    x = np.random.default_rng(8).standard_normal((32, 64)).astype("float32")
    expected = reference(mod, x)
    problem = make_problem(mod, load_topology("v100-server"), backend="cuda")
    direct = 0
    for seed in range(6):
        schedule = random_schedule(problem, seed)
        made = compile(mod, "v100-server", schedule=schedule, backend="cuda")
        made.module.configure(devices=[0, 0, 0, 0], graph=True)
        for _ in range(3):
            close(made.module.run(x), expected)
        direct += any(step["kind"] == "host_read" for step in made.module.plans()[0]["steps"])
    assert direct, "no schedule reads parameters where they lie"


def test_times_of_steps_follow_the_plan():
    mod = model(branches, (32, 64))
    made = compile(mod, "v100-server", "single", backend="cuda")
    made.module.configure(devices=[0, 0, 0, 0], trace=True)
    made.module.run(np.ones((32, 64), "float32"))
    timeline = made.module.timeline()
    ends = {event["step"]: event["end_ns"] for event in timeline["events"]}
    steps = made.module.plans()[0]["steps"]
    for event in timeline["events"]:
        assert event["end_ns"] >= event["start_ns"]
        # Events tick every half microsecond.
        assert all(event["start_ns"] >= ends[w] - 2000 for w in steps[event["step"]]["waits"])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("libraries")
def test_a_pipeline_of_stages_on_one_gpu(name):
    function, shape = MODELS[name]
    mod = model(function, shape)
    batches = [np.random.default_rng(seed).standard_normal(shape).astype("float32") for seed in range(6)]
    gpus = {f"gpu{d}": 0 for d in range(1, 5)}
    made = compile_pipeline(mod, "v100-server", 3, "equal-split", backend="cuda", gpus=gpus)
    assert len(made.stages) > 1
    for batch, result in zip(batches, made.stream(batches), strict=True):
        close(result.value(), reference(mod, batch))
