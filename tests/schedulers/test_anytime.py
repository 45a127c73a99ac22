"""`anytime`: optimal on problems small enough to try everything, feasible and repeatable on all."""

import math
import time
from contextlib import suppress
from dataclasses import replace
from itertools import count, islice
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thorough import examples
from tvm_sched.schedulers import solve
from tvm_sched.schedulers.anytime import AnytimeOptions, race
from tvm_sched.schedulers.anytime.improvers import Annealing
from tvm_sched.schedulers.anytime.list_rules import rules
from tvm_sched.schedulers.anytime.search_state import ScheduleState
from tvm_sched.schedulers.anytime.starts import SUBMODEL_SHARE, SubmodelStart, quick_methods, submodel_start
from tvm_sched.schedulers.common.greedy import list_schedule, priorities
from tvm_sched.schedulers.common.native_methods import Effort, anneal, list_order
from tvm_sched.schedulers.common.partial import PartialSchedule
from tvm_sched.schedulers.common.search import Searches
from tvm_sched.schedulers.common.submodels import split
from tvm_sched.schedulers.sortinghat import heuristic_schedule
from tvm_sched_bench.testing import random_problem
from tvm_sched_bench.testing.variant_problems import random_variants
from tvm_sched_runtime import search_budget
from tvm_sched_runtime.errors import InfeasibleError, InputError
from tvm_sched_runtime.problem import (
    COLD,
    Bus,
    Costs,
    Device,
    Operator,
    OpGraph,
    Problem,
    Request,
    Switch,
    Tensor,
    Topology,
    Workload,
    as_scenario,
)
from tvm_sched_runtime.schedule import ScheduleIndex, requests_of, simulate, verify
from tvm_sched_runtime.schedule.native_objects import native_problem
from tvm_sched_runtime.schedule.native_problem import AnnealingEffort
from tvm_sched_runtime.search_budget import Budget, OutOfTime, ending_at

from .anytime_cases import diamonds, two_gpus
from .exhaustive import TooLarge, least_latency

FAST = {"work": 0.1}


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 10_000), operators=st.integers(1, 3), devices=st.integers(1, 2))
def test_reaches_the_optimum_of_tiny_problems(seed, operators, devices):
    problem = random_problem(seed, operators, devices, memory="generous")
    try:
        least = least_latency(problem)
    except TooLarge:
        return
    latency = solve(problem, method="anytime", options=FAST).certificate.latency_ns
    assert latency >= least
    # Parameters that pass through two neighbours are not among what `anytime` considers; they gain little.
    assert latency <= 1.05 * least


@settings(max_examples=examples(40), deadline=None)
@given(
    seed=st.integers(0, 10_000),
    operators=st.integers(0, 14),
    devices=st.integers(1, 5),
    work=st.sampled_from([0.0, 0.001, 0.05]),
)
def test_answers_obey_the_rules_and_are_never_worse_than_a_quick_method(seed, operators, devices, work):
    problem = random_problem(seed, operators, devices)
    try:
        schedule = solve(problem, method="anytime", options={"work": work})
    except InfeasibleError:
        return
    verify(problem, schedule)
    assert schedule.certificate.lower_bound_ns <= schedule.certificate.latency_ns
    assert schedule.certificate.latency_ns == simulate(problem, schedule).latency_ns
    for quick in ("single", "pipelined", "heft", "peft", "hios-lp", "hios-mr-anywhere"):
        with suppress(InfeasibleError):
            assert schedule.certificate.latency_ns <= solve(problem, method=quick).certificate.latency_ns
    searches = Searches(as_scenario(problem))
    for rule in islice(rules(as_scenario(problem)), 4):
        if (listed := searches.construct(rule.choices, rule.choice)) is not None:
            assert schedule.certificate.latency_ns <= listed[1]


