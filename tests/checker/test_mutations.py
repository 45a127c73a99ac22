"""Files changed at random: the checker refuses them in a line, or accepts what an enumeration says is true."""

import hashlib
import itertools
import json
import subprocess
import sys
from fractions import Fraction
from random import Random

import msgspec
import pytest
import vipr
from exhaustive import optimum, small_problem

from checker.cases import bus_problem, certified, chain_of_readers, fan
from checker.placements_cases import KIND as PLACEMENTS
from checker.placements_cases import small as small_instance
from checker.together_cases import staged_fan
from checker.variants_cases import halved
from checker.vipr_rules import proved
from schedulers.exhaustive import least_latency
from thorough import examples
from tvm_sched.bounds.schedule_evidence import evidence
from tvm_sched.schedulers import solve
from tvm_sched.schedulers.efficient_mip import Instance
from tvm_sched.schedulers.efficient_mip.instance import evaluate
from tvm_sched_bench.kinds.throughput_kind import Pipeline, ThroughputKind
from tvm_sched_bench.testing import random_problem
from tvm_sched_check import Refused, check, partitions, placements
from tvm_sched_runtime.errors import TvmSchedError
from tvm_sched_runtime.problem import Problem, Scenario
from tvm_sched_runtime.schedule import Placement, Transfer
from tvm_sched_runtime.schedule.simulator import simulate

PARTITIONS = ThroughputKind()
ROUNDS = examples(90)
"""Changed files of each case."""
HUGE, DEEP = 10**40, 100_000
VALUES = (0, -1, 1, 0.5, -1e300, 1e308, float("nan"), float("inf"), True, None, "", "nobody", [], {}, [[]], HUGE, 10**9)


def places(node, path=()):
    """All paths in a document."""
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        yield (*path, key)
        yield from places(child, (*path, key))


def mutated(document, random):
    """A copy with one to three changes: values replaced, made larger or smaller, moved, doubled or removed."""
    changed = json.loads(json.dumps(document))
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        *way, key = random.choice(list(places(changed)))
        parent = changed
        for step in way:
            parent = parent[step]
        how, value = random.random(), parent[key]
        if how < 0.35 and type(value) in (int, float):
            parent[key] = value + random.choice([-1, 1, 2, 10, HUGE, -HUGE, value])
        elif how < 0.5:
            *other, last = random.choice(list(places(changed)))
            source = changed
            for step in other:
                source = source[step]
            parent[key] = json.loads(json.dumps(source[last]))
        elif how < 0.65:
            del parent[key]
        elif how < 0.75 and isinstance(parent, list):
            parent.insert(random.randrange(len(parent) + 1), json.loads(json.dumps(value)))
        elif how < 0.8 and isinstance(parent, list):
            random.shuffle(parent)
        else:
            parent[key] = random.choice(VALUES)
    return changed


