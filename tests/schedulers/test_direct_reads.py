"""Schedules in which it is decided beforehand which operators read host memory directly."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings

from checker.cases import bus_problem, chain_of_readers
from strategies import problems
from thorough import examples
from tvm_sched.schedulers import solve
from tvm_sched.schedulers.anytime import AnytimeOptions
from tvm_sched.schedulers.anytime.direct_reads import DirectReads, candidate_sets
from tvm_sched.schedulers.anytime.search_state import ScheduleState
from tvm_sched.schedulers.common.direct_access import keep_direct_reads, with_direct_reads
from tvm_sched.schedulers.common.native_methods import Effort, anneal_several, list_order
from tvm_sched.schedulers.common.partial import PartialSchedule
from tvm_sched_runtime.problem import (
    FORBIDDEN,
    Concurrency,
    Costs,
    OpGraph,
    Problem,
    Scenario,
    as_scenario,
    merge_problems,
)
from tvm_sched_runtime.schedule import ScheduleIndex
from tvm_sched_runtime.schedule.verifier import violations
from tvm_sched_runtime.search_budget import Budget


def test_as_many_read_directly_as_balance_path_and_buses():
    # Of n operators k read directly: the path takes 10 n + 150 k, the bus carries 200 n - 50 k, for 20 balanced by k = 19.
    chosen = candidate_sets(chain_of_readers(20))
    assert [len(each) for each in chosen] == [19, 17, 15, 12, 10, 6, 20]
    assert all(small < large for small, large in zip(chosen[1:6][::-1], chosen[:5][::-1], strict=True))
    assert candidate_sets(bus_problem()) == []  # none can


def test_what_can_run_in_no_other_way_keeps_its_way():
    problem = bus_problem(direct=np.array([[110, FORBIDDEN], [60, 60]]))
    kept = with_direct_reads(as_scenario(problem), frozenset([0])).costs
    assert kept.operator_ns.tolist() == [[FORBIDDEN, 10], [10, 10]]
    assert kept.direct_ns.tolist() == [[110, FORBIDDEN], [FORBIDDEN, FORBIDDEN]]
    assert with_direct_reads(Scenario(problem, ["w"]), frozenset()).resident == {"w"}
    chain = chain_of_readers(2)
    only_directly = Problem(chain.graph, chain.topology, Costs(np.array([[FORBIDDEN], [10]]), chain.costs.direct_ns))
    assert with_direct_reads(as_scenario(only_directly), frozenset()).costs.direct_ns.tolist() == [[160], [FORBIDDEN]]


def test_what_can_only_read_directly_hides_no_set():
    """One operator has nothing to gain, since it reads one tensor, and no other way; the others are balanced as before."""
    chain = chain_of_readers(20)
    operators = list(chain.graph.operators)
    operators[3] = msgspec.structs.replace(operators[3], inputs=operators[3].inputs[1:])
    graph = OpGraph("one", tuple(operators), chain.graph.tensors, chain.graph.outputs)
    normal = chain.costs.operator_ns.copy()
    normal[3] = FORBIDDEN
    # 10 * 19 + 160 and 150 for each of k, beside 200 * 19 + 100 less 50 for each.
    assert len(candidate_sets(Problem(graph, chain.topology, Costs(normal, chain.costs.direct_ns)))[0]) == 18


def test_measured_pairs_disturb_nobody():
    """A pair of operators that no longer run as they were measured."""
    chain = chain_of_readers(4)
    together = Concurrency(np.full((4, 1, 1), 0.5), 0.5, [(0, 0, 1, 15)])
    problem = Problem(
        chain.graph, chain.topology, Costs(chain.costs.operator_ns, chain.costs.direct_ns, concurrency=together)
    )
    assert with_direct_reads(as_scenario(problem), frozenset([0])).costs.operator_ns[0, 0] == FORBIDDEN
    schedule = solve(problem, method="anytime", options={"work": 0.05})
    assert schedule.certificate.latency_ns <= solve(problem, method="heft").certificate.latency_ns


def test_lags_of_models_stay():
    problem = Scenario(merge_problems([chain_of_readers(2), chain_of_readers(2)]), lags_ns=(0, 7))
    assert with_direct_reads(as_scenario(problem), frozenset([0])).lags_ns == (0, 7)
    warm = problem.with_resident(["chain/o0 a"])
    assert with_direct_reads(warm, frozenset([0])).lags_ns == (0, 7)
    assert with_direct_reads(warm, frozenset([0])).resident == {"chain/o0 a"}


@pytest.mark.parametrize("moves", [0, 2000])
def test_annealing_keeps_the_direct_reads_of_its_start(moves):
    """All twenty parameters take 4000 ns on the bus; the start reads 19 of them directly, 150 in place of 200 each."""
    problem = chain_of_readers(20)
    scenario = as_scenario(problem)
    direct = frozenset(range(19))
    order = PartialSchedule(scenario)
    for o in range(20):
        order.place(order.extension(o, 0, direct=o in direct))
    start = keep_direct_reads(order.to_index())
    assert start.scenario.costs.operator_ns[0, 0] == FORBIDDEN
    assert start.objective_ns == order.to_index().objective_ns
    best = anneal_several([start], Effort(moves, 0, 0, 1, math.inf))
    again = ScheduleIndex(scenario, best.placements, best.transfers)
    assert violations(problem, again.to_schedule()) == []
    assert again.objective_ns == best.objective_ns <= start.objective_ns
    assert {o for o, reads in zip(again.operator, again.direct, strict=True) if reads} == direct


def test_a_schedule_without_direct_reads_stays_in_its_run():
    index = list_order(as_scenario(bus_problem()), "heft")  # no operator can read directly
    assert keep_direct_reads(index) is index


@settings(max_examples=examples(25), deadline=None)
@given(problem=problems(max_operators=12, min_operators=1, styles=("bus", "mixed")))
def test_what_is_found_is_a_schedule_of_the_problem(problem):
    state, improver, budget = ScheduleState(as_scenario(problem), 0), DirectReads(AnytimeOptions()), Budget(0.02)
    while improver.step(state, budget):
        pass
    if state.best is not None:
        assert violations(problem, state.answer()) == []


def test_anytime_finds_that_many_read_directly():
    """By list schedules 8010 ns; one operator more or fewer that reads directly would not get there from them."""
    problem = chain_of_readers(40)
    schedule = solve(problem, method="anytime", options={"work": 0.3})
    assert sum(placement.direct_host_access for placement in schedule.placements) > 20
    assert schedule.certificate.latency_ns <= 6400