def two_servers() -> Topology:
    """Two servers of two GPUs on a switch each, and a PCIe bus for each GPU: copies between servers occupy the buses."""
    devices = tuple(Device(f"gpu{d}", 10**9, 1e12, {"float32": 1e12}, bus=f"pcie{d}") for d in range(4))
    switches = tuple(Switch(f"switch{n}", (f"gpu{2 * n}", f"gpu{2 * n + 1}"), 1e9) for n in range(2))
    return Topology("servers", devices, tuple(Bus(f"pcie{d}", 1e9) for d in range(4)), switches=switches)


def two_chains(length: int) -> OpGraph:
    """Two chains without a common tensor; their operators alternate."""
    tensors = [Tensor(f"{c}{i}", 1000) for i in range(length) for c in "ab"]
    operators = [
        Operator(f"{c}{i}", "", (f"{c}{i - 1}",) if i else (), (f"{c}{i}",)) for i in range(length) for c in "ab"
    ]
    return OpGraph("chains", tuple(operators), tuple(tensors))


def test_a_rule_keeps_each_chain_in_one_group_of_devices():
    scenario = as_scenario(Problem(two_chains(6), two_servers(), Costs([[10] * 4] * 12)))
    parted = [rule.choice for rule in rules(scenario) if len(rule.choices) == 2][:3]
    assert parted == [[0, 1] * 6] * 3


def test_annealing_between_servers_begins_with_the_start_that_it_is_given():
    """Loads of later operators belong before copies of earlier ones: appended in turn they would wait for them."""
    random = Random(2)
    tensors, operators = [], []
    for o in range(60):
        before = range(max(0, o // 8 - 1) * 8, o // 8 * 8)
        read = tuple(f"a{r}" for r in sorted(random.sample(before, 2))) if before else ()
        tensors += [Tensor(f"w{o}", 20_000, "parameter"), Tensor(f"a{o}", 30_000)]
        operators.append(Operator(f"o{o}", "", (f"w{o}", *read), (f"a{o}",)))
    costs = Costs([[50_000 + 1000 * (o % 7)] * 4 for o in range(60)])
    scenario = as_scenario(Problem(OpGraph("layers", tuple(operators), tuple(tensors)), two_servers(), costs))
    start = list_order(scenario, "heft")
    operators_of, devices = np.array(start.operator), np.array(start.device)
    effort = AnnealingEffort(operators=1, seed=0, goal_ns=0, stage_operators=1)
    joins, idle = np.zeros(60, dtype=np.int64), lambda done, total: 0.0
    annealed = native_problem(scenario).anneal(operators_of, devices, joins, effort, idle)
    assert ScheduleIndex.of_native(scenario, annealed).objective_ns == start.objective_ns


@settings(max_examples=examples(40), deadline=None)
@given(
    seed=st.integers(0, 10_000),
    operators=st.integers(1, 60),
    devices=st.integers(1, 12),
    style=st.sampled_from(["bus", "shared", "mixed"]),
    moves=st.sampled_from([0, 100, 5000]),
)
def test_annealing_gives_a_schedule_that_is_not_above_its_start(seed, operators, devices, style, moves):
    scenario = as_scenario(random_problem(seed, operators, devices, memory="generous", style=style))
    for method in ("heft", "peft"):
        start = list_order(scenario, method)
        annealed = anneal(scenario, start, Effort(moves, seed, 0, 1, math.inf))
        assert annealed.objective_ns <= start.objective_ns
        assert annealed.violations(1) == []


@pytest.mark.parametrize("seed", [0, 3])
def test_without_a_time_limit_the_clock_decides_nothing(seed, monkeypatch):
    """Not of what is chosen among variants either, though each look at the clock takes a minute."""
    problem = random_variants(random_problem(seed, 8, 2, memory="generous"), seed, 3)
    first = solve(problem, method="anytime", options={"work": 0.05})
    moments = count(0, 60)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(moments)))
    again = solve(problem, method="anytime", options={"work": 0.05})
    assert first.choice
    assert again.replace(seconds=first.seconds) == first


