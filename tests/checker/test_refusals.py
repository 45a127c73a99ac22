"""What the checker refuses, each in a line of words: wrong files, wrong certificates, what it does not cover."""

import hashlib
import json

import msgspec
import numpy as np
import pytest
import vipr

from checker.cases import bus_problem, fan, files_of, placed
from schedule.cases import gpus, wired
from tvm_sched.schedulers import solve
from tvm_sched_check import Refused, check
from tvm_sched_runtime.problem import Costs, Problem, Request, Scenario, Workload
from tvm_sched_runtime.schedule import requests_of
from variant_cases import gated


def test_a_certificate_that_is_wrong_is_refused(folder):
    problem = fan(10)
    for changed in ({"latency_ns": 399}, {"lower_bound_ns": 401}):
        files = files_of(problem, solve(problem, method="single"))
        files.schedule["certificate"].update(changed)
        with pytest.raises(Refused, match="the certificate says"):
            files.check(folder)


@pytest.mark.parametrize("claimed", [0, 309, 311, 10**6, 310.0, None])
def test_evidence_that_says_it_proves_something_else_than_its_last_lemma_is_refused(folder, claimed):
    files = files_of(fan(10), solve(fan(10), method="single"))
    assert files.check(folder).proved_ns == 310
    files.evidence["proved_ns"] = claimed
    paths = [folder / f"{name}.json" for name in ("problem", "schedule", "evidence")]
    paths[2].write_text(json.dumps(files.evidence))
    for verify in (lambda: check(*paths), lambda: vipr.write(paths[0], paths[2], folder / "bound.vipr")):
        with pytest.raises(Refused, match=r"proved_ns of the evidence is|where an integer from 0 is allowed"):
            verify()


def test_a_relaxed_problem_of_a_problem_without_variants_is_refused(folder):
    """With times of 1000 in place of 1 it would prove what is false of the problem."""
    files = files_of(fan(10), solve(fan(10), method="single"))
    costs = {mode: [[ns and ns * 1000 for ns in row] for row in json.loads(files.problem)["costs"][mode]]
             for mode in ("operator_ns", "direct_ns")}  # fmt: skip
    files.evidence["relaxed"] = {"graph": json.loads(files.problem)["graph"], "costs": costs, "runs": {}}
    files.evidence["lemmas"] = [{"rule": "path", "ns": 300_000}]
    with pytest.raises(Refused, match="no variants, but the evidence has a relaxed problem"):
        files.check(folder)
    with pytest.raises(Refused, match="no variants, but the evidence has a relaxed problem"):
        vipr.write(folder / "problem.json", folder / "evidence.json", folder / "bound.vipr")


def test_a_schedule_without_a_certificate_has_no_bound_that_is_proved(folder):
    """Else one who takes a certificate out would be told that all of it is proved."""
    problem = fan(10)
    files = files_of(problem, msgspec.structs.replace(solve(problem, method="single"), certificate=None))
    verdict = files.check(folder)
    assert (verdict.latency_ns, verdict.proved_ns, verdict.all_proved) == (400, 310, False)
    assert "no certificate" in verdict.lines[1]


def test_evidence_of_another_run_is_refused_in_words(folder):
    problem = bus_problem()
    warm = solve(problem, method="single", workload=Workload(requests_of(problem, [(["w"], 1)])))
    several = solve(problem, method="single", workload=Workload(requests_of(problem, [(["w"], 1), (0.0, 1)])))
    cold_evidence, evidence_of_v = problem, Scenario(problem, frozenset({"v"}))
    for of, schedule in ((cold_evidence, warm), (evidence_of_v, warm), (Scenario(problem, frozenset("w")), several)):
        with pytest.raises(Refused, match=r"certificate\.requests"):
            files_of(of, schedule).check(folder)
    files = files_of(problem, solve(problem, method="single"))
    files.schedule["certificate"]["requests"] = json.loads(warm.to_json())["certificate"]["requests"]
    with pytest.raises(Refused, match=r"certificate\.requests"):
        files.check(folder)


def test_evidence_of_another_workload_is_refused(folder):
    files = files_of(bus_problem(), solve(bus_problem(), method="single"))
    assert files.evidence["workload"] == Workload().digest
    files.evidence["workload"] = Workload([Request(("w",))]).digest
    with pytest.raises(Refused, match="the evidence is of workload"):
        files.check(folder)


