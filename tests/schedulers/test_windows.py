"""Windows of a schedule solved anew: what stands is priced exactly, nothing gets worse, the same seed gives the same."""

import time

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tvm_sched.problem import Costs, Problem
from tvm_sched.schedule import simulate, verify
from tvm_sched.schedule.simulator import price
from tvm_sched.schedulers.common import native
from tvm_sched.schedulers.common.partial import Move, Run
from tvm_sched.schedulers.common.search import Choice, Searches, events_of, schedule_index, sequence_of
from tvm_sched.schedulers.exact.model import Limits
from tvm_sched.schedulers.exact.windows import WindowSearch, cut, what_follows
from tvm_sched.testing import random_problem
from tvm_sched.testing.hios import random_layered

from .test_exact import diamonds, two_gpus


def limits():
    return Limits(work=0.1, deadline=time.monotonic() + 60, workers=1, seed=0)


def listed(problem, devices=None):
    """A list schedule on the given devices as a sequence in the order of starts, and its latency."""
    choices = [Choice(devices or range(len(problem.topology.devices)))]
    found = Searches(problem).construct(choices, [0] * len(problem.graph.operators), backfill=False)
    return found and (sequence_of(problem, schedule_index(found[0])), found[1])


def windows(problem, seed=0, devices=None):
    return WindowSearch(problem, Searches(problem), *listed(problem, devices), 1.0, seed)


def fits(problem):
    start = listed(problem)
    return start is not None and native.shortfall(problem, price(problem, schedule_index(start[0])))[0] <= 0


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 10_000), operators=st.integers(1, 20), devices=st.integers(1, 5))
def test_the_paths_behind_a_cut_add_up_to_the_latency(seed, operators, devices):
    problem = random_problem(seed, operators, devices, memory="generous")
    sequence, latency = listed(problem)
    after = what_follows(problem, events_of(sequence))
    assert max([*after.device.values(), *after.channel.values()]) == latency


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 10_000), operators=st.integers(1, 20), by_need=st.booleans(), data=st.data())
def test_a_cut_holds_every_event_once_and_no_run_behind_its_successors(seed, operators, by_need, data):
    problem = random_problem(seed, operators, 3, memory="generous")
    events = events_of(listed(problem)[0])
    first = data.draw(st.integers(0, operators - 1))
    last = data.draw(st.integers(first, operators - 1))
    parts = cut(problem, events, first, last, by_need)
    assert sorted(parts.before + parts.inside + parts.behind) == sorted(events)
    runs = [event for event in events if isinstance(event, Run)]
    assert [event for event in parts.inside if isinstance(event, Run)] == runs[first : last + 1]
    inside = {run.operator for run in runs[first : last + 1]}
    producer = problem.graph.index.producer
    assert not [e for e in parts.behind if isinstance(e, Move) and producer[e.tensor] in inside]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), operators=st.integers(1, 16), devices=st.integers(1, 4))
def test_nothing_gets_worse_and_latencies_are_the_simulators(seed, operators, devices):
    problem = random_problem(seed, operators, devices)
    assume(fits(problem))
    search = windows(problem, seed)
    for _ in range(4):
        before = search.latency_ns
        better = search.step(limits())
        assert (search.latency_ns < before) == better
    schedule = schedule_index(search.best).to_schedule(problem)
    verify(problem, schedule)
    assert simulate(problem, schedule).latency_ns == search.latency_ns


def test_one_device_is_not_enough_for_two_branches():
    problem = Problem(diamonds(1), two_gpus(), Costs([[100_000, 100_000]] * 3))
    search = windows(problem, devices=[0])
    assert search.latency_ns > 300_000
    for _ in range(10):
        search.step(limits())
    # As in test_exact: both buses carry a parameter, one the input too; a branch on each device, then the join.
    assert search.latency_ns == 1008 + 2 * 100_000


def test_the_same_seed_gives_the_same_schedule():
    problem = random_layered(3, 40, 6, 80).problem(3, concurrency=False)
    first, second = windows(problem, 5), windows(problem, 5)
    for search in (first, second):
        for _ in range(6):
            search.step(limits())
    assert first.best.tolist() == second.best.tolist()
    assert first.work == pytest.approx(second.work)
    assert first.latency_ns < listed(problem)[1]


def test_annealing_from_several_starts_is_no_worse_than_any_and_repeats_itself():
    problem = random_layered(6, 60, 8, 120).problem(4)
    starts = [native.list_order(problem, method) for method in (native.HEFT, native.PEFT)]
    starts.append(native.hios(problem, True, 1))
    effort = native.Effort(1_000_000, 7, 0, 2, time.monotonic() + 1e6)
    first, second = (native.anneal_several(problem, starts, effort) for _ in range(2))
    assert first == second
    assert price(problem, first).latency_ns < min(price(problem, start).latency_ns for start in starts)