def works(problem, monkeypatch, options=None, workload=COLD):
    """Return the work that each search of one call may use."""
    found = []

    def improve(state, turns, budget):
        found.append(budget.work)
        return search_budget.improve(state, turns, Budget(0.0))

    monkeypatch.setattr(race, "improve", improve)
    solve(problem, workload, "anytime", options)
    return found


@pytest.mark.parametrize(
    ("options", "work"), [({"work": 3}, 3), ({"time_limit": 5}, 4), ({"time_limit": 5, "work": 9}, 9)]
)
def test_given_limits_are_kept_however_small_the_problem(options, work, monkeypatch):
    assert works(random_problem(0, 3, 2), monkeypatch, options) == [work]


@pytest.mark.parametrize(("operators", "devices", "work"), [(3, 2, 0.12), (8, 5, 0.8), (200, 4, 16), (300, 4, 16)])
def test_by_default_small_problems_get_less_work(operators, devices, work, monkeypatch):
    """0.02 s for each operator and device, at most four fifths of 20 s."""
    problem = random_problem(0, operators, devices, memory="generous")
    assert works(problem, monkeypatch) == [pytest.approx(work)]


def test_by_default_kinds_of_requests_and_alternatives_count_as_more_operators(monkeypatch):
    problem = random_problem(0, 4, 2, memory="generous")
    workload = Workload((Request(()), Request(tuple(sorted(problem.parameters)))))
    assert works(problem, monkeypatch, workload=workload) == [pytest.approx(0.16)] * 2
    varied = random_variants(problem, 0, 2)
    assert varied.places == 8 + 2 * sum(len(a.operators) for g in varied.variants.groups for a in g.alternatives)


QUICK = ("single", "heft", "peft", "deepplan", "hios-lp", "hios-mr")


