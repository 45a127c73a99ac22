"""The bound `bisection` by hand, below the optimum for any weights, and what the checker refuses of its lemma."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checker.cases import certified, files_of
from schedulers.exhaustive import TooLarge, least_latency
from thorough import examples
from tvm_sched.bounds import all_bounds, lower_bound
from tvm_sched.bounds.bisection import DualSearch, DualWeights, Sides, bisection_bound
from tvm_sched.bounds.relaxation import Relaxation
from tvm_sched.report.explanation import explain
from tvm_sched.schedulers import solve
from tvm_sched_bench.testing import random_schedule
from tvm_sched_check import Refused
from tvm_sched_check.assignment import times_behind
from tvm_sched_check.bisection import Bisection, least
from tvm_sched_check.derivation import Derivation
from tvm_sched_check.document import Problem as ReadProblem
from tvm_sched_runtime.problem import (
    FORBIDDEN,
    Bus,
    Costs,
    Device,
    Operator,
    OpGraph,
    Problem,
    Scenario,
    Tensor,
    Topology,
)
from tvm_sched_runtime.schedule import ScheduleIndex


def machine(speeds=(1e9, 1e9), on=(0, 1), duplex=True):
    """Devices on two buses; `on` says which bus each is on."""
    buses = tuple(Bus(f"bus{i}", speed, duplex=duplex) for i, speed in enumerate(speeds))
    devices = tuple(Device(f"gpu{i}", 10**6, 1e12, {"float32": 1e12}, bus=f"bus{bus}") for i, bus in enumerate(on))
    return Topology("two buses", devices, buses)


def pair():
    """Two operators that load 100 bytes each; one reads 100 bytes that the other makes. Kernels take 1 ns."""
    operators = (Operator("a", "", ("wa",), ("x",)), Operator("b", "", ("x", "wb"), ("y",)))
    tensors = (Tensor("wa", 100, "parameter"), Tensor("wb", 100, "parameter"), Tensor("x", 100), Tensor("y", 1))
    return Problem(OpGraph("pair", operators, tensors, ("y",)), machine(), Costs(np.ones((2, 2), np.int64)))


def random_division(seed, operators, on=(0, 1), duplex=True):
    """Return a random problem on two buses whose loads and copies take longer than its kernels."""
    random = np.random.default_rng(seed)
    tensors, made = [], []
    for o in range(operators):
        read = [f"x{p}" for p in range(o) if random.random() < 0.5]
        shared = [f"w{p}" for p in range(o) if random.random() < 0.1]
        tensors += [
            Tensor(f"w{o}", int(random.integers(1, 100)), "parameter"),
            Tensor(f"x{o}", int(random.integers(1, 60))),
        ]
        made.append(Operator(f"o{o}", "", (*read, *shared, f"w{o}"), (f"x{o}",)))
    ends = {f"x{o}" for o in range(operators)} - {name for each in made for name in each.inputs}
    topology = machine((1e9, float(random.choice([1e9, 2e9]))), on, duplex)
    times = random.integers(1, 30, (operators, len(on)))
    direct = np.full(times.shape, FORBIDDEN)
    for o in range(operators):
        if random.random() < 0.3:  # a direct read takes at least as long as the bus
            direct[o] = times[o] + 200 * operators
    return Problem(
        OpGraph("division", tuple(made), tuple(tensors), tuple(sorted(ends))), topology, Costs(times, direct)
    )


def by_hand(ns):
    """The lemma of the example in ``docs/proofs/bisection.md``, times 100."""
    rows = [{"bus": name, "least": 0, "multiplier": 100} for name in ("bus0", "bus1")]
    return {
        "rule": "bisection", "ns": ns, "sides": ["bus0", "bus1"], "buses": rows, "follows": [0, 0], "behind": [0, 0],
        "copies": [{"tensor": "x", "reader": "b", "prices": [10_000, 10_000]}], "leasts": [0, 0], "product": 1,
        "diagonal": [-10_000, -10_000], "slack": 1,
    }  # fmt: skip


def test_two_operators_by_hand():
    """The optimum is 201; the matrix excludes up to 140, and the search finds no better one."""
    problem = pair()
    known = Derivation(ReadProblem(json.loads(problem.to_json())))
    assert least(known, None, None, by_hand(141)) == 141
    with pytest.raises(Refused, match="do not exclude"):
        least(known, None, None, by_hand(143))
    with pytest.raises(Refused, match="whole run"):
        least(known, None, 1, by_hand(141))
    bounds = {bound.name: bound.ns for bound in all_bounds(problem)}
    assert max(ns for name, ns in bounds.items() if name != "bisection") == 102
    assert 141 <= bounds["bisection"] <= least_latency(problem) == 201
    assert lower_bound(problem).name == "bisection"


@settings(max_examples=examples(24), deadline=None)
@given(seed=st.integers(0, 100_000), operators=st.integers(2, 3), duplex=st.booleans(), data=st.data())
def test_bisections_hold_by_any_weights(seed, operators, duplex, data):
    """Not by those of the relaxation alone."""
    problem = random_division(seed, operators, data.draw(st.sampled_from(((0, 1), (0, 1, 1)[: operators + 1]))), duplex)
    try:
        shortest = least_latency(problem, most_states=1500)
    except TooLarge as found_until:
        shortest = found_until.best
    found = bisection_bound(relaxation := Relaxation(problem))
    assert found is None or found.ns <= shortest
    sides = Sides(relaxation)
    if not sides.pairs:
        return
    search, random = DualSearch(sides), np.random.default_rng(data.draw(st.integers(0, 100_000)))
    rows = random.random(len(sides.rows)) * (random.random(len(sides.rows)) < 0.3)
    rows /= max(rows.sum(), 1e-9)
    claims, diagonal = 50 * random.random((len(sides.pairs), 2)), 50 * random.normal(size=search.n)
    value, raised = search.raised(DualWeights(rows, claims, float(random.random() / shortest), diagonal))
    rounded = search.rounded(raised, value) if value > 1 else None
    assert rounded is None or rounded.ns <= shortest


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 100_000),
    operators=st.integers(2, 12),
    duplex=st.booleans(),
    on=st.sampled_from(((0, 1), (0, 0, 1))),
)
def test_no_schedule_contradicts_any_weights(seed, operators, duplex, on):
    """Lemma 1, as the checker computes it: for the division of a schedule the form is at most 0, whatever the weights."""
    problem = random_division(seed, operators, on, duplex)
    known, random = Derivation(ReadProblem(json.loads(problem.to_json()))), np.random.default_rng(seed)
    follows, behind = times_behind(known)
    for method in ("heft", "peft", "random"):
        schedule = random_schedule(problem, seed) if method == "random" else solve(problem, method=method)
        index = ScheduleIndex.of(Scenario(problem), schedule)
        levels = [ns for ns in (0, *follows, *behind) if ns <= index.objective_ns]
        lemma = {
            **by_hand(index.objective_ns + 1), "follows": follows, "behind": behind, "copies": [],
            "buses": [
                {"bus": f"bus{random.integers(2)}", "least": int(random.choice(levels)), "multiplier": int(weight)}
                for weight in random.integers(0, 1000, 4)
            ],
            "leasts": [int(random.choice(levels)) for _ in range(2)], "product": int(random.integers(20)),
            "diagonal": random.integers(-1000, 1000, operators).tolist(),
        }  # fmt: skip
        rule = Bisection(known, lemma)
        for t, readers in enumerate(problem.graph.index.consumers):
            if problem.graph.index.producer[t] >= 0 and readers:
                first = min(behind[b] for b in readers)
                weights = [sum(x for own, least, x in rule.rows if own == k and least <= first) for k in (0, 1)]
                most = [rule.entry(t, k) * weights[k] // len(readers) for k in (0, 1)]
                names = [problem.graph.operators[b].name for b in readers]
                tensor = problem.graph.tensors[t].name
                lemma["copies"] += [{"tensor": tensor, "reader": name, "prices": most} for name in names]
        on_first = dict(zip(index.operator, (rule.side[d] == 0 for d in index.device), strict=True))
        y = [1, *(int(on_first[o]) for o in range(operators))]
        matrix = rule.matrix()
        assert sum(y[i] * y[k] * matrix[i][k] for i in range(len(y)) for k in range(len(y))) <= 0


@settings(max_examples=examples(30), deadline=None)
@given(seed=st.integers(0, 100_000), operators=st.integers(2, 14), duplex=st.booleans())
def test_evidence_of_bisections_is_accepted(folder, seed, operators, duplex):
    problem = random_division(seed, operators, (0, 0, 1), duplex)
    verdict = files_of(problem, certified(problem, random_schedule(problem, seed))).check(folder)
    assert verdict.all_proved
    assert verdict.proved_ns == lower_bound(problem).ns


def strong():
    """A problem whose strongest bound is `bisection`, with copies that count."""
    return random_division(7, 8)


def first_copy(lemma):
    return lemma["copies"][0]


WRONG = {
    "a hundredth more": lambda lemma: lemma.update(ns=lemma["ns"] * 101 // 100),
    "a price too many": lambda lemma: first_copy(lemma)["prices"].append(0),
    "a copy that costs too much": lambda lemma: first_copy(lemma).update(prices=[1 << 80, 1 << 80]),
    "a negative price": lambda lemma: first_copy(lemma).update(prices=[-1, 0]),
    "a reader that does not read": lambda lemma: first_copy(lemma).update(reader="o0"),
    "more behind than there is": lambda lemma: lemma["buses"].append({**lemma["buses"][0], "least": 10**9}),
    "a product with more behind than there is": lambda lemma: lemma.update(leasts=[10**9, 0]),
    "one side": lambda lemma: lemma.update(sides=["bus0"]),
    "the same side twice": lambda lemma: lemma.update(sides=["bus0", "bus0"]),
    "a bus that is not there": lambda lemma: lemma.update(sides=["bus0", "none"]),
    "a negative weight": lambda lemma: lemma["buses"][0].update(multiplier=-1),
    "a negative product": lambda lemma: lemma.update(product=-1),
    "later loads": lambda lemma: lemma["follows"].__setitem__(0, 10**9),
    "later copies": lambda lemma: lemma["behind"].__setitem__(0, 10**9),
    "a time too few": lambda lemma: lemma["follows"].pop(),
    "a diagonal too short": lambda lemma: lemma["diagonal"].pop(),
    "a diagonal of fractions": lambda lemma: lemma["diagonal"].__setitem__(0, 0.5),
    "no slack": lambda lemma: lemma.update(slack=0),
    "no weights": lambda lemma: lemma.update(buses=[], copies=[], product=0),
    "a part of the run": lambda lemma: lemma.update(last="o1"),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("what", WRONG)
def test_a_lemma_that_does_not_follow_is_refused(folder, what):
    files = files_of(strong(), certified(strong(), random_schedule(strong(), 0)))
    lemma = files.evidence["lemmas"][-1]
    assert lemma["rule"] == "bisection"
    assert files.check(folder).all_proved
    WRONG[what](lemma)
    with pytest.raises(Refused):
        files.check(folder, proved_ns=lemma["ns"])


def test_there_is_none_unless_devices_load_over_two_buses():
    problem = strong()
    for speeds, on in (((1e9, 1e9, 1e9), (0, 1, 2)), ((1e9,), (0, 0))):
        other = Problem(problem.graph, machine(speeds, on), Costs(np.ones((8, len(on)), np.int64)))
        assert bisection_bound(Relaxation(other)) is None
    known = Derivation(ReadProblem(json.loads(other.to_json())))
    with pytest.raises(Refused, match="needs two buses"):
        least(known, None, None, by_hand(1))


def test_explain_names_both_buses():
    lines = "\n".join(explain(pair(), solve(pair(), method="heft")))
    assert "by bisection:" in lines
    assert "However the operators divide between bus0 and bus1" in lines
