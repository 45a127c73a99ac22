"""Neighbouring stages cut anew."""

import numpy as np
from exhaustive import optimum, small_problem, stage_cost
from hypothesis import given, settings
from hypothesis import strategies as st

from thorough import examples
from tvm_sched.pipeline import partition
from tvm_sched.pipeline.neighbourhoods import improve_neighbours, part_of

SEEDS = st.integers(0, 10_000)


@given(SEEDS, st.sets(st.integers(0, 6), min_size=1), st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_a_stage_costs_the_same_in_a_part_of_the_problem(seed, chosen, limited):
    problem = small_problem(seed, 7, limited)
    nodes = np.array(sorted(chosen))
    part = part_of(problem, nodes)
    for inside in ([0], list(range(len(nodes))), list(range(0, len(nodes), 2))):
        assert stage_cost(part, inside) == stage_cost(problem, [int(v) for v in nodes[inside]])


@given(SEEDS, st.integers(2, 4))
@settings(max_examples=examples(20), deadline=None)
def test_no_partition_becomes_dearer_and_two_stages_become_optimal(seed, stages):
    problem = small_problem(seed, 7)
    start = partition(problem, stages, "equal-split").stage_of
    found, _ = improve_neighbours(problem, start, stages, seconds=20)
    assert problem.bottleneck(found) <= problem.bottleneck(start)
    if stages == 2:
        assert problem.bottleneck(found) <= optimum(problem, 2) * (1 + 1e-6) + 1e-6
