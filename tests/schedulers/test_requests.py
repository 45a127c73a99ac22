"""Schedules for warm runs and for mixes of requests: never slower than one device, and judged by all requests."""

from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from schedule import cases
from schedule.residency_cases import chain
from thorough import examples
from tvm_sched.schedulers import NoOptions, get, names, register, solve
from tvm_sched.schedulers.common.events import sequence_of
from tvm_sched.schedulers.common.search import PlacementChoice, Searches
from tvm_sched.schedulers.scheduler_registry import SCHEDULERS
from tvm_sched_bench.testing import random_problem
from tvm_sched_bench.testing.variant_problems import random_variants
from tvm_sched_runtime.errors import InfeasibleError, InputError, SchedulerError
from tvm_sched_runtime.problem import Link, Request, Scenario, Workload
from tvm_sched_runtime.schedule import Schedule, ScheduleIndex, evaluate, requests_of, simulate, verify

from .quick_options import QUICK

PARTS = (0.4, 1.0, [(0, 1), (1, 9)])


@pytest.fixture
def clean_registry(monkeypatch):
    monkeypatch.setattr(SCHEDULERS, "entries", dict(SCHEDULERS.entries))


def costly_copies():
    """Two branches of 100 ns that a copy of 500 bytes joins: cold it pays to load over two buses, warm nothing pays."""
    graph = cases.graph(
        {"x": 1, "w1": 2000, "w2": 2000, "a": 500, "b": 500, "c": 1},
        [("p", "x w1", "a"), ("q", "x w2", "b"), ("r", "a b", "c")],
        outputs=("c",),
    )
    devices = cases.device("d0", "bus0"), cases.device("d1", "bus1")
    buses = cases.bus("bus0"), cases.bus("bus1")
    topology = cases.topology(*devices, buses=buses, links=(Link(("d0", "d1"), 1e9),))
    return cases.problem(graph, topology, [[100, 100], [100, 100], [10, 10]])


@pytest.mark.parametrize("name", names())
def test_warm_no_method_is_slower_than_one_device(name):
    problem = costly_copies()
    options = QUICK.get(name)
    schedule = solve(problem, method=name, options=options, workload=Workload(requests_of(problem, 1.0)))
    assert schedule.certificate.latency_ns == 211, "the input is loaded, then 100 + 100 + 10"
    assert simulate(problem, schedule, resident=1.0).latency_ns == 211
    assert schedule.certificate.requests[0].resident == ("w1", "w2")


def test_cold_the_same_methods_use_both_buses():
    problem = costly_copies()
    for name in ("heft", "anytime"):
        assert solve(problem, method=name, options=QUICK.get(name)).certificate.latency_ns < 2700


def test_a_method_that_loses_says_what_stands_in_its_place(clean_registry):
    problem = costly_copies()
    spread = cases.schedule(
        problem, ["p d0", "q d1", "r d0"], ["load x d0", "load x d1", "load w1 d0", "load w2 d1", "copy b d1 d0"]
    )

    @register("always-spread")
    def always_spread(problem, workload, options: NoOptions) -> Schedule:
        return spread

    warm = solve(problem, method="always-spread", workload=Workload(requests_of(problem, 1.0)))
    assert "one device" in warm.notes["instead"]
    assert warm.scheduler == "always-spread"
    assert len({placement.device for placement in warm.placements}) == 1
    mixed = solve(problem, method="always-spread", workload=Workload(requests_of(problem, [(0, 1), (1, 1)])))
    assert "instead" not in mixed.notes
    assert mixed.placements == spread.placements


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", names())
@settings(max_examples=5, deadline=None)
@given(
    seed=st.integers(0, 10**6), operators=st.integers(0, 8), devices=st.integers(1, 3), part=st.sampled_from(PARTS),
    variants=st.booleans(),
)  # fmt: skip
def test_answers_obey_the_rules_in_every_run_and_are_no_slower_than_one_device(
    name, seed, operators, devices, part, variants
):
    problem = random_problem(seed, operators, devices, memory="generous" if variants else "tight")
    if variants and operators:
        problem = random_variants(problem, seed)
    requests = requests_of(problem, part)
    try:
        schedule = solve(problem, method=name, options=QUICK.get(name), workload=Workload(requests))
    except InfeasibleError:
        return
    verify(problem, schedule)
    certificate = schedule.certificate
    assert certificate.lower_bound_ns <= certificate.latency_ns
    assert [request.resident for request in certificate.requests] == [request.resident for request in requests]
    if requests:
        try:
            alone = solve(problem, method="single", workload=Workload(requests))
        except InfeasibleError:
            return
        assert certificate.latency_ns <= alone.certificate.latency_ns


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), operators=st.integers(3, 12), devices=st.integers(2, 4))
def test_anytime_weighs_all_requests(seed, operators, devices):
    """What quick methods find for either kind is a candidate; how far the search gets from there nobody promises."""
    problem = random_problem(seed, operators, devices, memory="generous")
    requests = requests_of(problem, [(0, 1), (1, 2)])
    assume(len(requests) == 2)
    best = solve(problem, method="anytime", options={"work": 0.02}, workload=Workload(requests)).certificate.latency_ns
    for request, method in product(requests, ("peft", "heft")):
        one = solve(problem, method=method, workload=Workload([request]))
        assert best <= evaluate(problem, one, Workload(requests))[0], "not judged by all requests"


