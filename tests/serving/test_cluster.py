"""A pipeline on three nodes: values, wrong inputs, processes that die, and nothing left behind."""

import os
import shutil
import signal

import numpy as np
import pytest
from small_pipeline import batches

from tvm_sched_cluster import serving
from tvm_sched_runtime.errors import InputError, ServingError

from .conftest import asked_over_http, assert_equal_to, deployed, deployment, eventually, gateway, ready_stage

pytestmark = pytest.mark.xdist_group("ray")


@pytest.fixture(scope="module")
def layers(nodes, artifact, tmp_path_factory):
    """Deployed from a copy that is gone afterwards: nodes that start a stage again have what they need."""
    copy = shutil.copytree(artifact, tmp_path_factory.mktemp("gone") / "layers.pipeline")
    with deployed(deployment("layers", copy)) as client:
        shutil.rmtree(copy)
        yield client


def test_values_equal_those_of_one_process(layers, compiled):
    inputs = batches(30)
    results = list(layers.stream(inputs))
    assert [result.batch for result in results] == list(range(30))
    assert_equal_to(compiled, inputs, results)
    said = serving.status("layers")
    assert len({found["node"] for found in said["stages"]}) == 3
    assert [found["runs"] for found in said["stages"]] == [30] * 3
    assert (said["answered"], said["failed"], said["in_flight"]) == (30, 0, 0)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([np.zeros((2, 7), "float32")], r"input 'x' is float32 \[2, 7\]; float32 \[2, 8\] is expected"),
        ([np.zeros((2, 8))], r"is float64"),
        ([], "has the inputs x; found none"),
        ([np.zeros(1)] * 2, "2 inputs are given"),
    ],
)
def test_wrong_inputs_are_told_and_go_no_further(layers, inputs, message):
    before = serving.status("layers")["stages"][0]["runs"]
    with pytest.raises(InputError, match=message):
        layers.run(*inputs)
    assert serving.status("layers")["stages"][0]["runs"] == before


@pytest.mark.thorough
def test_a_name_is_given_once_and_the_deployment_stays(layers, artifact):
    with pytest.raises(InputError, match="there is a deployment 'layers' already"):
        serving.deploy(deployment("layers", artifact))
    assert layers.run(x=batches(1)[0])


@pytest.mark.thorough
def test_a_killed_actor_starts_again_and_no_request_is_lost(layers, compiled):
    victim, inputs = ready_stage("layers", 1)["process"], batches(40)
    stream = layers.stream(inputs)
    results = [next(stream) for _ in range(5)]
    os.kill(victim, signal.SIGKILL)
    results += stream
    assert_equal_to(compiled, inputs, results)
    found = ready_stage("layers", 1)
    assert found["restarted"]
    assert found["process"] != victim


def test_a_killed_ingress_starts_again_and_clients_repeat_what_it_had(layers, compiled):
    import ray

    inputs = batches(20)
    stream = layers.stream(inputs)
    results = [next(stream)]
    ray.kill(ray.get_actor("layers/ingress", "tvm_sched"), no_restart=False)
    results += stream
    assert_equal_to(compiled, inputs, results)


@pytest.mark.thorough
def test_a_gateway_asks_for_a_token_and_survives_a_stage_and_the_ingress(layers, compiled, nodes, tmp_path):
    import ray

    http = pytest.importorskip("tritonclient.utils")
    (tmp_path / "tokens").write_text("secret-of-clients\n")
    (batch,) = batches(1)
    expected = compiled.run([batch])[0].value()
    arguments = ("layers", "--address", nodes.address, "--token-file", tmp_path / "tokens")
    with gateway(*arguments) as (address, _, _):
        with pytest.raises(http.InferenceServerException, match="a bearer token is needed"):
            asked_over_http(address, batch)
        bearer = {"headers": {"Authorization": "Bearer secret-of-clients"}}
        for found, value in zip(asked_over_http(address, batch, **bearer), expected, strict=True):
            np.testing.assert_array_equal(found, value)
        assert serving.status("layers")["gateways"] == 1
        ray.kill(ray.get_actor("layers/ingress", "tvm_sched"), no_restart=False)
        os.kill(ready_stage("layers", 1)["process"], signal.SIGKILL)
        for found, value in zip(asked_over_http(address, batch, **bearer), expected, strict=True):
            np.testing.assert_array_equal(found, value)


def test_undeploying_leaves_nothing(layers):
    import ray

    processes = [ready_stage("layers", s)["process"] for s in range(3)]
    assert serving.undeploy("layers") == [
        "layers/ingress",
        "layers/stage0",
        "layers/stage1",
        "layers/stage2",
        "layers/store",
    ]
    assert serving.deployments() == []
    eventually(lambda: ray.available_resources().get("dev") == 3)
    eventually(lambda: not any(os.path.exists(f"/proc/{process}") for process in processes))
    for gone in (serving.undeploy, serving.status, serving.Client):
        with pytest.raises(InputError, match="there is no deployment 'layers'; there are none"):
            gone("layers")
    with pytest.raises(ServingError, match="deployment 'layers' is gone"):
        layers.run(batches(1)[0], timeout=0.5)
