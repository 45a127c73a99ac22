"""The rule ``prices`` of partitions' bounds, against all sets of nodes that can be a stage."""

import json
from fractions import Fraction

import numpy as np
import pytest
from exhaustive import optimum, possible_stages, small_problem, stage_cost
from hypothesis import given, settings

from strategies import SEEDS
from thorough import examples
from tvm_sched.bounds.partitions.partition_evidence import partition_evidence, priced
from tvm_sched_bench.kinds.throughput_kind import Pipeline, ThroughputKind
from tvm_sched_check import Refused
from tvm_sched_check.partitions import check
from tvm_sched_check.partitions.bound import bound_of
from tvm_sched_check.partitions.graph import graph_of
from tvm_sched_check.partitions.prices import can_be_worth_more
from tvm_sched_runtime.pipeline import PartitionProblem

KIND = ThroughputKind()


def read(problem, stages=2):
    return graph_of(json.loads(KIND.document(Pipeline(problem, stages))))


@settings(max_examples=examples(100), deadline=None)
@given(SEEDS, SEEDS)
def test_a_stage_worth_more_is_found_exactly_if_there_is_one(seed, other):
    problem, random = small_problem(seed, 7), np.random.default_rng(other)
    prices = random.integers(0, 1000, problem.size).tolist()
    costs = [
        (Fraction(stage_cost(problem, nodes)), sum(prices[v] for v in nodes)) for nodes in possible_stages(problem)
    ]
    limit = costs[int(random.integers(len(costs)))][0]
    most, graph = max(worth for cost, worth in costs if cost <= limit), read(problem)
    assert not can_be_worth_more(graph, prices, most, limit / graph.unit)
    if most:
        assert can_be_worth_more(graph, prices, most - 1, limit / graph.unit)


def six_nodes():
    """The example of `docs/proofs/partition_prices.md`: six nodes of work 4, and four stages; the optimum is 8."""
    return PartitionProblem([f"n{v}" for v in range(6)], np.full(6, 4.0), np.zeros(6), [])


@pytest.mark.parametrize(("claimed", "proved"), [(7, 7), (7.999, 7.999), (8, 0), (9, 0)])
def test_the_example_of_the_proof(claimed, proved):
    evidence = {"rule": "prices", "prices": [1] * 6}
    assert bound_of(read(six_nodes(), 4), 4, evidence, Fraction(claimed)) == Fraction(proved)


def test_evidence_is_written_and_verified(folder):
    task = Pipeline(six_nodes(), 4)
    argument = partition_evidence(task.graph, 4, 8.0, prices=7.9)
    assert argument.rule == "prices"
    answer = KIND.solve(task, "equal-split", 0.05, 0)
    paths_ = [folder / name for name in ("instance.json", "partition.json", "evidence.json")]
    document = json.loads(argument.to_json(KIND.digest(task)))
    for bound, whole in ((argument.bound, True), (8.0, False)):
        contents = (KIND.document(task), answer.solution, json.dumps(document | {"bound": bound}).encode())
        for path, content in zip(paths_, contents, strict=True):
            path.write_bytes(content)
        assert check(*paths_).all_proved == whole


@settings(max_examples=examples(40), deadline=None)
@given(SEEDS)
def test_no_prices_prove_more_than_the_optimum(seed):
    problem, random = small_problem(seed, 6), np.random.default_rng(seed)
    best, graph = Fraction(optimum(problem, 2)), read(problem)
    found = priced(problem, 2, float(best) * 0.9)
    for prices in (random.integers(0, 9, 6).tolist(), [] if found is None else found.fields["prices"]):
        if any(prices):
            for claimed in (best * 9 / 10, best, best + 1):
                proved = bound_of(graph, 2, {"rule": "prices", "prices": prices}, claimed)
                assert proved <= best
    if found is not None:
        assert bound_of(graph, 2, found.fields | {"rule": "prices"}, Fraction(found.bound)) == Fraction(found.bound)


@pytest.mark.parametrize("prices", [[], [0] * 6, [1] * 5, [-1, *[1] * 5], [1.5] * 6, [True] * 6, "111111"])
def test_prices_that_are_none_are_refused(prices):
    with pytest.raises(Refused):
        bound_of(read(six_nodes(), 4), 4, {"rule": "prices", "prices": prices}, Fraction(7))
