"""The C++ searches: feasible, never worse than their start, repeatable; what they believe is what the simulator says."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from thorough import examples
from tvm_sched.schedulers.anytime.device_group_moves import BlockSearch, RuleSchedule
from tvm_sched.schedulers.anytime.list_rules import device_groups, list_schedules, rules
from tvm_sched.schedulers.common.events import DIRECT, MOVE, RUN, Move, Run, events_of, sequence_of
from tvm_sched.schedulers.common.search import PlacementChoice, Searches
from tvm_sched_bench.testing import random_problem, random_schedule
from tvm_sched_runtime.problem import HOST, Bus, Costs, Device, Link, Operator, OpGraph, Problem, Tensor, Topology
from tvm_sched_runtime.schedule import ScheduleIndex, simulate

from ..anytime_cases import diamonds, two_gpus


def rows_of(events):
    """Events as rows."""
    rows = [
        (MOVE, event.tensor, event.source, event.device)
        if isinstance(event, Move)
        else (DIRECT if event.direct else RUN, event.operator, HOST, event.device)
        for event in events
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, 4)


def simulated(problem, sequence):
    return simulate(problem, ScheduleIndex.of_sequence(problem, sequence).to_schedule()).latency_ns


def anywhere(problem):
    everywhere = PlacementChoice(range(len(problem.topology.devices)))
    return Searches(problem).construct([everywhere], [0] * len(problem.graph.operators))


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 10_000), operators=st.integers(1, 20), devices=st.integers(1, 6))
def test_list_schedules_take_as_long_as_they_say(seed, operators, devices):
    problem = random_problem(seed, operators, devices, memory="generous")
    sequence, latency = anywhere(problem)
    assert simulated(problem, sequence) == latency


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 10_000), operators=st.integers(1, 15), devices=st.integers(1, 4))
def test_local_search_is_never_worse_and_repeatable_in_any_portions(seed, operators, devices):
    problem = random_problem(seed, operators, devices, memory="generous")
    start, latency = anywhere(problem)
    first, again = (Searches(problem).improve(start, 1.0, seed, 0) for _ in range(2))
    first.step(3000)
    for _ in range(30):
        again.step(100)
    assert first.best.tolist() == again.best.tolist()
    assert first.latency_ns <= latency
    assert simulated(problem, first.best) == first.latency_ns


def test_playing_a_sequence_drops_what_nobody_needs_and_brings_what_is_missing():
    problem = Problem(diamonds(1), two_gpus(), Costs([[100, 100]] * 3))
    tensor = problem.graph.index.tensor_id
    events = [Run(0, 0, False), Run(1, 0, False), Run(2, 0, False), Move(tensor["a0"], 0, 1)]
    played = events_of(Searches(problem).improve(rows_of(events), 1.0, 0, 10**9).best)
    moves = [event for event in played if isinstance(event, Move)]
    assert Move(tensor["a0"], 0, 1) not in moves
    assert Move(tensor["t0"], HOST, 0) in moves


def test_a_load_that_nobody_needs_brings_its_tensor_to_where_it_is_needed():
    problem = Problem(diamonds(1), two_gpus(), Costs([[100, 100]] * 3))
    tensor = problem.graph.index.tensor_id
    # The parameter was meant for the other device; it keeps its place before the input.
    events = [Move(tensor["w0a"], HOST, 1), Move(tensor["t0"], HOST, 0), *(Run(o, 0, False) for o in range(3))]
    played = events_of(Searches(problem).improve(rows_of(events), 1.0, 0, 10**9).best)
    assert played[0] == Move(tensor["w0a"], HOST, 0)


def test_a_search_that_has_reached_its_goal_stops():
    problem = Problem(diamonds(2), two_gpus(), Costs([[100, 100]] * 6))
    start, latency = anywhere(problem)
    search = Searches(problem).improve(start, 1.0, 0, latency)
    assert not search.step(10**9)
    assert search.latency_ns == latency


def test_host_tensors_are_copied_out_of_devices_that_share_host_memory():
    devices = (
        Device("cpu", 10**6, 1e12, {"float32": 1e12}, kind="cpu"),
        Device("gpu", 10**6, 1e12, {"float32": 1e12}, bus="pcie"),
    )
    topology = Topology("mixed", devices, (Bus("pcie", 1e9),), (Link(("cpu", "gpu"), 1e10),))
    graph = OpGraph(
        "one", (Operator("op", "", ("w",), ("y",)),), (Tensor("w", 1000, "parameter"), Tensor("y", 1)), ("y",)
    )
    problem = Problem(graph, topology, Costs([[1000, 10]]))
    # Over the link in 100 ns instead of over the bus in 1000.
    assert anywhere(problem)[1] == 110


def islands() -> Problem:
    """Two devices with a bus each and nothing between, and a chain of six operators with a parameter each."""
    devices = tuple(Device(f"gpu{i}", 10**6, 1e12, {"float32": 1e12}, bus=f"pcie{i}") for i in range(2))
    topology = Topology("islands", devices, (Bus("pcie0", 1e9), Bus("pcie1", 1e9)))
    tensors = [Tensor("t0", 8, "input")]
    operators = []
    for i in range(6):
        tensors += [Tensor(f"w{i}", 1000, "parameter"), Tensor(f"t{i + 1}", 8)]
        operators.append(Operator(f"o{i}", "", (f"t{i}", f"w{i}"), (f"t{i + 1}",)))
    graph = OpGraph("chain", tuple(operators), tuple(tensors), ("t6",))
    return Problem(graph, topology, Costs([[10, 10]] * 6))


def test_groups_are_what_copies_join_without_a_bus():
    assert device_groups(islands()) == [[0], [1]]
    assert device_groups(Problem(diamonds(1), two_gpus(), Costs([[100, 100]] * 3))) == [[0, 1]]


def test_rules_deal_the_model_to_groups_and_name_a_choice_for_each_operator():
    for rule in rules(islands()):
        assert len(rule.choice) == 6
        assert set(rule.choice) <= set(range(len(rule.choices)))


def test_parts_on_both_islands_load_over_both_buses():
    problem = islands()
    latency = min(simulated(problem, sequence) for sequence, _ in list_schedules(problem, Searches(problem)))
    # Six parameters over two buses: 3000 ns, the input's 8, six operators' 10 after the first and a few copies.
    assert 3000 < latency < 3200


def test_blocks_move_between_groups_and_nothing_gets_worse():
    problem, rule = islands(), next(rules(islands()))
    searches = Searches(problem)
    sequence, latency = searches.construct([PlacementChoice([0])], [0] * 6)
    search = BlockSearch(
        problem, searches, RuleSchedule(latency, sequence, type(rule)([PlacementChoice([0])], [0] * 6))
    )
    for _ in range(300):
        search.step()
    assert search.best.latency_ns < latency
    assert simulated(problem, search.best.sequence) == search.best.latency_ns
    assert np.array_equal(rows_of(events_of(search.best.sequence))[:, [0, 1, 3]], search.best.sequence[:, [0, 1, 3]])


@settings(max_examples=examples(100), deadline=None)
@given(seed=st.integers(0, 10_000), operators=st.integers(1, 20), devices=st.integers(1, 6))
def test_a_schedule_as_a_sequence_is_the_same_schedule(seed, operators, devices):
    problem = random_problem(seed, operators, devices, memory="generous")
    index = ScheduleIndex.of(problem, random_schedule(problem, seed))
    sequence = sequence_of(index)
    assert len(sequence) == len(index.operator) + sum(k != ScheduleIndex.HOST_READ for k in index.transfer_kind)
    assert simulated(problem, sequence) == index.times.latency_ns


def test_rules_that_spare_the_buses_weigh_copies():
    """b ends at 10 + 8 + 90 after a copy of 8 ns, at 10 + 100 beside a; half of the copy's time makes that the lesser."""
    operators = (Operator("a", outputs=("t",)), Operator("b", inputs=("t",), outputs=("u",)))
    graph = OpGraph("pair", operators, (Tensor("t", 8), Tensor("u", 8)))
    problem = Problem(graph, two_gpus(), Costs([[10, 10], [100, 90]]))
    for weight, latency in ((0.0, 108), (0.2, 108), (0.5, 110)):
        choice = PlacementChoice([0, 1], copy_weight=weight)
        assert Searches(problem).construct([choice], [0, 0])[1] == latency
