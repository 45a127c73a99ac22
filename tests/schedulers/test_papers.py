"""Schedulers `sortinghat`, `efficient-mip` and `deepplan` on small problems worked by hand, and their options."""

from itertools import product
from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedule import cases
from thorough import examples
from tvm_sched.schedulers import solve
from tvm_sched.schedulers.common.milp import Effort
from tvm_sched.schedulers.efficient_mip import Instance, place
from tvm_sched.schedulers.efficient_mip.instance import evaluate
from tvm_sched.schedulers.efficient_mip.path_bound import lower_bound
from tvm_sched.schedulers.efficient_mip.program import build, hint
from tvm_sched.schedulers.scheduler_registry import critical_path
from tvm_sched.schedulers.sortinghat import program
from tvm_sched.schedulers.sortinghat.adjustments import Adjustments, Latencies
from tvm_sched.schedulers.sortinghat.handover import State
from tvm_sched_bench.testing import random_problem
from tvm_sched_runtime.errors import InfeasibleError, InputError
from tvm_sched_runtime.problem import (
    Bus,
    Costs,
    Device,
    Link,
    Operator,
    OpGraph,
    Problem,
    Tensor,
    Topology,
    as_scenario,
)
from tvm_sched_runtime.schedule import simulate, verify

from .anytime_cases import diamonds, two_gpus

FORBIDDEN = 2**63 - 1
EFFORT = Effort("highs", 10.0, 0, 0)


def layers(count=2, size=1000):
    """A chain in which each operator reads a parameter."""
    tensors = [Tensor(f"w{i}", size, "parameter") for i in range(count)] + [Tensor(f"y{i}", 10) for i in range(count)]
    operators = [Operator(f"op{i}", "", ((f"y{i - 1}",) if i else ()) + (f"w{i}",), (f"y{i}",)) for i in range(count)]
    return OpGraph("layers", tuple(operators), tuple(tensors), (f"y{count - 1}",))


def one_bus(graph, costs):
    topology = two_gpus()
    devices = tuple(Device(d.name, d.memory, 1e12, {"float32": 1e12}, bus="pcie0") for d in topology.devices)
    return Problem(graph, Topology("shared", devices, topology.buses[:1], topology.links), costs)


# sortinghat


def test_sortinghat_sends_parameters_through_the_neighbour():
    problem = Problem(layers(), two_gpus(), Costs([[100, 100]] * 2))
    schedule = solve(problem, method="sortinghat", options={"dominators": 2})
    # Each bus brings 1000 bytes in 1000 ns; the second operator follows its input (10 bytes) to the other device.
    assert schedule.certificate.latency_ns == 1000 + 100 + 10 + 100


@pytest.mark.slow
def test_sortinghat_uses_both_devices():
    problem = Problem(diamonds(1), two_gpus(), Costs([[1000, 1000]] * 3))
    schedule = solve(problem, method="sortinghat", options={"dominators": 3})
    assert schedule.certificate.latency_ns < solve(problem, method="single").certificate.latency_ns
    assert {placement.device for placement in schedule.placements} == {"gpu0", "gpu1"}


