"""The commands ``cluster``."""

import subprocess
import sys

import pytest

from onnx_text import onnx_model
from tvm_sched_cluster import Allocation, load_cluster, load_services, verify


def test_place_fail_release_and_defragment(run, tmp_path):
    file = tmp_path / "a.json"
    said = run("cluster", "place", "rampa-base", "--demand", "same", "--count", "40", "-o", file, "--json").json
    assert said["placed"] == said["running"] == 40
    verify(load_cluster("rampa-base"), load_services(), Allocation.load(file))
    gpu = said["placements"][0]["stages"][0]["gpu"]
    said = run("cluster", "fail", "rampa-base", file, gpu, "-o", file, "--json").json
    assert [p["request"] for p in said["replaced"]] == ["r0"]
    assert said["failed"] == [gpu]
    said = run("cluster", "release", "rampa-base", file, "r1", "r2", "-o", file, "--json").json
    assert said["running"] == 38
    said = run("cluster", "defragment", "rampa-base", file, "--moves", "2", "-o", file, "--json").json
    assert len(said["moves"]) <= 2
    assert run("cluster", "verify", "rampa-base", file, "--json").json["right"]
    said = run("cluster", "place", "rampa-base", "--service", "service3", "--running", file, "--json").json
    assert said["running"] == 39


def test_changes_stand_in_the_file_itself_unless_another_is_named(run, fails, tmp_path):
    file, other = tmp_path / "a.json", tmp_path / "b.json"
    asked = ("--service", "service3=chat", "--service", "service3")
    said = run("cluster", "place", "rampa-base", *asked, "-o", file, "--json").json
    assert [p["request"] for p in said["placements"]] == ["chat", "r0"]
    again = ("--running", file, "--service", "service3=chat")
    assert "'chat' runs or waits already" in fails(2, "cluster", "place", "rampa-base", *again)
    server = said["placements"][0]["stages"][0]["gpu"].rsplit("-", 1)[0]
    run("cluster", "fail", "rampa-base", file, server)
    assert Allocation.load(file).failed
    run("cluster", "release", "rampa-base", file, "chat", "-o", other)
    assert [len(Allocation.load(each).placements) for each in (file, other)] == [2, 1]
    run("cluster", "repair", "rampa-base", file, server)
    assert not Allocation.load(file).failed
    assert f"{server!r} has not failed; what has: nothing" in fails(2, "cluster", "repair", "rampa-base", file, server)


@pytest.mark.thorough
def test_of_several_commands_at_once_each_counts(run, tmp_path):
    file = tmp_path / "a.json"
    run("cluster", "place", "rampa-base", "--demand", "same", "--count", "8", "-o", file)
    command = [sys.executable, "-m", "tvm_sched.cli", "cluster", "release", "rampa-base", str(file)]
    ended = [subprocess.Popen([*command, f"r{k}"], stdout=subprocess.DEVNULL) for k in range(4)]
    killed = subprocess.Popen([*command, "r4"], stdout=subprocess.DEVNULL)
    killed.kill()  # at any moment: it has ended its service, or it has not
    killed.wait()
    assert [process.wait(60) for process in ended] == [0] * 4
    assert {p.request for p in Allocation.load(file).placements} - {"r4"} == {"r5", "r6", "r7"}


def test_a_seed_that_is_none_is_refused(fails):
    assert "seed is -1; 0 to" in fails(2, "cluster", "place", "rampa-base", "--demand", "same", "--seed", "-1")


