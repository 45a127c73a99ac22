"""Slow stages on three nodes: requests are held back, nodes die with and without another to go to."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from small_pipeline import batches

from tvm_sched_cluster import serving
from tvm_sched_runtime.errors import BusyError, ServingError

from .conftest import PATIENCE, assert_equal_to, deployed, deployment, eventually, ready_stage

pytestmark = pytest.mark.xdist_group("ray")
PLACES = 4


@pytest.fixture(scope="module")
def slow(nodes, slow_artifact):
    with deployed(deployment("slow", slow_artifact, max_in_flight=PLACES, max_waiting=1)) as client:
        yield client


@pytest.mark.thorough
def test_a_slow_stage_holds_requests_back(slow):
    (batch,) = batches(1)

    def ask(_):
        try:
            return slow.run(batch)
        except BusyError as error:
            return error

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(ask, range(12)))
    refused = [answer for answer in answers if isinstance(answer, BusyError)]
    said = serving.status("slow")
    assert len(refused) >= 1
    assert all("deployment 'slow' is busy: 4 requests are in it, 1 wait" in str(error) for error in refused)
    assert said["refused"] == len(refused)
    assert said["answered"] == said["stages"][2]["runs"] == 12 - len(refused) >= PLACES + 1


@pytest.mark.thorough
def test_what_is_late_fails_by_name_and_is_not_computed_later(slow):
    before = ready_stage("slow", 2)["runs"]
    results = list(slow.stream(batches(PLACES), timeout=0.1))
    assert all(isinstance(result.error, ServingError) for result in results)
    assert all("deployment 'slow', stage 0 on cpu0 was not done in 0.1 s" in str(result.error) for result in results)
    eventually(lambda: serving.status("slow")["in_flight"] == 0)
    assert slow.run(*batches(1))
    assert ready_stage("slow", 2)["runs"] == before + 1


def test_a_stage_moves_when_its_node_dies(nodes, slow, compiled):
    nodes.add()
    home, inputs = ready_stage("slow", 2)["node"], batches(12)
    stream = slow.stream(inputs)
    results = [next(stream)]
    nodes.kill(home)
    results += stream
    assert_equal_to(compiled, inputs, results)
    eventually(lambda: ready_stage("slow", 2)["node"] != home)


@pytest.mark.thorough
def test_without_another_node_requests_fail_clearly_until_there_is_one(nodes, slow):
    (batch,) = batches(1)
    nodes.kill(ready_stage("slow", 1)["node"])
    eventually(lambda: serving.status("slow")["stages"][1]["state"] != "ready")
    said = r"deployment 'slow', stage 1 on cpu1 .* in 3 s: no node that is free has dev 1"
    with pytest.raises(ServingError, match=said):
        eventually(lambda: not slow.run(batch, timeout=3))
    assert "no node that is free has dev 1" in serving.status("slow")["stages"][1]["cause"]
    nodes.add()
    assert slow.run(batch, timeout=PATIENCE)