def test_sortinghat_figure_3_the_same_schedule_on_gpus_of_one_bus_and_of_two():
    # A to B, and to C and D; E reads B and D. Kernels and loads take 1000, copies 10. The figure's times are in its picture
    # alone; the text says that GPU1 with GPU2, which share a bus, is slower than GPU1, and GPU1 with GPU3 faster.
    sizes = dict.fromkeys(("wa", "wb", "wc", "wd", "we"), 1000) | dict.fromkeys("abcde", 10)
    reads = {"A": "wa", "B": "wb a", "C": "wc a", "D": "wd c", "E": "we b d"}
    graph = cases.graph(sizes, [(o, tensors, o.lower()) for o, tensors in reads.items()], outputs=("e",))
    devices = cases.device("gpu1", "bus0"), cases.device("gpu2", "bus0"), cases.device("gpu3", "bus1")
    links = tuple(Link(pair, 1e9) for pair in (("gpu1", "gpu2"), ("gpu1", "gpu3"), ("gpu2", "gpu3")))
    topology = cases.topology(*devices, buses=(cases.bus("bus0"), cases.bus("bus1")), links=links)
    problem = cases.problem(graph, topology, [[1000] * 3] * 5)
    latency = {}
    for other in ("gpu1", "gpu2", "gpu3"):
        on = {o: other if o in "CD" else "gpu1" for o in reads}
        copies = [f"copy a gpu1 {other}", f"copy d {other} gpu1"] if other != "gpu1" else []
        schedule = cases.schedule(
            problem,
            [f"{o} {d}" for o, d in on.items()],
            [f"load w{o.lower()} {d}" for o, d in on.items()] + copies,
        )
        latency[other] = simulate(problem, schedule).latency_ns
    assert latency == {"gpu1": 6000, "gpu2": 6010, "gpu3": 5020}
    found = solve(problem, method="sortinghat", options={"q": 2, "time_limit": 2.0})
    assert found.certificate.latency_ns <= latency["gpu3"]
    assert "gpu3" in {placement.device for placement in found.placements}


def test_sortinghat_says_what_decided_each_submodel():
    problem = Problem(diamonds(2), two_gpus(), Costs([[1000, 1000]] * 6))
    schedule = solve(problem, method="sortinghat", options={"q": 2})
    told = schedule.notes["submodels"]
    assert sum(each["operators"] for each in told) == 6
    end = {event.name: event.end_ns for event in simulate(problem, schedule).events if event.kind == "kernel"}
    groups: dict[int, list[str]] = {}
    for placement in schedule.placements:
        groups.setdefault(placement.submodel, []).append(placement.operator)
    for each, group in zip(told, groups.values(), strict=True):
        assert each["simulated_ns"] == max(end[name] for name in group)
        assert each["status"] == "optimal"
        assert each["bound_ns"] <= each["objective_ns"] + 1 <= each["start_ns"] + 2
        assert each["total_ns"] <= each["start_ns"]
        assert each["decided_by"] == ("solver" if each["total_ns"] < each["start_ns"] else "start")
    assert schedule.notes["proved"] == len(told)
    assert schedule.notes["decided_by_solver"] == sum(each["decided_by"] == "solver" for each in told)
    assert schedule.notes["total_latency_ns"] == max(each["total_ns"] for each in told)
    assert max(each["simulated_ns"] for each in told) == schedule.certificate.latency_ns
    small = Problem(layers(1), two_gpus(), Costs([[100, 100]]))  # HEFT's schedule is no faster, so its notes stay
    unasked = solve(small, method="sortinghat", options={"q": 2, "total_time_limit": 0}).notes
    assert {(each["status"], each["decided_by"], each["objective_ns"]) for each in unasked["submodels"]} == {
        ("not asked", "start", None)
    }


def test_sortinghat_hands_its_state_on():
    problem = Problem(diamonds(2), two_gpus(), Costs([[100, 100]] * 6))
    state = State(as_scenario(problem), Latencies(as_scenario(problem), Adjustments()), 2)
    s, nodes = state.submodel([0, 1, 2])
    assert (s.fixed, s.transfers_end, s.device_end, s.memory_used) == ({}, [0, 0], [0, 0], [0, 0])
    assignment = [2] * len(s.nodes)
    times = program.evaluate(s, assignment)
    # The input (8), two parameters (1000 each), three operators.
    assert times.total == 2008 + 300
    state.accept(s, nodes, assignment, times)
    after, nodes = state.submodel([3, 4, 5])
    assert after.fixed == {3: 0}  # the join, on the first device
    assert nodes.placeholders == [2]
    assert after.transfers_end == [2008, 0]
    assert after.device_end == [2308, 0]
    assert after.memory_used == [2008 + 8, 0]  # what was loaded, and the join's result


