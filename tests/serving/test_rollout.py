"""Another artifact under load, a stage that is stopped, and clients that follow a deployment that is made anew."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from msgspec.structs import replace
from small_pipeline import SIZE, batches

from tvm_sched_cluster import serving
from tvm_sched_cluster.serving import deployment_lifecycle
from tvm_sched_runtime.errors import InputError, ServingError
from tvm_sched_runtime.pipeline.pipeline_artifact import MANIFEST

from .conftest import PATIENCE, assert_equal_to, deployed, deployment, eventually, ready_stage

pytestmark = pytest.mark.xdist_group("ray")


@pytest.fixture(scope="module")
def other_compiled():
    """The model with other weights."""
    pytest.importorskip("tvm", exc_type=ImportError)
    from small_pipeline import layers_model

    from tvm_sched.relax import compile_pipeline

    return compile_pipeline(layers_model(seed=7), "cpu3", 3, "equal-split")


def halves(name, artifact, **options):
    """A deployment that leaves room for another generation: each stage takes half a device."""
    return replace(deployment(name, artifact, **options), stages=(serving.StagePlacement({"dev": 0.5}),) * 3)


@pytest.fixture(scope="module")
def rolled(nodes, artifact):
    nodes.at_least(3)
    with deployed(halves("rolled", artifact, hang_timeout=5.0)) as client:
        yield client


class Load:
    """Clients that ask without a pause, until they are told to end."""

    def __init__(self, client, expected):
        self.client, self.expected = client, expected
        self.ends, self.seen, self.wrong = threading.Event(), set(), []
        self.threads = [threading.Thread(target=self._ask) for _ in range(3)]
        for thread in self.threads:
            thread.start()

    def _ask(self):
        (batch,) = batches(1)
        while not self.ends.is_set():
            try:
                values = self.client.run(batch)
            except Exception as error:
                self.wrong.append(repr(error))
                return
            same = [k for k, each in enumerate(self.expected) if all(map(np.array_equal, each, values))]
            self.seen.update(same)
            if not same:
                self.wrong.append(values)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ends.set()
        for thread in self.threads:
            thread.join()


def broken_copy(artifact, folder, change):
    """A copy of the artifact whose manifest has other outputs."""
    shutil.copytree(artifact, folder)
    manifest = json.loads((folder / MANIFEST).read_text())
    for key in ("outputs", "output_names"):
        manifest[key] = change(manifest[key])
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder


def test_a_rollout_under_load_loses_nothing_and_a_broken_one_changes_nothing(
    rolled, compiled, other_compiled, artifact, tmp_path
):
    expected = [each.run(batches(1))[0].value() for each in (compiled, other_compiled)]
    other = other_compiled.export(tmp_path / "other.pipeline")
    fewer = broken_copy(artifact, tmp_path / "fewer.pipeline", lambda tensors: tensors[:1])
    swapped = broken_copy(artifact, tmp_path / "swapped.pipeline", lambda tensors: tensors[::-1])
    with Load(rolled, expected) as load:
        with pytest.raises(InputError, match=r"its outputs are y float32 \[2, 8\]; deployment 'rolled' has y .*, p "):
            serving.rollout("rolled", fewer)
        with pytest.raises(InputError, match=r"its outputs are p .*, y .*; deployment 'rolled' has y .*, p "):
            serving.rollout("rolled", swapped)
        assert serving.status("rolled")["generation"] == 1
        said = serving.rollout("rolled", other, seconds=PATIENCE)
        assert (said["generation"], said["artifact"]) == (2, str(other))
        eventually(lambda: 1 in load.seen)
    assert load.wrong == []
    assert load.seen == {0, 1}
    assert_equal_to(other_compiled, batches(4), list(rolled.stream(batches(4))))
    eventually(lambda: [part for part in deployment_lifecycle.parts("rolled") if "@" not in part] == ["rolled/ingress"])


@pytest.mark.thorough
def test_a_new_ingress_serves_what_was_rolled_out(rolled, other_compiled):
    import ray

    ray.kill(ray.get_actor("rolled/ingress", "tvm_sched"), no_restart=False)
    assert_equal_to(other_compiled, batches(3), list(rolled.stream(batches(3))))
    assert serving.status("rolled")["generation"] == 2


@pytest.mark.thorough
def test_stages_of_a_rollout_that_ended_with_the_ingress_end_too(rolled, other_compiled, artifact, nodes):
    """The command starts the stages of another generation, and is killed before it hands them over; so is the ingress."""
    import ray

    program = f"""
import time
from tvm_sched_cluster.serving import deployment_lifecycle as lifecycle
from tvm_sched_cluster.serving.client import find_ingress
lifecycle.connect({nodes.address!r})
served = find_ingress("rolled")[0]
new = lifecycle._generation(served.deployment, served.token, served.number + 1)
lifecycle._start_stages(new, {PATIENCE}, lambda *_: None)
print(new.number, flush=True)
time.sleep({PATIENCE})
"""
    command = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    new = command.stdout.readline().strip()
    abandoned = {part for part in deployment_lifecycle.parts("rolled") if part.endswith(f"@{new}")}
    command.kill()
    command.communicate()
    assert len(abandoned) == 4
    ray.kill(ray.get_actor("rolled/ingress", "tvm_sched"), no_restart=False)
    eventually(lambda: not abandoned.intersection(deployment_lifecycle.parts("rolled")))
    assert_equal_to(other_compiled, batches(2), list(rolled.stream(batches(2))))


@pytest.mark.thorough
def test_a_stopped_stage_is_ended_and_started_again(rolled, other_compiled):
    victim = ready_stage("rolled", 1)["process"]
    os.kill(victim, signal.SIGSTOP)
    assert_equal_to(other_compiled, batches(4), list(rolled.stream(batches(4))))
    found = ready_stage("rolled", 1)
    assert found["process"] != victim
    assert found["hangs"] >= 1  # on a busy machine the new process may be silent for five seconds, too


@pytest.mark.thorough
def test_a_rollout_without_room_leaves_the_old_one(rolled, other_compiled, artifact, nodes):
    with (
        deployed(halves("neighbour", artifact)),
        pytest.raises(ServingError, match="the old artifact is still served"),
    ):
        serving.rollout("rolled", artifact, seconds=1.0)
    assert_equal_to(other_compiled, batches(2), list(rolled.stream(batches(2))))


@pytest.mark.thorough
def test_clients_follow_a_deployment_that_is_made_anew(rolled, compiled, artifact):
    assert rolled.run(np.zeros((2, SIZE), np.float32))
    serving.undeploy("rolled")
    serving.deploy(halves("rolled", artifact), seconds=PATIENCE)
    assert_equal_to(compiled, batches(4), list(rolled.stream(batches(4))))
