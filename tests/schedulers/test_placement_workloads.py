"""The format of Tarnawski et al.'s workloads, their latency by hand, annealing against all placements."""

import json
from itertools import product
from math import inf
from pathlib import Path
from random import Random

import pytest

from tvm_sched.schedulers.common.milp import Effort
from tvm_sched.schedulers.efficient_mip import place, read_workload
from tvm_sched.schedulers.efficient_mip.annealing import anneal
from tvm_sched.schedulers.efficient_mip.instance import evaluate
from tvm_sched.schedulers.efficient_mip.path_bound import lower_bound
from tvm_sched.schedulers.efficient_mip.program import checked_bound
from tvm_sched_runtime.errors import FormatError, SchedulerError

WORKLOADS = Path(__file__).parents[2] / "benchmarks" / "instances" / "tarnawski" / "latency"
CPU = 0


def write(path, nodes, edges, memory=100.0, accelerators=2, colours=()):
    """Nodes as (cpu, accelerated or None, size), edges as (source, target, cost)."""
    records = [
        {
            "id": 10 + k,
            "supportedOnFpga": int(fast is not None),
            "cpuLatency": cpu,
            "fpgaLatency": fast or 0.0,
            "size": s,
        }
        for k, (cpu, fast, s) in enumerate(nodes)
    ]
    for record, colour in zip(records, colours, strict=False):
        record["colorClass"] = colour
    links = [{"sourceId": 10 + a, "destId": 10 + b, "cost": cost} for a, b, cost in edges]
    document = {"maxSizePerFPGA": memory, "maxFPGAs": accelerators, "maxCPUs": 1, "nodes": records, "edges": links}
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def diamond(tmp_path):
    """0 to 1 and 2, both to 3; outputs take 1, 2, 3 ms; 3 cannot be accelerated; an accelerator holds two of them."""
    nodes = [(10.0, 1.0, 50), (20.0, 2.0, 50), (30.0, 3.0, 50), (5.0, None, 0)]
    return read_workload(write(tmp_path / "diamond.json", nodes, [(0, 1, 1), (0, 2, 1), (1, 3, 2), (2, 3, 3)]))


def latency(instance, placement):
    ends = evaluate(instance, placement)
    return inf if ends is None else ends.latency


def test_latency_by_hand(diamond):
    assert latency(diamond, [CPU] * 4) == 10 + 30 + 5  # the longest path
    # 0 and 1 on one accelerator: 1 + 2 to compute, 1 + 2 to copy out at its end; 2 on the other: 1 in, 3, 3 out; then 3.
    assert latency(diamond, [1, 1, 2, CPU]) == 6 + 7 + 5
    assert latency(diamond, [CPU, 1, 2, CPU]) == 10 + max(1 + 2 + 2, 1 + 3 + 3) + 5  # in parallel
    assert latency(diamond, [1, 1, CPU, CPU]) == 6 + 30 + 5
    assert diamond.critical_path == 1 + 3 + 5


def test_what_is_not_allowed_takes_for_ever(diamond, tmp_path):
    assert latency(diamond, [1, 1, 1, CPU]) == inf  # 150 bytes
    assert latency(diamond, [CPU, CPU, CPU, 1]) == inf  # not supported
    line = read_workload(write(tmp_path / "line.json", [(1.0, 1.0, 1)] * 3, [(0, 1, 1), (1, 2, 1)]))
    assert latency(line, [1, CPU, 1]) == inf  # not contiguous
    assert latency(line, [1, 1, 2]) == 3 + 2


def test_one_output_is_copied_once_into_each_accelerator(tmp_path):
    fan = read_workload(write(tmp_path / "fan.json", [(1.0, 1.0, 1)] * 4, [(0, 1, 7), (0, 2, 7), (0, 3, 7)]))
    assert latency(fan, [1, 2, 2, CPU]) == (1 + 7) + (7 + 2)