@pytest.mark.parametrize(("warm", "devices"), [(1, 2), (100, 1)])
def test_anytime_takes_what_is_best_for_the_mix(warm, devices):
    """Cold two devices save 1,500 ns of loads, warm they cost two copies: it depends on how many runs are warm."""
    problem = costly_copies()
    mix = requests_of(problem, [(0, 1), (1, warm)])
    best = solve(problem, method="anytime", options={"work": 0.05}, workload=Workload(mix))
    assert len({placement.device for placement in best.placements}) == devices
    for request in mix:
        alone = solve(problem, method="anytime", options={"work": 0.05}, workload=Workload([request]))
        assert best.certificate.latency_ns <= evaluate(problem, alone, Workload(mix))[0]


@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 10**6), operators=st.integers(1, 12), devices=st.integers(1, 4))
def test_local_search_counts_the_mean_of_all_runs(seed, operators, devices):
    problem = random_problem(seed, operators, devices, memory="generous")
    warm = Scenario(problem, [t.name for t in problem.graph.tensors if t.kind == "parameter"])
    heft = solve(problem, method="heft")
    search = Searches(problem).improve(sequence_of(ScheduleIndex.of(problem, heft)), 1.0, seed, 0, [(warm, 0.75)])
    search.step(2000)
    found = ScheduleIndex.of_sequence(problem, search.best).to_schedule()
    mean = 0.25 * simulate(problem, found).latency_ns + 0.75 * simulate(problem, found, warm.resident).latency_ns
    assert search.latency_ns == int(mean)


def test_runs_of_another_graph_are_refused():
    problem, other = random_problem(1, 3, 2), random_problem(2, 5, 2)
    start = Searches(problem).construct([PlacementChoice([0, 1])], [0, 0, 0])[0]
    with pytest.raises(ValueError, match="of one graph"):
        Searches(problem).improve(start, 1.0, 0, 0, [(other, 0.5)])


def test_what_is_not_a_schedule_and_what_is_not_there_are_refused(clean_registry):
    problem = costly_copies()

    @register("gives-nothing")
    def gives_nothing(problem, workload, options: NoOptions):
        return None

    with pytest.raises(SchedulerError, match="NoneType"):
        solve(problem, method="gives-nothing", workload=Workload(requests_of(problem, 1.0)))
    with pytest.raises(InputError, match="nothing"):
        solve(problem, method="single", workload=Workload([Request(("nothing",))]))


def test_a_method_makes_no_certificate():
    problem = costly_copies()
    warm = Workload([Request(("w1",))])
    assert solve(problem, warm, "single").certificate.requests[0].resident == ("w1",)
    assert solve(problem, Workload(), "single").certificate.requests == ()
    assert get("single").function(problem, warm, get("single").read_options(None)).certificate is None


def test_memory_that_does_not_suffice_is_refused(clean_registry):
    problem = chain(memory=215)
    schedule = cases.schedule(problem, ["p d0", "q d0"], ["load w1 d0", "load w2 d0"])

    @register("always-there")
    def always_there(problem, workload, options: NoOptions) -> Schedule:
        return schedule

    with pytest.raises(InfeasibleError, match="the runs of all requests"):
        solve(problem, method="always-there", workload=Workload(requests_of(problem, 1.0)))
    assert (
        solve(
            problem, method="anytime", options={"work": 0.1}, workload=Workload(requests_of(problem, 1.0))
        ).certificate.latency_ns
        == 110
    )
