"""Start schedules of models in parts by rows: each device computes parts, and each parameter crosses one bus."""

from itertools import permutations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thorough import examples
from tvm_sched.bounds import lower_bound
from tvm_sched.schedulers import solve
from tvm_sched.schedulers.anytime.list_rules import rules
from tvm_sched.schedulers.anytime.row_parts import layer_numbers, parameter_homes, part_numbers
from tvm_sched.schedulers.common.search import PlacementChoice, Searches
from tvm_sched_runtime.problem import (
    Bus,
    Costs,
    Device,
    Link,
    Operator,
    OpGraph,
    Problem,
    Tensor,
    Topology,
    as_scenario,
)
from tvm_sched_runtime.schedule import ScheduleIndex, simulate, verify

from .exhaustive import least_latency


def layers_in_parts(layers=2, parts=2, linked=True):
    """Each part goes through all layers; a layer has a parameter of 100 bytes, a bus carries 1 a nanosecond, a link 10."""
    devices = tuple(Device(f"gpu{i}", 10**6, 1e12, {"float32": 1e12}, bus=f"pcie{i}") for i in range(2))
    buses = tuple(Bus(f"pcie{i}", 1e9) for i in range(2))
    links = (Link(("gpu0", "gpu1"), 1e10),) if linked else ()
    names = [[f"{layer}.{part}" for part in range(parts)] for layer in range(layers)]
    operators = [
        Operator(name, "", (f"w{layer}", *([names[layer - 1][part]] if layer else [])), (name,))
        for layer, row in enumerate(names)
        for part, name in enumerate(row)
    ]
    tensors = [Tensor(f"w{layer}", 100, "parameter") for layer in range(layers)]
    tensors += [Tensor(name, 1) for row in names for name in row]
    graph = OpGraph("parts", tuple(operators), tuple(tensors), tuple(names[-1]))
    return Problem(graph, Topology("two", devices, buses, links), Costs(np.full((layers * parts, 2), 50)))


def test_parts_are_told_by_the_parameters_that_they_share():
    scenario = as_scenario(layers_in_parts(3))
    assert part_numbers(scenario) == [0, 1, 0, 1, 0, 1]
    assert part_numbers(as_scenario(layers_in_parts(3, parts=1))) is None


def of_parameters(rows):
    """Make a scenario of operators: their names, the parameters that they read, and the operators."""
    operators = [Operator(name, "", (*parameters, *before), (name,)) for name, parameters, before in rows]
    parameters = dict.fromkeys(p for _, read, _ in rows for p in read)
    tensors = [Tensor(p, 100, "parameter") for p in parameters] + [Tensor(name, 1) for name, *_ in rows]
    read = {name for *_, before in rows for name in before}
    graph = OpGraph("rows", tuple(operators), tuple(tensors), tuple(name for name, *_ in rows if name not in read))
    topology = Topology("one", (Device("gpu0", 10**6, 1e12, {"float32": 1e12}, bus="pcie0"),), (Bus("pcie0", 1e9),))
    return as_scenario(Problem(graph, topology, Costs(np.full((len(rows), 1), 50))))


def test_layers_that_share_a_parameter_are_no_parts():
    chain = [(f"{layer}", ["w"], [f"{layer - 1}"] if layer else []) for layer in range(8)]
    assert part_numbers(of_parameters(chain)) is None
    both = [
        (f"{layer}.{part}", ["w"], [f"{layer - 1}.{part}"] if layer else []) for layer in range(3) for part in (0, 1)
    ]
    assert part_numbers(of_parameters(both)) == [0, 1, 0, 1, 0, 1]


def test_time_steps_are_no_parts():
    steps = []
    for t in range(20):
        steps.append((f"x{t}", ["wx"], []))
        steps.append((f"h{t}", ["wh"], [f"x{t}", *([f"h{t - 1}"] if t else [])]))
    assert part_numbers(of_parameters(steps)) is None


def test_layers_lie_between_the_dominators_of_the_model_that_is_not_in_parts():
    assert layer_numbers(as_scenario(layers_in_parts(3))) == [0, 0, 1, 1, 2, 2]
    branches = [
        (f"{name}.{part}", [name], [f"{each}.{part}" for each in before])
        for name, before in (("a", []), ("b", "a"), ("c", "a"), ("d", "bc"), ("e", "d"))
        for part in range(2)
    ]
    assert layer_numbers(of_parameters(branches)) == [0, 0, 1, 1, 1, 1, 1, 1, 2, 2]


def test_devices_compute_all_parts_of_every_second_layer():
    """Both buses load a layer until 100. gpu0 computes the first one until 150 and 200.

    The bus of gpu1 waits with its second load until it has copied, at 150 and 200. So gpu1 computes the second layer until
    201 and 251, gpu0 the third one until 252 and 302, and gpu1 the last one until 352 and 402.
    """
    problem = layers_in_parts(4, linked=False)
    scenario, searches = as_scenario(problem), Searches(as_scenario(problem))
    pipelined = [rule for rule in rules(scenario) if rule.turn]
    listed = [rule.schedule(searches) for rule in pipelined]
    assert min(latency for _, latency in listed) == 402
    for sequence, _ in listed:
        verify(problem, ScheduleIndex.of_sequence(scenario, sequence).to_schedule())


def test_a_model_of_one_part_runs_on_the_first_device_of_each_group():
    """The first of two linked devices, one after another; the bus of the other one carries every second parameter."""
    problem = layers_in_parts(4, parts=1)
    scenario = as_scenario(problem)
    *_, last = rules(scenario)
    sequence, latency = last.schedule(Searches(scenario))
    assert set(sequence[sequence[:, 0] == 0][:, 3].tolist()) == {0}
    assert latency == 200 + 2 * 50  # w2 and w3 are there at 200 and 210; the first two layers ran meanwhile
    verify(problem, ScheduleIndex.of_sequence(scenario, sequence).to_schedule())


