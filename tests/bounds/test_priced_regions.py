"""The bound from regions with prices, by hand and against the optimum."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checker.cases import readers_between
from schedulers.exhaustive import TooLarge, least_latency
from thorough import examples
from tvm_sched.bounds import all_bounds, path_and_bus
from tvm_sched.bounds.bus import Crossing, readers_by_tail
from tvm_sched.bounds.priced_regions import LARGEST, RegionPrices, cut_operators, stretches
from tvm_sched.bounds.region_placement import Copies, least_cost, region_of
from tvm_sched.bounds.relaxation import Relaxation
from tvm_sched_bench.testing import random_problem
from tvm_sched_runtime.problem import FORBIDDEN


def prices_of(problem):
    """The prices for the transfers of all operators that are bound to the bus; None if none is."""
    relaxation = Relaxation(problem)
    follows, order = readers_by_tail(relaxation)
    if not order:
        return None
    time, _, carried = path_and_bus.PathDual(relaxation, Crossing(0.0, follows[order[-1]], order)).all_options
    return RegionPrices(problem, time, carried, relaxation.shortest, float(follows[order[-1]]))


def test_a_region_costs_its_time_and_its_bus_time():
    """Four branches of 10 and 200 on the bus, or directly 160 and 150, on one device each: see the proof page."""
    problem = readers_between(branches=4, copy_ns=1000)
    prices = prices_of(problem)
    assert list(prices.regions) == [(0, 5)]
    assert prices.costs(0.25) == {(0, 5): 612.5}
    assert prices.value(0.25) == 2.5 + 612.5 + 15
    bounds = {bound.name: bound.ns for bound in all_bounds(problem)}
    assert bounds == {"critical path": 610, "device work": 605, "bus": 620, "path and bus": 630}


@pytest.mark.parametrize(("copy_ns", "weight", "least"), [(0, 1.0, 30.0), (5, 1.0, 35.0), (1000, 1.0, 50.0)])
def test_branches_share_devices_or_pay_for_copies(copy_ns, weight, least):
    assert prices_of(readers_between(branches=4, copy_ns=copy_ns)).costs(weight) == {(0, 5): least}


@settings(max_examples=examples(40), deadline=None)
@given(
    seed=st.integers(0, 100_000), operators=st.integers(2, 5), devices=st.integers(1, 3), paths=st.floats(0.01, 0.99)
)
def test_no_weight_gives_more_than_the_optimum(seed, operators, devices, paths):
    problem = random_problem(seed, operators, devices, style="bus")
    prices = prices_of(problem)
    try:
        least = None if prices is None else least_latency(problem, most_states=1500)
    except TooLarge:
        return
    assert least is None or prices.value(paths) <= least * (1 + 1e-9)


@settings(max_examples=examples(8), deadline=None)
@given(
    branches=st.integers(2, 3), copy_ns=st.integers(0, 100), time=st.integers(1, 300), devices=st.integers(1, 2),
    direct=st.integers(1, 600), load=st.integers(1, 100), paths=st.floats(0.01, 0.99),
)  # fmt: skip
def test_no_weight_gives_more_than_the_optimum_of_branches(branches, copy_ns, time, devices, direct, load, paths):
    problem = readers_between(branches, copy_ns, time, max(direct, 2 * load + 50), load, devices)
    try:
        least = least_latency(problem, most_states=3000)
    except TooLarge:
        return
    assert prices_of(problem).value(paths) <= least * (1 + 1e-9)


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 100_000), operators=st.integers(2, 5), devices=st.integers(1, 3), paths=st.floats(0, 1))
def test_the_search_finds_the_least_of_all_options(seed, operators, devices, paths):
    """Options tried one by one, without tails or twins: each operator after what it reads, and the others of its device."""
    problem = random_problem(seed, operators, devices, style="bus")
    prices = prices_of(problem)
    if prices is None:
        return
    order = list(problem.graph.index.order)
    region = region_of(problem, -1, order, prices.time, Copies(problem))
    # Inputs of the model lie on no device. A region from the start of the run has one member, which no such lag delays.
    region.lag = {edge: lag for edge, lag in region.lag.items() if edge[0] >= 0}
    price = (1 - paths) * prices.carried[order]
    found = least_cost(region, 10**6, devices, price, paths)
    longest = min((paths * ends + paid for ends, paid in longest_paths(region, price, devices)), default=math.inf)
    assert found >= longest * (1 - 1e-12)  # turns on a device can only add to the longest path
    if operators == 2 or devices == 1:
        exact = min((paths * e + p for e, p in longest_paths(region, price, devices, in_turn=True)), default=math.inf)
        assert found <= exact * (1 + 1e-12)


def longest_paths(region, price, devices, in_turn=False):
    """Yield the end of the last operator and the prices, for each choice of options; on a device in order if ``in_turn``."""

    def choose(end, free, device, paid):
        o = len(end)
        if o == len(region.time):
            yield max(end) if in_turn else end[-1], paid
            return
        for i, ns in enumerate(region.time[o]):
            d = i % devices
            before = [end[p] + lag[device[p], d] for (p, s), lag in region.lag.items() if s == o and p >= 0]
            start = max([0.0, *before, *([free.get(d, 0.0)] if in_turn else [])])
            if math.isfinite(start + ns):
                ends = start + float(ns)
                yield from choose([*end, ends], {**free, d: ends}, [*device, d], paid + price[o, i])

    yield from choose([], {}, [], 0.0)


def test_stretches_lie_between_operators_that_all_others_precede_or_follow():
    problem = readers_between(branches=3, copy_ns=10)
    assert list(cut_operators(problem)) == [0, 4]
    assert list(stretches(problem, [0, 4])) == [(-1, 0, [0]), (0, 4, [1, 2, 3, 4])]


def test_a_long_stretch_counts_as_its_longest_path():
    problem = readers_between(branches=LARGEST, copy_ns=1000)
    prices = prices_of(problem)
    assert not prices.regions
    assert len(prices.path) == 3
    assert prices.value(1.0) == 30


def test_an_operator_that_runs_nowhere_has_no_finite_cost():
    problem = readers_between(branches=2, copy_ns=10)
    prices = prices_of(problem)
    prices.regions[0, 3][1].time[0][:] = math.inf
    assert prices.costs(0.5) == {(0, 3): math.inf}
    assert FORBIDDEN not in prices.time
