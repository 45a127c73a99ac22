"""Machines with storage: parameters lie in a file when a run begins, and one read at a time brings them."""

import json
from collections import Counter

import msgspec
import numpy as np
import pytest

from checker.cases import certified, files_of
from schedulers.exhaustive import TooLarge, least_latency
from thorough import repeated_here
from tvm_sched import schedulers
from tvm_sched.bounds import lower_bound
from tvm_sched.bounds.schedule_evidence import evidence
from tvm_sched.cost_model import roofline
from tvm_sched.pipeline import plan_pipeline
from tvm_sched_bench.testing import random_problem
from tvm_sched_check.document import Refused
from tvm_sched_runtime.errors import InfeasibleError, InputError, ProblemError, ScheduleError, TopologyError
from tvm_sched_runtime.problem import (
    FORBIDDEN,
    Bus,
    Costs,
    Device,
    Operator,
    OpGraph,
    Problem,
    Scenario,
    Storage,
    Tensor,
    Topology,
    parse_topology,
)
from tvm_sched_runtime.problem.topology_file import format_topology
from tvm_sched_runtime.schedule import Placement, Schedule, Transfer, simulate, verify

DISK = Storage("disk", bandwidth=1e9, latency=50e-9, queue_depth=4)  # a byte a nanosecond


def machine(count=1, storage=DISK):
    devices = tuple(Device(f"cpu{d}", 10**6, 1e12, {"float32": 1e12}, kind="cpu") for d in range(count))
    return Topology("cold", devices, storage=storage)


def pair(storage=DISK, direct_ns=None):
    """Two operators of 10 ns after each other; they read 100 and 200 bytes of parameters, the first also an input."""
    graph = OpGraph(
        "pair",
        (Operator("first", "", ("x", "v"), ("a",)), Operator("second", "", ("a", "w"), ("y",))),
        (
            Tensor("x", 1000, "input"), Tensor("v", 100, "parameter"), Tensor("w", 200, "parameter"),
            Tensor("a", 1), Tensor("y", 1),
        ),
        ("y",),
    )  # fmt: skip
    return Problem(graph, machine(storage=storage), Costs(np.full((2, 1), 10), direct_ns))


GPU = Device("gpu0", 10**6, 1e12, {"float32": 1e12}, bus="pcie")


def behind_a_disk(bus=2e9, direct_ns=None):
    """`pair` on a GPU behind a bus of 10 ns and two bytes a nanosecond, and the disk."""
    topology = Topology("cold", (GPU,), (Bus("pcie", bus, 10e-9),), storage=DISK)
    return Problem(pair().graph, topology, Costs(np.full((2, 1), 10), direct_ns))


def schedule_of(problem, transfers, direct=()):
    placements = tuple(Placement(name, "cpu0", direct_host_access=name in direct) for name in ("first", "second"))
    return Schedule(problem.digest, placements, transfers)


def load(tensor, device="cpu0"):
    return Transfer("load", device, tensor)


def test_reads_follow_each_other_and_kernels_wait_for_theirs():
    problem = pair()
    timeline = simulate(problem, schedule_of(problem, (load("v"), load("w"))))
    assert [(e.kind, e.name, e.start_ns, e.end_ns) for e in timeline.events] == [
        ("kernel", "first", 150, 160),  # 50 + 100 bytes; the input is in memory
        ("kernel", "second", 400, 410),  # 50 + 200 bytes more
        ("load", "v", 0, 150),
        ("load", "w", 150, 400),
    ]
    assert lower_bound(problem).ns == 410
    assert timeline.events[2].lanes == ("storage disk",)


@pytest.mark.parametrize(("bus", "rate"), [(2e9, 1), (0.25e9, 4)], ids=["the disk is slower", "the bus is slower"])
def test_a_load_to_a_gpu_occupies_disk_and_bus(tmp_path, bus, rate):
    """Bytes go on over the bus while others are read; inputs of a GPU are counted as if they came from the disk, too."""
    problem = behind_a_disk(bus)
    placements = (Placement("first", "gpu0"), Placement("second", "gpu0"))
    moved = tuple(load(t, "gpu0") for t in ("x", "v", "w"))
    schedule = Schedule(problem.digest, placements, moved)
    timeline = simulate(problem, schedule)
    ends = [60 + 1000 * rate, 120 + 1100 * rate, 180 + 1300 * rate]  # 50 ns of the disk and 10 of the bus each
    assert [e.end_ns for e in timeline.events if e.kind == "load"] == ends
    lanes = ("storage disk", "pcie down") if rate == 1 else ("pcie down",)
    assert {e.lanes for e in timeline.events if e.kind == "load"} == {lanes}
    assert timeline.latency_ns == lower_bound(problem).ns == ends[-1] + 10
    verdict = files_of(problem, certified(problem, schedule)).check(tmp_path)
    assert verdict.proved_ns == verdict.latency_ns


