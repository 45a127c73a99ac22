"""The largest slowdown among several models: by hand, its bound against all schedules found, lags in every search."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedule import cases
from thorough import examples
from tvm_sched.schedulers import solve
from tvm_sched.schedulers.common.native_methods import Effort, anneal, list_order
from tvm_sched.schedulers.common.search import PlacementChoice, Searches
from tvm_sched.schedulers.fairness import SCHEDULERS, aimed_lags, slowdown_bound, solve_fairly
from tvm_sched_bench.testing import random_problem
from tvm_sched_runtime.errors import InfeasibleError, InputError
from tvm_sched_runtime.problem import Scenario, Workload, merge_problems
from tvm_sched_runtime.schedule import ScheduleIndex, model_latencies, requests_of, verify

OPTIONS = {"anytime": {"work": 0.1}}


def one_operator(time_ns, bus=""):
    """A model of one operator that takes so long on the one device."""
    graph = cases.graph({"x": 1, "t": 1}, [("o", "x", "t")], outputs=("t",))
    buses = (cases.bus(bus),) if bus else ()
    return cases.problem(graph, cases.topology(cases.device("d", bus), buses=buses), [[time_ns]])


def short_and_long():
    return merge_problems([one_operator(100), one_operator(1000)])


@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_short_model_comes_first(name):
    """After the long one it would take 11 times as long as alone; the long one after it takes 1.1 times as long."""
    schedule, fairness = solve_fairly(short_and_long(), fair(), name, OPTIONS.get(name))
    assert fairness.alone_ns == [100, 1000]
    assert fairness.latency_ns == [100, 1100]
    assert fairness.largest == pytest.approx(1.1)
    assert fairness.lower_bound == pytest.approx(1.1), "both take 1100 together, and the slower pace is 1000"
    assert schedule.certificate.latency_ns == 1100
    assert [p.operator for p in schedule.placements] == ["case/o", "case.2/o"]


@pytest.mark.parametrize("name", SCHEDULERS)
def test_weights_decide_otherwise(name):
    """The long one first: 20 * 1 and 11; the short one first: 1 and 20 * 1.1."""
    _, fairness = solve_fairly(short_and_long(), fair([1, 20]), name, OPTIONS.get(name))
    assert fairness.latency_ns == [1100, 1000]
    assert fairness.largest == fairness.lower_bound == pytest.approx(20)


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("scale", [1e-100, 1e-19, 1e19, 1e100])
def test_weights_of_any_size(name, scale):
    """Of equal ones none matters; beside a much larger one the other does not, whose lag would not fit into 64 bits."""
    _, fairness = solve_fairly(short_and_long(), fair([scale, scale]), name, OPTIONS.get(name))
    assert fairness.latency_ns == [100, 1100]
    assert fairness.largest == fairness.lower_bound == pytest.approx(1.1 * scale)
    for weights in ([1, scale], [scale, 1]):
        _, fairness = solve_fairly(short_and_long(), fair(weights), name, OPTIONS.get(name))
        assert fairness.latency_ns == ([100, 1100] if weights[0] > weights[1] else [1100, 1000])
        assert fairness.largest == pytest.approx(max(weights))


def test_lags_reach_no_further_than_schedules():
    """Twice the times alone are aimed at: 2 of the last, 2000 of the first. 1e100 later is 300, ten times the last end."""
    ends = [[10, 20, 30]]
    assert aimed_lags([1000, 10, 1], [1, 1, 1], [[1000, 20, 1]]) == [0, 1980, 1998]
    assert aimed_lags([1, 1, 1], [1, 1, 1], ends) == [0, 0, 0]
    assert aimed_lags([1, 1, 1], [1e-100, 1, 1], ends) == [0, 300, 300]
    assert aimed_lags([1, 1, 1], [1e-100, 1e-90, 1], ends) == [0, 0, 300]


def test_three_models_and_the_bound_of_the_two_shortest():
    """Of 100, 100 and 10,000 the two short ones take 200 together, so that one of them takes twice as long as alone."""
    problem = merge_problems([one_operator(100), one_operator(100), one_operator(10_000)])
    _, fairness = solve_fairly(problem, fair(), "heft")
    assert fairness.largest == fairness.lower_bound == pytest.approx(2.0)


def test_a_warm_run_has_its_own_times_alone():
    graph = cases.graph({"x": 1, "w": 400, "t": 1}, [("o", "x w", "t")], outputs=("t",))
    topology = cases.topology(cases.device("d", "b"), buses=(cases.bus("b"),))
    problem = merge_problems([cases.problem(graph, topology, [[100]]), cases.problem(graph, topology, [[500]])])
    _, cold = solve_fairly(problem, fair(), "heft")
    assert cold.alone_ns == [501, 901]
    _, warm = solve_fairly(problem, fair(requests=requests_of(problem, 1.0)), "heft")
    assert warm.alone_ns == [101, 501]
    assert warm.lower_bound <= warm.largest == pytest.approx(601 / 501)
    _, mix = solve_fairly(problem, fair(requests=requests_of(problem, [(0, 1), (1, 1)])), "heft")
    assert mix.alone_ns == [301, 701]
    assert mix.lower_bound <= mix.largest


def fair(weights=(), requests=()):
    """A workload whose objective is the largest slowdown."""
    return Workload(requests, objective="slowdown", model_weights=weights)


def test_wrong_questions_are_refused():
    problem = short_and_long()
    with pytest.raises(InputError, match="schedulers anytime, heft, peft, and not for 'single'"):
        solve_fairly(problem, fair(), "single")
    with pytest.raises(InputError, match="is one model"):
        solve_fairly(one_operator(100), fair(), "heft")
    for weights in ([1], [1, 0], [1, -1], [1, 1e-101], [1e308, 1], [1, float("nan")], [1, float("inf")]):
        with pytest.raises(InputError, match=r"from 1e-100 to 1e\+100 for each of 2 models"):
            solve_fairly(problem, fair(weights), "heft")
    with pytest.raises(InputError, match="from 0 for each of 2 models"):
        Scenario(problem, lags_ns=(1,))
    with pytest.raises(InputError, match=r"lags_ns are \[1, -1\]; whole numbers from 0"):
        Scenario(problem, lags_ns=(1, -1))


def two_models(seed, operators, devices):
    """Two random models on one random machine."""
    first = random_problem(seed, operators, devices, memory="generous")
    second = random_problem(seed, operators, devices, memory="generous")
    return merge_problems([first, second])


@settings(max_examples=examples(15), deadline=None)
@given(
    seed=st.integers(0, 10**6), operators=st.integers(1, 6), devices=st.integers(1, 3), name=st.sampled_from(SCHEDULERS),
    weight=st.sampled_from([0.2, 1.0, 3.0, 1e-100, 1e100]),
)  # fmt: skip
def test_no_schedule_is_below_the_bound(seed, operators, devices, name, weight):
    problem = two_models(seed, operators, devices)
    try:
        schedule, fairness = solve_fairly(
            problem, fair([1, weight]), name, {"work": 0.02} if name == "anytime" else None
        )
    except InfeasibleError:
        return
    verify(problem, schedule)
    assert fairness.latency_ns == [each.latency_ns for each in model_latencies(problem, schedule)]
    assert all(alone <= end for alone, end in zip(fairness.alone_ns, fairness.latency_ns, strict=True))
    assert fairness.lower_bound <= fairness.largest
    for other in ("heft", "peft"):
        ends = [each.latency_ns for each in model_latencies(problem, solve(problem, method=other))]
        alone = zip(ends, fairness.alone_ns, [1, weight], strict=True)
        bound = slowdown_bound(problem, fairness.alone_ns, [1, weight])
        assert max(w * end / ns for end, ns, w in alone) >= bound * (1 - 1e-12)


@settings(max_examples=examples(15), deadline=None)
@given(seed=st.integers(0, 10**6), operators=st.integers(1, 6), devices=st.integers(1, 3), lag=st.integers(0, 10**6))
def test_list_scheduling_and_local_search_count_lags(seed, operators, devices, lag):
    problem = Scenario(two_models(seed, operators, devices), lags_ns=(0, lag))
    searches = Searches(problem)
    count = len(problem.graph.operators)
    found = searches.construct([PlacementChoice(range(devices))], [0] * count)
    if found is None:
        return
    sequence, latency = found
    index = ScheduleIndex.of_sequence(problem, sequence)
    lags = problem.operator_lags_ns if lag else [0] * count
    assert latency == index.objective_ns
    assert index.objective_ns == max(end + lags[o] for o, end in zip(index.operator, index.times.end_ns, strict=True))
    search = searches.improve(sequence, 1.0, seed, 0)
    search.step(20_000)
    if len(search.best):
        assert search.latency_ns == ScheduleIndex.of_sequence(problem, search.best).objective_ns <= latency


@pytest.mark.parametrize("bus", ["", "b"])
def test_annealing_counts_lags(bus):
    """On each kind of machine: one in which nothing contends, which has a timer of its own, and any other."""
    parts = [one_operator(100, bus), one_operator(1000, bus)]
    if not bus:
        graph = cases.graph({"t": 1, "u": 1}, [("o", "", "t"), ("p", "t", "u")], outputs=("u",))
        topology = cases.topology(cases.device("d"))
        parts = [cases.problem(graph, topology, [[each], [each]]) for each in (50, 500)]
    problem = merge_problems(parts)
    lagged = Scenario(problem, lags_ns=(9900, 0))
    found = anneal(lagged, list_order(problem, "heft"), Effort(20_000, 0, 0, 1, time.monotonic() + 20.0))
    short = 101 if bus else 100
    assert found.objective_ns == 9900 + short


def test_lags_stay_with_what_is_made_of_a_problem():
    graph = cases.graph({"x": 1, "w": 400, "t": 1}, [("o", "x w", "t")], outputs=("t",))
    topology = cases.topology(cases.device("d", "b"), buses=(cases.bus("b"),))
    problem = Scenario(merge_problems([cases.problem(graph, topology, [[100]])] * 2), lags_ns=(7, 0))
    warm = problem.with_resident(["case/w"])
    assert warm.lags_ns == problem.lags_ns == (7, 0)
    assert warm.resident == {"case/w"}
    assert list(warm.operator_lags_ns) == [7, 0]
    assert warm.workload.scenario(warm.problem) == warm
