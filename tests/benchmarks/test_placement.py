"""The placement workloads' format, their latency by hand, the search and the integer program against all placements."""

import itertools
import json
import math
from pathlib import Path

import pytest
from _placement import CPU, Evaluator, read_workload, search

from tvm_sched.errors import FormatError

SHARED = Path(__file__).parents[3] / "shared" / "data" / "placement" / "latency"


def write(path, nodes, edges, memory=100.0, accelerators=2):
    """Nodes as (cpu, accelerated or None, size), edges as (source, target, cost)."""
    records = [
        {
            "id": 10 + k,
            "supportedOnFpga": int(fast is not None),
            "cpuLatency": cpu,
            "fpgaLatency": fast or 0.0,
            "size": size,
        }
        for k, (cpu, fast, size) in enumerate(nodes)
    ]
    links = [{"sourceId": 10 + a, "destId": 10 + b, "cost": cost} for a, b, cost in edges]
    document = {"maxSizePerFPGA": memory, "maxFPGAs": accelerators, "maxCPUs": 1, "nodes": records, "edges": links}
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def diamond(tmp_path):
    """0 to 1 and 2, both to 3; outputs take 1, 2, 3 ms; 3 cannot be accelerated; an accelerator holds two of them."""
    nodes = [(10.0, 1.0, 50), (20.0, 2.0, 50), (30.0, 3.0, 50), (5.0, None, 0)]
    return read_workload(write(tmp_path / "diamond.json", nodes, [(0, 1, 1), (0, 2, 1), (1, 3, 2), (2, 3, 3)]))


def test_latency_by_hand(diamond):
    latency = Evaluator(diamond).latency
    assert latency([CPU] * 4) == 10 + 30 + 5  # the longest path
    # 0 and 1 on one accelerator: 1 + 2 to compute, 1 + 2 to copy out at its end; 2 on the other: 1 in, 3, 3 out; then 3.
    assert latency([0, 0, 1, CPU]) == 6 + 7 + 5
    assert latency([CPU, 0, 1, CPU]) == 10 + max(1 + 2 + 2, 1 + 3 + 3) + 5  # side by side
    assert latency([0, 0, CPU, CPU]) == 6 + 30 + 5
    assert diamond.critical_path() == 1 + 3 + 5


def test_what_is_not_allowed_takes_for_ever(diamond, tmp_path):
    latency = Evaluator(diamond).latency
    assert latency([0, 0, 0, CPU]) == math.inf  # 150 bytes
    assert latency([CPU, CPU, CPU, 0]) == math.inf  # not supported
    nodes = [(1.0, 1.0, 1)] * 3
    line = read_workload(write(tmp_path / "line.json", nodes, [(0, 1, 1), (1, 2, 1)]))
    assert Evaluator(line).latency([0, CPU, 0]) == math.inf  # not contiguous
    assert Evaluator(line).latency([0, 0, 1]) == 3 + 2


def test_one_output_is_copied_once_into_each_accelerator(tmp_path):
    nodes = [(1.0, 1.0, 1)] * 4
    fan = read_workload(write(tmp_path / "fan.json", nodes, [(0, 1, 7), (0, 2, 7), (0, 3, 7)]))
    assert Evaluator(fan).latency([0, 1, 1, CPU]) == (1 + 7) + (7 + 2)


def every_placement(workload):
    places = range(-1, workload.accelerators)
    latency = Evaluator(workload).latency
    return min(latency(list(p)) for p in itertools.product(places, repeat=len(workload.groups)))


def test_search_finds_the_best_of_all(diamond, tmp_path):
    assert search(diamond, 0.3)[0] == every_placement(diamond)
    nodes = [(float(8 + 5 * k % 11), 1.0 + k % 3, 20 + 7 * k) for k in range(7)]
    edges = [(a, b, 0.5 + (a * b) % 4) for a in range(7) for b in range(a + 1, 7) if (a + 2 * b) % 3 == 0]
    mixed = read_workload(write(tmp_path / "mixed.json", nodes, edges, memory=90.0))
    latency, placement = search(mixed, 0.5)
    assert latency == every_placement(mixed) == Evaluator(mixed).latency(placement)
    assert mixed.critical_path() <= latency


def test_the_integer_program_finds_the_best_of_all(diamond):
    from _placement_program import solve_program

    answer = solve_program(diamond, 10)
    assert answer.latency == every_placement(diamond)
    assert answer.bound == pytest.approx(answer.latency)


def test_colours_keep_operators_together(tmp_path):
    path = write(tmp_path / "colours.json", [(4.0, 1.0, 1)] * 3, [(0, 1, 1), (1, 2, 1)])
    document = json.loads(path.read_text())
    for k, colour in enumerate((5, 6, 5)):
        document["nodes"][k]["colorClass"] = colour
    path.write_text(json.dumps(document))
    workload = read_workload(path)
    assert workload.groups == [[0, 2], [1]]
    assert Evaluator(workload).latency([0, CPU]) == math.inf
    assert search(workload, 0.2) == (3.0, [search(workload, 0.2)[1][0]] * 2)


def test_damaged_files_are_refused(tmp_path):
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(FormatError, match="not a placement workload"):
        read_workload(tmp_path / "bad.json")
    nodes = [(1.0, 1.0, 1)] * 2
    with pytest.raises(FormatError, match="cycle"):
        read_workload(write(tmp_path / "ring.json", nodes, [(0, 1, 1), (1, 0, 1)]))
    with pytest.raises(FormatError, match="node 10 or 15"):
        read_workload(write(tmp_path / "edge.json", nodes, [(0, 5, 1)]))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the workloads of the paper are not here")
def test_published_latencies_of_simple_placements():
    """All on CPUs is what the reference gives for the integer program on resnet50."""
    workload = read_workload(SHARED / "resnet50_inference_layer.json")
    assert Evaluator(workload).latency([CPU] * len(workload.groups)) == pytest.approx(1874.55)
    for name, path in (("bert24_inference_layer", 92.406), ("gnmt_inference_layer", 182.435)):
        assert read_workload(SHARED / f"{name}.json").critical_path() == pytest.approx(path)
