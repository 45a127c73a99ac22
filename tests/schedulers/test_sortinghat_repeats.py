"""Submodels whose programs are alike are solved once; times that do not matter to a program are moved."""

from dataclasses import replace
from itertools import product
from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedule import cases
from thorough import examples
from tvm_sched.schedulers import solve
from tvm_sched.schedulers.common.milp import Effort
from tvm_sched.schedulers.sortinghat.outcome import Outcome
from tvm_sched.schedulers.sortinghat.position_windows import tightened
from tvm_sched.schedulers.sortinghat.repeats import Repeats
from tvm_sched.schedulers.sortinghat.submodel import evaluate

from .sortinghat_constraints_cases import EFFORT, chain

PLACEHOLDER = {
    "operators": 2,
    "placeholders": 1,
    "parameters": 1,
    "edges": [(0, 1), (2, 0), (3, 1)],
    "fixed": {2: 0},
    "kernel": [[5.0, 7.0], [3.0, 4.0], [0.0, 0.0], [0.0, 0.0]],
    "direct": [[5.0, 7.0], [9.0, 11.0], [0.0, 0.0], [0.0, 0.0]],
    "load": [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [6.0, 6.0]],
}
"""Operators a -> b; a reads an earlier result on device 0, b a parameter."""


def assignments(s):
    return product(*(s.places(node) for node in s.nodes))


def test_devices_and_buses_that_wait_anyway_are_free_later():
    s = chain(**PLACEHOLDER, transfers_end=[3.0], device_end=[100.0, 40.0])
    moved = tightened(s)
    assert moved.device_end == [100.0, 100.0], "nothing starts before the earlier result is there"
    assert moved.transfers_end == [94.0], "its one load of 6 then ends by 100"
    assert tightened(chain(**PLACEHOLDER, transfers_end=[97.0], device_end=[100.0, 120.0])).transfers_end == [97.0]


def test_without_earlier_results_the_first_free_device_may_start():
    moved = tightened(chain(transfers_end=[0.0], device_end=[50.0, 20.0]))
    assert moved.device_end == [50.0, 20.0]
    assert moved.transfers_end == [6.0], "loads of 8 and 6 end by 20"


@settings(max_examples=examples(30), deadline=None)
@given(seed=st.integers(0, 10**6))
def test_no_assignment_takes_another_time(seed):
    random = Random(seed)
    times = {"transfers_end": [random.uniform(0, 60)], "device_end": [random.uniform(0, 60) for _ in range(2)]}
    s = chain(**(PLACEHOLDER if random.random() < 0.6 else {}), **times)
    moved = tightened(s)
    for assignment in assignments(s):
        before, after = evaluate(s, assignment), evaluate(moved, assignment)
        assert (before is None) == (after is None)
        if before is not None:
            assert after.total == pytest.approx(before.total)


def answered(s, repeats, number=0, status="optimal", effort=EFFORT):
    """Solve a program to the end and keep its answer."""
    best = min((evaluate(s, a).total, a) for a in map(list, assignments(s)) if evaluate(s, a))
    outcome = Outcome(s.operators, 0, round(best[0]), round(best[0]), status, 1.0, "solver", total_ns=round(best[0]))
    repeats.add(number, s, best[1], outcome, effort)
    return best[1]


def test_a_program_that_begins_later_is_answered():
    repeats = Repeats(0.0)
    s = chain(transfers_end=[4.0], device_end=[9.0, 9.0])
    best = answered(s, repeats, number=3)
    later = replace(s, transfers_end=[1004.0], device_end=[1009.0, 1009.0])
    assignment, outcome = repeats.find(later, EFFORT)
    assert assignment == best
    assert (outcome.same_as, outcome.status, outcome.seconds) == (3, "optimal", 0.0)
    assert outcome.total_ns == outcome.bound_ns == round(evaluate(later, best).total)
    assert repeats.find(replace(later, device_end=[1010.0, 1009.0]), EFFORT) is None, "not by one amount"
    assert repeats.find(replace(later, q=4), EFFORT) is None
    assert repeats.find(replace(later, load=[[0.0, 0.0]] * 4), EFFORT) is None


def test_memory_counts_where_it_can_be_short():
    ample = {"memory": [10**6] * 2}
    repeats = Repeats(0.0)
    answered(chain(**ample), repeats)
    assert repeats.find(chain(**ample, memory_used=[1000, 0]), EFFORT) is not None
    short = Repeats(0.0)
    answered(chain(), short)
    assert short.find(chain(memory_used=[1, 0]), EFFORT) is None


def test_an_answer_in_much_less_time_is_none_unless_it_is_proved():
    hurried = Effort("highs", 1.0, 0, 0)
    for status, found in (("limit", False), ("optimal", True)):
        repeats = Repeats(0.0)
        answered(chain(), repeats, status=status, effort=hurried)
        assert (repeats.find(chain(), EFFORT) is not None) == found
        assert repeats.find(chain(), Effort("highs", 2.0, 0, 0)) is not None
        assert repeats.find(chain(), None) is not None


@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_bound_of_a_program_alike_is_a_bound(seed):
    random = Random(seed)
    s = chain(transfers_end=[random.uniform(0, 9)], device_end=[random.uniform(0, 9) for _ in range(2)])
    repeats = Repeats(inf)
    answered(s, repeats)
    other = replace(
        s, transfers_end=[random.uniform(0, 20)], device_end=[random.uniform(0, 20) for _ in range(2)]
    )  # fmt: skip
    least = min(times.total for a in map(list, assignments(other)) if (times := evaluate(other, a)))
    assignment, outcome = repeats.find(other, EFFORT)
    assert outcome.bound_ns <= least + 1
    assert outcome.total_ns == round(evaluate(other, assignment).total) >= round(least)
    if outcome.status == "optimal":
        assert outcome.total_ns - outcome.bound_ns <= 1


def layers(count):
    """Equal layers of a chain, each a product with weights of 4000 bytes, on two devices with a bus each."""
    tensors = {"x": 1, **{f"w{i}": 4000 for i in range(count)}, **{f"t{i + 1}": 1 for i in range(count)}}
    operators = [(f"o{i}", f"t{i} w{i}" if i else "x w0", f"t{i + 1}") for i in range(count)]
    graph = cases.graph(tensors, operators, outputs=(f"t{count}",))
    devices = cases.device("d0", "bus0"), cases.device("d1", "bus1")
    topology = cases.topology(*devices, buses=(cases.bus("bus0"), cases.bus("bus1")))
    return cases.problem(graph, topology, [[9000, 9000]] * count)


def test_equal_layers_are_solved_once():
    options = {"q": 2, "time_limit": 5.0}
    found = solve(layers(12), method="sortinghat", options=options)
    told = found.notes["submodels"]
    assert len(told) == 11  # the first has the input node, too
    assert found.notes["programs"] == sum(each["same_as"] is None for each in told) <= 6
    assert all(told[each["same_as"]]["same_as"] is None for each in told if each["same_as"] is not None)
    assert all(each["seconds"] == 0 for each in told if each["same_as"] is not None)


def test_equal_layers_are_placed_once(monkeypatch):
    from tvm_sched.schedulers.efficient_mip import scheduler

    instances = []
    place = scheduler.place
    monkeypatch.setattr(
        scheduler,
        "place",
        lambda instance, *rest, **named: instances.append(instance) or place(instance, *rest, **named),
    )
    solve(layers(12), method="efficient-mip", options={"q": 2})
    assert 1 <= len(instances) <= 3
