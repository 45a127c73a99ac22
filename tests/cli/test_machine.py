"""`topology` and `schedulers`."""

import sys
from pathlib import Path

import pytest

from fake_cupy import HOST_RATE, FakeCupy
from tvm_sched import schedulers
from tvm_sched.cost_model.recording import Recording
from tvm_sched_runtime.problem import load_topology, preset_names, write_topology


def test_topology_list(run):
    names = [preset["name"] for preset in run("topology", "list", "--json").json["presets"]]
    assert names == list(preset_names())
    shown = run("topology", "list").stdout
    assert all(name in shown for name in (*names, "cpuN"))


@pytest.mark.parametrize("name", [*preset_names(), "cpu1", "cpu3"])
def test_topology_show(run, name):
    topology = load_topology(name)
    shown = run("topology", "show", name).stdout
    said = run("topology", "show", name, "--json").json
    for device in topology.devices:
        assert device.name in shown
    assert [device["name"] for device in said["devices"]] == [device.name for device in topology.devices]
    assert set(said["matrix"]) == {*(device.name for device in topology.devices), "host"}


def test_topology_matrix_says_how_devices_are_joined(run):
    matrix = run("topology", "show", "v100-server", "--json").json["matrix"]
    words = {matrix[a][b]["by"] for a in matrix for b in matrix}
    assert words == {"X", "NV1", "NV2", "BUS"}
    assert matrix["gpu1"]["gpu1"] == {"by": "X", "bandwidth": None, "channels": []}


def test_topology_check(run, fails, v100, tmp_path):
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    write_topology(good, v100)
    assert "is right" in run("topology", "check", good).stdout
    assert run("topology", "check", good, "--json").json["devices"] == 4
    bad.write_text(good.read_text().replace('"pcie0"', '"pcie9"', 1))
    assert "pcie0" in fails(2, "topology", "check", bad)


def test_schedulers(run):
    said = {entry["name"]: entry for entry in run("schedulers", "--json").json}
    assert list(said) == schedulers.names()
    options = {option["name"]: option for option in said["anytime"]["options"]}
    assert options["stage"]["default"] > 0
    assert options["stage"]["type"] == "int"
    assert "Seconds" in options["time_limit"]["description"]
    assert "time_limit" in run("schedulers").stdout


def test_topology_detect_says_where_bandwidths_are_from(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    recording, file = Path(__file__).parents[1] / "data" / "detect" / "dgx1_quad.json", tmp_path / "m.toml"
    said = run("topology", "detect", "--recording", recording, "-o", file, "--json").json
    assert said["bandwidths"]["pcie0"] == "from the specification"
    assert "# pcie0: from the specification" in file.read_text()
    monkeypatch.setattr("tvm_sched.cost_model.recording.record", lambda: Recording.load(recording))
    here = run("topology", "detect")
    assert "bandwidths are from the specification: measuring on a GPU needs cupy" in here.stderr
    assert "from the specification" not in run("topology", "detect", "--no-measure").stderr


def test_topology_detect_measures(run, tmp_path, monkeypatch):
    recording = Recording.load(Path(__file__).parents[1] / "data" / "detect" / "dgx1_quad.json")
    monkeypatch.setattr("tvm_sched.cost_model.recording.record", lambda: recording)
    monkeypatch.setitem(sys.modules, "cupy", FakeCupy([gpu.address for gpu in recording.gpus]))
    saved = tmp_path / "r.json"
    said = run("topology", "detect", "--save-recording", saved, "--json").json
    assert {bus["bandwidth"] for bus in said["topology"]["buses"]} == {HOST_RATE}
    assert said["bandwidths"]["gpu0-gpu1"].startswith("measured: 40")
    again = run("topology", "detect", "--recording", saved, "--json").json
    assert again["topology"] == said["topology"]


def test_topology_detect_reads_the_text_of_nvidia_smi(run, fails, tmp_path):
    text, file = tmp_path / "topo.txt", tmp_path / "m.toml"
    text.write_text("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-7\nGPU1\tPHB\t X \t0-7\n")
    assert "no name of GPU 0, 1" in fails(2, "topology", "detect", "--from-text", text)
    listed = tmp_path / "list.txt"
    listed.write_bytes("GPU 0: NVIDIA L4 (UUID: a)\r\nGPU 1: NVIDIA L4 (UUID: b)\r\n".encode("utf-16"))
    result = run("topology", "detect", "--from-text", text, "--from-text", listed, "-o", file, "--json")
    assert [device["model"] for device in result.json["topology"]["devices"]] == ["NVIDIA L4"] * 2
    assert "warning: copies between GPUs go through host memory" in result.stderr
    assert "# copies between GPUs go through host memory" in file.read_text()
    assert "without --recording" in fails(2, "topology", "detect", "--from-text", text, "--storage", tmp_path)
    assert "none.txt" in fails(2, "topology", "detect", "--from-text", tmp_path / "none.txt")
