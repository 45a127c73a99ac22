"""Cuts are the best there are, bounds hold, and both agree with the simulator."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_cases import machine

from thorough import examples
from tvm_sched_plans.cuts import Cutter, best_latency, best_period, kinds_of, stage_times
from tvm_sched_plans.language import by_layer, language_model
from tvm_sched_plans.operators import OperatorModel
from tvm_sched_plans.places import Machine, device_place, host_place
from tvm_sched_plans.token_workload import TokenWorkload
from tvm_sched_plans.unit_bound import lower_bound
from tvm_sched_plans.unit_chain import Chain, segments
from tvm_sched_plans.unit_pricing import price
from tvm_sched_runtime.problem import Device, Operator, OpGraph, Tensor, Topology
from tvm_sched_runtime.problem.decoder_config import DecoderConfig


def small_chain(memory, speed, layers=3, tied=False):
    config = DecoderConfig(layers=layers, hidden=64, heads=4, vocab=300, intermediate=128, tied=tied)
    topology = machine(*memory, speed=speed)
    places = tuple(device_place(device, device.memory) for device in topology.devices)
    return Chain.of(by_layer(language_model(config, TokenWorkload(context=64))), Machine(topology, places))


def every_cut(chain):
    """All placements in which each place has one run of units."""
    for placement in product(range(len(chain.machine.places)), repeat=len(chain.model.units)):
        runs = [p for p, _, _ in segments(placement)]
        if len(set(runs)) == len(runs):
            yield placement


def time_of(chain, placement):
    total = sum(int(chain.time_ns[u, p]) for u, p in enumerate(placement))
    return total + sum(
        chain.hop_ns[u, placement[u - 1], p] for u, p in enumerate(placement) if u and placement[u - 1] != p
    )


@settings(max_examples=examples(15), deadline=None)
@given(st.data())
def test_no_cut_is_better_and_none_is_below_the_bound(data):
    memory = data.draw(st.lists(st.integers(120_000, 500_000), min_size=2, max_size=3))
    speed = tuple(data.draw(st.sampled_from([0.5, 1.0, 2.0])) for _ in memory)
    chain = small_chain(memory, speed, tied=data.draw(st.booleans()))
    good = [placement for placement in every_cut(chain) if chain.fits(placement)]
    found = best_latency(chain)
    assert (found is None) == (not good)
    if found is None:
        return
    assert chain.fits(found)
    assert time_of(chain, found) == pytest.approx(min(time_of(chain, placement) for placement in good), rel=1e-9)
    assert lower_bound(chain) <= min(time_of(chain, placement) for placement in good)


@settings(max_examples=examples(15), deadline=None)
@given(st.data())
def test_a_tied_unit_comes_back_to_the_first_place(data):
    memory = data.draw(st.lists(st.integers(120_000, 500_000), min_size=2, max_size=3))
    speed = tuple(data.draw(st.sampled_from([0.5, 1.0, 2.0])) for _ in memory)
    chain = small_chain(memory, speed, tied=True)
    last = len(chain.model.units) - 1
    # All units but the last are one run for each place.
    heads = product(range(len(memory)), repeat=last)
    every = [(*head, head[0]) for head in heads if len({p for p, _, _ in segments(head)}) == len(segments(head))]
    good = [placement for placement in every if chain.fits(placement)]
    found = best_latency(chain, tied=True)
    assert (found is None) == (not good)
    if found is not None:
        assert chain.fits(found)
        assert found[0] == found[-1]
        assert time_of(chain, found) == pytest.approx(min(time_of(chain, placement) for placement in good), rel=1e-9)
        assert lower_bound(chain) <= time_of(chain, found)


@settings(max_examples=examples(15), deadline=None)
@given(st.data())
def test_no_pipeline_is_better(data):
    memory = data.draw(st.lists(st.integers(150_000, 500_000), min_size=2, max_size=3))
    chain = small_chain(memory, tuple(data.draw(st.sampled_from([0.5, 1.0, 2.0])) for _ in memory))
    stages = data.draw(st.integers(1, len(memory)))

    def period(placement):
        return max(time_of(chain, placement), 4 * max(stage_times(chain, placement)))

    good = [p for p in every_cut(chain) if chain.fits(p) and len(segments(p)) == stages]
    found = best_period(chain, stages, 4)
    assert (found is None) == (not good)
    if found is not None:
        assert period(found) == pytest.approx(min(map(period, good)), rel=1e-9)
        assert lower_bound(chain, 4) <= period(found)


def test_the_simulator_confirms_times_and_memory():
    chain = small_chain((300_000, 350_000, 300_000), (1.0, 2.0, 0.5), layers=5)
    found = best_latency(chain)
    assert len(segments(found)) > 1
    priced = price(chain, found)
    loads = priced.total_ns - time_of(chain, found)  # tokens come from host memory
    runs = sum(phase.repeats for phase in chain.model.phases)
    assert 0 <= loads <= runs * 20_000
    assert priced.fits
    assert all(used <= room for used, room in zip(priced.held, chain.room, strict=True))


def test_the_host_is_as_slow_to_start_a_kernel_as_its_devices():
    device = Device("cpu0", 1e9, 1e10, {"float32": 1e11}, "cpu", launch_overhead=3e-6)
    assert host_place(Topology("host", (device,))).device.launch_overhead == 3e-6


def test_equal_places_are_one_kind():
    assert kinds_of(small_chain((1e6,) * 4, ())) == [[0, 1, 2, 3]]
    assert kinds_of(small_chain((1e6, 2e6, 1e6), ())) == [[0, 2], [1]]
    assert kinds_of(small_chain((1e6,) * 3, (1.0, 1.0, 2.0))) == [[0, 1], [2]]


def test_a_tied_table_is_held_twice_where_its_readers_part():
    chain = small_chain((1e6, 1e6), (), tied=True)
    units = len(chain.model.units)
    together, apart = (0,) * units, (0,) * (units - 1) + (1,)
    table = chain.again[0, units - 1]
    assert table == 300 * 64 * 2
    assert sum(chain.placement_bytes(apart)) - sum(chain.placement_bytes(together)) == table + int(chain.peak[-1])
    for a, b in ((0, units), (1, units), (0, 2)):
        bytes_ = chain.placement_bytes(tuple(0 if a <= u < b else 1 for u in range(units)))[0]
        assert bytes_ == chain.segment_bytes[a, b]


@st.composite
def branching_chains(draw):
    """Operators that read one or two of those before them, on two or three GPUs; in order or overlapping."""
    count = draw(st.integers(2, 6))
    tensors = [Tensor("x", 4096, "input", dtype="float32")]
    operators = []
    for o in range(count):
        read = draw(st.lists(st.integers(0, o), min_size=1, max_size=2, unique=True))
        inputs = tuple("x" if r == 0 else f"t{r - 1}" for r in read)
        operators.append(Operator(f"o{o}", "", inputs, (f"t{o}",), draw(st.sampled_from([0, 10**7, 10**9]))))
        tensors.append(Tensor(f"t{o}", 4096, dtype="float32"))
    graph = OpGraph("branches", tuple(operators), tuple(tensors), (f"t{count - 1}",))
    topology = machine(*[1e6] * draw(st.integers(2, 3)), speed=())
    places = tuple(device_place(device, device.memory) for device in topology.devices)
    units = OperatorModel("onnx", Path("x"), graph, None, tuple(o.name for o in operators)).units()
    return Chain.of(units, Machine(topology, places, in_order=draw(st.booleans())))


@settings(max_examples=examples(40), deadline=None)
@given(branching_chains())
def test_no_placement_of_branches_is_below_the_bound(chain):
    places, units = range(len(chain.machine.places)), len(chain.model.units)
    bound = lower_bound(chain)
    for placement in product(places, repeat=units):
        assert price(chain, placement).total_ns >= bound
    if chain.machine.in_order:
        assert bound == pytest.approx(chain.time_ns.min(axis=1).sum(), rel=1e-5, abs=2)


def test_branches_overlap_where_the_runtime_lets_them():
    """Two branches on two GPUs take half as long, unless operators run in order: then all of them count."""
    x = Tensor("x", 4096, "input", dtype="float32")
    outputs = [Tensor(f"t{o}", 4096, dtype="float32") for o in range(2)]
    operators = tuple(Operator(f"o{o}", "", ("x",), (f"t{o}",), 10**10) for o in range(2))
    graph = OpGraph("branches", operators, (x, *outputs), ("t0", "t1"))
    topology = machine(1e6, 1e6)
    places = tuple(device_place(device, device.memory) for device in topology.devices)
    units = OperatorModel("onnx", Path("x"), graph, None, ("o0", "o1")).units()
    overlapping, in_order = (Chain.of(units, Machine(topology, places, in_order=x)) for x in (False, True))
    one = int(overlapping.time_ns[0, 0])
    assert price(overlapping, (0, 1)).total_ns < 1.1 * one
    assert price(in_order, (0, 1)).total_ns == pytest.approx(2 * one)
    assert lower_bound(overlapping) == pytest.approx(one, rel=1e-5)
    assert lower_bound(in_order) == pytest.approx(2 * one, rel=1e-5)


def test_nothing_fits():
    chain = small_chain((10_000, 10_000), ())
    assert best_latency(chain) is None
    assert lower_bound(chain) is None
    assert not np.isfinite(Cutter(chain).cost[0]).all()