def test_adjustments_and_ablations():
    costs = Costs([[100, 300]] * 3, [[1200, 1300], [1200, 1300], [FORBIDDEN] * 2])
    problem = one_bus(diamonds(1), costs)
    plain = Latencies(as_scenario(problem), Adjustments(False, False, False))
    paper = Latencies(as_scenario(problem), Adjustments())
    w = problem.graph.index.tensor_id["w0a"]
    assert plain.direct[0] == [1200, 1300]
    assert paper.direct[0] == [4 * 1200, 4 * 1300]  # twice the two devices on the bus
    assert paper.direct[2] == paper.kernel[2]  # nothing to read: no bus, no contention
    assert (plain.copy(w, 0, 1), paper.copy(w, 0, 1)) == (1000, 1500)  # a link
    without = Topology("no links", problem.topology.devices, problem.topology.buses)
    shared = Problem(problem.graph, without, costs)
    plain, paper = (Latencies(as_scenario(shared), a) for a in (Adjustments(False, False, False), Adjustments()))
    assert paper.copy(w, 0, 1) == 2 * plain.copy(w, 0, 1)  # buses that both devices use
    assert paper.buses == [[0, 1]]
    assert Latencies(as_scenario(problem), Adjustments(contention=False)).buses == [[0], [1]]
    assert Latencies(as_scenario(problem), Adjustments(topology_aware=False)).kernel[0] == [200, 200]


@pytest.mark.parametrize("options", [{"contention": False}, {"topology_aware": False}, {"direct_contention": False}])
def test_ablations_give_schedules(options):
    problem = random_problem(11, 8, 3, memory="generous", style="bus")
    verify(problem, solve(problem, method="sortinghat", options={**options, "time_limit": 0.2, "q": 2}))


def test_same_seed_same_schedule():
    problem = Problem(diamonds(2), two_gpus(), Costs([[300, 500]] * 6))
    for name in ("sortinghat", "efficient-mip", "deepplan"):
        options = {} if name == "deepplan" else {"node_limit": 1, "q": 2}
        first, second = solve(problem, method=name, options=options), solve(problem, method=name, options=options)
        assert (first.placements, first.transfers) == (second.placements, second.transfers)


@pytest.mark.parametrize(
    ("name", "solver"),
    [
        ("sortinghat", "sortinghat.program.minimise"),
        ("efficient-mip", "efficient_mip.program.minimise"),
    ],
)
def test_interrupts_and_time_limits_leave_the_rest_to_the_heuristic(name, solver, monkeypatch):
    problem = Problem(diamonds(3), two_gpus(), Costs([[100, 100]] * 9))
    verify(problem, solve(problem, method=name, options={"total_time_limit": 0}))
    asked = []

    def interrupt(*arguments):
        asked.append(arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(f"tvm_sched.schedulers.{solver}", interrupt)
    verify(problem, solve(problem, method=name))
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sortinghat", {"q": 3}, "an even number"),
        ("sortinghat", {"solver": "cplex"}, "highs, scip, gurobi are allowed"),
        ("efficient-mip", {"time_limit": -1}, "0 or more is allowed"),
        ("efficient-mip", {"dominators": 0}, "1 or more is allowed"),
        ("deepplan", {"device": "gpu7"}, "no device 'gpu7'; there are gpu0, gpu1"),
        ("critical-path", {}, "not a scheduler"),
    ],
)
def test_wrong_options(name, options, message):
    with pytest.raises(InputError, match=message):
        solve(Problem(layers(), two_gpus(), Costs([[100, 100]] * 2)), method=name, options=options)


def test_a_solver_that_is_not_there(monkeypatch):
    def solve_nothing(*arguments, **options):
        raise RuntimeError("no licence")

    monkeypatch.setattr("ortools.math_opt.python.mathopt.solve", solve_nothing)
    problem = Problem(layers(), two_gpus(), Costs([[100, 100]] * 2))
    with pytest.raises(InputError, match="solver 'gurobi' cannot be used here"):
        solve(problem, method="sortinghat", options={"solver": "gurobi"})


# efficient-mip


