"""Preemption on a bus (docs/model.md): turns help devices that would starve; moving parameters in pieces never helps."""

from itertools import chain

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from schedule.cases import bus, device, graph, problem, schedule, topology
from tvm_sched_bench.testing import in_pieces, in_turns, reorder_loads
from tvm_sched_runtime.problem import Link
from tvm_sched_runtime.schedule import simulate, verify


def two_devices(tensors, operators, operator_ns=10):
    places = topology(device("d0", "pcie"), device("d1", "pcie"), buses=[bus("pcie")], links=[Link(("d0", "d1"), 1e12)])
    return problem(graph(tensors, operators), places, [[operator_ns, operator_ns]] * len(operators))


def test_turns_keep_a_device_from_starving():
    """d0 computes 300 ns with each of two parameters, d1 with one; the bus needs 100 ns for each."""
    p = two_devices({"w1": 100, "w2": 100, "w3": 100, "a": 1, "b": 1, "c": 1},
                    [("p", "w1", "a"), ("q", "a w2", "b"), ("r", "w3", "c")], 300)  # fmt: skip
    one_by_one = schedule(p, ["p d0", "q d0", "r d1"], ["load w1 d0", "load w2 d0", "load w3 d1"])
    assert simulate(p, one_by_one).latency_ns == 100 + 300 + 300
    assert simulate(p, one_by_one).events[2].start_ns == 300
    turns = reorder_loads(p, one_by_one, in_turns)
    verify(p, turns)
    assert [t.tensor for t in turns.transfers] == ["w1", "w3", "w2"]
    assert simulate(p, turns).events[2].start_ns == 200
    assert reorder_loads(p, turns, chain.from_iterable).transfers == one_by_one.transfers


def test_pieces_in_turns_make_everybody_wait_longer():
    p = two_devices({"w1": 100, "w2": 100, "a": 1, "b": 1}, [("p", "w1", "a"), ("q", "w2", "b")])
    whole = schedule(p, ["p d0", "q d1"], ["load w1 d0", "load w2 d1"])
    assert [e.end_ns for e in simulate(p, whole).events[:2]] == [110, 210]
    parts, schedule_of_parts = in_pieces(p, whole, 30)
    preempted = reorder_loads(parts, schedule_of_parts, in_turns)
    verify(parts, preempted)
    assert [t.tensor for t in preempted.transfers[:3]] == ["w1#0", "w2#0", "w1#1"]
    assert [e.end_ns for e in simulate(parts, preempted).events[:2]] == [200, 210]


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 1), st.booleans()), min_size=1, max_size=8), st.randoms(),
       st.integers(5, 40))  # fmt: skip
def test_whole_loads_in_the_order_of_completion_are_at_least_as_good(choices, random, size):
    """Whatever the order in which pieces take turns."""
    tensors, operators, placements, copies = {}, [], [], []
    for k, (weight, at, chained) in enumerate(choices):
        tensors |= {f"w{k}": weight, f"a{k}": 1}
        operators.append((f"o{k}", f"w{k} a{k - 1}" if chained and k else f"w{k}", f"a{k}"))
        placements.append(f"o{k} d{at}")
        if chained and k and choices[k - 1][1] != at:
            copies.append(f"copy a{k - 1} d{1 - at} d{at}")
    p = two_devices(tensors, operators)
    whole = schedule(p, placements, [f"load w{k} d{at}" for k, (_, at, _) in enumerate(choices)] + copies)
    parts, preempted = in_pieces(p, whole, size)
    loads = [t for t in preempted.transfers if t.kind == "load"]
    random.shuffle(loads)
    preempted = msgspec.structs.replace(preempted, transfers=(*loads, *preempted.transfers[len(loads) :]))
    completed = dict.fromkeys(t.tensor.split("#")[0] for t in reversed(loads))
    position = {name: k for k, name in enumerate(reversed(completed))}
    ordered = sorted((t for t in whole.transfers if t.kind == "load"), key=lambda t: position[t.tensor])
    ordered = msgspec.structs.replace(whole, transfers=(*ordered, *whole.transfers[len(ordered) :]))
    verify(p, ordered)
    assert simulate(p, ordered).latency_ns <= simulate(parts, preempted).latency_ns