def test_only_parameters_are_resident(folder):
    schedule = msgspec.structs.replace(solve(bus_problem(), method="single"), certificate=None)
    files = files_of(bus_problem(), schedule)
    files.evidence["resident"] = ["x"]
    with pytest.raises(Refused, match="not a parameter"):
        files.check(folder)


def change_problem(files, change):
    """Change the problem, and let schedule and evidence be of the changed one."""
    document = json.loads(files.problem)
    change(document)
    files.problem = json.dumps(document).encode()
    files.schedule["problem"] = files.evidence["problem"] = hashlib.sha256(files.problem).hexdigest()[:16]


def of_another_problem(problem, change):
    """Files of a problem changed as no `Problem` can be, with a schedule and evidence that name it."""
    files = files_of(problem, msgspec.structs.replace(solve(problem, method="single"), certificate=None))
    change_problem(files, change)
    return files


@pytest.mark.parametrize("memory", [float("nan"), float("inf"), 1e6, -1, True, None])
def test_memory_that_nothing_exceeds_is_refused(folder, memory):
    files = of_another_problem(fan(10), lambda problem: problem["topology"]["devices"][0].update(memory=memory))
    with pytest.raises(Refused, match=r"an integer from 0|is no number of JSON"):
        files.check(folder)


@pytest.mark.parametrize("power", [58, 61, 64, 200])
def test_times_of_any_size_are_exact(folder, power):
    """Nothing is cut off at a machine's integers, or at a number that stands for never."""

    def slow(problem):
        problem["costs"]["operator_ns"][0] = [1 << power] * 2

    files = of_another_problem(fan(10), slow)
    files.evidence["lemmas"] = [placed(210), {"rule": "path", "ns": 210 + (1 << power)}]
    verdict = files.check(folder)
    assert (verdict.latency_ns, verdict.proved_ns) == (300 + (1 << power), 210 + (1 << power))
    files.evidence["lemmas"][1]["ns"] += 1
    with pytest.raises(Refused, match="claims"):
        files.check(folder)


@pytest.mark.parametrize("devices", [["gpu0", "gpu0"], ["gpu1", "gpu0"]])
def test_a_second_link_of_a_pair_and_one_to_the_device_itself_are_refused(folder, devices):
    """A link from a device to itself would make operators of one device pay for copies, which proves false bounds."""

    def join(problem):
        problem["topology"]["links"].append({"devices": devices, "bandwidth": 1.0})

    with pytest.raises(Refused, match="a link joins"):
        of_another_problem(fan(10), join).check(folder)


def test_costs_of_too_few_operators_are_refused(folder):
    def shorten(problem):
        for rows in problem["variants"]["costs"].values():
            if isinstance(rows, list):
                rows.pop()

    with pytest.raises(Refused, match="not as its format says"):
        of_another_problem(gated(), shorten).check(folder)


@pytest.mark.parametrize("name", ["problem", "schedule", "evidence"])
def test_a_key_that_stands_twice_is_refused(folder, name):
    """Another reader may take the first of the two."""
    files = files_of(fan(10), solve(fan(10), method="single"))
    document = getattr(files, name)
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    setattr(files, name, text.replace(b"{", b'{"format": "another", ', 1))
    with pytest.raises(Refused, match=r"the key .format. twice"):
        files.check(folder)


def test_a_lemma_about_the_places_of_too_many_operators_is_refused(folder):
    names = [f"o{i}" for i in range(200)]
    graph = wired(dict(zip(names, ["", *names], strict=False)))
    problem = Problem(graph, gpus(), Costs(np.full((200, 2), 1)))
    files = files_of(problem, solve(problem, method="single"))
    files.evidence["lemmas"] = [
        {"rule": "placement", "first": "o0", "last": "o199", "operators": names[1:], "ns": 200},
        {"rule": "path", "ns": 200},
    ]
    with pytest.raises(Refused, match="at most 100"):
        files.check(folder)


@pytest.mark.parametrize("name", ["problem", "schedule", "evidence"])
@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b'{"format": "tvm_sched.problem", "version": 1}'])
def test_files_of_another_kind_are_refused_in_a_line(folder, name, content):
    files = files_of(fan(10), solve(fan(10), method="single"))
    setattr(files, name, content)
    with pytest.raises(Refused) as caught:
        files.check(folder)
    assert "\n" not in str(caught.value)


