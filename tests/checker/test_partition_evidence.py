"""Evidence of partitions: what is accepted never proves more than the best partition costs, whatever it says."""

import copy
import gzip
import hashlib
import itertools
import json
from dataclasses import replace
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from exhaustive import optimum, small_problem, stage_cost
from hypothesis import example, given, settings
from hypothesis import strategies as st

from strategies import SEEDS
from thorough import examples
from tvm_sched.bounds.partitions import semidefinite_evidence as storing
from tvm_sched.bounds.partitions.partition_evidence import partition_evidence
from tvm_sched.bounds.partitions.semidefinite import semidefinite_bound
from tvm_sched_bench.kinds.throughput_kind import Pipeline, ThroughputKind
from tvm_sched_bench.testing.regal import regal_like
from tvm_sched_check import Refused
from tvm_sched_check.eigenvalue import negative_part
from tvm_sched_check.partitions import bound, check, semidefinite
from tvm_sched_check.partitions.graph import graph_of

KIND = ThroughputKind()
ONE = semidefinite.ONE
SHORT = storing.Effort(100, 150)
"""Few iterations: any give a bound."""


def graph(problem, stages=2):
    return graph_of(json.loads(KIND.document(Pipeline(problem, stages))))


def stored(problem, stages, cutoff, effort=SHORT):
    """Fields of semidefinite evidence as a file has them, and the bound; None where there is none."""
    found = storing.semidefinite_evidence(problem, stages, cutoff, effort)
    return (json.loads(json.dumps(found.fields)), found.bound) if found else None


@settings(max_examples=examples(12), deadline=None)
@given(SEEDS, st.integers(2, 3), st.booleans())
@example(1943261, 3, False)  # a bound below 0
@example(12553508, 2, False)  # a tensor that no node makes or reads
def test_stored_multipliers_prove_what_they_say_and_no_more_than_the_optimum(seed, stages, limited):
    problem = small_problem(seed, 7, limited)
    best = optimum(problem, stages)
    if (found := stored(problem, stages, best)) is not None:
        proved = semidefinite.bound_of(graph(problem), stages, found[0])
        assert found[1] <= proved <= best
        if all(x >= 0 for row in found[0]["entries"] for x in row):
            assert semidefinite.bound_of(graph(problem), stages, {**found[0], "below": None}) <= best


def test_multipliers_do_not_claim_what_overflows():
    """The search counts it, the checker does not."""
    problem = replace(small_problem(5, 7), memory=1.0, overflow_time=1.0, parameters=np.full(7, 10.0))
    fields, claimed = stored(problem, 2, 1e9)
    assert 0 < claimed <= semidefinite.bound_of(graph(problem), 2, fields)


def test_storing_loses_little(monkeypatch):
    """On a graph large enough for its bound to be neither the work nor the optimum."""
    problem = regal_like(2, 40)
    fields, claimed = stored(problem, 4, 1e9, storing.Effort(600, 600))
    proved = float(semidefinite.bound_of(graph(problem), 4, fields))
    simple = float(problem.work.sum()) / 4
    assert claimed <= proved <= claimed * (1 + 1e-8)
    assert proved - simple > 0.9 * (semidefinite_bound(problem, 4, iterations=600) - simple) > 0