def test_unequal_buses_behind_a_disk_wait_for_it_alike(tmp_path):
    """Each of four loads occupies the disk for 1 us and the bytes at the faster bus' rate, at the least."""
    graph = OpGraph(
        "four",
        tuple(Operator(f"o{k}", "", (f"p{k}",), (f"y{k}",)) for k in range(4)),
        (*(Tensor(f"p{k}", 8000, "parameter") for k in range(4)), *(Tensor(f"y{k}", 1) for k in range(4))),
        tuple(f"y{k}" for k in range(4)),
    )
    gpus = tuple(msgspec.structs.replace(GPU, name=f"gpu{d}", bus=f"pcie{d}") for d in range(2))
    buses = (Bus("pcie0", 4e9), Bus("pcie1", 8e9))
    problem = Problem(
        graph,
        Topology("unequal", gpus, buses, storage=Storage("disk", 10e9, latency=1e-6)),
        Costs(np.full((4, 2), 10)),
    )
    loads = tuple(load(f"p{k}", "gpu1") for k in range(4))
    schedule = Schedule(problem.digest, tuple(Placement(f"o{k}", "gpu1") for k in range(4)), loads)
    assert simulate(problem, schedule).latency_ns == lower_bound(problem).ns == 4 * 2000 + 10
    assert files_of(problem, certified(problem, schedule)).check(tmp_path).proved_ns == 8010


def test_a_gpu_reads_no_pages_of_a_file():
    problem = behind_a_disk()
    with pytest.raises(
        ProblemError, match="'first' has a latency with direct host access on 'gpu0', which cannot read pages"
    ):
        behind_a_disk(direct_ns=np.array([[2000], [2000]]))
    first, second = problem.graph.operators
    rows = msgspec.structs.replace(second, read_bytes={"w": 40})
    costs = roofline(msgspec.structs.replace(problem.graph, operators=(first, rows)), problem.topology)
    assert (costs.direct_ns == FORBIDDEN).all()
    in_memory = roofline(problem.graph, problem.topology.without_storage)
    assert (in_memory.direct_ns != FORBIDDEN).all()


def test_two_buses_behind_one_disk_are_no_faster_than_it_and_it_may_feed_both():
    graph = OpGraph(
        "both",
        (Operator("left", "", ("v",), ("a",)), Operator("right", "", ("w",), ("b",))),
        (Tensor("v", 1000, "parameter"), Tensor("w", 1000, "parameter"), Tensor("a", 1), Tensor("b", 1)),
        ("a", "b"),
    )
    gpus = tuple(msgspec.structs.replace(GPU, name=f"gpu{d}", bus=f"pcie{d}") for d in range(2))
    buses = tuple(Bus(f"pcie{d}", 1e9) for d in range(2))
    costs = Costs(np.full((2, 2), 10))
    fast = msgspec.structs.replace(DISK, bandwidth=2e9)
    for storage, least in ((DISK, 2110), (fast, 1060), (msgspec.UNSET, 1010)):
        problem = Problem(graph, Topology("two", gpus, buses, storage=storage), costs)
        assert lower_bound(problem).ns == least_latency(problem) == least
        assert evidence(problem).lemmas


def test_a_kernel_that_reads_mapped_pages_occupies_the_disk():
    direct = np.array([[10 + 150], [10 + 250]])
    problem = pair(direct_ns=direct)
    moved = (load("v"), Transfer("host_read", "cpu0", operator="second"))
    timeline = simulate(problem, schedule_of(problem, moved, direct=("second",)))
    assert timeline.latency_ns == 160 + 260
    assert (timeline.events[3].start_ns, timeline.events[3].end_ns) == (160, 410)


def test_what_is_in_the_page_cache_is_resident():
    problem = pair()
    schedule = schedule_of(problem, (load("v"), load("w")))
    assert simulate(problem, schedule, resident=("v",)).latency_ns == 250 + 10
    assert lower_bound(Scenario(problem, frozenset("v"))).ns == 260
    assert simulate(problem, schedule, resident=1.0).latency_ns == 20


def test_without_storage_nothing_changes():
    problem = pair(storage=msgspec.UNSET)
    assert simulate(problem, schedule_of(problem, ())).latency_ns == 20
    assert "storage" not in json.loads(problem.to_json())["topology"]
    with pytest.raises(ScheduleError, match="tensor-missing"):
        simulate(pair(), schedule_of(pair(), ()))


def test_inputs_are_not_read_from_the_disk():
    problem = pair()
    with pytest.raises(ScheduleError, match=r"'load-shared': tensor 'x' is loaded into 'cpu0', which has it"):
        verify(problem, schedule_of(problem, (load("x"), load("v"), load("w"))))


