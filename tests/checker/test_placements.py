"""The independent checker of placements: latencies and bounds of small instances, and what it refuses."""

import itertools
import json
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings

from checker.placements_cases import KIND, small
from strategies import SEEDS
from thorough import examples
from tvm_sched.schedulers.efficient_mip import Instance
from tvm_sched.schedulers.efficient_mip.instance import evaluate
from tvm_sched.schedulers.efficient_mip.path_bound import lower_bound, strongest_path
from tvm_sched.schedulers.efficient_mip.separator_bound import separator_bound
from tvm_sched_check import Refused
from tvm_sched_check.placements import check
from tvm_sched_check.placements.bound import path_bound
from tvm_sched_check.placements.instance import Instance as Read
from tvm_sched_check.placements.placement import latency_of
from tvm_sched_check.placements.separators import separator_bound as proved_by


def files_of(instance, subgraph):
    """The three documents, each to be changed before they are checked."""
    body = {"format": "tvm_sched.placement", "version": 1, "instance": KIND.digest(instance), "subgraph": subgraph}
    return {
        "instance": json.loads(KIND.document(instance)), "placement": body,
        "evidence": json.loads(KIND.proof(instance).evidence),
    }  # fmt: skip


def checked(folder, files):
    paths = [folder / f"{name}.json" for name in ("instance", "placement", "evidence")]
    for path, document in zip(paths, files.values(), strict=True):
        path.write_text(json.dumps(document))
    return check(*paths)


def chain():
    """Two operators of 10 (100 on a CPU), transfers of 30; an accelerator has room for one of them."""
    return Instance([[10.0, 10.0]] * 2, [100.0, 100.0], [1.0, 1.0], [30.0, 30.0], [(0, 1)], [1.0, 1.0])


def test_the_example_of_the_proof_is_checked(folder):
    """`docs/proofs/placement_path.md`: (10 + 30) + (30 + 10) = 80; on a CPU and an accelerator 100 + 30 + 10 = 140."""
    verdict = checked(folder, files_of(chain(), [1, 2]))
    assert (verdict.latency, verdict.proved, verdict.all_proved) == (80, 80, True)
    assert checked(folder, files_of(chain(), [0, 1])).latency == 140


def branches():
    """Two operators between two others: each takes 10 (100 on a CPU), transfers 30; three fit into an accelerator."""
    edges = [(0, 1), (0, 2), (1, 3), (2, 3)]
    return Instance([[10.0, 10.0]] * 4, [100.0] * 4, [1.0] * 4, [30.0] * 4, edges, [3.0, 3.0])


def test_branches_count_where_they_meet(folder):
    """`docs/proofs/placement_separators.md`: (10 + 30) + (30 + 3 * 10) = 100; paths prove (10 + 30) + (30 + 20) = 90."""
    assert lower_bound(branches()) == 90
    verdict = checked(folder, files_of(branches(), [1, 2, 2, 2]))
    assert (verdict.latency, verdict.proved, verdict.all_proved) == (100, 100, True)


@pytest.mark.parametrize("more", [math.ulp(100.0), 1e-6, 1, 1e300])
@pytest.mark.parametrize(
    ("instance", "subgraph", "proof"),
    [(chain(), [1, 2], "and proves 80"), (branches(), [1, 2, 2, 2], "and proves 100")],
)
def test_a_raised_claim_is_refused(folder, instance, subgraph, proof, more):
    files = files_of(instance, subgraph)
    files["evidence"]["bound"] += more
    with pytest.raises(Refused, match=proof):
        checked(folder, files)


def test_a_bound_without_looks_is_none():
    assert separator_bound(branches(), 0) == (0, [], [])
    assert separator_bound(branches()).bound == 100


def test_times_of_any_size_are_exact():
    """Times whose common denominator is 2^1074, and an operator that no accelerator runs, nor a CPU the other."""
    tiny = 5e-324
    instance = Instance([[math.inf], [1e300]], [3 * tiny, math.inf], [1.0, 1.0], [1e5, 0.1], [(0, 1)], [1.0])
    proof = separator_bound(instance)
    assert proof.bound <= 3 * Fraction(tiny) + Fraction(1e300) + Fraction(1e5)
    read = Read(json.loads(KIND.document(instance))["instance"])
    assert proved_by(read, proof.operators, proof.paths) == 3 * Fraction(tiny) + Fraction(1e300) + Fraction(1e5)


@settings(max_examples=examples(40), deadline=None)
@given(seed=SEEDS)
def test_no_placement_is_faster_than_a_path_proves(seed):
    """All placements of small graphs; the checker refuses those that are not allowed, and no others."""
    instance = small(seed)
    read, best = Read(json.loads(KIND.document(instance))["instance"]), math.inf
    for subgraph in itertools.product(range(len(instance.capacity) * instance.q + 1), repeat=len(instance.cpu)):
        ends = evaluate(instance, subgraph)
        if ends is None:
            with pytest.raises(Refused):
                latency_of(read, list(subgraph))
        else:
            latency = latency_of(read, list(subgraph))
            assert float(latency) == pytest.approx(ends.latency)
            best = min(best, latency)
    if best == math.inf:
        return
    bound, path = strongest_path(instance)
    assert Fraction(bound) <= path_bound(read, path) <= best
    assert bound == pytest.approx(lower_bound(instance))
    proof = separator_bound(instance)
    assert Fraction(proof.bound) <= proved_by(read, proof.operators, proof.paths) <= best
    assert json.loads(KIND.proof(instance).evidence)["bound"] == max(bound, proof.bound)