def random_fields(problem, random):
    """Any multipliers in a form that is accepted."""
    n, leads = problem.size, semidefinite.reached_nodes(graph(problem))
    scale = random.choice([1, 10, 1000])
    terms = []
    for t, tensor in enumerate(graph(problem).tensors):
        if tensor.members:
            chosen = random.sample(tensor.members, random.randint(1, len(tensor.members)))
            first = random.randint(1, len(chosen))
            terms.append([t, random.randint(0, ONE), random.randint(0, 3 * ONE), first, chosen])
    between = [(a, b, c) for a, b, c in itertools.permutations(range(n), 3) if leads[a] >> b & 1 and leads[b] >> c & 1]
    triangles = [[*random.sample(range(n), 3), random.randint(0, 9 * scale)] for _ in range(4)]
    paths = [
        [*random.choice([way, way[::-1]]), random.randint(0, 9 * scale)]
        for way in random.sample(between, min(4, len(between)))
    ]
    return {
        "grain": random.choice([-4, -1, 0, 1]), "width": random.randint(1, 9), "tensors": terms,
        "stage_costs": [random.choice([0, random.randint(0, 2 * ONE)]) for _ in range(n)],
        "near": [[random.randint(-9, 9) for _ in range(n - 1 - v)] for v in range(n)],
        "triangles": triangles, "convexity": paths,
        "entries": [[random.randint(0, 3 * scale) for _ in range(n - 1 - v)] for v in range(n)],
        "diagonal": [random.randint(-50 * scale, 50 * scale) for _ in range(n)],
    }  # fmt: skip


def partitions_of(problem, stages):
    for stage_of in itertools.product(range(stages), repeat=problem.size):
        if all(stage_of[u] <= stage_of[v] for u, v in problem.edges):
            yield stage_of


@settings(max_examples=examples(100), deadline=None)
@given(
    SEEDS, st.integers(2, 3), st.sampled_from(["tensors", "stage_costs", "triangles", "convexity", "entries", "all"])
)
def test_any_multipliers_bound_the_transfers_of_each_partition(seed, stages, only):
    """Not the bound alone, which hides what is slack: each partition obeys the inequality that the multipliers show."""
    problem, random = small_problem(seed, 6), Random(seed)
    made = graph(problem)
    fields = random_fields(problem, random)
    none = {
        "tensors": [], "stage_costs": [0] * problem.size, "triangles": [], "convexity": [],
        "entries": [[0] * len(row) for row in fields["entries"]],
    }  # fmt: skip
    fields |= {name: value for name, value in none.items() if only not in (name, "all")}
    proof = semidefinite.Proof(made, fields, None)
    for stage_of in partitions_of(problem, stages):
        own = [[v for v in range(problem.size) if stage_of[v] == s] for s in range(stages)]
        costs = [Fraction(stage_cost(problem, nodes)) / made.unit for nodes in own]
        together = sum(proof.matrix[u][v] for nodes in own for u, v in itertools.combinations(nodes, 2))
        transfers = sum(costs) - sum(made.work)
        assert transfers * proof.scale >= proof.constant - proof.slope * max(costs) + together


