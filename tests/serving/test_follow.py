"""What a cluster's allocator has placed, on Ray's nodes; and after a failure, where it is then."""

import json

import msgspec
import numpy as np
import onnx
import pytest
from small_pipeline import batches, layers_model
from typer.testing import CliRunner

from tvm_sched.cli import app
from tvm_sched_cluster import Allocation, Cluster, GpuKind, Rack, Server, Switch, serving, write_cluster
from tvm_sched_cluster.serving import Deployment, StagePlacement
from tvm_sched_runtime.errors import InputError

from .conftest import PATIENCE, deployment

pytestmark = pytest.mark.xdist_group("ray")
KINDS = ("slow", "fast", "slow", "fast")
SERVERS = [f"rack{i}-server0" for i in range(len(KINDS))]


def four_racks():
    """A GPU each, slow and fast in turn, that hold one of the model's two parts but not both."""
    kinds = tuple(GpuKind(name, flops, 900, 1e9) for name, flops in (("slow", 1e9), ("fast", 2e9)))
    racks = tuple(
        Rack(f"rack{i}", "switch", (Server(server, kind, 1),), 1e9)
        for i, (server, kind) in enumerate(zip(SERVERS, KINDS, strict=True))
    )
    return Cluster("four", kinds, (Switch("switch"),), racks, ())


def run(*arguments):
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    # This process stays connected to Ray, which reports nodes that earlier tests ended on whatever is standard output.
    _, brace, document = f"\n{result.stdout}".partition("\n{\n")
    assert brace, (result.stdout[:300], result.stderr[:300])
    return json.loads(f"{{{document}")


@pytest.fixture
def servers(nodes):
    """ID of the Ray node that stands for each of the cluster's servers."""
    ids = {server: nodes.add_other({kind: 1}, {"server": server}) for server, kind in zip(SERVERS, KINDS, strict=True)}
    yield ids
    for node in ids.values():
        nodes.kill(node)


def model_files(folder):
    """Files of the cluster, and of the model as a service with two parts"""
    model, cluster, services = folder / "layers.onnx", folder / "four.toml", folder / "services.toml"
    onnx.save(layers_model(), model)
    write_cluster(cluster, four_racks())
    limits = ("--throughput-floor", 1, "--latency-ceiling", 10, "--backend", "cpu")
    assert len(run("cluster", "service", model, *limits, "-o", services)["operators"]) == 2
    return cluster, services


@pytest.mark.thorough
def test_deployments_follow_the_allocation(servers, nodes, compiled, tmp_path):
    (cluster, services), allocation = model_files(tmp_path), tmp_path / "allocation.json"
    of = ("--services", services)
    run("cluster", "place", cluster, *of, "--service", "layers", "-o", allocation)

    def follow():
        options = ("--artifacts", tmp_path / "built", "--backend", "cpu", "--pin", "--timeout", PATIENCE)
        said = run("cluster", "deploy", cluster, allocation, *of, *options)
        assert not said["failed"]
        return said["kept"], said["started"], said["ended"]

    def assert_runs_where_it_is_placed():
        (placement,) = Allocation.load(allocation).placements
        gpus = [gpu.removesuffix("-gpu0") for gpu in placement.gpus]
        stages = serving.status("r0")["stages"]
        assert [stage["node"] for stage in stages] == [servers[server] for server in gpus]
        assert [stage["resources"] for stage in stages] == [{KINDS[SERVERS.index(server)]: 1} for server in gpus]
        (batch,) = batches(1)
        for a, b in zip(compiled.run([batch])[0].value(), serving.Client("r0").run(batch), strict=True):
            np.testing.assert_array_equal(a, b)
        return gpus

    assert follow() == ([], ["r0"], [])
    first = assert_runs_where_it_is_placed()
    assert len(first) == 2
    assert follow() == (["r0"], [], [])

    nodes.kill(servers[first[0]])
    said = run("cluster", "fail", cluster, allocation, first[0], *of, "-o", allocation)
    assert [placement["request"] for placement in said["replaced"]] == ["r0"]
    assert follow() == ([], ["r0"], ["r0"])
    assert first[0] not in assert_runs_where_it_is_placed()

    run("cluster", "release", cluster, allocation, "r0", *of, "-o", allocation)
    assert follow() == ([], [], ["r0"])
    assert serving.deployments() == []


@pytest.mark.thorough
def test_others_are_tried_when_one_cannot_start_and_strangers_are_left_alone(nodes, artifact):
    nodes.at_least(3)
    impossible = Deployment("a", str(artifact), (StagePlacement({"h100": 1}),) * 3, cluster="four")
    mine = deployment("b", artifact, cluster="four")
    done = serving.follow(four_racks(), [impossible, mine], seconds=PATIENCE)
    assert done.started == ("b",)
    assert "the stages need h100 3; the cluster has h100 0" in done.failed["a"]

    other = msgspec.structs.replace(four_racks(), name="other")
    assert serving.follow(other, []).ended == ()
    with pytest.raises(InputError, match="a deployment 'b' that is not of cluster 'other'; undeploy it first"):
        serving.follow(other, [msgspec.structs.replace(mine, cluster="other")])
    assert serving.Client("b").run(*batches(1))
    assert serving.follow(four_racks(), []).ended == ("b",)


@pytest.mark.thorough
def test_a_controller_deploys_and_moves_what_is_drained(servers, nodes, compiled, tmp_path):
    """The second place serves before the first one ends, under a name of its own; a withdrawn service ends."""
    (cluster, services), store = model_files(tmp_path), tmp_path / "state.db"
    control = ("cluster", "controller", cluster, "--services", services, "--store", store, "--once", "--pin")

    def reconcile():
        said = run(*control, "--artifacts", tmp_path / "built", "--backend", "cpu")
        return [(each["what"], each["name"]) for each in said["actions"]], said["placed"]

    reconcile()
    run("cluster", "submit", store, "layers", "--name", "chat")
    done, (first,) = reconcile()
    assert done == [("start", "chat")]
    assert serving.deployments() == ["chat.1"]
    used = first["placement"]["stages"][0]["gpu"].removesuffix("-gpu0")
    run("cluster", "drain", store, used)
    done, (second,) = reconcile()
    assert done == [("move", "chat")]
    assert serving.deployments() == ["chat.2"]
    assert used not in {stage["gpu"].removesuffix("-gpu0") for stage in second["placement"]["stages"]}
    log = run("cluster", "events", store)["events"]
    assert [each["detail"] for each in log if each["what"] in ("serves", "ended")] == ["chat.1", "chat.2", "chat.1"]
    (batch,) = batches(1)
    assert len(serving.Client("chat.2").run(batch))
    run("cluster", "withdraw", store, "chat")
    assert reconcile()[0] == [("end", "chat")]
    assert serving.deployments() == []
