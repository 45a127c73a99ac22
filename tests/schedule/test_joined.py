"""Joined parameters: rules, times, bounds, checker and plans (``docs/model.md``, "Joined parameters")."""

import time
from dataclasses import replace
from itertools import count, product

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checker.cases import certified, files_of
from execution_plan.residency_cases import as_bytes, plan_of
from thorough import examples
from tvm_sched.bounds import lower_bound
from tvm_sched.bounds.resident_relaxation import loads_at_once
from tvm_sched.report.measurement import planned_timeline
from tvm_sched.schedulers import solve
from tvm_sched.schedulers.anytime import joined_loads, race
from tvm_sched_bench.testing import random_problem, random_schedule
from tvm_sched_check.document import Refused
from tvm_sched_runtime.errors import ScheduleError
from tvm_sched_runtime.problem import (
    Bus,
    Costs,
    Device,
    Link,
    Operator,
    OpGraph,
    Problem,
    Scenario,
    Storage,
    Tensor,
    Topology,
    as_scenario,
)
from tvm_sched_runtime.schedule import (
    Placement,
    Schedule,
    ScheduleIndex,
    Transfer,
    moved_parameters,
    resolved,
    simulate,
    verify,
    violations,
)
from tvm_sched_runtime.search_budget import ending_at