def test_colours_keep_operators_together(tmp_path):
    nodes, edges = [(4.0, 1.0, 1)] * 4, [(0, 1, 1), (1, 2, 1), (2, 3, 1)]
    instance = read_workload(write(tmp_path / "colours.json", nodes, edges, colours=(5, None, 5, None)))
    assert latency(instance, [1, 1, 1, CPU]) == 3 + 1 + 4
    assert latency(instance, [1, 1, CPU, CPU]) == inf
    assert place(instance, None).latency == 4


def every_placement(instance):
    places = (CPU, *instance.subgraphs)
    return min(latency(instance, list(p)) for p in product(places, repeat=len(instance.operators)))


def mixed(folder):
    nodes = [(float(8 + 5 * k % 11), 1.0 + k % 3, 20 + 7 * k) for k in range(7)]
    edges = [(a, b, 0.5 + (a * b) % 4) for a in range(7) for b in range(a + 1, 7) if (a + 2 * b) % 3 == 0]
    return read_workload(write(folder / "mixed.json", nodes, edges, memory=90.0))


def test_annealing_finds_the_best_of_all(tmp_path):
    instance = mixed(tmp_path)
    groups, start = [[v] for v in instance.operators], [CPU] * 7
    found = anneal(instance, groups, start, 3000, Random(0))
    assert latency(instance, found) == every_placement(instance) < latency(instance, start)
    assert anneal(instance, groups, start, 3000, Random(0)) == found
    assert anneal(instance, groups, start, 0, Random(0)) == start


def test_heuristic_and_program_find_the_best_of_all(diamond, tmp_path):
    assert place(diamond, None).latency == every_placement(diamond)
    instance = mixed(tmp_path)
    assert place(instance, None, annealing=3000).latency == every_placement(instance)
    solved = place(instance, Effort("highs", 20.0, 0, 0), rounds=1, evaluations=1)
    assert solved.latency == pytest.approx(every_placement(instance))
    assert solved.bound <= solved.latency


def test_damaged_files_are_refused(tmp_path):
    with pytest.raises(FormatError, match="cannot be read"):
        read_workload(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(FormatError, match="not a placement workload"):
        read_workload(tmp_path / "bad.json")
    nodes = [(1.0, 1.0, 1)] * 2
    with pytest.raises(FormatError, match=r"ring\.json.*cycle"):
        read_workload(write(tmp_path / "ring.json", nodes, [(0, 1, 1), (1, 0, 1)]))
    with pytest.raises(FormatError, match="node 10 or 15"):
        read_workload(write(tmp_path / "edge.json", nodes, [(0, 5, 1)]))


@pytest.mark.parametrize(
    ("workload", "milliseconds", "bound"),
    [("bert24_inference_layer", 100.2186, 100.2184), ("gnmt_inference_layer", 225.648, 219.544)],
)
def test_published_workloads(workload, milliseconds, bound):
    """Those that take seconds; the benchmark has them all."""
    found = place(read_workload(WORKLOADS / f"{workload}.json.gz"), None)
    assert found.latency <= milliseconds
    assert found.bound >= bound
    assert found.optimal == (workload == "bert24_inference_layer")


def test_stretches_of_a_chain_by_hand(tmp_path):
    # Two of three fit into an accelerator; between the first two a copy is cheapest, out and in.
    nodes, edges = [(100.0, 1.0, 50)] * 3, [(0, 1, 2), (1, 2, 3), (0, 2, 2)]
    instance = read_workload(write(tmp_path / "chain.json", nodes, edges))
    assert lower_bound(instance) == 1 + 2 + 2 + 1 + 1 == every_placement(instance)
    # One fits: the first one's result goes out once, and into both of the others.
    instance = read_workload(write(tmp_path / "chain.json", nodes, edges, memory=60.0, accelerators=3))
    assert lower_bound(instance) == 1 + 2 + 2 + 1 + 3 + 3 + 2 + 1 == every_placement(instance)


def test_a_bound_of_the_solver_above_a_latency_that_is_there_is_no_bound():
    assert checked_bound(10.0, 12.0) == 10.0
    assert checked_bound(12.00001, 12.0) == 12.0  # by the solver's tolerances
    with pytest.raises(SchedulerError, match="please report this"):
        checked_bound(12.1, 12.0)
