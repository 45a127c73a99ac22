"""The commands on deployments; and the ways in which deploying fails."""

import json
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from small_pipeline import batches
from typer.testing import CliRunner

from tvm_sched.cli import app
from tvm_sched_cluster import serving
from tvm_sched_cluster.serving import load_deployment
from tvm_sched_runtime.errors import InputError, ServingError
from tvm_sched_runtime.pipeline.pipeline_artifact import MANIFEST

from .conftest import PATIENCE, deployment, eventually

pytestmark = pytest.mark.xdist_group("ray")
PROGRAM = [sys.executable, "-m", "tvm_sched.cli"]
TEXT = """
format = "tvm_sched.deployment"
version = 1
name = "layers"
artifact = "{}"
stages = [{{ resources = {{ dev = 1 }} }}, {{ resources = {{ dev = 1 }} }}, {{ resources = {{ dev = 1 }} }}]
"""


def call(*arguments):
    """A command in this process, which is joined to the cluster already."""
    return CliRunner().invoke(app, [*map(str, arguments)], prog_name="tvm-sched")


def call_apart(*arguments):
    """A command as a process of its own, which joins the cluster and leaves it."""
    command = [*PROGRAM, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)


def works(*arguments):
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture
def three_nodes(nodes):
    nodes.at_least(3)  # other tests may have ended some
    return nodes


@pytest.fixture
def plan(tmp_path, artifact):
    (tmp_path / "layers.toml").write_text(TEXT.format(artifact))
    return tmp_path / "layers.toml"


def test_serve_request_interrupt_status_undeploy(three_nodes, plan, compiled, tmp_path):
    at = ("--address", three_nodes.address)
    served = call_apart("deploy", plan, *at, "--timeout", PATIENCE, "--json")  # what it made stays when it has ended
    assert served.returncode == 0, served.stderr
    assert json.loads(served.stdout)["stages"][2]["state"] == "ready"

    (batch,) = batches(1)
    np.save(tmp_path / "x.npy", batch)
    said = works("request", "layers", "--input", f"x={tmp_path / 'x.npy'}", "-o", tmp_path / "out", "--repeat", 3, *at)
    assert (said["requests"], said["failed"]) == (3, 0)
    for n, value in enumerate(compiled.run([batch])[0].value()):
        np.testing.assert_array_equal(np.load(tmp_path / "out" / f"output_{n}.npy"), value)

    # All devices are taken: a second deployment waits for its place, and Ctrl-C leaves nothing of it.
    second = [*PROGRAM, "deploy", plan, *at, "--name", "second", "--timeout", PATIENCE]
    process = subprocess.Popen(list(map(str, second)), stderr=subprocess.PIPE, text=True)
    eventually(lambda: "second" in groups())
    process.send_signal(signal.SIGINT)
    assert "interrupted" in process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 130
    eventually(lambda: "second" not in groups())

    (found,) = works("status", *at)["deployments"]
    assert (found["name"], found["answered"]) == ("layers", 3)
    assert len(works("undeploy", "layers", *at)["actors"]) == 5
    again = call("undeploy", "layers", *at)
    assert again.exit_code == 2
    assert "there is no deployment 'layers'; there are none" in again.stderr


def groups():
    """Names of deployments that have a placement group, placed or not."""
    from ray.util.placement_group import placement_group_table

    found = placement_group_table().values()
    return {group["name"].removeprefix("tvm_sched/") for group in found if group["state"] != "REMOVED"}


@pytest.mark.parametrize("call", ["placement_group", "place"])
def test_ctrl_c_as_a_reservation_is_made_leaves_none(three_nodes, artifact, monkeypatch, call):
    """The signal arrives while Ray, or our own function, hands the group over: nothing is assigned yet."""
    import ray

    from tvm_sched_cluster.serving import stage_nodes

    made = getattr(stage_nodes, call)

    def interrupted(*arguments, **options):
        made(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(stage_nodes, call, interrupted)
    with pytest.raises(KeyboardInterrupt):
        serving.deploy(deployment("cut", artifact), seconds=PATIENCE)
    eventually(lambda: "cut" not in groups())
    eventually(lambda: ray.available_resources().get("dev") == 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["deploy", "none.toml"], "none.toml: cannot be read"),
        (["deploy", "plan.toml", "--address", "127.0.0.1:1"], "no server listens at 127.0.0.1:1"),
        (["status", "--address", "nowhere"], "is not one of a Ray cluster"),
        (["deploy", "plan.toml", "--timeout", "0"], "--timeout 0.0"),
        (["request", "layers", "--repeat", "0"], "--repeat 0"),
    ],
)
def test_wrong_input_ends_with_status_2(plan, tmp_path, arguments, message):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'tvm-sched[cluster]'")
    arguments = [str(plan) if word == "plan.toml" else word for word in arguments]
    run = call_apart if "--address" in arguments else call  # here an address is not looked at again
    result = run(*arguments)
    assert (result.returncode if run is call_apart else result.exit_code) == 2, result.stderr
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


def test_more_than_the_cluster_has_is_refused(three_nodes, artifact):
    from tvm_sched_cluster.serving import Deployment, StagePlacement

    wanted = (StagePlacement({"dev": 1, "h100": 2}), StagePlacement({"dev": 1}), StagePlacement({"h100": 1}))
    with pytest.raises(InputError, match="the stages need h100 3; the cluster has h100 0"):
        serving.deploy(Deployment("big", str(artifact), wanted))
    with pytest.raises(ServingError, match="no place for its stages with strategy STRICT_PACK"):
        serving.deploy(deployment("packed", artifact, strategy="STRICT_PACK"), seconds=2)
    assert not groups() & {"big", "packed"}


@pytest.mark.thorough
def test_a_damaged_artifact_is_told_and_nothing_is_begun(three_nodes, artifact, tmp_path):
    copy = shutil.copytree(artifact, tmp_path / "damaged.pipeline")
    (copy / "stage1.so").unlink()
    with pytest.raises(InputError, match=r"stage1\.so: is missing"):
        serving.deploy(deployment("damaged", load_deployment(copy).artifact), seconds=PATIENCE)
    assert "damaged" not in serving.deployments()
    assert "damaged" not in groups()


@pytest.mark.thorough
def test_a_stage_that_does_not_load_is_told_and_nothing_stays(three_nodes, artifact, tmp_path):
    copy = shutil.copytree(artifact, tmp_path / "odd.pipeline")
    manifest = json.loads((copy / MANIFEST).read_text())
    manifest["stages"][1]["library"] = "stage2.so"
    (copy / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ServingError, match=r"'odd', stage 1 did not start: .*stage2\.so: other tensors than"):
        serving.deploy(deployment("odd", copy), seconds=PATIENCE)
    assert "odd" not in serving.deployments()
    eventually(lambda: "odd" not in groups())