LATENCY = 100e-9
"""Of a load: 100 ns, and a byte a nanosecond."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("joined")


def two_layers(joinable=True, **topology):
    """Two operators of 50 ns, each with a weight of 1000 bytes and a bias of 10, on two devices of one bus."""
    devices = tuple(Device(f"gpu{d}", 10**6, 1e12, {"float32": 1e12}, bus="pcie") for d in range(2))
    machine = {"buses": (Bus("pcie", 1e9, LATENCY),), "links": (Link(("gpu0", "gpu1"), 1e9, LATENCY),)} | topology
    sizes = {"w1": 1000, "b1": 10, "w2": 1000, "b2": 10}
    graph = OpGraph(
        "two",
        (Operator("first", "", ("w1", "b1"), ("a",)), Operator("second", "", ("a", "w2", "b2"), ("y",))),
        (*(Tensor(name, size, "parameter") for name, size in sizes.items()), Tensor("a", 1), Tensor("y", 1)),
        ("y",),
    )
    direct = [[2000] * 2] * 2 if "storage" not in topology else None
    return Problem(graph, Topology("pair", devices, **machine), Costs([[50] * 2] * 2, direct), joinable=joinable)


def on_one(problem, *moved, joined=(), direct=False):
    """A schedule on gpu0 that loads some tensors in this order."""
    transfers = tuple(Transfer("load", "gpu0", name) for name in moved)
    if direct:
        transfers += (Transfer("host_read", "gpu0", operator="second"),)
    placements = Placement("first", "gpu0"), Placement("second", "gpu0", direct_host_access=direct)
    return Schedule(problem.digest, placements, transfers, joined=joined)


PAIRS = (("w1", "b1"), ("w2", "b2"))
ALL = (("w1", "b1", "w2", "b2"),)


@pytest.mark.parametrize(
    ("moved", "joined", "latency"),
    [
        (("w1", "b1", "w2", "b2"), (), 1100 + 110 + 1100 + 110 + 50),
        (("w1", "w2"), PAIRS, 1110 + 1110 + 50),
        (("w1",), ALL, 2120 + 2 * 50),
    ],
)
def test_joined_parameters_take_one_latency_and_arrive_together(folder, moved, joined, latency):
    problem = two_layers()
    schedule = certified(problem, on_one(problem, *moved, joined=joined))
    verify(problem, schedule)
    assert simulate(problem, schedule).latency_ns == schedule.certificate.latency_ns == latency
    assert files_of(problem, schedule).check(folder).latency_ns == latency
    assert Schedule.from_json(schedule.to_json()) == schedule
    assert Problem.from_json(problem.to_json()).joinable


def test_the_bound_holds_for_all_ways_to_join(folder):
    # One latency, loads rounded down, then both operators (docs/proofs/joined.md).
    problem = two_layers(storage=Storage("disk", 1e9, 0.0))
    assert lower_bound(problem).ns == 100 + 2016 + 2 * 50
    assert lower_bound(replace(problem, joinable=False)).ns == 1100 + 110 + 1100 + 110 + 50
    best = solve(problem, options={"work": 0.2})
    assert best.certificate.latency_ns == 2120 + 2 * 50  # better than 2270 of two pairs
    files = files_of(problem, best)
    assert files.check(folder).all_proved
    files.evidence["lemmas"][-1]["ns"] += 1
    with pytest.raises(Refused, match="sets of loads may arrive in time"):
        files.check(folder)


@settings(max_examples=examples(30), deadline=None)
@given(st.data())
def test_the_bound_of_a_chain_is_its_optimum_but_for_rounding(data):
    """One device and one bus: all divisions of the chain into sets that follow each other are tried."""
    operators = data.draw(st.integers(1, 6))
    times, sizes = (data.draw(st.lists(st.integers(1, 3000), min_size=operators, max_size=operators)) for _ in range(2))
    graph = OpGraph(
        "chain",
        tuple(Operator(f"o{k}", "", (*([f"a{k - 1}"] * (k > 0)), f"w{k}"), (f"a{k}",)) for k in range(operators)),
        (
            *(Tensor(f"w{k}", s, "parameter") for k, s in enumerate(sizes)),
            *(Tensor(f"a{k}", 1) for k in range(operators)),
        ),
        (f"a{operators - 1}",),
    )
    device = Device("gpu0", 10**6, 1e12, {"float32": 1e12}, bus="pcie")
    machine = Topology("one", (device,), (Bus("pcie", 1e9, data.draw(st.integers(10, 2000)) * 1e-9),))
    problem = Problem(graph, machine, Costs([[ns] for ns in times]), joinable=True)
    latencies = []
    for cuts in product((False, True), repeat=operators - 1):
        sets = [["w0"]]
        for k, cut in enumerate(cuts, 1):
            sets += [[f"w{k}"]] if cut else []
            sets[-1] += [] if cut else [f"w{k}"]
        placements = tuple(Placement(f"o{k}", "gpu0") for k in range(operators))
        loads = tuple(Transfer("load", "gpu0", names[0]) for names in sets)
        joined = tuple(tuple(names) for names in sets if len(names) > 1)
        latencies.append(simulate(problem, Schedule(problem.digest, placements, loads, joined=joined)).latency_ns)
    assert min(latencies) - operators - 1 <= lower_bound(problem).ns <= min(latencies)


def test_what_a_direct_read_takes_is_not_changed():
    problem = two_layers()
    schedule = on_one(problem, "w1", joined=(("w1", "w2", "b1"),), direct=True)
    # The read waits for the load of 2010 bytes and for `first`, and takes the time of w2 and b2 alone.
    events = {(event.kind, event.name): event for event in simulate(problem, schedule).events}
    assert events["load", "w1"].end_ns == 2110
    assert events["host_read", "second"].end_ns - events["host_read", "second"].start_ns == 100 + 1010
    assert events["kernel", "second"].end_ns == 2110 + 50 + 2000


def test_a_direct_read_without_bytes_takes_no_time_in_the_bound():
    problem = two_layers(buses=(Bus("pcie", 1e9, 0.0),))
    empty = tuple(msgspec.structs.replace(t, size=0) for t in problem.graph.tensors)
    problem = replace(problem, graph=msgspec.structs.replace(problem.graph, tensors=empty))
    assert loads_at_once(problem).host_reads_ns.max() == problem.host_reads_ns.max() == 0


def test_a_neighbour_passes_joined_parameters_on():
    problem = two_layers()
    placements = Placement("first", "gpu0"), Placement("second", "gpu1")
    transfers = (
        Transfer("load", "gpu0", "w1"), Transfer("copy", "gpu1", "w1", "gpu0"), Transfer("copy", "gpu1", "a", "gpu0"),
    )  # fmt: skip
    schedule = Schedule(problem.digest, placements, transfers, joined=ALL)
    verify(problem, schedule)
    assert simulate(problem, schedule).latency_ns == 2120 + 2120 + 101 + 50
    plan = plan_of(as_bytes_joinable(problem), replaced(as_bytes_joinable(problem), schedule))
    copies = [step["name"] for step in plan["steps"] if step.get("event", {}).get("kind") == "copy"]
    assert copies == ["w1", "b1", "w2", "b2", "a"]


def test_a_device_that_reads_joined_parameters_in_host_memory_waits_for_none():
    cpu, *gpus = (
        Device("cpu", 10**6, 1e12, {"float32": 1e12}),
        Device("gpu0", 10**6, 1e12, {"float32": 1e12}, bus="pcie"),
    )
    problem = two_layers()
    machine = Topology("mixed", (cpu, *gpus), buses=(Bus("pcie", 1e9, LATENCY),))
    problem = replace(problem, topology=machine, costs=Costs([[50] * 2] * 2))
    graph = problem.graph
    tied = msgspec.structs.replace(
        graph, operators=(graph.operators[0], msgspec.structs.replace(graph.operators[1], inputs=("a", "w1", "b2")))
    )
    problem = as_bytes_joinable(replace(problem, graph=tied))
    placements = Placement("first", "gpu0"), Placement("second", "cpu")
    transfers = Transfer("load", "gpu0", "w1"), Transfer("copy", "cpu", "a", "gpu0")
    schedule = Schedule(problem.digest, placements, transfers, joined=PAIRS[:1])
    assert planned_timeline(plan_of(problem, schedule)).latency_ns == simulate(problem, schedule).latency_ns


def test_joined_parameters_are_resident_if_all_are():
    problem = two_layers()
    schedule = on_one(problem, "w1", "w2", joined=PAIRS)
    assert simulate(problem, schedule, resident=["w1", "b1"]).latency_ns == 1110 + 50
    assert simulate(problem, schedule, resident=["w1", "w2", "b2"]).latency_ns == 1110 + 2 * 50
    assert moved_parameters(problem, schedule) == ["w1", "b1", "w2", "b2"]


@pytest.mark.parametrize(
    ("joined", "message", "refusal"),
    [
        ((("w1", "b1"), ("b1", "w2")), "joined twice", "joined twice"),
        ((("w1",),), "a set of 1 parameters is joined", "fewer than 2"),
        (ALL, "a set of 4 parameters is joined", "more than 3"),
        ((("w1", "a"),), "only parameters are", "not a parameter"),
        ((("w1", "none"),), "only parameters are", "not a parameter"),
    ],
)
def test_what_cannot_be_joined_is_refused(folder, joined, message, refusal):
    problem = two_layers(buses=(Bus("pcie", 1e9, 3e-9),))
    schedule = on_one(problem, "w1", "w2", joined=joined)
    assert message in violations(problem, schedule)[0].message
    good = files_of(problem, certified(problem, on_one(problem, "w1", "w2", joined=PAIRS)))
    good.schedule["joined"] = joined
    with pytest.raises(Refused, match=refusal):
        good.check(folder)


def test_a_problem_says_whether_parameters_may_be_joined(folder):
    problem = two_layers(joinable=False)
    schedule = on_one(problem, "w1", "w2", joined=PAIRS)
    with pytest.raises(ScheduleError, match="does not say that they are joinable"):
        verify(problem, schedule)
    files = files_of(problem, certified(problem, on_one(problem, "w1", "b1", "w2", "b2")))
    files.schedule |= {
        "joined": PAIRS,
        "transfers": [{"kind": "load", "device": "gpu0", "tensor": t} for t in ("w1", "w2")],
    }
    with pytest.raises(Refused, match="not joinable"):
        files.check(folder)


def as_bytes_joinable(problem):
    return replace(as_bytes(problem), joinable=True)


def replaced(problem, schedule):
    return schedule.replace(problem=problem.digest)


def joined_by_threes(problem, schedule):
    """The schedule with sets of up to three parameters that all transfers bring alike."""
    alike = {}
    for name in moved_parameters(problem, schedule):
        how = tuple((t.kind, t.device, t.source) for t in schedule.transfers if t.tensor == name)
        if name not in problem.graph.outputs:
            alike.setdefault(how, []).append(name)
    most = max(min(3, problem.topology.most_joined), 1)
    sets = [names[k : k + most] for names in alike.values() for k in range(0, len(names), most)]
    sets = tuple(tuple(names) for names in sets if len(names) > 1)
    others = {name for names in sets for name in names[1:]}
    return schedule.replace(transfers=tuple(t for t in schedule.transfers if t.tensor not in others), joined=sets)


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 100_000))
def test_plans_bounds_and_checker_agree_with_the_simulator(folder, seed):
    problem = as_bytes_joinable(random_problem(seed, operators=4 + seed % 12, devices=1 + seed % 3))
    schedule = joined_by_threes(problem, random_schedule(problem, seed))
    plain, inner = resolved(problem, schedule)
    latency = simulate(plain, inner).latency_ns
    assert lower_bound(problem).ns <= latency
    files = files_of(problem, certified(problem, schedule))
    assert files.check(folder).latency_ns == latency
    plan = plan_of(problem, schedule)
    assert planned_timeline(plan).latency_ns == latency
    moved = [spec["name"] for spec in plan["parameters"]]
    assert moved[: len(moved_parameters(problem, schedule))] == moved_parameters(problem, schedule)
    loads = [step for step in plan["steps"] if step.get("event", {}).get("kind") == "load"]
    size = {t.name: t.size for t in problem.graph.tensors}
    assert all(step["event"]["bytes"] == size[step["name"]] for step in loads)


def test_a_part_of_a_machine_joins_no_more_than_the_whole_allows():
    """18 GPUs on a bus with 100 ns, and two on one with 2 ns, which a part leaves out."""
    devices = tuple(
        Device(f"g{k}", 10**9, 1e12, {"float32": 1e12}, bus="fast" if k < 18 else "slow") for k in range(20)
    )
    machine = Topology("m", devices, buses=(Bus("fast", 1e9, LATENCY), Bus("slow", 1e6, 2e-9)))
    graph = OpGraph(
        "chain",
        tuple(
            Operator(f"o{k}", "", (*([f"a{k - 1}"] if k else []), f"w{k}", f"b{k}", f"c{k}"), (f"a{k}",))
            for k in range(4)
        ),
        tuple(Tensor(f"{t}{k}", 10, "activation" if t == "a" else "parameter") for k in range(4) for t in "wbca"),
        ("a3",),
    )
    problem = Problem(graph, machine, Costs([[50] * 20] * 4), joinable=True)
    best = solve(problem, options={"work": 0.02})
    verify(problem, best)
    assert {len(names) for names in best.joined} == {2}


@pytest.mark.parametrize("at", [0, 1, 3, 8])
def test_an_interrupt_while_parameters_are_joined_gives_the_best_so_far(at, monkeypatch):
    join, calls = joined_loads.join_loads, count()

    def interrupted(*of, **options):
        if next(calls) == at:
            raise KeyboardInterrupt
        return join(*of, **options)

    for module in (joined_loads, race):
        monkeypatch.setattr(module, "join_loads", interrupted)
    problem = two_layers()
    best = solve(problem, options={"work": 0.05})
    verify(problem, best)
    assert next(calls) == at + 1
    assert best.certificate.status == "interrupted"


def test_parameters_are_joined_until_the_deadline():
    problem, schedule = two_layers(), on_one(two_layers(), "w1", "b1", "w2", "b2")
    scenario = as_scenario(problem)
    known = [ScheduleIndex.of(scenario, schedule)]
    assert joined_loads.join_at_first(scenario, (), known)[0].sets
    with ending_at(time.monotonic()):
        assert joined_loads.join_at_first(scenario, (), known) == (None, False)
        assert joined_loads.join_loads(scenario, known[0]).sets == ()


def test_resident_parameters_are_searched_apart():
    """Kinds of runs: parameters are joined that are resident in the same ones."""
    problem = two_layers()
    state = Scenario(problem, frozenset({"w1", "b1"}))
    best = solve(problem, state.workload, options={"work": 0.1})
    assert best.joined
    assert all({*names} <= {"w1", "b1"} or not {*names} & {"w1", "b1"} for names in best.joined)
    verify(problem, best)


def test_quick_methods_see_the_parameters_of_an_operator_joined():
    """A chain of four operators, with five parameters each, on four buses without peer access.

    Unjoined, five loads of an operator take 5 · 100 + 340 ns, so methods read directly in 450, and joining what they load
    then gives 1540. Joined first, an operator's parameters take 440, and buses work side by side.
    """
    devices = tuple(Device(f"gpu{d}", 10**6, 1e12, {"float32": 1e12}, bus=f"bus{d}") for d in range(4))
    buses = tuple(Bus(f"bus{d}", 1e9, LATENCY) for d in range(4))
    read = [[f"w{k}", *(f"b{k}.{part}" for part in range(4))] for k in range(4)]
    graph = OpGraph(
        "chain",
        tuple(Operator(f"o{k}", "", (*([f"a{k - 1}"] if k else []), *read[k]), (f"a{k}",)) for k in range(4)),
        (
            *(Tensor(name, 300 if name[0] == "w" else 10, "parameter") for names in read for name in names),
            *(Tensor(f"a{k}", 10) for k in range(4)),
        ),
        ("a3",),
    )
    machine = Topology("four", devices, buses, peer_access=False)
    problem = Problem(graph, machine, Costs([[100] * 4] * 4, [[450] * 4] * 4), joinable=True)
    found, _ = joined_loads.join_at_first(as_scenario(problem), (), ())
    assert found.latency_ns <= 1410
