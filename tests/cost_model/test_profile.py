"""Profiles: their files, the database, and latencies from them."""

import dataclasses

import msgspec
import pytest

from tvm_sched.cost_model import CostWarning, costs
from tvm_sched.cost_model.database import Database
from tvm_sched.cost_model.device_properties import properties
from tvm_sched.cost_model.profile import Copies, Machine, Measurement, Pair, Profile, this_machine
from tvm_sched.cost_model.signature import graph_of
from tvm_sched_runtime.errors import FormatError, InputError
from tvm_sched_runtime.problem import load_topology

SMALL = "onednn.matmul|16384|a float32[16,32];p float32[32,16]|float32[16,16]"
LARGE = "onednn.matmul|33554432|a float32[256,256];p float32[256,256]|float32[256,256]"
CPU = load_topology("cpu1")


@pytest.fixture
def profile():
    kernels = (Measurement(SMALL, "m", 3e-6, 2e-6, 9e-6, 100, 0.01), Measurement(LARGE, "m", 0.0, 2e-4, 4e-4, 5))
    pairs = (Pair(SMALL, LARGE, (2e-6, 2e-4), (3e-6, 2.2e-4), 1),)
    copies = (Copies("memory", 1, ((1024, 1e-6),)),)
    return Profile(this_machine(), properties(CPU.devices[0]), kernels, pairs, copies, {"m": 1e-3}, threads=1)


@pytest.mark.parametrize("name", ["p.json", "p.parquet"])
def test_files(profile, tmp_path, name):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    profile.save(tmp_path / name)
    assert Profile.load(tmp_path / name) == profile


def test_an_older_file_says_one_processor_of_every_cpu(profile, tmp_path):
    device = dataclasses.replace(profile.device, rates={"float32": 500e9}, processors=1)
    msgspec.structs.replace(profile, device=device, threads=2).save(tmp_path / "p.json")
    assert Profile.load(tmp_path / "p.json").device.processors == 2


def test_wrong_files(profile, tmp_path):
    with pytest.raises(InputError, match="the name of a profile ends in"):
        profile.save(tmp_path / "p.txt")
    profile.save(tmp_path / "p.json")
    text = (tmp_path / "p.json").read_text()
    for old, new, message in (
        ('"version": 1', '"version": 2', "newer than this"),
        ("3e-6", "-3e-6", "in_run is -3e-06"),
        ("3e-6", "NaN", "JSON is malformed"),
        ("0.01", "-0.01", "error is -0.01"),
        ('"m": 0.001', '"m": 0', "the latency of m is 0"),
        ("0.00022", "0", "a time is 0.0"),
        ("1e-6", "-1e-6", "1024 bytes in -1e-06 s"),
        (SMALL, "x", "not the signature"),
    ):
        assert old in text
        (tmp_path / "q.json").write_text(text.replace(old, new))
        with pytest.raises(InputError, match=message):
            Profile.load(tmp_path / "q.json").samples()
    pytest.importorskip("pyarrow")
    (tmp_path / "q.parquet").write_bytes(b"nothing")
    with pytest.raises(FormatError, match="not a Parquet file"):
        Profile.load(tmp_path / "q.parquet")


def test_measured_kernels_are_taken_and_others_predicted(profile, tmp_path):
    profile.save(tmp_path / "p.json")
    other = "onednn.matmul|65536|a float32[32,32];p float32[32,32]|float32[32,32]"
    with pytest.warns(CostWarning, match="1 of 3 distinct kernels were not measured and are predicted: operator2$"):
        found = costs(graph_of([SMALL, LARGE, other]), CPU, str(tmp_path / "p.json"))
    assert found.operator_ns[:2, 0].tolist() == [3000, 300_000], "the run's time; else between warm and cold"
    assert 0 < found.operator_ns[2, 0] < 300_000
    assert found.uncertainty.high_ns[0, 0] == 3030


def test_what_a_profile_cannot_say(profile, tmp_path):
    profile.save(tmp_path / "p.json")
    with pytest.raises(InputError, match="none of the 1 distinct kernels"):
        costs(graph_of(["add|1||float32[1]"]), CPU, str(tmp_path / "p.json"))
    for other in ("a40x2", f"cpu{2 * this_machine().cores}"):  # another kind; a device with half a core
        with pytest.raises(InputError, match="has no such device but"):
            costs(graph_of([SMALL]), load_topology(other), str(tmp_path / "p.json"))


def test_a_profile_of_another_machine_or_version_is_flagged(profile, tmp_path):
    machine = Machine("another", 64, versions={"apache-tvm": "0.1.0"})
    msgspec.structs.replace(profile, machine=machine).save(tmp_path / "p.json")
    with pytest.warns(CostWarning) as caught:
        costs(graph_of([SMALL]), CPU, str(tmp_path / "p.json"))
    texts = [str(warning.message) for warning in caught]
    assert any("measured on 'another'" in text for text in texts)
    assert any("with apache-tvm 0.1.0" in text for text in texts)


def test_measured_reads_the_users_database(tmp_path, monkeypatch):
    monkeypatch.setenv("TVM_SCHED_CACHE", str(tmp_path))
    with pytest.raises(InputError, match="tvm-sched profile MODEL"):
        costs(graph_of([SMALL]), CPU, "measured")
    machine = this_machine()
    Database().write(machine, f"cpu, {machine.cores} threads", [Measurement(SMALL, "m", 3e-6)])
    assert costs(graph_of([SMALL]), CPU, "measured").operator_ns.tolist() == [[3000]]
    with pytest.raises(InputError, match="has gpu"):
        costs(graph_of([SMALL]), load_topology("a40x2"), "measured")