def placed(capacity=100.0, accelerators=2, q=1, **changes):
    """a -> b -> d and a -> c -> d; an accelerator is ten times as fast as a CPU."""
    constants = {
        "accelerator": [[1.0] * accelerators, [4.0] * accelerators, [3.0] * accelerators, [1.0] * accelerators],
        "cpu": [10.0, 40.0, 30.0, 10.0],
        "size": [10.0, 20.0, 20.0, 10.0],
        "transfer": [0.5, 0.25, 0.25, 0.5],
        "edges": [(0, 1), (0, 2), (1, 3), (2, 3)],
        "capacity": [capacity] * accelerators,
        "q": q,
    }
    return Instance(**{**constants, **changes})


def test_times_of_placements_by_hand():
    assert evaluate(placed(), [1, 1, 1, 1]).latency == 9
    # a and b put out both results (0.75): 5.75; then c and d take both in.
    assert evaluate(placed(), [1, 1, 2, 2]).latency == 1 + 4 + 0.75 + 0.75 + 3 + 1
    assert evaluate(placed(), [0, 0, 0, 0]).latency == 10 + 40 + 10
    assert evaluate(placed(), [1, 0, 1, 0]).latency == 1 + 3 + 0.75 + 40 + 10  # out when both are done
    assert evaluate(placed(), [1, 2, 2, 1]) is None  # leaves and comes back
    assert evaluate(placed(q=2), [1, 3, 3, 2]).latency == 1 + 0.5 + 0.5 + 7 + 0.5 + 0.5 + 1  # two subgraphs, though
    assert evaluate(placed(capacity=59.0), [1, 1, 1, 1]) is None
    assert evaluate(placed(together=[0, 1, 1, 2]), [1, 1, 2, 2]) is None


def test_places_what_does_not_fit_into_one_accelerator():
    best = place(placed(capacity=50.0), EFFORT)
    # d alone elsewhere (it takes b and c in) or a alone; on a CPU they would be slower.
    assert best.latency == pytest.approx(min(8 + 0.5 + 0.5 + 1, 1 + 0.5 + 0.5 + 8))
    assert best.bound <= best.latency
    with pytest.raises(InfeasibleError):
        place(placed(capacity=5.0, cpu=[inf] * 4), EFFORT)
    with pytest.raises(InputError, match="cycle"):
        placed(edges=[(0, 1), (1, 0)])


def random_instance(random, operators):
    edges = [(u, v) for v in range(operators) for u in range(v) if random.random() < 0.4]
    accelerators, cpu = random.randint(1, 2), random.random() < 0.5
    return Instance(
        [[float(random.randint(1, 9))] * accelerators for _ in range(operators)],
        [float(random.randint(5, 60)) if cpu else inf for _ in range(operators)],
        [float(random.randint(1, 9)) for _ in range(operators)],
        [float(random.randint(0, 4)) for _ in range(operators)],
        edges,
        [random.choice([9.0, 15.0, 99.0])] * accelerators,
        random.randint(1, 2),
        [random.randrange(operators) for _ in range(operators)] if random.random() < 0.3 else [],
    )


@settings(max_examples=examples(25), deadline=None)
@given(seed=st.integers(0, 10**6), operators=st.integers(1, 4))
def test_the_placement_is_the_best_of_all(seed, operators):
    instance = random_instance(Random(seed), operators)
    places = (0, *instance.subgraphs)
    found = [e.latency for p in product(places, repeat=operators) if (e := evaluate(instance, p))]
    try:
        best = place(instance, EFFORT)
    except InfeasibleError:
        # The heuristic is the gate: it may miss what is feasible only with much to and fro.
        return
    assert best.latency == pytest.approx(min(found), rel=1e-3)
    assert best.bound <= best.latency * (1 + 1e-9)


@settings(max_examples=examples(100), deadline=None)
@given(seed=st.integers(0, 10**6), operators=st.integers(1, 5))
def test_no_placement_is_below_the_bound_of_paths(seed, operators):
    instance = random_instance(Random(seed), operators)
    found = [e.latency for p in product((0, *instance.subgraphs), repeat=operators) if (e := evaluate(instance, p))]
    assert not found or lower_bound(instance) <= min(found) * (1 + 1e-9)