def test_replay_compares_policies_on_the_same_requests(run, fails, tmp_path):
    how = ("--requests", "poisson", "--offered", "240", "--count", "60", "--mtbf", "2e6", "--windows", "3")
    policies = ("--policy", "first-fit", "--policy", "best-fit", "--runs", "2")
    files = ("-o", tmp_path / "r.json", "--report", tmp_path / "r.html")
    said = run("cluster", "replay", "rampa-base", *how, *policies, *files, "--json").json
    assert [each["policy"] for each in said["policies"]] == ["first-fit", "best-fit"]
    for each in said["policies"]:
        assert [(made["seed"], made["requests"], len(made["windows"])) for made in each["runs"]] == [
            (0, 60, 3),
            (1, 60, 3),
        ]
    first, second = (each["runs"][0] for each in said["policies"])
    assert first["failures"] == second["failures"] > 0
    assert "polyline" in (tmp_path / "r.html").read_text()
    assert '"tvm_sched.replay"' in (tmp_path / "r.json").read_text()
    for arguments, message in (
        (("--requests", "poisson", "--policy", "none"), "there is no allocator 'none'"),
        (("--requests", "none.csv"), "none.csv: cannot be read"),
        (("--requests", "poisson", "--offered", "0"), "offered"),
        (("--requests", "poisson", "--seed", "-1"), "seed is -1; 0 to 2147483647 are allowed"),
        (("--requests", "poisson", "--quota", "x"), "CLASS=PART is expected"),
        (("--requests", "poisson", "--mtbf", "1", "--faults", "f.csv"), "one of --faults FILE and --mtbf"),
    ):
        assert message in " ".join(fails(2, "cluster", "replay", "rampa-base", *arguments).split())


def test_a_controller_brings_the_cluster_to_what_is_wanted(run, fails, tmp_path):
    store = tmp_path / "s.db"
    control = ("cluster", "controller", "rampa-base", "--store", store)
    assert "there is no such store" in fails(2, *control, "--dry-run")
    assert run(*control, "--once", "--json").json["actions"] == []
    run("cluster", "submit", store, "service5", "--name", "chat", "--lifetime", "1000")
    said = run("cluster", "submit", store, "service3", "--name", "see", "--json").json
    assert [each["name"] for each in said["wanted"]] == ["chat", "see"]
    planned = run(*control, "--dry-run", "--json").json
    assert [each["what"] for each in planned["actions"]] == ["start", "start"]
    assert not planned["placed"]
    placed = run(*control, "--once", "--json").json["placed"]
    server = placed[0]["placement"]["stages"][0]["gpu"].rsplit("-", 1)[0]
    assert run("cluster", "drain", store, server, "--json").json["parts"] == {server: "drained"}
    assert {each["what"] for each in run(*control, "--once", "--json").json["actions"]} == {"move"}
    assert not run("cluster", "repair", "rampa-base", store, server, "--json").json["parts"]
    assert run("cluster", "fail", "rampa-base", store, "rack0", "--json").json["parts"] == {"rack0": "failed"}
    said = run("cluster", "submit", store, "service1", "--name", "many", "--replicas", "3", "--json").json
    assert [each["name"] for each in said["wanted"]][2:] == ["many-0", "many-1", "many-2"]
    run("cluster", "renew", store, "chat", "--lifetime", "5")
    run("cluster", "withdraw", store, "see")
    assert "withdraw" in [each["what"] for each in run("cluster", "events", store, "--json").json["events"]]
    assert "chat" in run("cluster", "events", store).stdout
    for arguments, message in (
        (("submit", store, "none", "--name", "x"), "there is no service 'none'"),
        (("submit", store, "service1", "--name", "a b"), "name is 'a b'"),
        (("withdraw", store, "none"), "no service 'none' is wanted"),
        (("drain", store, "rack99"), "no GPU, server, rack or link 'rack99'"),
        (("controller", "rampa-large", "--store", store), "the store of 'rampa-base', another cluster"),
        (
            ("controller", "rampa-base", "--store", store, "--http", "127.0.0.1:1"),
            "--http and --tokens belong together",
        ),
    ):
        assert message in " ".join(fails(2, "cluster", *arguments).split())


def test_bound_list_and_show(run):
    said = run("cluster", "bound", "rampa-base", "--demand", "huge-model", "--count", "300", "--json").json
    assert 100 < said["bound"] < 300
    names = {method["name"] for method in run("cluster", "list", "--json").json["allocators"]}
    assert {"rampa", "ncar", "pipeedge", "first-fit", "best-fit", "fgd", "anytime"} <= names
    assert len(run("cluster", "show", "rampa-large", "--json").json["racks"]) == 36
    assert "V100" in run("cluster", "show", "rampa-base").stdout