def test_all_paths_of_a_small_graph_are_bounds():
    """Also a path that the package would not choose, and of one operator."""
    instance = Instance([[2.0]] * 4, [9.0] * 4, [1.0] * 4, [1.0] * 4, [(0, 1), (0, 2), (1, 3), (2, 3)], [2.0], 4)
    read = Read(json.loads(KIND.document(instance))["instance"])
    ends = [evaluate(instance, each) for each in itertools.product(range(5), repeat=4)]
    best = min(Fraction(end.latency) for end in ends if end is not None)
    for path in ([0], [0, 1], [0, 2, 3], [0, 1, 3]):
        assert 0 < path_bound(read, path) <= best


@settings(max_examples=examples(40), deadline=None)
@given(seed=SEEDS)
def test_all_sets_of_operators_and_paths_are_bounds(seed):
    """Also sets that the package would not choose, with all paths in blocks of them or none."""
    instance = small(seed)
    read = Read(json.loads(KIND.document(instance))["instance"])
    places = itertools.product(range(len(instance.capacity) * instance.q + 1), repeat=len(instance.cpu))
    best = min((latency_of(read, list(p)) for p in places if evaluate(instance, p) is not None), default=math.inf)
    for count in range(1, len(instance.cpu) + 1):
        for kept in map(list, itertools.combinations(instance.operators, count)):
            paths = []
            for path in [*([v] for v in kept), *([u, v] for u, v in instance.edges if u in kept and v in kept)]:
                try:
                    proved_by(read, kept, [path])
                    paths.append(path)
                except Refused:
                    assert len(path) > 1 or all(leads(instance, kept, v, path[0]) for v in kept)
            assert proved_by(read, kept, []) <= proved_by(read, kept, paths) <= best


def leads(instance, kept, u, v):
    """Whether a path over operators that are kept leads from one operator to the other, in either direction."""
    if u == v:
        return True
    ahead = {(a, b) for a, b in instance.edges if a in kept and b in kept}
    for _ in kept:
        ahead |= {(a, d) for a, b in ahead for c, d in ahead if b == c}
    return (u, v) in ahead or (v, u) in ahead


@pytest.mark.parametrize("rows", [[[10], [10]], [[], []], [[10, 1, 0]] * 2, [[10, 1], [10]], [[10, 1]], [[10, 1]] * 3])
def test_rows_without_one_time_for_each_accelerator_are_refused(rows):
    """Without the second one, which takes 1, a path would prove 20, which is more than a placement takes."""
    fields = json.loads(json.loads(KIND.document(chain()))["instance"])
    Read(json.dumps(fields | {"accelerator": [[10, 1]] * 2}))
    with pytest.raises(Refused, match="differ in length"):
        Read(json.dumps(fields | {"accelerator": rows}))


CHANGES = {
    "an operator is missing": lambda f: f["placement"]["subgraph"].pop(),
    "a subgraph that is not there": lambda f: f["placement"].update(subgraph=[1, 3]),
    "a subgraph below 0": lambda f: f["placement"].update(subgraph=[1, -1]),
    "too much memory": lambda f: f["placement"].update(subgraph=[1, 1]),
    "another instance": lambda f: f["placement"].update(instance="0" * 16),
    "evidence of another instance": lambda f: f["evidence"].update(instance="0" * 16),
    "a path against the edge": lambda f: f["evidence"].update(path=[1, 0]),
    "a path without operators": lambda f: f["evidence"].update(path=[]),
    "an operator that is not there": lambda f: f["evidence"].update(path=[0, 1, 2]),
    "an operator from the end": lambda f: f["evidence"].update(path=[0, -1]),
    "a bound that is no number": lambda f: f["evidence"].update(bound=float("nan")),
    "an infinite bound": lambda f: f["evidence"].update(bound=float("inf")),
    "a bound that is text": lambda f: f["evidence"].update(bound="80"),
    "a changed time": lambda f: f["instance"].update(instance=f["instance"]["instance"].replace("10.0", "99.0")),
}


@pytest.mark.parametrize("what", CHANGES)
def test_wrong_files_are_refused(folder, what):
    files = files_of(chain(), [1, 2])
    CHANGES[what](files)
    with pytest.raises(Refused):
        checked(folder, files)


@pytest.mark.parametrize(
    "change",
    [
        {"operators": []}, {"operators": [0, 1, 2, 3, 3]}, {"operators": [0, 1, 2, 4]}, {"operators": [0, 1, 2, -1]},
        {"operators": [0, 1, 2, 3.0]}, {"operators": 4}, {"paths": [[0]]}, {"paths": [[1, 2]]}, {"paths": [[]]},
        {"paths": [[1, 3]]}, {"paths": [[4]]}, {"paths": [[-1]]}, {"paths": None}, {"operators": [0, 1, 3], "paths": [[2]]},
    ],
    ids=str,
)  # fmt: skip
def test_separators_that_are_none_are_refused(folder, change):
    files = files_of(branches(), [1, 2, 2, 2])
    assert sorted(files["evidence"]["operators"]) == [0, 1, 2, 3]
    files["evidence"].update(change)
    with pytest.raises(Refused):
        checked(folder, files)
