"""The verifier: each rule broken on purpose, and mutations of good schedules that are caught or do no harm."""

import re
from itertools import combinations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedule.cases import bus, device, graph, problem, schedule, topology
from schedule.reference import Deadlock, reference_run
from strategies import SEEDS, problems, scheduled_problems
from thorough import examples
from tvm_sched_bench.testing import random_problem, random_schedule
from tvm_sched_runtime.errors import InputError, ScheduleError
from tvm_sched_runtime.schedule import RULES, Certificate, ScheduleIndex, verify, violations


def small():
    """Operator p reads w1 and makes a, q reads a and w2; d0 and d1 are on a bus, c and e share host memory."""
    g = graph({"w1": 100, "w2": 100, "a": 50, "b": 10}, [("p", "w1", "a"), ("q", "a w2", "b")], ["b"])
    places = topology(device("d0", "pcie"), device("d1", "pcie"), device("c"), device("e"), buses=[bus("pcie")])
    return problem(g, places, [[50, 50, 50, None], [50, 50, 50, 50]], [[130, 130, None, None], [None] * 4])


GOOD = (["p d0", "q d1"], ["load w1 d0", "copy a d0 d1", "load w2 d1"])


def test_a_warm_run_may_need_more_memory_than_a_cold_one():
    """Cold, d0 holds at most x and a: w comes when a is gone. Warm, w is there while they are."""
    sizes = {"x": 60, "x2": 1000, "w": 100, "a": 100, "b": 10, "c": 10, "e": 10}
    g = graph(sizes, [("p", "x", "a"), ("q", "a", "b"), ("r", "b w", "c"), ("s", "x2", "e")], ["c", "e"])
    p = problem(g, topology(device("d0", "pcie", 200), device("d1", "pcie"), buses=[bus("pcie")]), [[10, 10]] * 4)
    s = schedule(p, ["p d0", "q d0", "r d0", "s d1"], ["load x d0", "load x2 d1", "load w d0"])
    verify(p, s)
    verify(p, s, resident=0.5)  # half of the bytes has no room for w
    for resident in (1.0, ["w"]):
        (found,) = violations(p, s, resident=resident)
        assert (found.rule, found.device) == ("memory", "d0")
        assert (
            "'d0' holds 260 bytes at 60 ns of a warm run with 1 parameters there, while operator 'p'" in found.message
        )
        with pytest.raises(ScheduleError, match="warm run"):
            verify(p, s, resident=resident)
    with pytest.raises(InputError, match="from 0 to 1"):
        verify(p, s, resident=2.0)


def test_the_good_one_is_good():
    p = small()
    verify(p, schedule(p, *GOOD))
    verify(p, schedule(p, ["p d0 direct", "q d1"], ["host_read p d0", "copy a d0 d1", "load w2 d1"]))
    verify(p, schedule(p, ["p c", "q c"]))


BROKEN = {
    "operator-missing": (["p d0"], ["load w1 d0"], "operator 'q' is placed on no device", "q", ""),
    "operator-twice": (["p d0", "q d1", "q d1"], ["load w1 d0", "copy a d0 d1", "load w2 d1"],
                       "operator 'q' is placed again on 'd1'", "q", "d1"),
    "operator-forbidden": (["p e", "q e"], [],
        "operator 'p' cannot run on 'e' with its tensors on the device: its latency there is null", "p", "e"),
    "load-activation": (["p d0", "q d1"], ["load w1 d0", "load a d1", "load w2 d1"],
                        "tensor 'a', made by operator 'p', is loaded into 'd1'", "", "d1"),
    "load-shared": (["p c", "q c"], ["load w1 c"],
                    "tensor 'w1' is loaded into 'c', which has it in host memory", "", "c"),
    "copy-self": (["p d0", "q d0"], ["load w1 d0", "copy a d0 d0", "load w2 d0"],
                  "tensor 'a' is copied from 'd0' to itself", "", "d0"),
    "copy-route": (["p c", "q e"], ["copy a c e"],
                   "tensor 'a' is copied from 'c' to 'e', but nothing joins", "", "e"),
    "copy-source": (["p d0", "q d1"], ["load w1 d0", "copy a c d1", "load w2 d1"],
                    "is copied from 'c' to 'd1', but it never gets to 'c'", "", "d1"),
    "tensor-twice": (["p d0", "q d1"], ["load w1 d0", "copy a d0 d1", "load w2 d1", "load w2 d1"],
                     "tensor 'w2', from host memory, gets to 'd1' twice", "", "d1"),
    "tensor-missing": (["p d0", "q d1"], ["load w1 d0", "load w2 d1"],
        "operator 'q' on 'd1' reads tensor 'a', made by operator 'p', but nothing brings that tensor there",
        "q", "d1"),
    "host-read-missing": (["p d0 direct", "q d0"], ["load w2 d0"], "'p' on 'd0' has direct host access", "p", "d0"),
    "host-read-twice": (["p d0 direct", "q d0"], ["host_read p d0", "host_read p d0", "load w2 d0"],
                        "operator 'p' on 'd0' has a second host_read", "p", "d0"),
    "host-read-device": (["p d0 direct", "q d0"], ["host_read p d1", "load w2 d0"],
                         "the host_read of operator 'p' is for 'd1', but it runs on 'd0'", "p", "d1"),
    "host-read-spurious": (["p d0", "q d0"], ["load w1 d0", "host_read p d0", "load w2 d0"],
                           "names operator 'p', which is placed without direct host access", "p", "d0"),
    "deadlock": (["q d0", "p d0"], ["load w1 d0", "load w2 d0"], "operator 'q' on 'd0'", "q", "d0"),
}  # fmt: skip


