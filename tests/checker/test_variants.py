"""Evidence over all alternatives: it is accepted, and a relaxed problem that is harder than some choice is not."""

import hashlib
import json
from random import Random

import pytest
import vipr
from hypothesis import assume, example, given, settings

from checker.cases import certified, files_of
from checker.variants_cases import halved, with_any_choice
from strategies import SEEDS, problems
from thorough import examples
from tvm_sched.bounds import lower_bound
from tvm_sched.bounds.schedule_evidence import evidence
from tvm_sched.schedulers import solve
from tvm_sched_bench.testing import random_problem, random_variants
from tvm_sched_check import Refused
from tvm_sched_check.alternative_bound import Relaxed, resolved
from tvm_sched_runtime.problem import (
    Problem,
)  # fmt: skip
from tvm_sched_runtime.schedule.simulator import simulate
from variant_cases import gated


@settings(max_examples=examples(60), deadline=None)
@given(problem=problems(max_operators=12, max_devices=4, min_operators=1, memory=("generous",)), seed=SEEDS)
@example(  # an operator from which a head is made has no nanosecond left for the one that reads what comes first
    problem=random_problem(1097440, operators=9, devices=1, memory="generous", style="bus", all_joined=False),
    seed=1686615590,
)
@example(  # an operator that leaves to a group what it reads a part of has nothing to read directly
    problem=random_problem(914084420, operators=9, devices=2, memory="generous", style="bus", all_joined=False),
    seed=914084420,
)
def test_evidence_of_any_variants_is_accepted(folder, problem, seed):
    problem = random_variants(problem, seed, groups=4)
    assume(problem.variants is not None)  # of one operator there may be none
    schedule = with_any_choice(problem, seed)
    verdict = files_of(problem, schedule).check(folder)
    assert verdict.latency_ns == simulate(problem, schedule).latency_ns
    assert verdict.proved_ns == lower_bound(problem).ns
    assert verdict.all_proved


def test_the_relaxed_problem_by_hand(folder):
    """Heads of 49 ns and a tail of 2 ns, which are the whole's 100; half its parameter each; half of 150 ns directly."""
    problem = halved()
    files = files_of(
        problem, certified(problem, solve(problem.resolve({}), method="single").replace(problem=problem.digest))
    )
    claim = files.evidence["relaxed"]
    assert claim["costs"]["operator_ns"] == [[100, 100], [49, 49], [49, 49], [2, 2], [100, 100]]
    assert claim["costs"]["direct_ns"][1:3] == [[74, 74]] * 2
    assert claim["runs"]["whole"]["halves"] == {"whole/head0": "head0", "whole/head1": "head1", "whole": "tail"}
    verdict = files.check(folder)
    assert verdict.all_proved
    assert verdict.proved_ns == 310  # x in 10 ns, then three of 100: no way through the middle one takes less


def operator(claim, name):
    return next(o for o in claim["graph"]["operators"] if o["name"] == name)


def tensor(claim, name):
    return next(t for t in claim["graph"]["tensors"] if t["name"] == name)


def both_read_the_parameter(problem, claim):
    """It is loaded once for both, so no parts of it may be loaded besides."""
    for graph in (problem["graph"], claim["graph"]):
        next(o for o in graph["operators"] if o["name"] == "next")["inputs"].append("w")
    claim["graph"]["tensors"].append(tensor({"graph": problem["graph"]}, "w"))


def parts_for_another_one(problem, claim):
    """It is loaded once for both, but an operator in no group has all of it, and the group its parts besides."""
    next(o for o in problem["graph"]["operators"] if o["name"] == "next")["inputs"].append("w")
    operator(claim, "next")["inputs"].append("more")
    claim["graph"]["tensors"].append({"name": "more", "size": 100, "kind": "parameter"})


def alternatives_and_last(claim):
    return zip(claim["runs"]["whole"].values(), ("whole", "tail"), strict=True)


def name_twice(problem, claim):
    """What the first half hands on has the name of a result, and a size of its own."""
    way = problem["variants"]["groups"][0]["alternatives"][0]
    way["tensors"][2].update(name="next:0", size=1000)
    way["operators"][0]["outputs"] = ["next:0"]
    way["operators"][2]["inputs"] = ["next:0", "h1"]


