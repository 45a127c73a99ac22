"""Runs: every kind, results that are kept, what goes wrong in a method, and tables."""

import os
import threading

import msgspec
import pytest

from tvm_sched.schedulers.scheduler_registry import SCHEDULERS
from tvm_sched_bench import (
    BestKnown,
    Result,
    Run,
    RunLimits,
    Standings,
    check_kept,
    keep,
    load_suite,
    page,
    run,
    score,
    summaries,
)
from tvm_sched_runtime.errors import InputError

METHODS = ("single", "heft", "pipedream", "tarnawski-dp", "heuristic", "first-fit")


@pytest.fixture
def into(tmp_path):
    return Run(tmp_path / "run")


def values(run_):
    return {(result.instance, result.method): result.value for result in run_.results}


def test_every_kind_is_run_and_scored(suite, into):
    run(suite.cases, RunLimits(1.0), into, METHODS)
    found = values(into)
    assert found["chain/chain-s2", "tarnawski-dp"] == 13
    assert found["workload/workload", "heuristic"] is not None
    assert 0 < found["services/huge-model-s0", "first-fit"] < 200
    assert found["random/problem-warm", "single"] < found["random/problem-cold", "single"]
    for method in METHODS:
        for case, result, _ in score(suite, into.folder / "solutions" / method):
            assert result.value == pytest.approx(found[case.name, method]), result.error
    # All is done: nothing is run again, and a half-written line is no harm.
    lines = into.folder / "results.jsonl"
    lines.write_bytes(lines.read_bytes() + b'{"instance": "cha')
    again = Run(into.folder)
    run(suite.cases, RunLimits(1.0), again, METHODS)
    assert values(again) == found
    assert len(again.results) == len(into.results)
    assert lines.read_bytes().count(b"\n") == len(found)


def test_a_run_of_other_limits_needs_another_folder(suite, into):
    run(suite.chosen(["chain/*"]), RunLimits(1.0), into, ["pipedream"])
    with pytest.raises(InputError, match="is of another run"):
        run(suite.chosen(["chain/*"]), RunLimits(2.0), Run(into.folder), ["pipedream"])
    with pytest.raises(InputError, match=r"no instance's kind has a method 'heft'; there are anytime, .*equal-split"):
        run(suite.chosen(["chain/*"]), RunLimits(1.0), into, ["heft"])
    with pytest.raises(InputError, match="seconds is 0"):
        RunLimits(0)


def test_seeds_of_random_methods(suite, into):
    run(suite.chosen(["chain/*"]), RunLimits(0.3, seeds=2), into, ["anytime", "pipedream"])
    assert [(r.method, r.seed) for r in into.results] == [("anytime", 0), ("anytime", 1), ("pipedream", 0)]


@pytest.fixture
def faulty(monkeypatch):
    """Schedulers that raise, do not end and crash."""

    def broken(problem, workload, options):
        raise ZeroDivisionError("so what")

    def slow(problem, workload, options):
        threading.Event().wait()

    def crash(problem, workload, options):
        os._exit(7)

    monkeypatch.setattr(SCHEDULERS, "entries", dict(SCHEDULERS.entries))
    for function in (broken, slow, crash):
        SCHEDULERS.register(function.__name__)(function)


@pytest.mark.usefixtures("faulty")
def test_faults_of_methods_are_results(suite, into, tmp_path):
    cases, endless = suite.chosen(["random/*cold"]), Run(tmp_path / "endless")
    run(cases, RunLimits(0.05, overtime=0.05), endless, ["slow"])  # the others may take as long as a busy machine wants
    run(cases, RunLimits(0.05), into, ["broken", "crash", "single"])
    results = [*into.results, *endless.results]
    errors = {result.method: result.error for result in results}
    assert errors["broken"].startswith("ZeroDivisionError: so what (test_run.py:")
    assert errors["slow"].startswith("ended after 0.2 s")
    assert errors["crash"].endswith("status 7")
    found = {each.method: each for each in summaries(Standings(suite, results, BestKnown(suite)))}
    assert found["slow"].failed == 1
    assert found["slow"].over_best is None
    text = page(Standings(suite, into.results, BestKnown(suite)), [Run(into.folder).circumstances], "bench table")
    assert "- crash on random, 1 time: its process ended with status 7" in text


def result(method, instance, value, bound=10.0, seed=0):
    return Result(instance, "throughput", "", method, seed, 1.0, value, bound, "simple", 0.5, "" if value else "no")


def test_summaries_by_hand(suite):
    case = suite.case("chain/chain-s2")
    made = [result("a", case.name, 13.0), result("b", case.name, 26.0, seed=0), result("b", case.name, 13.0, seed=1)]
    made = [Result(**{**{f: getattr(r, f) for f in r.__struct_fields__}, "digest": case.digest}) for r in made]
    gone = result("a", "chain/no-more", 1.0)
    standings = Standings(suite, [*made, gone], BestKnown(suite))
    a, b = summaries(standings)
    assert (a.over_best, a.wins, a.ties, a.over_bound) == (1.0, 1, 0, pytest.approx(3 / 13))
    assert (b.over_best, b.wins, b.most_over_bound) == (pytest.approx(1.5), 0, pytest.approx(1 - 10 / 19.5))
    assert standings.left_out == {"chain/no-more"}


def test_spread_over_seeds_by_hand(suite):
    """Of several seeds least, median and most over the best; a failed one is counted, a method with one seed left out."""
    case = suite.case("chain/chain-s2")
    values = {"anytime": [20.0, 10.0, None, 30.0], "pipedream": [10.0]}
    results = [
        Result(case.name, case.kind.name, case.digest, method, seed, value=value, bound=10.0)
        for method, found in values.items()
        for seed, value in enumerate(found)
    ]
    lines = page(Standings(suite, results, BestKnown(suite)), [], "x").splitlines()
    assert "| chain | anytime | 1 | 4 | 1.000 | 2.000 | 3.000 | 1 |" in lines
    assert not any(line.startswith("| chain | pipedream |") for line in lines)


def test_best_known_are_checked_and_kept(suite, into, folder):
    run(suite.cases, RunLimits(1.0), into, ["single", "heft", "pipedream", "tarnawski-dp", "first-fit"])
    best = BestKnown(suite)
    changed = keep(
        best,
        [
            each
            for m in ("single", "heft", "pipedream", "tarnawski-dp")
            for each in score(suite, into.folder / "solutions" / m)
        ],
    )
    assert {case.name for case in changed} == {"random/problem-cold", "random/problem-warm", "chain/chain-s2"}
    read = BestKnown(load_suite(folder))
    assert read.instances == best.instances
    cold, chain = read.instances["random/problem-cold"], read.instances["chain/chain-s2"]
    assert cold.checked == "tvm_sched_check"
    assert chain.checked == "tvm_sched_check.partitions"
    case = suite.case("random/problem-cold")
    assert case.kind.worth(case.task, read.solution(case), "kept") == cold.value
    best.note(case, msgspec.structs.replace(cold, checked=""))
    assert {case.name: (known, claim) for case, known, claim in check_kept(best, suite.cases)} == {
        name: (known, "") for name, known in read.instances.items()
    }
    best.note(case, msgspec.structs.replace(cold, value=0.9 * cold.value))
    with pytest.raises(InputError, match="the kept solution is worth"):
        list(check_kept(best, [case]))
    # What is no better is not kept again.
    assert not keep(read, score(suite, into.folder / "solutions" / "heft"))