@pytest.mark.parametrize("seed", [2, pytest.param(6, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("resident", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["plain", "variants", "joinable", "18 devices"])
def test_no_quick_method_is_faster_however_little_work_there_is(kind, resident, seed):
    """HEFT and PEFT try more choices among variants than a search of a hundredth of a second."""
    problem = random_problem(seed, 12, 18 if kind == "18 devices" else 4, memory="generous")
    if kind == "variants":
        problem = random_variants(problem, seed, 3)
    problem = replace(problem, joinable=kind == "joinable")
    workload = Workload(requests_of(problem, resident))
    latency = solve(problem, workload, "anytime", {"work": 0.01}).certificate.latency_ns
    for method in QUICK:
        with suppress(InfeasibleError):  # no device can run all operators
            assert latency <= solve(problem, workload, method).certificate.latency_ns


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", [0, 3])
def test_the_same_work_and_seed_give_the_same_schedule(seed):
    problem = random_problem(7, 16, 3)
    options = {"work": 0.3, "seed": seed}
    first, second = solve(problem, method="anytime", options=options), solve(problem, method="anytime", options=options)
    assert (first.placements, first.transfers) == (second.placements, second.transfers)
    assert first.certificate == second.certificate


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 10_000), operators=st.integers(0, 40), dominators=st.integers(0, 3), most=st.integers(1, 12))
def test_submodels_hold_every_operator_after_its_predecessors(seed, operators, dominators, most):
    problem = random_problem(seed, operators, 2)
    groups = split(problem, dominators, most)
    order = [o for group in groups for o in group]
    assert sorted(order) == list(range(operators))
    assert all(len(group) <= most for group in groups)
    position = {o: i for i, o in enumerate(order)}
    for o, before in enumerate(problem.graph.index.predecessors):
        assert all(position[p] < position[o] for p in before)


def test_regions_end_at_dominators():
    problem = Problem(diamonds(3), two_gpus(), Costs([[10, 10]] * 9))
    names = [[problem.graph.operators[o].name for o in group] for group in split(problem, dominators=1)]
    # The main source a0 is itself the first dominator; b0 is off the paths from it and goes with its reader.
    assert [group[-1] for group in names[-2:]] == ["join1", "join2"]


def test_uses_both_buses_and_both_devices():
    problem = Problem(diamonds(1), two_gpus(), Costs([[100, 100]] * 3))
    schedule = solve(problem, method="anytime", options=FAST)
    # By hand: one bus carries the input and a parameter, 1008 ns, the other the other parameter; the input gets to the
    # second device over the link meanwhile. The first branch ends at 1108, the other's result is there by then; the join.
    assert schedule.certificate.latency_ns == 1008 + 100 + 100
    assert {placement.device for placement in schedule.placements} == {"gpu0", "gpu1"}


def test_one_device_cannot_overlap_its_operators():
    problem = Problem(diamonds(1), Topology("one", two_gpus().devices[:1], two_gpus().buses[:1]), Costs([[100]] * 3))
    # Input and both parameters over one bus: 2008 ns; then the branch that came last and the join.
    assert solve(problem, method="anytime", options=FAST).certificate.latency_ns == 8 + 2000 + 100 + 100


def test_direct_host_access_is_chosen_where_it_helps_and_uses_the_bus():
    direct = [[1050, 1050], [1050, 1050], [2**63 - 1] * 2]
    problem = Problem(diamonds(1), two_gpus(), Costs([[100, 100]] * 3, direct))
    schedule = solve(problem, method="anytime", options=FAST)
    # The kernel reads 1008 bytes while it runs: 1050 ns instead of 1108; then a copy (8) and the join (100).
    assert schedule.certificate.latency_ns == 1050 + 8 + 100
    assert [transfer.kind for transfer in schedule.transfers].count("host_read") == 2


def test_memory_limits_spread_the_model():
    problem = Problem(diamonds(3), two_gpus(memory=3500), Costs([[10, 10]] * 9))
    schedule = solve(problem, method="anytime", options=FAST)
    verify(problem, schedule)
    loads = [transfer for transfer in schedule.transfers if transfer.kind == "load"]
    assert {load.device for load in loads} == {"gpu0", "gpu1"}


def test_parameters_leave_where_memory_is_short():
    problem = Problem(diamonds(3), two_gpus(memory=2500), Costs([[10, 10]] * 9))
    schedule = solve(problem, method="anytime", options=FAST)
    verify(problem, schedule)
    assert any(transfer.evict for transfer in schedule.transfers)


def test_memory_that_cannot_suffice_is_refused_with_the_shortfall():
    """The first operator's result is held while the next two need 2000 bytes more; no operator alone needs over 2008."""
    sizes = {"x": 1000, "s": 8, "y": 1000, "z": 1000, "end": 8}
    tensors = [Tensor("in", 8, "input"), *(Tensor(name, size) for name, size in sizes.items())]
    operators = [
        Operator("a", inputs=("in",), outputs=("x", "s")),
        Operator("b", inputs=("s",), outputs=("y",)),
        Operator("c", inputs=("y",), outputs=("z",)),
        Operator("d", inputs=("z", "x"), outputs=("end",)),
    ]
    graph = OpGraph("held", tuple(operators), tuple(tensors), ("end",))
    one = two_gpus(memory=2500)
    problem = Problem(graph, Topology("one", one.devices[:1], one.buses[:1]), Costs([[10]] * 4))
    with pytest.raises(InfeasibleError, match=r"short of \d+ bytes"):
        solve(problem, method="anytime", options=FAST)


def test_graph_without_operators():
    graph = OpGraph("through", (), (Tensor("x", 4, "input"),), ("x",))
    schedule = solve(Problem(graph, two_gpus(), Costs([])), method="anytime")
    assert schedule.certificate.latency_ns == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dominator": 1}, "has no option 'dominator'"),
        ({"stage": 0}, "1 or more is allowed"),
        ({"seed": "many"}, "Expected `int`"),
        ({"time_limit": -1}, "from 0 is allowed"),
        ({"work": "nan"}, "from 0 is allowed"),
        ({"work": "inf"}, "work is infinite"),
        ({"time_limit": "inf"}, "time_limit is infinite"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(InputError, match=message):
        solve(random_problem(0), method="anytime", options=options)


def test_work_alone_can_end_a_search():
    problem = random_problem(3, 8, 2)
    limited, endless = (
        solve(problem, method="anytime", options={**FAST, **more}) for more in ({}, {"time_limit": math.inf})
    )
    assert limited.placements == endless.placements


def test_times_of_a_year_do_not_overflow():
    problem = Problem(diamonds(2), two_gpus(), Costs([[2**55, 2**55]] * 6))
    schedule = solve(problem, method="anytime", options=FAST)
    assert schedule.certificate.latency_ns <= 6 * 2**55 + 5000


def test_operators_of_many_minutes():
    problem = Problem(diamonds(2), two_gpus(), Costs([[10**12, 10**12]] * 6))
    schedule = solve(problem, method="anytime", options=FAST)
    # Both devices take a branch each: two diamonds are four steps, and little else.
    assert 4 * 10**12 <= schedule.certificate.latency_ns <= 4 * 10**12 + 10_000


def test_memory_that_suffices_only_by_time_is_found():
    # Made so that one random schedule just fits; what is counted event by event needs more.
    for seed in (1, 27):
        problem = random_problem(seed, Random(seed).choice([2, 5, 10]), 1 + seed % 3, memory="tight")
        verify(problem, solve(problem, method="anytime", options=FAST))


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 10_000), operators=st.integers(1, 20), devices=st.integers(1, 6))
def test_what_schedulers_believe_is_what_the_simulator_says(seed, operators, devices):
    problem = random_problem(seed, operators, devices, memory="generous")
    state = PartialSchedule(problem)
    list_schedule(state, range(operators), priorities(problem))
    assert simulate(problem, state.to_index().to_schedule()).latency_ns == state.latency