def broken(text, random):
    """Bytes that are cut off, turned, doubled, or lead into depths."""
    at, how = random.randrange(len(text)), random.randrange(5)
    if how == 0:
        return text[:at]
    if how == 1:
        return text[:at] + bytes([random.randrange(256)]) + text[at + 1 :]
    if how == 2:
        return text[:at] + text[at // 2 :]
    if how == 3:
        return text[:at] + b"[" * random.choice([300, 900, DEEP]) + text[at:]
    return text.replace(b": ", b": " + b"9" * random.choice([20, 400, 5000]), 1)


def run(verify, files, folder):
    """The verdict; None if the files are refused, in one line."""
    paths = [folder / f"{what}.json" for what in files]
    for path, content in zip(paths, files.values(), strict=True):
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    try:
        return verify(*paths)
    except Refused as refused:
        words = str(refused)
    assert "\n" not in words
    assert len(words) < 500
    return None


def scenario(case):
    """A run, a schedule of it, and the least latency of all schedules."""
    if case == "fan":
        return Scenario(fan(10)), solve(fan(10), method="anytime", options={"work": 0}), 310
    if case == "stage":
        problem, schedule = staged_fan(150)
        return Scenario(problem), schedule, 350
    if case.startswith("warm"):
        return Scenario(bus_problem(), frozenset("w")), solve(bus_problem(), method="heft"), 120
    problem = (
        chain_of_readers(2) if case == "chain" else random_problem(int(case), operators=3, devices=2, memory="generous")
    )
    return Scenario(problem), solve(problem, method="heft"), least_latency(problem)


@pytest.mark.parametrize("case", ["fan", "stage", "warm", "chain", "6", "13", "39"])
def test_no_changed_schedule_or_evidence_proves_what_is_false(folder, case):
    run_, schedule, least = scenario(case)
    problem, random, accepted = run_.problem, Random(case), 0
    of = {
        "problem": problem.to_json(), "schedule": json.loads(certified(run_, schedule).to_json()),
        "evidence": json.loads(evidence(run_).to_json()),
    }  # fmt: skip
    assert run(check, of, folder).all_proved
    for turn in range(ROUNDS):
        which = random.choice(["schedule", "evidence", "evidence"])
        content = json.dumps(of[which]).encode()
        files = of | {which: broken(content, random) if turn % 5 == 0 else mutated(of[which], random)}
        files["evidence"] = agreeing(files["evidence"], random)
        if (verdict := run(check, files, folder)) is None:
            continue
        accepted += 1
        resident = parsed(files["evidence"]).get("resident", [])
        changed = schedule
        if which == "schedule":
            try:
                changed = read(parsed(files["schedule"]), schedule)
            except msgspec.ValidationError:
                continue  # the package has limits of its own, such as of the number of a stream
        latency = simulate(problem, changed, resident=resident).latency_ns
        assert verdict.latency_ns == latency
        assert verdict.proved_ns <= latency
        if {*resident} == {*run_.resident}:
            assert verdict.proved_ns <= least, files["evidence"]
    assert accepted < ROUNDS


def agreeing(document, random):
    """Changed evidence, half of the time with ``proved_ns`` as its last lemma says: any other value is refused."""
    try:
        last = document["lemmas"][-1]["ns"] if random.random() < 0.5 else document["proved_ns"]
    except (LookupError, TypeError):
        return document
    return document | {"proved_ns": last}


def parsed(content):
    """A document, also of bytes."""
    return json.loads(content) if isinstance(content, bytes) else content


def read(document, schedule):
    """The placements and transfers of a changed schedule."""
    kinds = {"placements": Placement, "transfers": Transfer}
    changed = {}
    for name, kind in kinds.items():  # other fields than these mean nothing to the checker
        known = {*kind.__struct_fields__} - {"submodel"}
        changed[name] = tuple(
            msgspec.convert({k: v for k, v in each.items() if k in known}, kind) for each in document[name]
        )
    return schedule.replace(**changed, certificate=None)


@pytest.mark.parametrize("case", ["fan", "stage", "chain", "6"])
def test_no_changed_problem_has_a_bound_above_a_schedule(folder, case):
    """The other files name the digest of the changed problem; the package reads it, too, or refuses it."""
    run_, schedule, _ = scenario(case)
    random, document = Random(case), json.loads(run_.problem.to_json())
    for _ in range(ROUNDS):
        content = json.dumps(mutated(document, random)).encode()
        digest = hashlib.sha256(content).hexdigest()[:16]
        named = [
            json.loads(each.to_json()) | {"problem": digest}
            for each in (schedule.replace(certificate=None), evidence(run_))
        ]
        verdict = run(check, {"problem": content, "schedule": named[0], "evidence": named[1]}, folder)
        if verdict is None:
            continue
        try:
            changed = Problem.from_json(content)
        except TvmSchedError:
            continue  # the checker need not read what it does not use, such as kinds of operators
        try:
            found = solve(changed, method="heft").certificate.latency_ns
        except TvmSchedError:
            continue
        assert verdict.proved_ns <= min(found, verdict.latency_ns)


@pytest.mark.parametrize("case", ["fan", "stage", "warm", "chain", "6", "13", "39"])
def test_no_certificate_of_changed_evidence_proves_what_is_false(folder, case):
    """The certificate is of the evidence as it stands, so each that is written has to follow, and to be true."""
    run_, _, least = scenario(case)
    random, document = Random(case), json.loads(evidence(run_).to_json())
    problem, certificate = run_.problem.to_json(), folder / "bound.vipr"
    for turn in range(ROUNDS):
        changed = agreeing(mutated(document, random), random)
        if turn % 5 == 0:
            claim = {"ns": random.randrange(2 * least)}
            changed = document | {"proved_ns": claim["ns"], "lemmas": [*document["lemmas"], {"rule": "path"} | claim]}
        written = run(lambda *paths: vipr.write(*paths, certificate), {"problem": problem, "evidence": changed}, folder)
        if written is not None:
            assert proved(certificate.read_text()) == written.proved_ns
            if changed.get("resident") == document.get("resident"):
                assert written.proved_ns <= least, changed


@pytest.mark.parametrize("problem", [fan(10), halved()], ids=["no variants", "variants"])
def test_certificates_and_the_checker_refuse_the_same_relaxed_problems(folder, problem):
    """A relaxed problem is put in, left out or changed; its only lemma claims nothing, so all else is judged."""
    random, document = Random(0), json.loads(problem.to_json())
    chosen = problem if problem.variants is None else problem.resolve({})
    schedule = solve(chosen, method="single").replace(problem=problem.digest, certificate=None)
    proof = json.loads(evidence(problem).to_json())
    of = {"problem": problem.to_json(), "schedule": json.loads(schedule.to_json())}
    accepted = 0
    for _ in range(ROUNDS):
        relaxed = {"graph": document["graph"], "costs": document["costs"], "runs": {}}
        relaxed = mutated(random.choice([relaxed, proof.get("relaxed", relaxed)]), random)
        changed = proof | ({"relaxed": relaxed} if random.random() < 0.9 else {})
        changed |= {"lemmas": [{"rule": "path", "ns": 0}], "proved_ns": 0}
        verdict = run(check, of | {"evidence": changed}, folder)
        names = ("problem", "evidence")
        written = run(
            lambda *paths: vipr.write(*paths, folder / "bound.vipr"),
            {name: (of | {"evidence": changed})[name] for name in names}, folder,
        )  # fmt: skip
        assert (written is None) == (verdict is None), changed
        accepted += verdict is not None
    assert 0 < accepted < ROUNDS


@pytest.mark.parametrize("seed", range(3))
def test_no_changed_partition_or_evidence_proves_what_is_false(folder, seed):
    task, random = Pipeline(small_problem(seed, 6), 2 + seed % 2), Random(seed)
    least, solution = optimum(task.graph, task.stages), PARTITIONS.solve(task, "equal-split", 0.05, 0).solution
    proof = PARTITIONS.prove(task, PARTITIONS.worth(task, solution, ""), PARTITIONS.proof(task), 20)
    of = {
        "instance": PARTITIONS.document(task),
        "partition": json.loads(solution),
        "evidence": json.loads(proof.evidence),
    }
    assert run(partitions.check, of, folder).all_proved
    for turn in range(ROUNDS):
        which = random.choice(["partition", "evidence", "evidence"])
        content = json.dumps(of[which]).encode()
        changed = broken(content, random) if turn % 5 == 0 else mutated(of[which], random)
        if (verdict := run(partitions.check, of | {which: changed}, folder)) is not None:
            assert float(verdict.proved) <= least * (1 + 1e-9) <= float(verdict.cost) * (1 + 2e-9)


@pytest.mark.parametrize("seed", [1, 4, 6, 9])
def test_no_changed_placement_or_evidence_proves_what_is_false(folder, seed):
    random = Random(seed)
    while True:
        instance = small_instance(random.randrange(10**6))
        count = len(instance.capacity) * instance.q + 1
        every = itertools.product(range(count), repeat=len(instance.cpu))
        ends = {each: end for each in every if (end := evaluate(instance, each)) is not None}
        if ends:
            break
    least = min(Fraction(end.latency) for end in ends.values())
    body = {
        "format": "tvm_sched.placement",
        "version": 1,
        "instance": PLACEMENTS.digest(instance),
        "subgraph": list(next(iter(ends))),
    }
    of = {
        "instance": PLACEMENTS.document(instance),
        "placement": body,
        "evidence": json.loads(PLACEMENTS.proof(instance).evidence),
    }
    assert run(placements.check, of, folder).all_proved
    for turn in range(ROUNDS):
        which = random.choice(["placement", "evidence"])
        content = json.dumps(of[which]).encode()
        changed = broken(content, random) if turn % 5 == 0 else mutated(of[which], random)
        if (verdict := run(placements.check, of | {which: changed}, folder)) is not None:
            assert verdict.proved <= least + Fraction(1, 10**9) <= verdict.latency + Fraction(2, 10**9)


@pytest.mark.parametrize("depth", [300, 900, DEEP])
@pytest.mark.parametrize("name", ["problem", "schedule", "evidence"])
def test_depths_are_refused_in_a_line(folder, name, depth):
    files = {
        "problem": fan(10).to_json(),
        "schedule": solve(fan(10), method="single").to_json(),
        "evidence": evidence(fan(10)).to_json(),
    }
    within = b"[" * depth + b"]" * depth
    files[name] = files[name].replace(b"{", b'{"deep": ' + within + b", ", 1)
    resident = json.loads(files["evidence"] if name != "evidence" else evidence(fan(10)).to_json()) | {
        "resident": ["none"]
    }
    for evidence_ in (files["evidence"], json.dumps(resident).encode()):
        run(check, files | {"evidence": evidence_}, folder)
    (folder / "deep.json").write_bytes(files[name])
    command = [sys.executable, "-m", "tvm_sched_check", *[str(folder / "deep.json")] * 3]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)


def test_numbers_of_subgraphs_beyond_all_memory_do_no_harm(folder):
    """A count of 10^18 subgraphs is no list of that length."""
    roomy = Instance([[10.0]] * 2, [100.0] * 2, [1.0] * 2, [30.0] * 2, [(0, 1)], [2.0])
    text, latencies = json.loads(PLACEMENTS.document(roomy))["instance"], []
    for q in (1, 10**9, 10**18, HUGE):
        changed = json.dumps(json.loads(text) | {"q": q})
        body = {"version": 1, "instance": hashlib.sha256(changed.encode()).hexdigest()[:16]}
        files = {
            "instance": {"version": 1, "instance": changed, "format": "tvm_sched.placement_problem"},
            "placement": body | {"format": "tvm_sched.placement", "subgraph": [q, q]},
            "evidence": body | {"format": "tvm_sched.placement_evidence", "path": [0], "bound": 0},
        }
        latencies.append(run(placements.check, files, folder).latency)
    assert latencies == [20] * 4
