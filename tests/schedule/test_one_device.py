"""The lower bound of a device alone that loads nothing: what its operators take, as any of the other bounds may say too."""

import numpy as np
import pytest

from tvm_sched.bounds import all_bounds, lower_bound, optimality_threshold
from tvm_sched.schedulers import solve
from tvm_sched_bench.testing.graphs import random_graph
from tvm_sched_runtime.problem import Costs, Problem, load_topology


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_sum_and_no_other_bound_is_above(seed):
    graph = random_graph(seed, 30)
    times = np.random.default_rng(seed).integers(1, 10**6, (30, 1))
    problem = Problem(graph, load_topology("cpu1"), Costs(times))
    bound = lower_bound(problem)
    assert bound.name == "device work"
    assert bound.ns <= times.sum() <= optimality_threshold(bound.ns)
    assert bound.ns == max(other.ns for other in all_bounds(problem))
    assert solve(problem, method="single").certificate.status == "optimal"
