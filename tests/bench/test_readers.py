"""Sample graphs and workloads of others: what is read, and what is refused."""

import json

import pytest

from tvm_sched_bench.moirai_files import read_moirai
from tvm_sched_bench.tarnawski_files import read_throughput
from tvm_sched_runtime.errors import FormatError
from tvm_sched_runtime.schedule import Placement, Schedule, Transfer, simulate

COPY = [[0.0, 1.0, 3.0], [1.1, 0.0, 2.0], [3.0, 2.5, 0.0]]


def sample(scale=1.0):
    """Two tasks, the first of no time, with a copy of different times in both directions."""
    return {
        "name": "pair",
        "device_bytes": [10, 10, 10],
        "tasks": [{"id": 4, "ms": [0.0, 0.0, 0.0], "bytes": 5}, {"id": 9, "ms": [1.0, 2.0, 0.5], "bytes": 5}],
        "edges": [{"source": 4, "target": 9, "ms": [[scale * ms for ms in row] for row in COPY]}],
    }


@pytest.fixture
def read(tmp_path):
    def call(reader, body):
        path = tmp_path / "file.json"
        path.write_text(json.dumps(body))
        return reader(path)

    return call


def test_moirai(read):
    problem = read(read_moirai, sample())
    assert problem.costs.operator_ns.tolist() == [[1, 1, 1], [1_000_000, 2_000_000, 500_000]]
    chosen = Schedule(
        problem.digest,
        (Placement("v4", "device0"), Placement("v9", "device2")),
        (Transfer("copy", "device2", "t4", source="device0"),),
    )
    assert simulate(problem, chosen).latency_ns == pytest.approx(1 + 3_000_000 + 500_000, abs=1)
    assert problem.copy_ns(problem.graph.index.outputs[0][0], 0, 1) == 1_100_000  # the slower direction


def test_times_that_are_no_sizes_over_bandwidths_are_refused(read):
    body = sample()
    body["edges"].append({"source": 4, "target": 9, "ms": [[0, 1, 2], [1, 0, 1], [1, 9, 0]]})
    with pytest.raises(FormatError, match="not sizes over bandwidths"):
        read(read_moirai, body)
    for change, message in (
        ({"device_bytes": [9, 10, 10]}, "do not fit into each device"),
        ({"device_bytes": [10, 10]}, "not given for each of 2 devices"),
        ({"tasks": 3}, "not a sample graph of Moirai"),
    ):
        with pytest.raises(FormatError, match=message):
            read(read_moirai, {**sample(), **change})


def workload(**node):
    nodes = [{"id": v, "supportedOnFpga": 1, "fpgaLatency": 2.0, "size": 4.0, **node} for v in (3, 5)]
    edges = [{"sourceId": 3, "destId": 5, "cost": 0.5}]
    return {"maxSizePerFPGA": 6.0, "nodes": nodes, "edges": edges}


def test_throughput_workloads(read):
    graph = read(read_throughput, workload())
    assert graph.bottleneck([0, 1]) == 2.5
    assert graph.bottleneck([0, 0]) == 4 + 2  # 2 bytes do not fit
    for body, message in (
        (workload(isBackwardNode=True), "a workload of training"),
        (workload(supportedOnFpga=0), "no accelerator runs node 3"),
        ({**workload(), "edges": [{"sourceId": 3, "destId": 6, "cost": 0.5}]}, "names node 3 or 6"),
        ({**workload(), "edges": [*workload()["edges"], {"sourceId": 5, "destId": 3, "cost": 1}]}, "cycle"),
        ({}, "not a placement workload"),
    ):
        with pytest.raises(FormatError, match=message):
            read(read_throughput, body)
