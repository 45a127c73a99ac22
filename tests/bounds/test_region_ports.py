"""Delays through regions on devices with ports: by hand, against the optimum, and as the checker derives them."""

import json
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bounds.switch_cases import fan, on_a_switch
from schedulers.exhaustive import TooLarge, least_latency
from thorough import examples
from tvm_sched.bounds import lower_bound, region_ports
from tvm_sched.bounds.region_ports import port_delays
from tvm_sched.bounds.relaxation import Relaxation
from tvm_sched_check import Refused
from tvm_sched_check.derivation import Derivation
from tvm_sched_check.document import Problem as Read
from tvm_sched_check.ports import Ports
from tvm_sched_runtime.problem import Costs, Problem


def found(problem):
    relaxation = Relaxation(problem)
    return port_delays(problem, relaxation.best, relaxation.source)


def test_branches_wait_for_the_ports():
    """`docs/proofs/regions.md`: two branches stay, and the third one's result arrives at 60 + 100 + 60."""
    assert found(fan(60)) == [(0, 4, 320.0)]
    assert found(fan(60, contention=False)) == []
    assert lower_bound(fan(60)).ns == least_latency(fan(60)) == 420


def test_regions_with_too_many_states_are_left_out(monkeypatch):
    monkeypatch.setattr(region_ports, "STATES", 3)
    assert found(fan(60)) == []


def test_a_limited_number_of_regions_is_searched(monkeypatch):
    """Else the checker, which has one limit for all, refused the evidence of many regions."""
    reads = {"u": (), "a": ("u",), "b": ("u",), "c": ("u",), "v": ("a", "b", "c")}
    reads |= {"d": ("v",), "e": ("v",), "f": ("v",), "w": ("d", "e", "f")}
    problem = on_a_switch(reads, [100] * 9, [60] * 5 + [50] * 4, 2)
    assert len(found(problem)) == 2
    monkeypatch.setattr(region_ports, "SEARCHES", 1)
    assert len(found(problem)) == 1


def test_devices_of_unequal_speed_have_no_such_delay():
    problem = fan(60)
    times = problem.costs.operator_ns.copy()
    times[2, 1] += 1
    assert found(Problem(problem.graph, problem.topology, Costs(times))) == []


def proved(problem, delay, ns):
    """What the checker accepts of a delay."""
    read = Read(json.loads(problem.to_json()))
    return Ports().least(Derivation(read), delay.first, delay.last, {"ns": ns})


def random_graph(seed, operators, devices):
    random = Random(seed)
    names = [f"o{i}" for i in range(operators)]
    reads = {names[0]: ()}
    for i in range(1, operators - 1):
        reads[names[i]] = tuple(sorted(random.sample(names[:i], min(i, random.choice([1, 1, 2])))))
    read = {name for each in reads.values() for name in each}
    reads[names[-1]] = tuple(name for name in names[:-1] if name not in read)
    times = [random.choice([1, 50, 100, 130]) for _ in names]
    return on_a_switch(reads, times, [random.choice([0, 10, 40, 90]) for _ in names], devices)


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 10**6), operators=st.integers(4, 6), devices=st.integers(2, 3))
def test_no_schedule_is_faster_and_the_checker_agrees(seed, operators, devices):
    problem = random_graph(seed, operators, devices)
    for delay in found(problem):
        assert proved(problem, delay, int(delay.ns)) == delay.ns
        assert proved(problem, delay, int(delay.ns) + 1) == 0
    try:
        shortest = least_latency(problem, most_states=20_000)
    except TooLarge as found_until:
        shortest = found_until.best
    assert lower_bound(problem).ns <= shortest


def test_the_checker_derives_the_same_of_an_inception_block():
    """Of GoogLeNet on an A100: the orders of one placement must not change the heads of the next."""
    reads = {
        "u": (), "a": ("u",), "b": ("u",), "b2": ("b",), "c": ("u",), "c2": ("c",), "d": ("u",), "d2": ("d",),
        "v": ("a", "b2", "c2", "d2"),
    }  # fmt: skip
    times = [6855, 5924, 6386, 13279, 5398, 5960, 5721, 5462, 5961]
    problem = on_a_switch(reads, times, [7074, 5692, 6037, 6383, 5173, 5346, 7074, 5346, 7765], 8)
    (delay,) = found(problem)
    assert proved(problem, delay, int(delay.ns)) == delay.ns
    assert proved(problem, delay, int(delay.ns) + 1) == 0


def test_the_checker_refuses_what_the_rule_is_not_about():
    problem = fan(60)
    delay = found(problem)[0]
    assert proved(problem, delay, 320) == 320
    assert proved(problem, delay, 321) == 0
    for wrong in (fan(60, contention=False), on_a_switch({"u": (), "v": ()}, [1, 1], [1, 1], 2)):
        with pytest.raises(Refused, match="ports"):
            proved(wrong, delay._replace(last=len(wrong.graph.operators) - 1), 300)
    with pytest.raises(Refused, match="between two"):
        proved(problem, delay._replace(first=None), 300)


def test_a_tensor_reaches_many_devices_by_copies_of_copies():
    """Four branches, four devices: the result of `u` arrives at 40, 80 and 80; the last one ends at 180."""
    reads = {"u": (), "a": ("u",), "b": ("u",), "c": ("u",), "d": ("u",), "v": ("a", "b", "c", "d")}
    assert found(on_a_switch(reads, [100] * 6, [40] * 6, 4)) == [(0, 5, 320.0)]


def test_large_regions_are_refused_before_they_are_searched():
    """Else made-up evidence could take hours: a limit of states is none of time if a state may have any size."""
    branches = [f"b{i}" for i in range(8)]
    reads = {"u": ()} | dict.fromkeys(branches, ("u",)) | {"v": tuple(branches)}
    problem = on_a_switch(reads, [100] * 10, [60] * 10, 2)
    read = Read(json.loads(problem.to_json()))
    with pytest.raises(Refused, match="not 1 to 8 operators"):
        Ports().least(Derivation(read), 0, 9, {"ns": 500})
