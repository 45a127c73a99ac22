"""Compiled pipelines against the model on one device."""

import numpy as np
import pytest

from tvm_sched.relax import compile, compile_pipeline
from tvm_sched_bench.testing.models import onnx_model
from tvm_sched_runtime.pipeline import PipelinePlan

pytest.importorskip("onnx")
FAST = {"evaluations": 100}


@pytest.fixture(scope="module")
def model():
    return onnx_model("squeezenet")


@pytest.fixture(scope="module")
def images():
    random = np.random.default_rng(0)
    return [random.random((1, 3, 224, 224), dtype=np.float32) for _ in range(3)]


@pytest.fixture(scope="module")
def right(model, images):
    """What one device computes."""
    whole = compile(model, "cpu1", "single")
    return [np.asarray(whole.run(image)) for image in images]


@pytest.mark.parametrize(("topology", "stages"), [("cpu2", 2), ("v100-server", 3)])
@pytest.mark.sampled(6)
def test_values_equal_the_model_on_one_device(model, images, right, topology, stages):
    """Up to rounding: emulated GPUs have kernels of their own, and of oneDNN's others may be fastest on fewer cores."""
    pipeline = compile_pipeline(model, topology, stages, "slicegraph", FAST)
    assert len(pipeline.plan.stages) == stages
    results = pipeline.run(images)
    for expected, result in zip(right, results, strict=True):
        (value,) = result.value()
        expected = expected.reshape(value.shape)
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5 * expected.max())


def test_a_wrong_shape_fails_its_batch_alone(model, images):
    pipeline = compile_pipeline(model, "cpu2", 2, "equal-split")
    results = pipeline.run([images[0], images[0][:, :, :7], images[1]])
    assert [result.error is None for result in results] == [True, False, True]
    assert "batch 1, stage 0 on cpu0" in str(results[1].error)


def test_a_saved_plan_is_taken(model):
    plan = compile_pipeline(model, "cpu2", 2, "equal-split").plan
    again = compile_pipeline(model, "cpu2", plan=PipelinePlan.from_json(plan.to_json()))
    assert again.plan == plan


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("parameters", "apart"), [("embed", False), ("external", True)])
def test_parameters_go_where_they_are_asked_for(model, images, parameters, apart):
    ready = compile_pipeline(model, "cpu2", 2, parameters=parameters)
    assert any(stage.parameters for stage in ready.compiled) is apart
