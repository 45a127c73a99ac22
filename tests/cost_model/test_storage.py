"""Measured reads of a disk, and the storage that they make; times are made up, reads are real."""

import os

import msgspec
import pytest

from tvm_sched.cost_model import default_cost_model, storage
from tvm_sched.cost_model.detect import describe
from tvm_sched.cost_model.recording import Gpu, Recording
from tvm_sched.cost_model.storage import DEPTHS, MeasuredDepth, MeasuredStorage, measure_storage
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import HOST, Storage, load_topology

MEASURED = MeasuredStorage(
    (MeasuredDepth(1, 1e9, 1e4), MeasuredDepth(2, 1.94e9, 2e4), MeasuredDepth(4, 2e9, 4e4)), size=1 << 26
)


def recording(**fields):
    return Recording("processor", (2,), 1 << 34, source="made up", **fields)


def test_the_smallest_depth_with_nearly_the_best_bandwidth():
    assert MEASURED.to_storage() == Storage("disk", 1.94e9, 48e-6, 2)  # 1 / 2e4 less 4096 bytes at 1.94 GB/s


def test_a_detected_machine_has_storage():
    machine, comments = describe(recording(storage=MEASURED), "cold")
    assert machine.storage == Storage("disk", 1.94e9, 48e-6, 2)
    assert comments == {
        "disk": "measured as a cold start reads: 1 GB/s at depth 1, 1.94 GB/s at depth 2, 2 GB/s at depth 4"
    }
    assert not describe(recording())[0].storage
    gpu = Gpu("Tesla V100", "0000:17:00.0", ("0000:00:00.0",), 1 << 34, 3, 16)
    server, sources = describe(recording(storage=MEASURED, gpus=(gpu,)), "server")
    assert server.storage == machine.storage
    assert sources["disk"] == comments["disk"]
    assert [server.channels[c] for c in server.route(HOST, 0).channels] == ["storage disk", "pcie0 down"]


def test_every_byte_of_a_file_is_asked_for_once_at_each_depth(tmp_path, monkeypatch):
    file = tmp_path / "data"
    file.write_bytes(bytes(17 << 20))
    reads, asked, dropped = [], [], []

    def preadv(opened, buffers, offset):
        reads.append((offset, len(buffers[0])))
        return len(buffers[0])

    def fadvise(opened, offset, size, advice):
        (asked if advice == os.POSIX_FADV_WILLNEED else dropped).append((offset, size, advice))

    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(os, "posix_fadvise", fadvise)
    monkeypatch.setattr(os, "O_DIRECT", 0)  # which not every file system has
    measured = measure_storage(file)
    assert [each.depth for each in measured.depths] == list(DEPTHS)
    assert measured.size == 17 << 20
    assert sorted(asked) == sorted([(n << 20, 1 << 20, os.POSIX_FADV_WILLNEED) for n in range(17)] * len(DEPTHS) * 3)
    assert dropped == [(0, 0, os.POSIX_FADV_DONTNEED)] * len(DEPTHS) * 3
    small = [offset for offset, size in reads if size == 4096]
    assert len(small) == len(reads)
    assert len(set(small)) == 64
    assert max(small) <= (17 << 20) - 4096


def test_a_folder_gets_a_file_and_keeps_none(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "MOST_BYTES", 16 << 20)
    monkeypatch.setattr(os, "O_DIRECT", 0)
    assert measure_storage(tmp_path).size == 16 << 20
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_measured(tmp_path):
    small = tmp_path / "small"
    small.write_bytes(b"1")
    with pytest.raises(
        InputError, match=r"small: has 1 bytes; a file of at least 16777216 bytes|small: cannot be read past"
    ):
        measure_storage(small)
    with pytest.raises(InputError, match="cannot be read past the page cache"):
        measure_storage(tmp_path / "none")


def test_this_machine_with_a_disk_is_measured_like_without(monkeypatch):
    monkeypatch.delenv("TVM_SCHED_COSTS", raising=False)
    cold = msgspec.structs.replace(load_topology("cpu2"), name="cold", source="here", storage=Storage("disk", 1e9))
    assert default_cost_model(cold) == default_cost_model(load_topology("cpu2")) == "calibrated"
    slower = msgspec.structs.replace(cold.devices[0], memory_bandwidth=1e9)
    assert default_cost_model(msgspec.structs.replace(cold, devices=(slower, cold.devices[1]))) == "roofline"
    assert default_cost_model(msgspec.structs.replace(cold, storage=msgspec.UNSET)) == "roofline", "of another name"
