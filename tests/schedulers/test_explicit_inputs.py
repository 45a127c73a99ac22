"""Nothing but its arguments changes the answer of a method: not their order or form, nor what another thread asks."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tvm_sched.schedulers import solve
from tvm_sched.schedulers.common.submodels import split
from tvm_sched_bench.testing import random_problem
from tvm_sched_bench.testing.variant_problems import random_variants
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import Workload, merge_problems
from tvm_sched_runtime.schedule import requests_of, verify
from tvm_sched_runtime.search_budget import SearchLimits

OPTIONS = {
    "anytime": {"work": 0.01, "time_limit": 1e6, "seed": 3},
    "sortinghat": {"time_limit": 0.0, "total_time_limit": 1e6},
}
METHODS = ("anytime", "heft", "sortinghat")


def large():
    return random_problem(5, 12, 3, memory="generous", style="bus")


def workloads(problem):
    """Different workloads of one problem; each makes some method answer differently."""
    groups = [[problem.graph.operators[o].name for o in group] for group in split(problem, 1, 3)]
    submodels = [group for group in groups if group]
    return [
        Workload(),
        Workload(requests_of(problem, 1.0)),
        Workload(requests_of(problem, [(0, 1), (1, 3)])),
        Workload(submodels=submodels),
        Workload(requests_of(problem, 0.5), submodels=submodels),
    ]


def answer(schedule):
    """All of a schedule but what the clock said."""
    return schedule.placements, schedule.transfers, schedule.choice, schedule.certificate, schedule.workload


@pytest.mark.parametrize("method", METHODS)
def test_arguments_in_either_form_and_any_order_give_the_same(method):
    problem = large()
    for workload in workloads(problem):
        given = {
            "problem": problem, "workload": workload, "method": method, "options": OPTIONS.get(method), "budget": None,
        }  # fmt: skip
        expected = answer(solve(*given.values()))
        assert answer(solve(problem, workload, method, OPTIONS.get(method))) == expected
        assert answer(solve(**dict(reversed(given.items())))) == expected
    for names in (("requests", "lags_ns", "objective", "submodels"), ("submodels", "objective", "lags_ns", "requests")):
        fields = {name: getattr(workload, name) for name in names}
        assert answer(solve(problem, Workload(**fields), method, OPTIONS.get(method))) == expected


def test_requests_in_another_order_have_the_same_latencies():
    problem = large()
    requests = requests_of(problem, [(0, 1), (1, 3)])
    one, other = (solve(problem, Workload(each), "heft").certificate for each in (requests, requests[::-1]))
    assert (one.latency_ns, one.lower_bound_ns) == (other.latency_ns, other.lower_bound_ns)
    assert sorted(one.requests, key=str) == sorted(other.requests, key=str)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("variants", [True, False])
def test_threads_with_different_workloads_do_not_disturb_each_other(variants):
    problem = random_variants(large(), 5) if variants else large()
    asked = [(workload, method) for workload in workloads(problem) for method in METHODS]
    alone = [answer(solve(problem, workload, method, OPTIONS.get(method))) for workload, method in asked]
    fresh = random_variants(large(), 5) if variants else large()  # nothing of it is known yet
    with ThreadPoolExecutor(4) as pool:
        for shared in (fresh, problem):
            calls = [pool.submit(solve, shared, workload, method, OPTIONS.get(method)) for workload, method in asked]
            assert [answer(call.result()) for call in calls] == alone
    assert len({repr(each) for each in alone}) > len(METHODS), "the workloads must make a difference"


def test_lags_of_one_thread_do_not_reach_another():
    problem = merge_problems([large(), large()])
    asked = [Workload(), Workload(lags_ns=(0, 10**6)), Workload(lags_ns=(10**6, 0))]
    alone = [answer(solve(problem, workload, "heft")) for workload in asked]
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(lambda workload: answer(solve(problem, workload, "heft")), asked * 4))
    assert together == alone * 4


def test_the_schedule_names_problem_and_workload():
    problem = large()
    for workload in workloads(problem):
        schedule = solve(problem, workload, "heft")
        assert (schedule.problem, schedule.workload) == (problem.digest, workload.digest)
        verify(problem, schedule, workload=workload)
        with pytest.raises(InputError, match="rule 'workload'"):
            verify(problem, schedule, workload=Workload(objective="slowdown"))


def test_a_budget_takes_the_place_of_the_limits_of_a_method():
    problem = large()
    by_options = solve(problem, None, "anytime", {"work": 0.02})
    by_budget = solve(problem, None, "anytime", {"work": 5.0, "time_limit": 9.0}, SearchLimits(work=0.02))
    assert answer(by_budget) == answer(by_options)
    assert by_budget.options["work"] == 0.02
    limited = solve(problem, None, "sortinghat", None, SearchLimits(time_limit=0))
    assert limited.options["total_time_limit"] == 0
    solve(problem, None, "heft", None, SearchLimits(time_limit=1))  # it ends by itself
    with pytest.raises(InputError, match=r"work is 1.0; methods that solve programs take a time_limit"):
        solve(problem, None, "sortinghat", None, SearchLimits(work=1.0))
    with pytest.raises(InputError, match=r"time_limit is -1; a number of seconds from 0 is allowed"):
        SearchLimits(time_limit=-1)


def test_a_method_in_the_place_of_the_workload_is_refused():
    with pytest.raises(InputError, match=r"workload is 'heft'; a Workload or None is allowed"):
        solve(large(), "heft")
