"""One Ray cluster of several nodes, each a process of this machine, for all tests of this folder."""

import contextlib
import json
import subprocess
import sys
import time

import numpy as np
import pytest
from small_pipeline import compile_layers

from tvm_sched_runtime.pipeline.pipeline_artifact import MANIFEST

PATIENCE = 90.0
"""Seconds that anything may take on a machine that others keep busy."""


@pytest.fixture(scope="package", autouse=True)
def cache(tmp_path_factory):
    """Where nodes keep artifacts, instead of the user's own folder."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TVM_SCHED_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="package")
def nodes(cache):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'tvm-sched[cluster]'")
    from tvm_sched_cluster.serving import connect
    from tvm_sched_cluster.serving.local_cluster import LocalCluster

    with LocalCluster(3, {"dev": 1}) as cluster:
        connect(cluster.address)
        yield cluster


@pytest.fixture(scope="package")
def compiled():
    return compile_layers()


@pytest.fixture(scope="package")
def artifact(compiled, tmp_path_factory):
    return compiled.export(tmp_path_factory.mktemp("serving") / "layers.pipeline")


@pytest.fixture(scope="package")
def slow_artifact(tmp_path_factory):
    """Emulated: each stage takes 0.3 seconds at least, and computes."""
    made = compile_layers(backend="emulated")
    folder = made.export(tmp_path_factory.mktemp("serving") / "slow.pipeline")
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["emulation"]["scale"] = 0.3e9 / min(stage.work_ns for stage in made.plan.stages)
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder


def deployment(name, artifact, **options):
    """Three stages that take a device each."""
    from tvm_sched_cluster.serving import Deployment, StagePlacement

    options = {"timeout": PATIENCE, "strategy": "SPREAD", **options}
    return Deployment(name, str(artifact), (StagePlacement({"dev": 1}),) * 3, **options)


@contextlib.contextmanager
def deployed(what):
    """A client of a deployment that is taken away afterwards, unless it has been."""
    from tvm_sched_cluster.serving import Client, deploy, deployments, undeploy

    deploy(what, seconds=PATIENCE)
    try:
        yield Client(what.name)
    finally:
        if what.name in deployments():
            undeploy(what.name)


@contextlib.contextmanager
def gateway(*arguments):
    """A gateway's process; yields its addresses for HTTP and gRPC, and the process."""
    command = [
        sys.executable, "-m", "tvm_sched.cli", "gateway", *map(str, arguments), "--port", "0", "--grpc-port", "0",
    ]  # fmt: skip
    process = subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        told = json.loads(line)
        yield told["http"].partition("//")[2], told["grpc"], process
        process.terminate()
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.communicate()


def asked_over_http(address, batch, name="layers", **options):
    """The outputs of a pipeline that tritonclient gets."""
    http = pytest.importorskip("tritonclient.http")
    with http.InferenceServerClient(address) as client:
        given = http.InferInput("x", batch.shape, "FP32").set_data_from_numpy(batch)
        answer = client.infer(name, [given], **options)
        return [answer.as_numpy(output["name"]) for output in answer.get_response()["outputs"]]


def ready_stage(name, s):
    """A stage's status, once it answers."""
    from tvm_sched_cluster.serving import status

    return eventually(lambda: (said := status(name)["stages"][s])["state"] == "ready" and said)


def assert_equal_to(model, inputs, results):
    """Whether results are those of a pipeline in this process, bit by bit."""
    for expected, result in zip(model.run(inputs), results, strict=True):
        for a, b in zip(expected.value(), result.value(), strict=True):
            np.testing.assert_array_equal(a, b)


def eventually(holds, seconds=PATIENCE):
    """Wait until something holds; of a cluster's processes nobody says when they are done."""
    end = time.monotonic() + seconds
    while not (value := holds()):
        assert time.monotonic() < end, "it never did"
        time.sleep(0.05)
    return value