def test_a_problem_file_keeps_storage():
    problem = pair()
    again = Problem.of_fields(
        {k: v for k, v in json.loads(problem.to_json()).items() if k not in ("format", "version")}, "p"
    )
    assert again.topology.storage == DISK
    assert again.digest == problem.digest
    assert again.graph.index.inputs == problem.graph.index.inputs == [(1,), (3, 2)]


def test_the_roofline_adds_the_read_to_a_kernel_on_mapped_pages():
    problem = pair()
    assert (roofline(problem.graph, problem.topology).direct_ns == FORBIDDEN).all(), "a load is as good"
    first, second = problem.graph.operators
    rows = msgspec.structs.replace(second, read_bytes={"w": 40})
    costs = roofline(msgspec.structs.replace(problem.graph, operators=(first, rows)), problem.topology)
    assert costs.direct_ns[0, 0] == FORBIDDEN
    assert costs.direct_ns[1, 0] == costs.operator_ns[1, 0] + 50 + 40


def test_no_schedule_is_below_the_bound():
    tried = Counter[str]()
    each = 8 if repeated_here() else 2
    for seed in range(2 * each):
        style = "storage" if seed < each else "disk"
        problem = random_problem(seed, 1 + seed % 3, 1 + seed % 2, style=style, memory="generous")
        try:
            assert lower_bound(problem).ns <= least_latency(problem)
            tried[style] += 1
        except TooLarge:
            continue
    assert min(tried["storage"], tried["disk"]) >= each // 2


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", schedulers.names())
def test_every_scheduler_reads_from_storage(name):
    options = {"work": 0.02} if name == "anytime" else None
    for seed, style in ((1, "storage"), (2, "storage"), (3, "disk")):
        problem = random_problem(seed, 6, 1 + seed % 2, style=style, memory="generous")
        try:
            schedule = schedulers.solve(problem, method=name, options=options)
        except InfeasibleError:
            continue  # not on one device, for a method that uses one
        verify(problem, schedule)
        assert schedule.certificate.lower_bound_ns <= simulate(problem, schedule).latency_ns


def test_the_checker_follows_the_bound_over_the_disk(tmp_path):
    problem = pair()
    schedule = certified(problem, schedule_of(problem, (load("v"), load("w"))))
    over_disk = [lemma for lemma in evidence(problem).lemmas if lemma["rule"] == "bus"]
    assert [list(lemma["multipliers"]) for lemma in over_disk] == [["disk"]]
    files = files_of(problem, schedule)
    verdict = files.check(tmp_path)
    assert (verdict.latency_ns, verdict.proved_ns) == (410, 410)
    files.schedule["transfers"].insert(0, {"kind": "load", "tensor": "x", "device": "cpu0"})
    with pytest.raises(Refused, match="rule 3"):
        files.check(tmp_path)


def test_topology_files():
    topology = machine()
    text = format_topology(topology, {"disk": "measured yesterday"})
    assert 'storage = { name = "disk", bandwidth = "1 GB/s", latency = "50 ns", queue_depth = 4 }' in text
    assert text.startswith("# disk: measured yesterday\n")
    assert parse_topology(text) == topology
    as_table = (
        text.replace(text[text.index("storage = ") :].split("\n")[0], "")
        + '\n[storage]\nname = "disk"\nbandwidth = "2 GB/s"\n'
    )
    assert parse_topology(as_table).storage == Storage("disk", 2e9)
    with pytest.raises(TopologyError, match="two connections have a channel 'storage disk'"):
        Topology(
            "t",
            (msgspec.structs.replace(GPU, bus="storage disk"),),
            (Bus("storage disk", 1e9, duplex=False),),
            storage=DISK,
        )
    with pytest.raises(TopologyError, match=r"storage 'disk': bandwidth is 0"):
        Storage("disk", 0.0)
    cpu = topology.devices[0]
    with pytest.raises(
        TopologyError, match="'gpu0' is on a bus, and device 'cpu0' shares host memory; storage is allowed"
    ):
        Topology("t", (GPU, cpu), (Bus("pcie", 1e9),), storage=DISK)


def test_what_storage_does_not_go_with():
    with pytest.raises(InputError, match=r"storage.*leave it out of the topology"):
        plan_pipeline(pair())
    many = random_problem(0, 4, 1, style="shared", memory="generous")
    from tvm_sched_bench.testing.variant_problems import random_variants

    variants = random_variants(many, 0, 2)
    cold = msgspec.structs.replace(variants.topology, storage=DISK)
    with pytest.raises(
        ProblemError, match="has variants, and topology 'random' maps storage into memory that its devices share"
    ):
        Problem(variants.graph, cold, variants.costs, variants.variants)
