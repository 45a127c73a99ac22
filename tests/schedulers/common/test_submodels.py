"""Submodels of several models: each model's own dominators, joined as the models go on together."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedule import cases
from thorough import examples
from tvm_sched.schedulers import solve
from tvm_sched.schedulers.common.submodels import split
from tvm_sched.schedulers.sortinghat.adjustments import Adjustments, Latencies
from tvm_sched.schedulers.sortinghat.handover import State
from tvm_sched.schedulers.sortinghat.submodel import evaluate
from tvm_sched_bench.testing import random_problem
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import Problem, Scenario, Workload, as_scenario, merge_problems
from tvm_sched_runtime.schedule import ModelLatency, model_latencies, requests_of

QUICK = {"time_limit": 0.0, "total_time_limit": 1e6}
"""The heuristic alone."""


def chain(name, operators, ns=100):
    """Operators one after another, each with a parameter of 100 bytes; two devices, each on a bus."""
    graph = cases.graph(
        {f"w{k}": 100 for k in range(operators)} | {f"a{k}": 10 for k in range(operators)},
        [(f"o{k}", f"w{k}" + (f" a{k - 1}" if k else ""), f"a{k}") for k in range(operators)],
        outputs=(f"a{operators - 1}",),
    )
    devices = cases.device("d0", "bus0"), cases.device("d1", "bus1")
    topology = cases.topology(*devices, buses=(cases.bus("bus0"), cases.bus("bus1")))
    return cases.problem(msgspec.structs.replace(graph, name=name), topology, [[ns, ns]] * operators)


def names(problem, groups):
    return [[problem.graph.operators[o].name for o in group] for group in groups]


def figure_6():
    """SortingHat's Figure 6: A to B and C, these to D, D to E and F, these to G."""
    reads = {"A": "", "B": "A", "C": "A", "D": "B C", "E": "D", "F": "D", "G": "E F"}
    graph = cases.graph(
        dict.fromkeys((o.lower() for o in reads), 10),
        [(o, before.lower(), o.lower()) for o, before in reads.items()],
        outputs=("g",),
    )
    devices = cases.device("d0", "bus0"), cases.device("d1", "bus1")
    topology = cases.topology(*devices, buses=(cases.bus("bus0"), cases.bus("bus1")))
    return cases.problem(graph, topology, [[100, 100]] * len(reads))


def test_figure_6_the_model_is_cut_at_the_one_node_between_input_and_output():
    problem = figure_6()
    assert [sorted(group) for group in names(problem, split(problem, 1, 48))] == [list("ABCD"), list("EFG")]
    assert [sorted(group) for group in names(problem, split(problem, 2, 48))] == [list("ABCDEFG")]
    # The second submodel reads D through a placeholder, whose device is known: D'.
    state = State(as_scenario(problem), Latencies(as_scenario(problem), Adjustments()), 2)
    s, nodes = state.submodel([0, 1, 2, 3])
    assert s.placeholders == 0
    state.accept(s, nodes, [4] * 4, evaluate(s, [4] * 4))
    s, nodes = state.submodel([4, 5, 6])
    assert (nodes.placeholders, s.fixed, s.device_end) == ([3], {3: 1}, [0, 400])


def test_submodels_of_models_are_joined_by_the_share_that_is_before_them():
    merged = merge_problems([chain("a", 5), chain("b", 3)])
    assert names(merged, split(merged, 1, 48)) == [
        ["a/o0", "a/o1", "b/o0", "b/o1"], ["a/o2"], ["a/o3", "b/o2"], ["a/o4"],
    ]  # fmt: skip


