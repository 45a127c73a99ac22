"""SortingHat's constraints: each group alone on a problem solved by hand, all together against every assignment."""

from itertools import product
from math import inf
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from ortools.math_opt.python import mathopt

from thorough import examples
from tvm_sched.schedulers.sortinghat import constraints
from tvm_sched.schedulers.sortinghat.heuristic import best_assignment, improve
from tvm_sched.schedulers.sortinghat.program import build, hint, solve
from tvm_sched.schedulers.sortinghat.submodel import copies_into, evaluate
from tvm_sched.schedulers.sortinghat.symmetry import relabelled
from tvm_sched.schedulers.sortinghat.variables import SPAN, Variables

from .sortinghat_constraints_cases import EFFORT, A, B, U, W, chain, random_submodel


def test_figure_7_slots_turns_and_the_example_of_the_text():
    # V100 server: GPU1 and GPU2 on one bus, GPU3 and GPU4 on the other, q = 4. Operators 2, 5 and 7 are nodes 0 to 2, the
    # parameters 0, 1, 4 and 6 nodes 3 to 6. 2 and 5 read theirs from host memory; 7 follows 5 on GPU3 and loads 6.
    kernel = [[5.0] * 4] * 3 + [[0.0] * 4] * 4
    s = chain(
        operators=3, parameters=4, q=4, buses=[[0, 1], [2, 3]], memory=[10**6] * 4, size=[[1] * 4] * 7,
        edges=[(0, 1), (1, 2), (3, 0), (4, 0), (5, 1), (6, 2)], kernel=kernel, direct=kernel,
        load=[[0.0] * 4] * 3 + [[7.0] * 4] * 3 + [[25.0] * 4], copy=[[[0.0] * 4] * 4] * 7,
        memory_used=[0] * 4, transfers_end=[0.0, 0.0], device_end=[0.0] * 4,
    )  # fmt: skip
    assert [list(s.of_device(d)) for d in s.devices] == [[4 * d + i for i in (1, 2, 3, 4)] for d in range(4)]
    # PCIeStartIdx = {1, 9}; ParentDT of 5 is 1, of 2 is 5.
    assert s.turns == [[1, 5, 2, 6, 3, 7, 4, 8], [9, 13, 10, 14, 11, 15, 12, 16]]
    assignment = [1, 9, 10, 0, 0, 0, 10]
    assert list(copies_into(s, assignment, 9, [1])) == [(0, 0)]  # EdgeIn and CopyIn: node 2, from GPU1 into subgraph 9
    times = evaluate(s, assignment)
    assert (times.load_end[9], times.load_end[10]) == (0, 25)
    assert (times.end[1], times.end[9]) == (5, 10)
    assert (times.start[10], times.total) == (25, 30)  # (20): 25, though (18) alone would say 10
    # Equation (5): a direct reader's parameter in a subgraph, or another's in host memory, is no solution.
    assert evaluate(s, [1, 9, 10, 0, 1, 0, 10]) is None
    assert evaluate(s, [1, 9, 10, 0, 0, 0, 0]) is None


class Alone:
    """A program with some groups only, on a clock of nanoseconds."""

    def __init__(self, s, *groups):
        self.program = mathopt.Model()
        self.v = Variables.of(self.program, s, SPAN)
        assert self.v.clock.tick == 1
        for group in groups:
            group(self.program, s, self.v)

    def within(self, *places):
        """Put nodes into subgraphs, and nowhere else."""
        for node, place in places:
            for (other, j), x in self.v.within.items():
                if other == node:
                    self.set(x, float(j == place))
        return self

    def set(self, variable, value):
        self.program.add_linear_constraint(variable == value)
        return self

    def least(self, variable=None):
        """The least value of a variable; None where there is no solution."""
        if variable is not None:
            self.program.minimize(variable)
        result = mathopt.solve(self.program, mathopt.SolverType.HIGHS)
        if not result.has_primal_feasible_solution():
            return None
        return round(result.variable_values(variable), 6) if variable is not None else 0.0

    def greatest(self, variable):
        self.program.maximize(variable)
        result = mathopt.solve(self.program, mathopt.SolverType.HIGHS)
        return round(result.variable_values(variable), 6)


def test_each_node_in_one_subgraph():
    group = constraints.each_node_in_one_subgraph
    assert Alone(chain(), group).within((A, 2), (B, 4)).least() == 0
    alone = Alone(chain(), group)
    assert alone.set(alone.v.within[A, 2], 1).set(alone.v.within[A, 3], 1).least() is None
    alone = Alone(chain(), group)
    for j in range(5):
        alone.set(alone.v.within[A, j], 0)
    assert alone.least() is None


def test_only_where_it_can_be():
    group = constraints.only_where_it_can_be
    cannot = chain(fixed={W: 1}, kernel=[[5.0, inf], [3.0, 4.0], [0.0, 0.0], [0.0, 0.0]])
    places = {
        node: [j for j in range(5) if Alone(cannot, group).within((node, j)).least() is not None] for node in range(4)
    }
    assert places == {A: [1, 2, 3], B: [1, 2, 3, 4], W: [3], U: [0, 1, 2, 3, 4]}