HARDER = {
    "a time": lambda p, r: r["costs"]["operator_ns"][1].__setitem__(0, 50),
    "a time of a direct read": lambda p, r: r["costs"]["direct_ns"][1].__setitem__(1, 75),
    "a direct read shorter than its bytes": lambda p, r: r["costs"]["direct_ns"][1].__setitem__(1, 49),
    "a device on which it cannot run": lambda p, r: r["costs"]["operator_ns"][2].__setitem__(0, None),
    "a time of an operator in no group": lambda p, r: r["costs"]["operator_ns"][4].__setitem__(0, 101),
    "a part of a parameter": lambda p, r: tensor(r, "whole/head0/host").update(size=51),
    "bytes that a direct read leaves out": lambda p, r: p["graph"]["operators"][1].update(read_bytes={"w": 99}),
    "a parameter that nobody loads": lambda p, r: operator(r, "first")["inputs"].append("whole/head0/host"),
    "a parameter that another one reads": both_read_the_parameter,
    "parts of a parameter for an operator in no group": parts_for_another_one,
    "a copy within the group": lambda p, r: tensor(r, "whole/head0").update(size=11),
    "a copy behind the group": lambda p, r: tensor(r, "whole:0").update(size=21),
    "a wait for what is not read": lambda p, r: operator(r, "next")["inputs"].append("first:0"),
    "a wait within the group": lambda p, r: operator(r, "whole/head1")["inputs"].append("whole/head0"),
    "a wait of others for a head": lambda p, r: operator(r, "next")["inputs"].append("whole/head0"),
    "what comes behind the result": lambda p, r: r["runs"]["whole"]["halves"].update({"whole": "head0"}),
    "two that run in one": lambda p, r: r["runs"]["whole"]["halves"].update({"whole/head1": "head0"}),
    "a way that is left out": lambda p, r: r["runs"]["whole"].pop("halves"),
    "an operator that a way leaves out": lambda p, r: r["runs"]["whole"]["halves"].pop("whole/head1"),
    "an operator that a way leaves out and nobody waits for": lambda p, r: r["runs"]["whole"]["halves"].pop("whole"),
    "an operator of two groups": lambda p, r: [way.update({"next": o}) for way, o in alternatives_and_last(r)],
    "an operator of no group": lambda p, r: r.update(runs={}),
    "an operator that is not there": lambda p, r: r["runs"]["whole"]["halves"].update({"whole": "nobody"}),
    "a name that means two things": name_twice,
}


@pytest.mark.parametrize("what", HARDER)
def test_a_relaxed_problem_that_is_harder_than_some_way_is_refused(what):
    document, claim = (json.loads(each.to_json()) for each in (halved(), evidence(halved())))
    claim = claim["relaxed"]
    Relaxed(document, claim)
    HARDER[what](document, claim)
    with pytest.raises((Refused, LookupError)):
        Relaxed(document, claim)


@pytest.mark.parametrize("what", HARDER)
def test_no_certificate_is_written_of_a_relaxed_problem_that_is_harder(folder, what):
    problem, proof = (json.loads(each.to_json()) for each in (halved(), evidence(halved())))
    paths = [folder / name for name in ("problem.json", "evidence.json", "bound.vipr")]

    def written():
        paths[0].write_text(json.dumps(problem))
        proof["problem"] = hashlib.sha256(paths[0].read_bytes()).hexdigest()[:16]
        paths[1].write_text(json.dumps(proof))
        return vipr.write(*paths)

    assert (
        written().proved_ns == 261
    )  # no lemma of alternatives is translated; x in 10, 100, a head of 49, a tail of 2, 100
    first = paths[2].read_text().splitlines()[0]
    assert first.startswith(
        "% No schedule of the relaxed problem of the evidence, and so with no choice of alternatives"
    )
    HARDER[what](problem, proof["relaxed"])
    with pytest.raises(Refused):
        written()


@settings(max_examples=examples(40), deadline=None)
@given(
    problem=problems(8, 3, min_operators=1, memory=("generous",), styles=("bus", "shared", "mixed", "disk")), seed=SEEDS
)
def test_whatever_relaxed_problem_is_accepted_no_schedule_is_below_its_bound(problem, seed):
    """The evidence's own, with a few things changed at random."""
    random, problem = Random(seed), random_variants(problem, seed, groups=3)
    document, claim = json.loads(problem.to_json()), json.loads(evidence(problem).to_json()).get("relaxed")
    if claim is None or not claim["graph"]["operators"]:
        return
    for _ in range(random.randrange(4)):
        change_at_random(claim, random)
    try:
        Relaxed(document, claim)
    except (Refused, LookupError):
        return
    graph = {"format": "tvm_sched.problem", "version": 1, "topology": document["topology"]}
    accepted = Problem.from_json(json.dumps(graph | {"graph": claim["graph"], "costs": claim["costs"]}))
    for k in range(6):
        schedule = with_any_choice(problem, seed + k)
        assert lower_bound(accepted).ns <= simulate(problem, schedule).latency_ns


def change_at_random(claim, random):
    graph, kind = claim["graph"], random.randrange(4)
    if kind == 0:
        row = random.choice(random.choice([claim["costs"]["operator_ns"], claim["costs"]["direct_ns"]]))
        row[:] = [ns and random.choice([ns, ns + 1, 2 * ns]) for ns in row]
    elif kind == 1 and graph["tensors"]:
        random.choice(graph["tensors"])["size"] += random.choice([1, 1000])
    elif kind == 2 and graph["tensors"]:
        random.choice(graph["operators"])["inputs"].append(random.choice(graph["tensors"])["name"])
    elif kind == 3 and claim["runs"]:
        runs = random.choice(list(random.choice(list(claim["runs"].values())).values()))
        for name in runs:
            runs[name] = random.choice(list(runs.values()))


def test_a_choice_that_is_not_there_is_refused():
    document = json.loads(gated().to_json())
    assert resolved(document, {"gate": "apart"}).operator_names == ["product", "multiply", "up"]
    for choice in ({"gate": "else"}, {"other": "apart"}, {"operator up": "else"}):
        with pytest.raises(Refused, match="the choice names"):
            resolved(document, choice)