def test_a_weight_brings_a_model_forward():
    merged = merge_problems([chain("a", 3), chain("b", 3)])
    first = ["a/o0", "a/o1", "b/o0", "b/o1"]
    assert names(merged, split(merged, 1, 48)) == [first, ["a/o2", "b/o2"]]
    assert names(merged, split(merged, 1, 48, [1.0, 4.0])) == [first, ["b/o2", "a/o2"]]
    third = merge_problems([chain("a", 5), chain("b", 5)])
    assert names(third, split(third, 1, 48, [4.0, 1.0])) == [
        first, ["a/o2"], ["a/o3"], ["a/o4", "b/o2"], ["b/o3"], ["b/o4"],
    ]  # fmt: skip


def test_what_is_loaded_counts_and_what_is_resident_does_not():
    merged = merge_problems([chain("a", 3, ns=1), chain("b", 3, ns=1)])
    heavy = tuple(msgspec.structs.replace(t, size=10**6) if t.name == "a/w0" else t for t in merged.graph.tensors)
    merged = Problem(msgspec.structs.replace(merged.graph, tensors=heavy), merged.topology, merged.costs)
    first = ["a/o0", "a/o1", "b/o0", "b/o1"]
    assert names(merged, split(merged, 1, 48)) == [first, ["b/o2", "a/o2"]]
    warm = Scenario(merged, ["a/w0"])
    assert names(warm, split(warm, 1, 48)) == [first, ["a/o2", "b/o2"]]


@settings(max_examples=examples(40), deadline=None)
@given(
    seed=st.integers(0, 10_000), count=st.integers(1, 3), dominators=st.integers(0, 2), most=st.integers(1, 12),
)  # fmt: skip
def test_every_operator_is_in_one_submodel_after_what_it_reads(seed, count, dominators, most):
    merged = merge_problems([random_problem(seed, 7, 3, memory="generous") for _ in range(count)])
    groups = split(merged, dominators, most)
    order = [o for group in groups for o in group]
    assert sorted(order) == list(range(7 * count))
    place = {o: k for k, o in enumerate(order)}
    assert all(place[p] < place[o] for o in order for p in merged.graph.index.predecessors[o])
    assert max(map(len, groups)) <= max(most, count)


def test_two_models_on_two_devices_end_together():
    merged = merge_problems([chain("a", 6), chain("b", 6)])
    schedule = solve(merged, method="sortinghat", options=QUICK)
    a, b = model_latencies(merged, schedule)
    alone = solve(chain("a", 6), method="sortinghat", options=QUICK).certificate.latency_ns
    assert (a.model, b.model) == ("a", "b")
    assert max(a.latency_ns, b.latency_ns) == schedule.certificate.latency_ns <= 1.1 * alone
    first = model_latencies(merged, solve(merged, method="single"))
    assert max(each.latency_ns for each in first) == solve(merged, method="single").certificate.latency_ns
    assert ModelLatency("a", 300, 200).slowdown == 1.5
    assert ModelLatency("a", 300).slowdown is None
    assert model_latencies(chain("a", 2), solve(chain("a", 2), method="single")) == []


def test_latencies_of_models_are_means_over_requests():
    merged = merge_problems([chain("a", 3), chain("b", 2)])
    requests = requests_of(merged, [(0, 1), (1, 1)])
    schedule = solve(merged, method="heft", workload=Workload(requests))
    cold, warm = (model_latencies(merged, schedule, Workload([request])) for request in requests)
    for mean, one, other in zip(model_latencies(merged, schedule, Workload(requests)), cold, warm, strict=True):
        assert mean.latency_ns == (one.latency_ns + other.latency_ns) // 2


@pytest.mark.parametrize("weights", ["1", "1,2,3", "0,1", "1,-1", "inf,1", "nan,1"])
def test_weights_that_are_none_are_refused(weights):
    merged = merge_problems([chain("a", 1), chain("b", 1)])
    with pytest.raises(InputError, match=r"weights are .* a number above 0 for each of 2 models"):
        solve(merged, method="sortinghat", options={"weights": weights, **QUICK})


def test_weights_are_numbers():
    with pytest.raises(InputError, match="weights are 'one,two'; numbers separated by commas"):
        solve(chain("a", 1), method="sortinghat", options={"weights": "one,two"})
