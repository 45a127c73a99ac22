"""The bound `assignment` by hand, below the optimum for any weights, and what the checker refuses of its lemma."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.optimize
import vipr
from hypothesis import given, settings
from hypothesis import strategies as st

from checker.cases import certified, fan, files_of
from schedulers.exhaustive import TooLarge, least_latency
from thorough import examples
from tvm_sched.bounds import all_bounds, linear_program, lower_bound, whole_ns
from tvm_sched.bounds.assignment import SCALE, AssignmentProgram, BusRow, assignment_bound
from tvm_sched.bounds.path_and_bus import integer_steps
from tvm_sched.bounds.relaxation import Relaxation
from tvm_sched.cost_model import costs
from tvm_sched.report.explanation import explain
from tvm_sched.schedulers import solve
from tvm_sched_bench.testing import random_problem, random_schedule
from tvm_sched_check import Refused
from tvm_sched_check.assignment import Assignment, least
from tvm_sched_check.derivation import Derivation
from tvm_sched_check.document import Problem as ReadProblem
from tvm_sched_runtime.problem import (
    Bus,
    Costs,
    Device,
    Operator,
    OpGraph,
    Problem,
    Tensor,
    Topology,
    load_topology,
    problem_of,
)


def two_unlike():
    """Two operators that read 1000 bytes each: 10 ns on the first GPU, 1000 on the second, whose bus is twice as fast.

    A join of 10 ns on either reads both results, of 100 bytes each.
    """
    buses = (Bus("slow", 1e9), Bus("fast", 2e9))
    devices = tuple(Device(f"gpu{i}", 10**6, 1e12, {"float32": 1e12}, bus=bus.name) for i, bus in enumerate(buses))
    operators = [Operator(f"o{i}", "", (f"w{i}",), (f"x{i}",)) for i in range(2)]
    operators.append(Operator("join", "", ("x0", "x1"), ("y",)))
    tensors = [*(Tensor(f"w{i}", 1000, "parameter") for i in range(2)), *(Tensor(f"x{i}", 100) for i in range(2))]
    graph = OpGraph("unlike", tuple(operators), (*tensors, Tensor("y", 1)), ("y",))
    return Problem(graph, Topology("two", devices, buses), Costs(np.array([[10, 1000], [10, 1000], [10, 10]])))


def test_devices_and_buses_are_weighed_by_hand():
    """One weight for the slow bus and one for the second GPU: each operator costs 1000, and 20 follow on the bus.

    (2 * 1000 + 20 + the join's least cost, 0) / 2 = 1010. The buses alone carry 2000 bytes at 3 bytes a nanosecond.
    """
    problem = two_unlike()
    bounds = {bound.name: bound.ns for bound in all_bounds(problem)}
    assert bounds["bus"] == 667 + 20
    assert bounds["assignment"] >= 1010  # the program finds a stronger mixture
    assert least_latency(problem) >= bounds["assignment"]
    program = AssignmentProgram(Relaxation(problem))
    slow = program.loads[0].channels[0]
    assert program.value({}, [0, 1], [BusRow(slow, 20, 1)], []).ns == 1010


def test_equal_devices_of_one_place_have_none():
    assert assignment_bound(Relaxation(fan(10))) is None


def test_a_program_that_holds_the_simplex_method_up_is_solved_by_interior_points(monkeypatch, folder):
    """Some of 100,000 entries took 26 s."""
    whole = assignment_bound(Relaxation(strong()))
    monkeypatch.setattr(linear_program, "SIMPLEX_STEPS", 1000)
    bound = assignment_bound(Relaxation(strong()))
    assert bound.ns == pytest.approx(whole.ns, rel=1e-6)
    assert files_of(strong(), certified(strong(), random_schedule(strong(), 0))).check(folder).all_proved
    monkeypatch.setattr(linear_program, "LARGEST", 100)
    assert assignment_bound(Relaxation(strong())) is None


def test_solvers_are_given_a_number_of_steps(monkeypatch):
    """Not one of seconds, so that a bound is the same on every machine."""
    taken = []

    def stopped(goal, rows, *others, method, options):
        taken.append((method, options["maxiter"] * (rows.shape[0] if method == "highs-ds" else 1)))
        return SimpleNamespace(status=1)

    monkeypatch.setattr(scipy.optimize, "linprog", stopped)
    assert assignment_bound(Relaxation(strong())) is None
    (simplex, steps), (interior, others) = taken
    assert (simplex, interior) == ("highs-ds", "highs-ipm")
    assert 0 < steps <= linear_program.SIMPLEX_STEPS
    assert others == linear_program.CROSSOVER_STEPS


@settings(max_examples=examples(36), deadline=None)
@given(seed=st.integers(0, 100_000), operators=st.integers(1, 3), devices=st.integers(2, 3), data=st.data())
def test_assignments_hold_by_any_weights(seed, operators, devices, data):
    """Not by those of the linear program alone."""
    problem = random_problem(seed, operators, devices, "generous", data.draw(st.sampled_from(("bus", "mixed", "disk"))))
    try:
        optimum = least_latency(problem, most_states=1500)
    except TooLarge:
        return
    index, program, weight = problem.graph.index, AssignmentProgram(Relaxation(problem)), st.floats(0, 1)
    if optimum is None or not program.load_channels:
        return
    flow = {}
    for chain in data.draw(st.lists(st.lists(st.sampled_from(range(operators)), max_size=4), max_size=3)):
        at, carried = -1, data.draw(weight)
        for o in chain:
            if at < 0 or at in index.predecessors[o]:
                flow[at, o] = flow.get((at, o), 0.0) + carried
                at = o
    levels = [0, *(int(ns) for times in program.before_end for ns in times)]
    buses = [
        BusRow(data.draw(st.sampled_from(program.load_channels)), level, int(SCALE * data.draw(weight)))
        for level in data.draw(st.lists(st.sampled_from(levels), max_size=4))
    ]
    buses += [BusRow(channel, 0, 1) for channel in program.load_channels]
    pairs = [(t, b) for t, read in enumerate(index.consumers) for b in read if index.producer[t] >= 0]
    waits = {(t, b, place): data.draw(st.floats(0, 1000)) for t, b in pairs for place in set(program.place)}
    copies = program.useful_copies(waits, buses)
    weights = [int(SCALE * data.draw(weight)) for _ in range(devices)]
    proved = program.value(integer_steps(index.order, flow), weights, buses, copies)
    assert whole_ns(proved.ns) <= optimum


def strong():
    """A problem whose strongest bound is `assignment`, with copies that count."""
    return random_problem(30, 6, 3, "generous", "bus")


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 100_000), operators=st.integers(2, 12), style=st.sampled_from(("bus", "mixed", "disk")))
def test_evidence_of_assignments_is_accepted(folder, seed, operators, style):
    problem = random_problem(seed, operators, 3, "generous", style)
    verdict = files_of(problem, certified(problem, random_schedule(problem, seed))).check(folder)
    assert verdict.all_proved
    assert verdict.proved_ns == lower_bound(problem).ns


def a_price_too_many(lemma):
    claim = next(each for each in lemma["copies"] if any(each["prices"]))
    claim["prices"].append(0)


def a_copy_too_dear(lemma):
    claim = next(each for each in lemma["copies"] if any(each["prices"]))
    claim["prices"] = [1 << 80 for _ in claim["prices"]]


WRONG = {
    "a nanosecond more": lambda lemma: lemma.update(ns=lemma["ns"] + 1),
    "prices of too many devices": a_price_too_many,
    "a copy that costs too much": a_copy_too_dear,
    "a reader that does not read": lambda lemma: lemma["copies"][0].update(reader="op0"),
    "more behind than there is": lambda lemma: lemma["buses"].append({**lemma["buses"][0], "least": 10**9}),
    "a bus that is not there": lambda lemma: lemma["buses"][0].update(bus="none"),
    "a negative weight": lambda lemma: lemma["buses"][0].update(multiplier=-1),
    "no weights": lambda lemma: lemma.update(buses=[], steps=[], copies=[], devices=[0, 0, 0]),
    "a step from nowhere": lambda lemma: lemma["steps"].append({"first": "op0", "last": "op1", "multiplier": 1 << 70}),
    "one device left out": lambda lemma: lemma.update(devices=lemma["devices"][:-1]),
    "a part of the run": lambda lemma: lemma.update(last="op1"),
}  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("what", WRONG)
def test_a_lemma_that_does_not_follow_is_refused(folder, what):
    files = files_of(strong(), certified(strong(), random_schedule(strong(), 0)))
    lemma = files.evidence["lemmas"][-1]
    assert lemma["rule"] == "assignment"
    assert files.check(folder).all_proved
    WRONG[what](lemma)
    with pytest.raises(Refused):
        files.check(folder, proved_ns=lemma["ns"])


def test_a_copy_is_claimed_once(folder):
    """Each claim is what the copy costs, and so both together are more."""
    files = files_of(strong(), certified(strong(), random_schedule(strong(), 0)))
    lemma = files.evidence["lemmas"][-1]
    claim = next(each for each in lemma["copies"] if any(each["prices"]))
    rule = Assignment(Derivation(ReadProblem(json.loads(files.problem))), lemma)
    tensor, reader = rule.problem.t[claim["tensor"]], rule.problem.o[claim["reader"]]
    follows = rule.behind[reader]
    claim["prices"] = [rule.entry(tensor, place, follows) for place in rule.place]
    lemma.update(copies=[claim], ns=1)
    files.check(folder)
    lemma["copies"] = [claim, claim]
    with pytest.raises(Refused, match="cost less than their readers claim"):
        files.check(folder)


def test_regions_with_prices(folder):
    """SqueezeNet, cold, on two T4 and an A10: its eight fire modules are priced as wholes."""
    benchmarks = Path(__file__).parents[2] / "benchmarks"
    graph = Problem.load(benchmarks / "instances" / "models" / "squeezenet_p4d.json.gz").graph
    problem = problem_of(graph, (), load_topology(str(benchmarks / "data" / "unequal" / "t4x2-a10.toml")), costs)
    weighed = assignment_bound(Relaxation(problem))
    assert len(weighed.regions) == 8
    assert lower_bound(problem) == (whole_ns(weighed.ns), "assignment")
    files = files_of(problem, certified(problem, solve(problem, method="single")))
    verdict = files.check(folder)
    assert verdict.all_proved
    assert verdict.proved_ns == whole_ns(weighed.ns)
    lemma = files.evidence["lemmas"][-1]
    first, *others = lemma["regions"]
    for wrong in ([{**first, "cost": 2 * first["cost"]}], [first, first], [{**first, "multiplier": 2**70}]):
        lemma["regions"] = [*wrong, *others]
        with pytest.raises(Refused):
            files.check(folder)


def test_devices_that_may_run_operators_together_have_no_weight(folder):
    """The evidence of one operator at a time does not hold if stages are possible."""
    files = files_of(two_unlike(), certified(two_unlike(), solve(two_unlike(), method="heft")))
    lemma = {"rule": "assignment", "steps": [], "devices": [0, 1], "ns": 1010}
    lemma["buses"] = [{"bus": "slow", "least": 20, "multiplier": 1}]
    files.evidence["lemmas"] = [lemma]
    assert files.check(folder).proved_ns == 1010
    document = json.loads(files.problem)
    document["costs"]["concurrency"] = {
        "serial_share": 1.0,
        "utilisation": [[[1.0]] * 2] * 3,
    }
    known = Derivation(ReadProblem(document))
    assert not known.exclusive
    with pytest.raises(Refused, match="one operator at a time"):
        least(known, None, None, lemma)
    assert least(known, None, None, {**lemma, "devices": [0, 0]}) == 20


def test_the_argument_before_is_stored_for_other_checkers(folder):
    """`benchmarks/vipr` does not translate the rule; it derives what the weaker argument proves."""
    files = files_of(strong(), certified(strong(), random_schedule(strong(), 0)))
    files.check(folder)
    before = files.evidence["lemmas"][-2]
    written = vipr.write(folder / "problem.json", folder / "evidence.json", folder / "bound.vipr")
    assert before["ns"] <= written.proved_ns < files.evidence["lemmas"][-1]["ns"]


def test_explain_names_the_shares():
    schedule = solve(two_unlike(), method="heft")
    lines = "\n".join(explain(two_unlike(), schedule))
    assert "by assignment:" in lines
    assert "its parameters cross that device's bus" in lines
