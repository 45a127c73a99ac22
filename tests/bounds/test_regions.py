"""Delays between an operator and what it dominates, by hand."""

import numpy as np

from checker.cases import fan
from schedule.cases import device, gpus, topology, wired
from tvm_sched.bounds import lower_bound, region_placement
from tvm_sched.bounds.dominated_regions import regions_between
from tvm_sched.bounds.region_placement import Delay, delays
from tvm_sched.bounds.region_sharing import shared_delays
from tvm_sched.bounds.region_work import Work, work_delays
from tvm_sched_runtime.problem import Costs, Problem, Switch


def test_branches_share_a_device_or_pay_for_copies():
    # Copies of 10: a branch elsewhere ends at 110, as the other's copy arrives there for the join. Copies of 110: stay.
    assert delays(fan(10), np.full((4, 2), 100.0), 0) == [(0, 3, 210.0)]
    assert delays(fan(110), np.full((4, 2), 100.0), 0) == [(0, 3, 300.0)]


def test_branches_that_share_a_device_concurrently():
    # Each occupies 30 of the device: both branches there end after 100, then the join.
    assert shared_delays(fan(110), np.full(4, 100.0), np.full(4, 30.0), 0) == [(0, 3, 200.0)]


def test_the_bound_is_the_optimum_of_a_fan():
    assert lower_bound(fan(10)).ns in (309, 310)
    assert lower_bound(fan(110)).ns in (399, 400)


def test_operators_over_which_copies_lead_take_their_time(monkeypatch):
    # Only the longest share devices: with none of the branches among them each runs beside the other, and the way over a
    # branch takes its time, and no copy, for it may be where both its neighbours are.
    monkeypatch.setattr(region_placement, "DECIDED", {1: 1000})
    assert delays(fan(10), np.full((4, 2), 100.0), 0) == [(0, 3, 200.0)]


def test_a_slow_device_does_not_help():
    # The second device takes ten times as long: both branches and the join on the first one.
    assert delays(fan(10), np.array([[100.0, 1000.0]] * 4), 0) == [(0, 3, 300.0)]


def fans(branches: int, rows: int = 1) -> Problem:
    """Rows of a source, this many branches and a join on two devices; each operator takes 100, copies take nothing."""
    return hundreds(wiring(branches, rows))


def wiring(branches: int, rows: int = 1) -> dict[str, str]:
    """What each operator of `fans` reads."""
    reads, last = {"source": ""}, "source"
    for row in range(rows):
        names = [f"{row}.{i}" for i in range(branches)]
        reads |= dict.fromkeys(names, last)
        last = f"join{row}"
        reads[last] = " ".join(names)
    return reads


def hundreds(reads: dict[str, str]) -> Problem:
    return Problem(wired(reads, 0), gpus(), Costs(np.full((len(reads), 2), 100)))


def work_of(problem: Problem, exclusive: bool = True) -> Work:
    times = problem.costs.operator_ns.astype(float)
    return Work(times.min(axis=1), [times], exclusive)


def test_of_three_branches_on_two_devices_two_run_in_turn():
    # 300 over two devices would be 150, but two of them share a device: 200, then the join.
    assert work_delays(fans(3), work_of(fans(3)), 0, []) == [(0, 4, 300.0)]


def test_regions_in_a_row_add_up():
    # Five branches on two devices take three rounds, and the join one: in each of six rows, after the source.
    assert lower_bound(fans(5, rows=6)).ns in (100 + 6 * 400 - 1, 100 + 6 * 400)


def test_an_inner_region_counts_in_the_outer():
    # Source, then beside one branch a fan of five; its delay stands in the way through the outer region.
    problem = hundreds({**wiring(5), "beside": "source", "end": "join0 beside"})
    found = {(delay.first, delay.last): delay.ns for delay in work_delays(problem, work_of(problem), 0, [])}
    assert found == {(0, 6): 400.0, (0, 8): 500.0}


def test_longer_delays_that_were_known_stay():
    assert work_delays(fans(3), work_of(fans(3)), 0, [Delay(0, 4, 350.0)]) == [(0, 4, 350.0)]


def test_regions_that_are_too_wide_are_left_out():
    assert [members for _, _, members in regions_between(fans(3), 0, 3)] == [[]]
    assert [members for _, _, members in regions_between(fans(3), 0, 4)] == [[1, 2, 3, 4]]


def test_regions_end_once_all_together_are_too_long():
    # Three joins behind one source, of which each reads the one before: regions of 2, 3 and 4 operators.
    problem = hundreds({"s": "", "a": "s", "b": "s a", "c": "s b", "d": "s c"})

    def regions(*limits: float) -> list[list[int]]:
        return [members for _, _, members in regions_between(problem, 0, *limits)]

    assert regions(4) == [[1, 2], [1, 2, 3], [1, 2, 3, 4]]
    assert regions(4, 5) == [[1, 2], [1, 2, 3], []]
    assert regions(2) == [[1, 2], [], []]


def test_on_many_devices_branches_elsewhere_run_concurrently():
    # With more devices than the enumeration of places takes, what is not on the source's device runs wherever it likes:
    # five branches on twenty devices take no longer than one.
    names = tuple(f"gpu{i}" for i in range(20))
    places = topology(*map(device, names), switches=[Switch("switch", names, 1e12, contention=False)])
    graph = fans(5).graph
    problem = Problem(graph, places, Costs(np.full((len(graph.operators), 20), 100)))
    assert len(names) > region_placement.MOST_DEVICES
    assert lower_bound(problem).ns in (299, 300)