@pytest.mark.parametrize("name", ["quick methods", "list scheduling", "annealing", "local search"])
def test_an_interrupt_gives_the_best_schedule_so_far(name):
    def interrupted(what, done, total):
        if what == name and (what != "quick methods" or done > 1):
            raise KeyboardInterrupt

    problem = random_problem(3, 16, 3, memory="generous")
    schedule = solve(problem, method="anytime", options=FAST, progress=interrupted)
    verify(problem, schedule)
    assert schedule.certificate.status == "interrupted"


def test_the_status_says_how_the_search_ended():
    problem = random_problem(3, 16, 3)
    assert solve(problem, method="anytime", options=FAST).certificate.status == "time limit"
    alone = Problem(diamonds(1), Topology("one", two_gpus().devices[:1], two_gpus().buses[:1]), Costs([[100]] * 3))
    assert solve(alone, method="anytime", options=FAST).certificate.status == "optimal"
    assert (
        solve(Problem(diamonds(3), two_gpus(), Costs([[100, 100]] * 9)), method="heft").certificate.status
        == "no better found"
    )


def test_annealing_without_a_start_leaves_its_work_to_others():
    budget = Budget(1.0)
    assert not Annealing(AnytimeOptions()).step(ScheduleState(as_scenario(random_problem(3, 8, 2)), seed=0), budget)
    assert budget.spent == 0


def test_a_time_limit_of_nothing_gives_a_schedule():
    problem = random_problem(3, 16, 3)
    verify(problem, solve(problem, method="anytime", options={"time_limit": 0}))


@pytest.mark.parametrize(("seed", "operators", "devices"), [(2, 150, 4), (16, 12, 3)])
def test_devices_that_share_host_memory_need_no_copy_of_host_tensors(seed, operators, devices):
    """A host tensor also copied to a device that reads it in place was once loaded twice, or its readers were lost."""
    problem = random_problem(seed, operators=operators, devices=devices, memory="generous")
    verify(problem, solve(problem, method="anytime", options={"work": 0.05}))