@settings(max_examples=examples(60), deadline=None)
@given(SEEDS, st.sampled_from(["huge", "tiny", "random", "near", "wrong"]))
def test_hostile_evidence_proves_no_more_than_the_optimum(seed, how):
    problem, random, stages = small_problem(seed, 6), Random(seed), 2
    best = optimum(problem, stages)
    fields = random_fields(problem, random)
    if how != "random" and (found := stored(problem, stages, best)) is not None:
        fields = found[0]
    rows = [fields[name] for name in ("stage_costs", "diagonal")] + fields["entries"] + fields["near"]
    rows += fields["triangles"] + fields["convexity"] + fields["tensors"]
    for _ in range(random.randint(1, 6)):
        row = random.choice([row for row in rows if row])
        at = random.randrange(len(row))
        if how == "near":
            row = random.choice([row for row in fields["near"] if row] or [[0]])
            at = random.randrange(len(row))
        value = row[at] if isinstance(row[at], int) else 1
        row[at] = {
            "huge": value * 10 ** random.randint(1, 60) + random.choice([0, 1]),
            "tiny": value // 10 ** random.randint(1, 9), "near": random.randint(-100, 100), "random": row[at],
            "wrong": random.choice([-value, -1, 0.5, None, "x", [], True, 1e300, 10**400]),
        }[how]  # fmt: skip
    if how == "wrong" and random.random() < 0.5:
        random.choice([row for row in rows if row]).pop()
    if how == "huge":
        fields["grain"] += random.choice([0, 40, -40])
    fields["below"] = None
    graph_ = graph(problem)
    try:
        assert semidefinite.bound_of(graph_, stages, fields) <= best
    except (Refused, LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        assert how in ("wrong", "huge", "tiny", "near")


def wrong(fields, what):
    n = len(fields["diagonal"])
    if what == "entry below 0":
        fields["entries"][0][0] = -1
    elif what == "stage below 0":
        fields["stage_costs"][0] = -1
    elif what == "triangle below 0":
        fields["triangles"].append([0, 1, 2, -1])
    elif what == "triangle of two":
        fields["triangles"].append([0, 1, 0, 5])
    elif what == "no path":
        fields["convexity"].append([0, n - 1, 1, 5])
    elif what == "weights above 1":
        fields["tensors"][0][1] = ONE
        fields["tensors"].append(fields["tensors"][0])
    elif what == "no first member":
        fields["tensors"][0][3] = 0
    elif what == "not a member":
        fields["tensors"][0][4] = list(range(n))
    elif what == "a member twice":
        fields["tensors"][0][4] = [fields["tensors"][0][4][0]] * 2
    elif what == "a row too short":
        fields["entries"][0].pop()
    elif what == "a matrix of fractions":
        fields["near"][0][0] = 0.5
    elif what == "no diagonal":
        fields["diagonal"].pop()
    elif what == "fractions in the diagonal":
        fields["diagonal"][0] = 0.5
    elif what == "a stage too few":
        fields["stage_costs"].pop()
    elif what == "no width":
        fields["width"] = 0
    else:
        fields["grain"] = 10**9


@pytest.mark.parametrize(
    "what",
    ["entry below 0", "stage below 0", "triangle below 0", "triangle of two", "no path", "weights above 1",
     "no first member", "not a member", "a member twice", "a row too short", "a matrix of fractions", "no diagonal",
     "fractions in the diagonal", "a stage too few", "no width", "an endless grain"],
)  # fmt: skip
def test_what_proves_nothing_is_refused(what):
    problem = small_problem(5, 7)
    fields = random_fields(problem, Random(1))
    fields = {**fields, "below": None}
    semidefinite.bound_of(graph(problem), 2, copy.deepcopy(fields))
    wrong(fields, what)
    with pytest.raises(Refused):
        semidefinite.bound_of(graph(problem), 2, fields)


def test_entries_below_0_need_work_between():
    """Nodes at both ends of a chain share no stage that is cheaper than all of it."""
    from tvm_sched_runtime.pipeline import PartitionProblem, StageTensor

    chain = PartitionProblem(
        list("abc"), np.full(3, 10.0), np.zeros(3), [StageTensor(0, (1,), 1), StageTensor(1, (2,), 1)]
    )
    fields = random_fields(chain, Random(0)) | {"entries": [[0, -5], [0], []], "triangles": [], "convexity": []}
    semidefinite.Proof(graph(chain), fields, Fraction(30))
    for below in (None, Fraction(31)):
        with pytest.raises(Refused, match="may share a stage"):
            semidefinite.Proof(graph(chain), fields, below)


@settings(max_examples=examples(60), deadline=None)
@given(SEEDS, st.integers(1, 8), st.sampled_from([1, 10**3, 10**15, 10**80]))
def test_the_least_eigenvalue_is_never_overstated(seed, n, scale):
    """Against numpy's, of matrices whose least one is at, above and below 0."""
    random = Random(seed)
    factor = [[random.randint(-9, 9) for _ in range(n)] for _ in range(random.randint(1, n))]
    shift = random.choice([0, 0, 3, -3])
    matrix = [[scale * (sum(row[i] * row[j] for row in factor) + shift * (i == j)) for j in range(n)] for i in range(n)]
    least = float(np.linalg.eigvalsh(np.array(matrix, dtype=object).astype(float) / scale)[0])
    negative = negative_part(matrix) / scale
    assert -negative <= least + 1e-9
    assert shift < 0 or negative < 1e-4


@pytest.mark.parametrize("rule", ["average", "operator", "ideals", "semidefinite", "because"])
def test_each_rule_by_files(folder, rule):
    """What is claimed and more, of a partition: proved, not proved, refused."""
    task = Pipeline(small_problem(8, 7), 3)
    best = optimum(task.graph, 3)
    found = KIND.solve(task, "tarnawski-dp", 1.0, 0)
    files = [folder / f"{rule}-{name}.json" for name in ("instance", "partition", "evidence")]
    files[0].write_bytes(KIND.document(task))
    files[1].write_bytes(found.solution)
    fields, claim = {"operator": 0}, 1.0
    if rule == "ideals":
        claim = best
    elif rule == "semidefinite":
        fields, claim = stored(task.graph, 3, best)
    document = {
        "format": "tvm_sched.partition_evidence", "version": 1, "instance": KIND.digest(task), "rule": rule,
        "bound": claim, **fields,
    }  # fmt: skip
    files[2].write_text(json.dumps(document))
    if rule == "because":
        with pytest.raises(Refused, match="there is no rule"):
            check(*files)
        return
    verdict = check(*files)
    assert verdict.all_proved
    assert verdict.proved <= best == verdict.cost
    document["bound"] = best + 1
    files[2].write_text(json.dumps(document))
    assert not check(*files).all_proved
    document["instance"] = "0" * 16
    files[2].write_text(json.dumps(document))
    with pytest.raises(Refused, match="the evidence is of instance"):
        check(*files)


def test_more_stages_than_can_hold_anything_take_no_time():
    made = graph(small_problem(8, 7))
    assert not bound.can_be_cut(made, 10**18, 1)
    assert bound.can_be_cut(made, 10**18, 10**18)


@pytest.mark.parametrize("what", ["bound", "cost"])
def test_numbers_beyond_double_precision_are_refused(folder, what):
    problem = small_problem(8, 7)
    instance = json.loads(KIND.document(Pipeline(problem, 1)))
    if what == "cost":
        for node in instance["nodes"]:
            node["work"] = 1e308
    files = [folder / f"{what}-{name}.json" for name in ("instance", "partition", "evidence")]
    files[0].write_text(json.dumps(instance))
    digest = hashlib.sha256(files[0].read_bytes()).hexdigest()[:16]
    stage = [problem.names[v] for v in problem.kahn(np.zeros(problem.size))]
    partition = {"format": "tvm_sched.partition", "version": 1, "instance": digest, "stages": [stage]}
    evidence = {
        "format": "tvm_sched.partition_evidence", "version": 1, "instance": digest, "rule": "average",
        "bound": 10**400 if what == "bound" else 1,
    }  # fmt: skip
    for file, document in zip(files[1:], (partition, evidence), strict=True):
        file.write_text(json.dumps(document))
    with pytest.raises(Refused, match="finite number" if what == "bound" else "too large"):
        check(*files)


@settings(max_examples=examples(25), deadline=None)
@given(SEEDS, st.integers(1, 3))
def test_the_strongest_argument_is_stored(seed, stages):
    problem = small_problem(seed, 6)
    best = optimum(problem, stages)
    found = partition_evidence(problem, stages, best, ideals=best, multipliers=SHORT)
    made, claimed = graph(problem), Fraction(found.bound)
    fields = json.loads(found.to_json("x"))
    assert claimed <= bound.bound_of(made, stages, fields, claimed) <= best
    assert found.bound == pytest.approx(best)


def test_the_files_of_the_benchmark_are_small():
    from pathlib import Path

    kept = Path(__file__).parents[2] / "benchmarks" / "instances" / "best" / "regal"
    sizes = {file.name: len(file.read_bytes()) for file in kept.glob("*.evidence.json.gz")}
    assert sizes
    assert max(sizes.values()) < 60_000
    assert all(json.loads(gzip.decompress((kept / name).read_bytes()))["rule"] for name in sizes)
