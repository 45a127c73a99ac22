"""Least times through groups, over all ways to compute them."""

import numpy as np
import pytest
from hypothesis import assume, given, settings

from strategies import SEEDS, problems
from thorough import examples
from tvm_sched.problem import (
    Alternative,
    Costs,
    Device,
    Group,
    Link,
    Operator,
    OpGraph,
    Problem,
    Tensor,
    Topology,
    Variants,
)
from tvm_sched.schedule.bounds import all_bounds, lower_bound, relaxation_of
from tvm_sched.schedule.simulator import simulate
from tvm_sched.schedulers import solve
from tvm_sched.testing import random_schedule, random_variants


def split(groups=1, copy_ns=20, variants=True):
    """Blocks of 120 ns one after another, between two operators of 10 ns; each as two heads of 60 ns and a tail of 10, too.

    Copies take 20 ns, there are two devices. Both heads on one device take 130 ns in all. On two, one head waits for a copy
    of what is read, and the tail runs behind it, where what the other head makes comes meanwhile: 20 + 60 + 10 = 90.
    """
    names = ("gpu0", "gpu1")
    devices = tuple(Device(name, memory=1000, memory_bandwidth=1e9, peak_flops={"float32": 1e9}) for name in names)
    topology = Topology("two", devices, links=(Link(names, 1e9),))
    operators, tensors, found = [Operator("first", outputs=("y",))], [Tensor("y", copy_ns)], []
    for k in range(groups):
        read, made = operators[-1].outputs[0], f"y{k}"
        operators.append(Operator(f"block{k}", inputs=(read,), outputs=(made,)))
        tensors.append(Tensor(made, copy_ns))
        heads = [Operator(f"head{k}{i}", inputs=(read,), outputs=(f"h{k}{i}",)) for i in range(2)]
        tail = Operator(f"tail{k}", inputs=(f"h{k}0", f"h{k}1"), outputs=(made,))
        own = tuple(Tensor(f"h{k}{i}", copy_ns) for i in range(2))
        found.append(Group(f"block{k}", (f"block{k}",), (Alternative("halves", (*heads, tail), own),)))
    operators.append(Operator("last", inputs=operators[-1].outputs, outputs=("z",)))
    tensors.append(Tensor("z", 1))
    ways = Variants(found, Costs(np.array([[60, 60], [60, 60], [10, 10]] * groups)))
    times = Costs(np.array([[10, 10], *[[120, 120]] * groups, [10, 10]]))
    graph = OpGraph("split", tuple(operators), tuple(tensors), ("z",))
    return Problem(graph, topology, times, ways if variants else None)


@pytest.mark.parametrize("groups", [1, 3])
def test_each_block_takes_as_long_as_its_best_way(groups):
    problem = split(groups)
    assert [span.ns for span in relaxation_of(problem).given] == [90] * groups
    assert lower_bound(problem).ns == 20 + 90 * groups
    schedule = solve(problem, "anytime", {"work": 0.2})
    assert simulate(problem, schedule).latency_ns == 20 + 90 * groups


def test_where_copies_take_long_the_whole_block_is_the_best_way():
    assert lower_bound(split(copy_ns=60)).ns == 20 + 120


def test_a_way_that_does_not_wait_for_what_the_graph_reads_leaves_nothing_to_say():
    problem = split()
    group = problem.variants.groups[0]
    alone = Alternative("constant", (Operator("constant", outputs=("y0",)),))
    group = Group(group.name, group.operators, (*group.alternatives, alone))
    costs = Costs(np.vstack([problem.variants.costs.operator_ns, [[50, 50]]]))
    more = Problem(problem.graph, problem.topology, problem.costs, Variants([group], costs))
    assert relaxation_of(more).given == ()
    assert lower_bound(more).ns <= 10 + 50


@settings(max_examples=examples(40), deadline=None)
@given(problem=problems(max_operators=10, max_devices=4, min_operators=2, memory=("generous",)), seed=SEEDS)
def test_no_schedule_of_any_choice_is_faster(problem, seed):
    problem = random_variants(problem, seed, groups=4)
    assume(problem.variants is not None)
    bounds = all_bounds(problem)
    choices = [{}, *({group.name: way} for group in problem.variants.groups for way in group.ways[1:])]
    for k, choice in enumerate(choices[:6]):
        chosen = problem.resolve(choice)
        latency = simulate(chosen, random_schedule(chosen, seed + k)).latency_ns
        assert all(bound.ns <= latency for bound in bounds)