@pytest.mark.parametrize("rule", BROKEN)
def test_each_rule(rule):
    placements, transfers, message, operator, device_name = BROKEN[rule]
    p = small()
    s = schedule(p, placements, transfers)
    found = violations(p, s)
    first = found[0]
    assert rule in [v.rule for v in found]
    assert first.rule == rule
    assert message in first.message
    assert (first.operator, first.device) in [(operator, device_name), ("p", device_name)]
    with pytest.raises(ScheduleError, match=re.escape(message)):
        verify(p, s)


def test_every_rule_is_broken_in_some_test():
    in_test_concurrency = {"stage-unknown", "stage-split", "stage-direct", "stage-streams"}
    assert {*BROKEN, *in_test_concurrency, "problem", "evict", "memory", "certificate", "contiguity"} == set(RULES)


def test_a_deadlock_of_transfers_names_the_cycle():
    # The bus downwards carries the load of w2 after the copy of a; p waits for w2 (here: reads it), and makes a.
    g = graph({"w2": 100, "a": 50, "b": 10}, [("p", "w2", "a"), ("q", "a", "b")])
    p = problem(g, topology(device("d0", "pcie"), device("d1", "pcie"), buses=[bus("pcie")]), [[50, 50]] * 2)
    s = schedule(p, ["p d0", "q d1"], ["copy a d0 d1", "load w2 d0"])
    (found,) = violations(p, s)
    cycle = ["operator 'p' on 'd0'", "copy of 'a' from 'd0' to 'd1'", "load of 'w2' into 'd0'"]
    rotations = [" -> ".join([*cycle[k:], *cycle[:k], cycle[k]]) for k in range(3)]
    assert any(found.message.endswith(rotation) for rotation in rotations), found.message
    assert (found.rule, found.operator, found.device) == ("deadlock", "p", "d0")


def test_copies_in_a_ring_come_from_nowhere():
    g = graph({"w1": 50, "b": 10}, [("q", "w1", "b")])
    p = problem(g, topology(device("d0", "pcie"), device("d1", "pcie"), buses=[bus("pcie")]), [[50, 50]])
    (found,) = violations(p, schedule(p, ["q d1"], ["copy w1 d0 d1", "copy w1 d1 d0"]))
    assert found.rule == "deadlock"


def test_another_problem_and_unknown_names():
    p = small()
    s = schedule(p, *GOOD)
    with pytest.raises(ScheduleError, match="made for problem 'other'"):
        verify(p, msgspec.structs.replace(s, problem="other"))
    with pytest.raises(ScheduleError, match="names 'nobody'"):
        verify(p, schedule(p, ["nobody d0"]))


