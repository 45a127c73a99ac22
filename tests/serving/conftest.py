"""One Ray cluster of several nodes, each a process of this machine, for all tests of this folder."""

import contextlib
import json
import os
import time

import numpy as np
import pytest
from small_pipeline import compile_layers

from tvm_sched.pipeline.artifact import MANIFEST

PATIENCE = 90.0
"""Seconds that anything may take on a machine that others keep busy."""
STORE = 80 << 20
HEALTH = {  # a node that is killed refuses connections, so it is found dead after three periods; one that is slow is not
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 3,
}


class Nodes:
    """The cluster: a head without devices, and nodes with one ``dev`` each."""

    def __init__(self, count):
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 1, "include_dashboard": False, "object_store_memory": STORE, "_system_config": HEALTH,
            },
        )  # fmt: skip
        self.nodes = []
        for _ in range(count):
            self.add()

    @property
    def address(self):
        return self.cluster.address

    def add(self):
        self.nodes.append(self.cluster.add_node(num_cpus=1, resources={"dev": 1}, object_store_memory=STORE))

    def kill(self, node_id):
        """End a node with all its processes, as a power failure does."""
        (node,) = [node for node in self.nodes if node.node_id == node_id]
        self.nodes.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)

    def at_least(self, count):
        while len(self.nodes) < count:
            self.add()


@pytest.fixture(scope="session")
def nodes():
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'tvm-sched[cluster]'")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    from tvm_sched.serving import connect

    made = Nodes(3)
    try:
        connect(made.address)
        yield made
    finally:
        with contextlib.suppress(Exception):
            ray.shutdown()
        made.cluster.shutdown()


@pytest.fixture(scope="session")
def compiled():
    return compile_layers()


@pytest.fixture(scope="session")
def artifact(compiled, tmp_path_factory):
    return compiled.export(tmp_path_factory.mktemp("serving") / "layers.pipeline")


@pytest.fixture(scope="session")
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
    from tvm_sched.serving import Deployment, StagePlacement

    options = {"timeout": PATIENCE, "strategy": "SPREAD", **options}
    return Deployment(name, str(artifact), (StagePlacement({"dev": 1}),) * 3, **options)


@contextlib.contextmanager
def deployed(what):
    """A client of a deployment that is taken away afterwards, unless it has been."""
    from tvm_sched.serving import Client, deploy, deployments, undeploy

    deploy(what, seconds=PATIENCE)
    try:
        yield Client(what.name)
    finally:
        if what.name in deployments():
            undeploy(what.name)


def ready_stage(name, s):
    """A stage's status, once it answers."""
    from tvm_sched.serving import status

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