def test_the_operator_of_least_turn_comes_first():
    """Three independent operators and their parameters on one device, in each order of turns."""
    scenario = of_parameters([(name, [f"w{name}"], []) for name in "abc"])
    (choice,) = [PlacementChoice([0], direct=False)]
    for order in permutations(range(3)):
        turn = [order.index(o) for o in range(3)]
        sequence, _ = Searches(scenario).construct([choice], [0, 0, 0], turn=turn)
        assert tuple(sequence[sequence[:, 0] == 0][:, 1]) == order
        loads = sequence[sequence[:, 0] == 2][:, 1]
        assert [scenario.graph.tensors[t].name for t in loads] == [f"w{'abc'[o]}" for o in order]


def test_parameters_are_dealt_to_the_buses():
    scenario = as_scenario(layers_in_parts(4))
    tensors = scenario.graph.index.tensor_id
    home = parameter_homes(scenario, [[0, 1]], [0] * 8)
    assert [home[tensors[f"w{layer}"]] for layer in range(4)] == [0, 1, 0, 1]
    assert {home[tensors[name]] for name in ("0.0", "3.1")} == {-1}


def test_a_group_is_dealt_the_parameters_of_its_own_layers():
    """The first group has both devices and three layers, which are on its buses in turn whatever is between them."""
    scenario = as_scenario(layers_in_parts(5))
    tensors = scenario.graph.index.tensor_id
    home = parameter_homes(scenario, [[0, 1], [1]], [0, 0, 1, 1, 1, 1, 0, 0, 0, 0])
    assert [home[tensors[f"w{layer}"]] for layer in range(5)] == [0, 1, 1, 0, 0]


def test_each_parameter_is_loaded_once_and_copied_on():
    """Both buses load a layer each until 100; each device has the other layer at 110.

    The part on gpu0 ends at 200, that on gpu1 begins at 110 and ends at 210. With a load of each layer on each bus, both
    would end at 250.
    """
    problem = layers_in_parts()
    scenario = as_scenario(problem)
    rule = next(rules(scenario))
    sequence, latency = Searches(scenario).construct(rule.choices, rule.choice, home=rule.home)
    assert latency == 210
    verify(problem, ScheduleIndex.of_sequence(scenario, sequence).to_schedule())
    assert solve(problem, method="anytime", options={"work": 0.02, "time_limit": None}).certificate.latency_ns <= 210


def test_no_schedule_of_all_is_faster_than_the_bound():
    problem = layers_in_parts()
    best = least_latency(problem, 200_000)
    assert lower_bound(problem).ns <= best <= 210


def test_without_a_link_each_device_loads_for_itself():
    scenario = as_scenario(layers_in_parts(linked=False))
    rule = next(rules(scenario))
    assert Searches(scenario).construct(rule.choices, rule.choice, home=rule.home) is not None
    home = [1] * len(scenario.graph.tensors)  # cannot be kept: gpu1's copies would take the bus of gpu0
    sequence, _ = Searches(scenario).construct(rule.choices, rule.choice, home=home)
    assert set(sequence[sequence[:, 0] == 2][:, 2].tolist()) == {-1}


@pytest.mark.thorough
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_all_rules_for_models_in_parts_give_schedules(data):
    """Random layers, some with branches, joins of all parts and parameters of their own, on unequal devices."""
    number = st.integers
    layers, parts, count = data.draw(number(1, 4)), data.draw(number(2, 3)), data.draw(number(1, 3))
    rows, before = [], [[] for _ in range(parts)]
    for layer in range(layers):
        branches = data.draw(number(1, 2))
        made = [[f"{layer}.{branch}.{part}" for branch in range(branches)] for part in range(parts)]
        for part, names in enumerate(made):
            rows += [(name, [f"w{layer}.{branch}"], before[part]) for branch, name in enumerate(names)]
        before = made
        if data.draw(st.booleans()):
            join = f"join{layer}"
            rows.append((join, [f"w{join}"] if data.draw(st.booleans()) else [], [n for names in made for n in names]))
            before = [[join]] * parts
    graph = of_parameters(rows).graph
    size = data.draw(st.lists(number(1, 300), min_size=len(graph.tensors), max_size=len(graph.tensors)))
    tensors = tuple(msgspec.structs.replace(t, size=n) for t, n in zip(graph.tensors, size, strict=True))
    devices = tuple(Device(f"gpu{i}", 10**6, 1e12, {"float32": 1e12}, bus=f"pcie{i}") for i in range(count))
    speeds = data.draw(st.lists(st.sampled_from([5e8, 1e9, 2e9]), min_size=count, max_size=count))
    buses = tuple(Bus(f"pcie{i}", speed) for i, speed in enumerate(speeds))
    links = (Link(("gpu0", "gpu1"), 1e10),) if count > 1 and data.draw(st.booleans()) else ()
    times = data.draw(st.lists(number(1, 200), min_size=len(rows) * count, max_size=len(rows) * count))
    costs = Costs(np.array(times).reshape(len(rows), count))
    problem = Problem(
        OpGraph("rows", graph.operators, tensors, graph.outputs), Topology("some", devices, buses, links), costs
    )
    scenario, bound = as_scenario(problem), lower_bound(problem).ns
    for rule in rules(scenario):
        sequence, latency = rule.schedule(Searches(scenario))
        schedule = ScheduleIndex.of_sequence(scenario, sequence).to_schedule()
        verify(problem, schedule)
        assert simulate(problem, schedule).latency_ns == latency >= bound