def chain(count):
    """Layers of one parameter each."""
    layers = range(count)
    tensors = [Tensor(f"w{i}", 8, "parameter") for i in layers] + [Tensor(f"t{i}", 8) for i in layers]
    operators = [Operator(f"v{i}", "", (f"w{i}", *([f"t{i - 1}"] if i else [])), (f"t{i}",)) for i in layers]
    return OpGraph("chain", tuple(operators), tuple(tensors), (f"t{count - 1}",))


def test_deepplan_is_left_out_where_it_would_take_the_searchs_time():
    graph = chain(600)
    topology = Topology("one", two_gpus().devices[:1], two_gpus().buses[:1])
    direct = Problem(graph, topology, Costs([[10]] * 600, [[20]] * 600))
    assert "deepplan" not in quick_methods(direct, work=1.0)
    assert "deepplan" in quick_methods(direct, work=100.0)
    assert "deepplan" in quick_methods(Problem(graph, topology, Costs([[10]] * 600)), work=1.0)
    # On 16 GPUs with a bus each there are up to 256 plans of 1,200 events.
    names = tuple(f"gpu{d}" for d in range(16))
    gpus = tuple(Device(name, 1 << 30, 1e12, {"float32": 1e12}, bus=f"pcie{d}") for d, name in enumerate(names))
    buses = tuple(Bus(f"pcie{d}", 1e9) for d in range(16))
    many = Topology("many", gpus, buses, switches=(Switch("switch", names, 1e10),))
    wide = Problem(graph, many, Costs([[10] * 16] * 600))
    assert "deepplan" not in quick_methods(wide, work=10.0)
    assert "deepplan" in quick_methods(wide, work=100.0)


def submodel_seconds(problem, work):
    start = submodel_start(as_scenario(problem), work)
    budget = Budget(math.inf)
    if start is not None:
        start.step(ScheduleState(as_scenario(problem), seed=0), budget)
    return budget.spent


def test_the_start_from_submodels_takes_a_bounded_share_of_the_work():
    topology = two_gpus()
    small, medium = (Problem(chain(n), topology, Costs([[10, 10]] * n)) for n in (255, 256))
    assert submodel_start(as_scenario(small), work=100.0) is None
    assert 0 < submodel_seconds(medium, work=1.0) <= SUBMODEL_SHARE
    assert submodel_start(as_scenario(medium), work=submodel_seconds(medium, work=1.0)) is None
    wide = random_problem(3, 256, 3, memory="generous")  # submodels of many operators take longer
    assert submodel_seconds(wide, work=10.0) > 2 * submodel_seconds(medium, work=10.0)
    large = random_problem(1, 10_000, 4, memory="generous")
    assert submodel_start(as_scenario(large), work=16.0) is None


@pytest.mark.thorough
def test_the_start_from_submodels_is_repeatable_and_the_answer_no_worse():
    random = Random(0)
    costs = Costs([[random.randint(10, 90), random.randint(10, 90)] for _ in range(300)])
    problem = Problem(chain(300), two_gpus(), costs)
    found = heuristic_schedule(as_scenario(problem))
    verify(problem, found.to_schedule())
    first, second = (solve(problem, method="anytime", options={"work": 0.3, "seed": 1}) for _ in range(2))
    assert (first.placements, first.transfers) == (second.placements, second.transfers)
    assert first.notes["tried"]["submodels"] * 1e9 <= found.objective_ns + 1
    assert first.certificate.latency_ns <= found.objective_ns


def test_there_is_no_start_from_submodels_where_it_is_too_late():
    problem = random_problem(5, 40, 3, memory="generous")
    with ending_at(time.monotonic()), pytest.raises(OutOfTime):
        heuristic_schedule(as_scenario(problem))
    state, budget = ScheduleState(as_scenario(problem), seed=0), Budget(1.0, deadline=time.monotonic())
    assert not SubmodelStart(0.1).step(state, budget)
    assert state.best is None
    assert budget.spent == pytest.approx(0.1)
