"""Spans between an operator and what it dominates, by hand."""

import numpy as np

from tvm_sched.problem import Bus, Costs, Device, Link, Operator, OpGraph, Problem, Tensor, Topology
from tvm_sched.schedule.bounds import lower_bound, regions
from tvm_sched.schedule.bounds.regions import spans
from tvm_sched.schedule.bounds.shared_regions import shared_spans


def fan(copy_ns: int, work: int = 100) -> Problem:
    """A source, two branches, a join; each takes ``work``; tensors take ``copy_ns`` from device to device."""
    devices = tuple(Device(f"gpu{i}", 10**6, 1e12, {"float32": 1e12}, bus="pcie") for i in range(2))
    topology = Topology("two", devices, (Bus("pcie", 1e6),), (Link(("gpu0", "gpu1"), 1e9),))
    reads = {"source": (), "a": ("source",), "b": ("source",), "join": ("a", "b")}
    operators = tuple(Operator(name, "", read, (name,)) for name, read in reads.items())
    graph = OpGraph("fan", operators, tuple(Tensor(name, copy_ns) for name in reads), ("join",))
    return Problem(graph, topology, Costs(np.full((4, 2), work)))


def test_branches_share_a_device_or_pay_for_copies():
    # Copies of 10: a branch elsewhere ends at 110, as the other's copy arrives there for the join. Copies of 110: stay.
    assert spans(fan(10), np.full((4, 2), 100.0), 0) == [(0, 3, 210.0)]
    assert spans(fan(110), np.full((4, 2), 100.0), 0) == [(0, 3, 300.0)]


def test_branches_that_share_a_device_side_by_side():
    # Each occupies 30 of the device: both branches there end after 100, then the join.
    assert shared_spans(fan(110), np.full(4, 100.0), np.full(4, 30.0), 0) == [(0, 3, 200.0)]


def test_the_bound_is_the_optimum_of_a_fan():
    assert lower_bound(fan(10)).ns in (309, 310)
    assert lower_bound(fan(110)).ns in (399, 400)


def test_operators_over_which_copies_lead_take_their_time(monkeypatch):
    # Only the longest share devices: with none of the branches among them each runs beside the other, and the way over a
    # branch takes its time, and no copy, for it may be where both its neighbours are.
    monkeypatch.setattr(regions, "DECIDED", 1)
    assert spans(fan(10), np.full((4, 2), 100.0), 0) == [(0, 3, 200.0)]


def test_a_slow_device_does_not_help():
    # The second device takes ten times as long: both branches and the join on the first one.
    assert spans(fan(10), np.array([[100.0, 1000.0]] * 4), 0) == [(0, 3, 300.0)]
