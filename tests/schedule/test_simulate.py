"""The C++ simulator against a plain one, and what it promises about timelines and memory profiles."""

import itertools

import pytest
from hypothesis import given, settings

from schedule.reference import reference_run
from strategies import scheduled_problems
from thorough import examples
from tvm_sched_bench.testing import random_problem, random_schedule
from tvm_sched_runtime.errors import ScheduleError
from tvm_sched_runtime.schedule import ScheduleIndex, memory_profile, simulate


@settings(max_examples=examples(300), deadline=None)
@given(scheduled_problems(max_operators=14, max_devices=5))
def test_agrees_with_the_reference(pair):
    problem, schedule = pair
    times = ScheduleIndex.of(problem, schedule).times
    expected = reference_run(problem, schedule)
    kernels = [expected.kernels[p.operator] for p in schedule.placements]
    transfers = [expected.transfers[x] for x in range(len(schedule.transfers))]
    assert list(zip(times.start_ns.tolist(), times.end_ns.tolist(), strict=True)) == kernels
    assert list(zip(times.transfer_start_ns.tolist(), times.transfer_end_ns.tolist(), strict=True)) == transfers
    assert times.latency_ns == expected.latency_ns
    assert times.peak_memory.tolist() == expected.peak


@settings(max_examples=examples(50), deadline=None)
@given(scheduled_problems())
def test_timeline_says_what_the_schedule_says(pair):
    problem, schedule = pair
    timeline = simulate(problem, schedule)
    kernels, transfers = timeline.events[: len(schedule.placements)], timeline.events[len(schedule.placements) :]
    assert [(e.kind, e.name, e.lanes) for e in kernels] == [
        ("kernel", p.operator, (f"{p.device}/{p.stream}",)) for p in schedule.placements
    ]
    assert [(e.kind, e.name) for e in transfers] == [(t.kind, t.tensor or t.operator) for t in schedule.transfers]
    assert timeline.source == "simulated"
    assert timeline.problem == problem.digest
    assert timeline.latency_ns == max((e.end_ns for e in kernels), default=0)


@settings(max_examples=examples(50), deadline=None)
@given(scheduled_problems())
def test_a_lane_carries_one_event_at_a_time(pair):
    timeline = simulate(*pair)
    for lane in timeline.lanes:
        events = sorted((e.start_ns, e.end_ns) for e in timeline.events if lane in e.lanes)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(events))


@settings(max_examples=examples(50), deadline=None)
@given(scheduled_problems())
def test_profile_peaks_where_the_price_says(pair):
    problem, schedule = pair
    profile = memory_profile(problem, schedule)
    peaks = [max((held for _, held in levels), default=0) for levels in profile]
    assert peaks == ScheduleIndex.of(problem, schedule).times.peak_memory.tolist()
    for levels in profile:
        assert [time for time, _ in levels] == sorted({time for time, _ in levels})


def test_generators_repeat():
    assert random_problem(7, 20, 4).digest == random_problem(7, 20, 4).digest
    problem = random_problem(7, 20, 4)
    assert random_schedule(problem, 1) == random_schedule(problem, 1)
    assert random_schedule(problem, 1) != random_schedule(problem, 2)


def test_an_index_out_of_range_is_an_error():
    problem = random_problem(3, 5, 2)
    index = ScheduleIndex.of(problem, random_schedule(problem, 0))
    index.placements[0, 0] = 99
    with pytest.raises(ScheduleError, match="operator 99 is not one of the 5"):
        _ = index.times


def test_no_operators():
    problem = random_problem(0, 0, 2)
    timeline = simulate(problem, random_schedule(problem, 0))
    assert timeline.events == ()
    assert timeline.latency_ns == 0