@pytest.mark.parametrize(("subgraph", "stays"), [(1, 1.0), (2, 0.0), (3, 1.0), (4, 0.0)])
def test_parameters_follow_the_mode(subgraph, stays):
    alone = Alone(chain(), constraints.parameters_follow_the_mode).within((A, subgraph), (B, 2))
    assert alone.least(alone.v.within[W, 0]) == stays
    assert alone.greatest(alone.v.within[W, 0]) == stays


def test_subgraphs_are_contiguous():
    detour = chain(operators=3, parameters=1, edges=[(0, 1), (1, 2), (0, 2)])
    for places, feasible in (((2, 4, 2), False), ((2, 2, 2), True), ((2, 4, 4), True), ((2, 4, 1), True)):
        alone = Alone(detour, constraints.subgraphs_are_contiguous).within(*enumerate(places))
        assert (alone.least() is not None) == feasible


def test_edges_come_in():
    for a, b, edge in ((2, 4, 1.0), (2, 2, 0.0), (1, 2, 1.0)):
        alone = Alone(chain(), constraints.edges_come_in).within((A, a), (B, b))
        assert alone.least(alone.v.edge_in[A, b]) == edge


def test_copies_come_in():
    for a, edge, copy in ((2, 1, 1.0), (1, 1, 1.0), (2, 0, 0.0), (3, 1, 0.0)):
        alone = Alone(chain(), constraints.copies_come_in).within((A, a))
        alone.set(alone.v.edge_in[A, 4], edge)
        assert alone.least(alone.v.copy_in[A, 0, 4]) == copy
    apart = chain(copy=[[[0.0, inf], [inf, 0.0]]] * 4)
    alone = Alone(apart, constraints.copies_come_in).within((A, 2))
    assert alone.set(alone.v.edge_in[A, 4], 1).least() is None


@pytest.mark.parametrize(("memory", "feasible"), [(10 + 20 + 5, True), (10 + 20 + 4, False)])
def test_memory_suffices(memory, feasible):
    # Device 1 holds 5 bytes from before, b of 20 bytes, and a copy of a of 10.
    tight = chain(memory=[100, memory], memory_used=[0, 5])
    alone = Alone(tight, constraints.memory_suffices).within((A, 2), (B, 4), (W, 2), (U, 0))
    for (node, d, j), copy in alone.v.copy_in.items():
        alone.set(copy, float((node, d, j) == (A, 0, 4)))
    assert (alone.least() is not None) == feasible


def test_loads_take_turns():
    # The bus is busy to 3; devices take turns, so subgraphs load in the order 1, 3, 2, 4: w (8), then u (6).
    alone = Alone(chain(transfers_end=[3.0]), constraints.loads_take_turns).within((W, 3), (U, 2))
    assert [alone.least(alone.v.load_start[j]) for j in (1, 3, 2, 4)] == [3, 3, 11, 17]
    assert [alone.least(alone.v.load_end[j]) for j in (1, 3, 2, 4)] == [3, 11, 17, 17]
    apart = chain(buses=[[0], [1]], transfers_end=[0.0, 1.0])
    alone = Alone(apart, constraints.loads_take_turns).within((W, 3), (U, 2))
    assert [alone.least(alone.v.load_end[j]) for j in (1, 2, 3, 4)] == [0, 6, 9, 9]
    there = chain(fixed={W: 1})
    alone = Alone(there, constraints.loads_take_turns).within((W, 3), (U, 2))
    assert alone.least(alone.v.load_end[3]) == 0


def test_nodes_are_ready():
    alone = Alone(chain(), constraints.nodes_are_ready).within((A, 2), (B, 4), (W, 2), (U, 0))
    alone.set(alone.v.end[2], 40).set(alone.v.load_end[2], 30).set(alone.v.load_end[4], 50)
    assert [alone.least(alone.v.ready[node]) for node in (A, W, U)] == [40, 30, 0]


def test_subgraphs_wait():
    def started(j, *edges, **places):
        alone = Alone(chain(device_end=[7.0, 9.0]), constraints.subgraphs_wait)
        alone.within(*((globals()[name], place) for name, place in places.items()))
        for (node, i), edge in alone.v.edge_in.items():
            alone.set(edge, float((node, i) in edges))
        for node, ready in ((A, 40), (B, 0), (W, 30), (U, 60)):
            alone.set(alone.v.ready[node], ready)
        alone.set(alone.v.end[1], 20).set(alone.v.end[3], 25)
        return alone.least(alone.v.start[j])

    everywhere = {"A": 2, "B": 4, "W": 1, "U": 0}
    assert started(1, **everywhere) == 7  # the device, from before
    assert started(3, **everywhere) == 9
    assert started(2, **everywhere) == 20  # the subgraph before it
    assert started(4, (A, 4), **everywhere) == 40  # an operator of another subgraph
    assert started(2, (W, 2), **everywhere) == 30  # a parameter of another subgraph
    assert started(4, **{**everywhere, "U": 4}) == 60  # a parameter of its own (20)