@settings(max_examples=examples(25), deadline=None)
@given(seed=st.integers(0, 10**6), operators=st.integers(1, 5))
def test_placements_are_solutions_of_the_program(seed, operators):
    from ortools.math_opt.python import mathopt

    instance = random_instance(Random(seed), operators)
    try:
        known = place(instance, None)
    except InfeasibleError:
        return
    made = mathopt.Model()
    ends = evaluate(instance, known.subgraph)
    values = hint(instance, build(made, instance, ends.latency), known.subgraph, ends)
    for row in made.linear_constraints():
        held = sum(term.coefficient * values[term.variable] for term in row.terms())
        assert row.lower_bound - 1e-6 <= held <= row.upper_bound + 1e-6


def test_efficient_mip_knows_one_speed_and_leaves_parameters_out():
    problem = Problem(diamonds(1), two_gpus(), Costs([[1000, 1000]] * 3))
    schedule = solve(problem, method="efficient-mip", options={"dominators": 3})
    assert {placement.device for placement in schedule.placements} == {"gpu0", "gpu1"}
    assert not any(placement.direct_host_access for placement in schedule.placements)
    sources = {transfer.tensor for transfer in schedule.transfers if transfer.kind == "copy"}
    assert sources <= {tensor.name for tensor in problem.graph.tensors if tensor.kind == "activation"}


# deepplan


def test_deepplan_overlaps_loads_and_kernels_on_one_device():
    problem = Problem(layers(), two_gpus(), Costs([[600, 600]] * 2))
    alone = {"direct_host_access": False, "parallel_transmission": False}
    assert solve(problem, method="deepplan", options=alone).certificate.latency_ns == 1000 + 1000 + 600


def test_deepplan_sends_the_second_half_through_the_neighbour():
    problem = Problem(layers(), two_gpus(), Costs([[600, 600]] * 2))
    schedule = solve(problem, method="deepplan", options={"direct_host_access": False})
    # The second parameter is at the neighbour at 1000, and here at 2000; the first operator is done by then.
    assert schedule.certificate.latency_ns == 2000 + 600
    fast = Topology("fast", two_gpus().devices, two_gpus().buses, (Link(("gpu0", "gpu1"), 1e10),))
    schedule = solve(
        Problem(layers(), fast, Costs([[600, 600]] * 2)), method="deepplan", options={"direct_host_access": False}
    )
    assert schedule.certificate.latency_ns == 1000 + 600 + 600
    assert len({placement.device for placement in schedule.placements}) == 1


def test_deepplan_reads_directly_where_that_is_faster():
    problem = Problem(layers(), two_gpus(), Costs([[600, 600]] * 2, [[1050, 1050]] * 2))
    schedule = solve(problem, method="deepplan", options={"parallel_transmission": False})
    # Read while it computes (1050, the bus busy for 1000), and the second parameter behind it: loaded at 2000.
    assert schedule.certificate.latency_ns == min(1050 + 1050, 2000 + 600)


def test_deepplan_refuses_what_fits_no_device():
    problem = Problem(diamonds(3), two_gpus(memory=3500), Costs([[10, 10]] * 9))
    with pytest.raises(InfeasibleError, match=r"short of \d+ bytes"):
        solve(problem, method="deepplan")


def test_critical_path_by_hand():
    # The first branch loads the input (8) and its parameter (1000) and runs (100); the other one does not read the input
    # for the first time; then the join (100).
    problem = Problem(diamonds(1), two_gpus(), Costs([[100, 200]] * 3))
    assert critical_path(problem) == 8 + 1000 + 100 + 100
    faster = Topology("faster", two_gpus().devices, (Bus("pcie0", 1e9), Bus("pcie1", 1e10)), two_gpus().links)
    assert critical_path(Problem(diamonds(1), faster, Costs([[100, 200]] * 3))) == 101 + 200 + 100