def test_files_of_different_problems_are_refused(folder):
    files = files_of(fan(10), solve(fan(10), method="single"))
    files.problem = fan(20).to_json()
    with pytest.raises(Refused, match="the schedule is of problem"):
        files.check(folder)


def in_a_stage(files):
    files.schedule["placements"][0]["stage"] = 1


def where_it_cannot_run(files):
    """Its time is taken from the problem, which would make it none."""
    change_problem(files, lambda p: p["costs"].update(operator_ns=[[None, 10], [10, None]]))


def an_activation_from_host_memory(files):
    """The second operator elsewhere, which loads what the first makes."""
    files.schedule["placements"][1]["device"] = "gpu1"
    files.schedule["transfers"][1]["device"] = "gpu1"
    files.schedule["transfers"].append({"kind": "load", "device": "gpu1", "tensor": "x"})


def a_copy_that_nothing_carries(files):
    an_activation_from_host_memory(files)
    files.schedule["transfers"][-1] = {"kind": "load", "device": "gpu1", "tensor": "w"}

    def apart(problem):
        problem["topology"]["buses"].append({"name": "other", "bandwidth": 1e9})
        problem["topology"]["devices"][1]["bus"] = ""

    change_problem(files, apart)


def a_result_that_is_evicted(files):
    """Only parameters are, since nothing else is brought anew."""
    files.schedule["transfers"][1]["evict"] = True
    change_problem(files, lambda p: p["graph"].update(outputs=["y", "v"]))


def short_of_memory(files):
    change_problem(files, lambda p: p["topology"]["devices"][0].update(memory=150))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda files: files.schedule["placements"].pop(), "each operator exactly once"),
        (lambda files: files.schedule["transfers"].append(files.schedule["transfers"][0]), "twice"),
        (lambda files: files.schedule["transfers"].pop(), "nothing brings it there"),
        (lambda files: files.schedule["placements"].reverse(), "deadlock"),
        (short_of_memory, "holds 15. bytes"),
        (lambda files: files.schedule["placements"][0].update(direct_host_access=True), "has one host_read of its own"),
        (in_a_stage, "costs.concurrency is missing"),
        (where_it_cannot_run, "cannot run on"),
        (an_activation_from_host_memory, "no route, or no source"),
        (a_copy_that_nothing_carries, "no route, or no source"),
        (a_result_that_is_evicted, "only parameters are"),
    ],
)
def test_schedules_that_the_rules_do_not_allow_are_refused(folder, change, said):
    problem = bus_problem(direct=np.full((2, 2), 200))
    loaded = solve(bus_problem(), method="single")  # it reads nothing directly, though it may
    files = files_of(problem, msgspec.structs.replace(loaded, problem=problem.digest, certificate=None))
    files.check(folder)
    change(files)
    with pytest.raises(Refused, match=said):
        files.check(folder)


PROBLEMS = {
    "a name occurs twice": lambda p: p["topology"]["devices"][1].update(name="gpu0"),
    "finite numbers are allowed": lambda p: p["topology"]["buses"][0].update(bandwidth=-1e9),
    "not made by exactly one": lambda p: p["graph"]["operators"][0]["outputs"].append("v"),
    "not as its format says": lambda p: p["costs"]["operator_ns"].append([1, 1]),
    "has a cycle": lambda p: p["graph"]["operators"][0]["inputs"].append("y"),
    "and version 1": lambda p: p.update(version=7),
}


@pytest.mark.parametrize("said", PROBLEMS)
def test_problems_that_mean_nothing_are_refused(folder, said):
    with pytest.raises(Refused, match=said):
        of_another_problem(bus_problem(), PROBLEMS[said]).check(folder)


def test_a_bound_above_the_schedule_is_to_be_reported(folder, monkeypatch):
    """No rule is known by which this happens."""
    monkeypatch.setattr("tvm_sched_check.verdict.bound_of", lambda *_: 401)
    with pytest.raises(Refused, match="please report this"):
        files_of(fan(10), solve(fan(10), method="single")).check(folder, proved_ns=401)