def test_certificate():
    p = small()
    good = schedule(p, *GOOD)
    latency = ScheduleIndex.of(p, good).times.latency_ns
    verify(p, schedule(p, *GOOD, certificate=Certificate(latency, latency // 2)))
    with pytest.raises(ScheduleError, match=f"it says {latency + 1} ns, the simulation {latency} ns"):
        verify(p, schedule(p, *GOOD, certificate=Certificate(latency + 1, 0)))
    with pytest.raises(ScheduleError, match="the lower bound is"):
        verify(p, schedule(p, *GOOD, certificate=Certificate(latency, latency + 1)))


def test_all_are_listed_up_to_a_limit():
    p = random_problem(5, 150, 2, "generous", "bus")
    s = schedule(p, [])
    assert len(violations(p, s)) == 100
    assert len(violations(p, s, limit=3)) == 3
    assert {v.rule for v in violations(p, s)} == {"operator-missing"}


# ---- contiguity ----


def test_a_path_that_leaves_and_comes_back():
    g = graph({"a": 1, "b": 1, "c": 1}, [("p", "", "a"), ("q", "a", "b"), ("r", "b", "c")])
    p = problem(g, topology(device("d0", "pcie"), device("d1", "pcie"), buses=[bus("pcie")]), [[50, 50]] * 3)
    s = schedule(p, ["p d0", "q d1", "r d0"], ["copy a d0 d1", "copy b d1 d0"])
    verify(p, s)
    verify(p, s, contiguous=2)
    with pytest.raises(ScheduleError, match="'d0' are not one contiguous subgraph: the path p -> q -> r leaves"):
        verify(p, s, contiguous=True)
    apart = [msgspec.structs.replace(placement, submodel=k) for k, placement in enumerate(s.placements)]
    verify(p, msgspec.structs.replace(s, placements=tuple(apart)), contiguous=True)


def fewest_stretches(problem, members):
    """Fewest contiguous stretches of a launch order, by trying all cuts with the closure of the graph."""
    index = problem.graph.index
    reach = [set() for _ in index.predecessors]
    for o in reversed(index.order):
        for s in index.successors[o]:
            reach[o] |= {s} | reach[s]

    def contiguous(part):
        outside = set(range(len(reach))) - set(part)
        return not any(w in reach[u] and v in reach[w] for u, v in combinations(part, 2) for w in outside)

    best = [0]
    for end in range(1, len(members) + 1):
        best.append(min(best[k] + 1 for k in range(end) if contiguous(members[k:end])))
    return best[-1]


@settings(max_examples=examples(100), deadline=None)
@given(scheduled_problems(max_operators=12, max_devices=3, memory=["generous"]), st.integers(1, 3))
def test_contiguity_agrees_with_the_closure(pair, allowed):
    p, s = pair
    index = ScheduleIndex.of(p, s)
    expected = set()
    for d, place in enumerate(p.topology.devices):
        members = [o for o, at in zip(index.operator, index.device, strict=True) if at == d]
        if fewest_stretches(p, members) > allowed:
            expected.add(place.name)
    assert {v.device for v in violations(p, s, contiguous=allowed)} == expected


# ---- mutations ----


def mutate(draw, problem, index):
    """One small change of a schedule; returns what it did."""
    placements, transfers = index.placements.copy(), index.transfers.copy()
    table = draw(st.sampled_from([placements, transfers] if transfers.size else [placements]))
    what = draw(st.sampled_from(["drop", "repeat", "swap", "elsewhere", "other way", "other item"]))
    count = table.shape[1]
    k, other = draw(st.integers(0, count - 1)), draw(st.integers(0, count - 1))
    anywhere = draw(st.integers(0, len(problem.topology.devices) - 1))
    placed, device = table is placements, 1 if table is placements else 3
    changed = table
    if what == "drop":
        changed = np.delete(table, k, axis=1)
    elif what == "repeat":
        changed = np.insert(table, other, table[:, k], axis=1)
    elif what == "swap":
        table[:, [k, other]] = table[:, [other, k]]
    elif what == "elsewhere":
        table[device, k] = anywhere
    elif what == "other way" and placed:
        table[2, k] = not table[2, k]
    elif what == "other way" and table[0, k] == ScheduleIndex.COPY:
        table[2, k] = anywhere
    elif placed:
        table[0, k] = table[0, other]
    elif table[0, k] != ScheduleIndex.HOST_READ:
        table[1, k] = draw(st.integers(0, len(problem.graph.tensors) - 1))
    return ScheduleIndex(problem, changed if placed else placements, transfers if placed else changed)


@settings(max_examples=examples(400), deadline=None)
@given(st.data(), problems(max_operators=10, max_devices=4, min_operators=1, memory=["generous"]), SEEDS)
def test_mutations_are_caught_or_harmless(data, p, seed):
    index = ScheduleIndex.of(p, random_schedule(p, seed))
    for _ in range(data.draw(st.integers(1, 2))):
        if index.operator:
            index = mutate(data.draw, p, index)
    s = index.to_schedule()
    rules = {v.rule for v in violations(p, s)}
    if not rules:
        # Harmless: the plain simulator runs it to the end, each operator once, and agrees on the time.
        run = reference_run(p, s)
        assert sorted(run.kernels) == sorted(o.name for o in p.graph.operators)
        assert len(s.placements) == len(p.graph.operators)
        assert run.latency_ns == index.times.latency_ns
    else:
        with pytest.raises(ScheduleError):
            _ = index.times
    if rules in ({"deadlock"}, {"tensor-missing"}):
        with pytest.raises(Deadlock):
            reference_run(p, s)


@settings(max_examples=examples(100), deadline=None)
@given(scheduled_problems(max_operators=10, memory=["tight"]))
def test_memory_is_judged_as_the_reference_counts_it(pair):
    p, s = pair
    over = {
        place.name
        for place, peak in zip(p.topology.devices, reference_run(p, s).peak, strict=True)
        if peak > place.memory
    }
    assert {v.device for v in violations(p, s)} == over