def test_a_sequence_ends_with_its_reason(run):
    arguments = ("--demand", "huge-model", "--count", "500", "--allocator", "first-fit", "--json")
    said = run("cluster", "place", "rampa-high-performance", *arguments).json
    assert 0 < said["placed"] < 500
    assert "does not fit on the free GPUs" in said["reason"]


@pytest.mark.parametrize(
    ("status", "arguments", "message"),
    [
        (2, ("place", "rampa-bse", "--demand", "same"), "did you mean 'rampa-base'"),
        (2, ("place", "rampa-base"), "give one of --requests FILE, --demand CASE and --service NAME"),
        (2, ("place", "rampa-base", "--demand", "none"), "there is no demand 'none'"),
        (2, ("place", "rampa-base", "--service", "none"), "there is no service 'none'"),
        (2, ("place", "rampa-base", "--demand", "same", "-a", "none"), "there is no allocator 'none'"),
        (2, ("place", "rampa-base", "--demand", "same", "--count", "0"), "--count 0: a number from 1 is allowed"),
        (2, ("place", "rampa-base", "--demand", "same", "-o", "a.txt"), "the name must end in .json"),
        (2, ("verify", "rampa-base", "none.json"), "cannot be read"),
    ],
)
def test_wrong_input_is_told(fails, status, arguments, message):
    assert message in " ".join(fails(status, "cluster", *arguments).split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--backend", "gpu"), "--backend gpu: allowed are cuda, cpu, emulated"),
        (("--timeout", "0"), "--timeout 0.0: a number of seconds above 0"),
        (("--backend", "cpu"), "service 'service3' names no model_file, so there is nothing to deploy"),
    ],
)
def test_what_cannot_be_deployed_is_told(run, fails, tmp_path, arguments, message):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'tvm-sched[cluster]'")
    file = tmp_path / "a.json"
    run("cluster", "place", "rampa-base", "--service", "service3", "-o", file)
    said = fails(2, "cluster", "deploy", "rampa-base", file, "--artifacts", tmp_path / "built", *arguments)
    assert message in " ".join(said.split())


def test_a_service_needs_a_model_and_sensible_limits(fails, tmp_path):
    limits = ("--throughput-floor", "1", "--latency-ceiling", "1", "--backend", "cpu")
    said = fails(2, "cluster", "service", tmp_path / "none.onnx", *limits, "-o", tmp_path / "s.toml")
    assert "none.onnx" in said
    said = fails(2, "cluster", "service", tmp_path / "none.onnx", *limits, "-o", tmp_path / "s.json")
    assert "the name must end in .toml" in " ".join(said.split())


def test_a_service_has_times_on_the_kinds_of_a_cluster(run, fails, tmp_path):
    """A product is one part: the roofline's time on an L4 is that of its bytes, and a launch."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'tvm-sched[onnx]'")
    pytest.importorskip("tvm", reason="TVM is not installed")
    import numpy as np

    model, services = tmp_path / "net.onnx", tmp_path / "s.toml"
    text = "(float[1, 1000] x) => (float[1, 1000] y) { y = MatMul(x, w) }"
    onnx.save(onnx_model(text, {"w": np.ones((1000, 1000), np.float32)}), model)
    asked = ("cluster", "service", model, "--throughput-floor", "1", "--latency-ceiling", "1", "--backend", "cpu")
    said = run(*asked, "--cluster", "rampa-base", "-o", services, "--json").json
    (part,) = said["operators"]
    bytes_moved = 4 * (1000 * 1000 + 2 * 1000)
    assert part["latency"]["L4"] == pytest.approx(5e-6 + bytes_moved / 300e9, abs=1e-9)
    assert sorted(part["latency"]) == ["A30", "L4", "T4", "V100"]
    assert load_services(services)[0].operators[0].latency == part["latency"]
    assert "say which by --cluster" in fails(2, *asked, "--costs", "learned", "-o", services)
    assert "no cost model is called" in fails(2, *asked, "--cluster", "rampa-base", "--costs", "none", "-o", services)