def test_subgraphs_take_time():
    alone = Alone(chain(), constraints.subgraphs_take_time).within((A, 2), (B, 3))
    for key, copy in alone.v.copy_in.items():
        alone.set(copy, float(key == (A, 0, 3)))
    for j in range(1, 5):
        alone.set(alone.v.start[j], 10)
    # a takes 5 in subgraph 2; subgraph 3 copies it (4) and runs b with direct host access (11).
    assert [alone.least(alone.v.end[j]) for j in range(1, 5)] == [10, 15, 25, 10]


def test_total_is_the_last_end():
    alone = Alone(chain(), constraints.total_is_the_last_end)
    alone.set(alone.v.end[2], 12).set(alone.v.end[4], 17)
    assert alone.least(alone.v.total) == 17


def test_times_of_assignments_by_hand():
    # By node: a, b, w, u. All in subgraph 2: both loads, 14, then 5 and 3.
    assert evaluate(chain(), [2, 2, 2, 2]).total == 14 + 5 + 3
    # b on the other device: w arrives at 8, a ends at 13; u at 14; a copy (4), b (4).
    assert evaluate(chain(), [2, 4, 2, 4]).total == 14 + 4 + 4
    # b direct on the same device cannot come before a's subgraph, which has a higher number.
    assert evaluate(chain(), [2, 1, 2, 0]) is None
    # a direct (20), then b: u has been there since 6.
    assert evaluate(chain(), [1, 2, 0, 2]).total == 20 + 3
    # u through the other device (parallel transmission): the bus is the same, so 14, a copy (4), then 5 and 3.
    assert evaluate(chain(), [2, 2, 2, 4]).total == 14 + 4 + 5 + 3
    # With a bus for each device it arrives at 6.
    assert evaluate(chain(buses=[[0], [1]], transfers_end=[0.0, 0.0]), [2, 2, 2, 4]).total == 8 + 4 + 5 + 3


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 10**6), operators=st.integers(1, 4), devices=st.integers(1, 3), strengthened=st.booleans())
def test_the_program_and_the_evaluation_agree_on_every_assignment(seed, operators, devices, strengthened):
    random = Random(seed)
    s = random_submodel(random, operators, devices)
    assignment = [random.choice(s.places(node) or [0]) for node in s.nodes]
    times = evaluate(s, assignment)
    program = mathopt.Model()
    v = build(program, s, times.total if times else 10**4, strengthened)
    assignment = relabelled(s, assignment) if strengthened else assignment
    for (node, j), x in v.within.items():
        x.lower_bound = x.upper_bound = min(float(assignment[node] == j), x.upper_bound)
    result = mathopt.solve(program, mathopt.SolverType.HIGHS)
    if times is None:
        assert not result.has_primal_feasible_solution()
    else:
        assert result.objective_value() == pytest.approx(v.clock.at(times.total), rel=1e-6, abs=1e-6)


@st.composite
def started_submodels(draw):
    """A submodel, and an assignment with which a solver may start."""
    s = random_submodel(Random(draw(st.integers(0, 10**6))), draw(st.integers(1, 3)), draw(st.integers(1, 2)))
    start = best_assignment(s, 500)
    assume(start is not None)
    return s, relabelled(s, start)


@settings(max_examples=examples(30), deadline=None)
@given(begun=started_submodels())
def test_hints_are_solutions(begun):
    s, start = begun
    times = evaluate(s, start)
    program = mathopt.Model()
    v = build(program, s, times.total)
    assert len(v.begin) == s.operators
    values = hint(s, v, start, times)
    for variable in program.variables():
        assert variable.lower_bound - 1e-6 <= values[variable] <= variable.upper_bound + 1e-6
    for row in program.linear_constraints():
        held = sum(term.coefficient * values[term.variable] for term in row.terms())
        assert row.lower_bound - 1e-6 <= held <= row.upper_bound + 1e-6


@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 10**6), operators=st.integers(1, 3), solver=st.sampled_from(["highs", "scip"]))
def test_the_solver_finds_the_best_of_all_assignments(seed, operators, solver):
    s = random_submodel(Random(seed), operators, 2)
    found = [(t.total, a) for a in map(list, product(*(s.places(node) for node in s.nodes))) if (t := evaluate(s, a))]
    assume(found)
    worst, least = max(found)[1], min(found)[0]
    answer = solve(s, worst, EFFORT._replace(solver=solver))
    assert evaluate(s, answer.assignment or worst).total == pytest.approx(least, rel=1e-3)
    assert answer.status == "optimal"
    assert answer.objective_ns == pytest.approx(least, rel=1e-3, abs=1)
    assert answer.bound_ns <= least + 1
    heuristic = best_assignment(s, 500)
    assert heuristic is None or evaluate(s, heuristic).total >= least
    assert evaluate(s, improve(s, worst, 500)).rank <= evaluate(s, worst).rank


def test_equal_options_equal_answers():
    s = random_submodel(Random(3), 3, 2)
    start = best_assignment(s, 500)
    first, again = (solve(s, start, EFFORT)._replace(seconds=0) for _ in range(2))
    assert first == again
