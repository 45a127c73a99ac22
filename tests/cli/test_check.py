"""`--evidence` and `check`."""

import json

import pytest

from tvm_sched_bench.testing import random_problem
from tvm_sched_runtime.problem import Problem

from .conftest import run_command


@pytest.fixture
def files(run, tmp_path):
    """Problem, schedule and evidence of all of its bound."""
    problem_file, schedule, evidence = (tmp_path / f"{name}.json" for name in "pse")
    random_problem(1, operators=12, devices=3, memory="generous").save(problem_file)
    said = run("schedule", problem_file, "-s", "heft", "-o", schedule, "--evidence", evidence, "--json")
    assert said.json["files"] == {"schedule": str(schedule), "evidence": str(evidence)}
    figures = json.loads(evidence.read_text())
    claim = f"the certificate claims {said.json['lower_bound_ns']} ns, this evidence proves {figures['proved_ns']} ns"
    assert claim in said.stderr
    return problem_file, schedule, evidence


def test_evidence_is_verified(run, files):
    found = run("check", *files, "--json").json
    assert found["proved_ns"] >= found["certified_ns"]
    shown = run("check", *files).stdout
    assert f"latency {found['latency_ns']} ns, replayed" in shown
    assert f"the evidence proves {found['proved_ns']} ns" in shown
    assert "gap proved" in shown


def test_a_weaker_proof_ends_with_status_1(files, tmp_path):
    evidence = json.loads(files[2].read_text())
    evidence |= {"lemmas": [{"rule": "path", "ns": 1}], "proved_ns": 1}
    files[2].write_text(json.dumps(evidence))
    result = run_command("check", *files)
    assert result.status == 1
    assert "the evidence proves 1 ns" in result.stdout


@pytest.mark.parametrize("position", range(3))
def test_a_changed_file_is_refused(fails, files, position):
    document = json.loads(files[position].read_text())
    if position == 0:
        document["graph"]["name"] = "another"
    elif position == 1:
        document["certificate"]["latency_ns"] -= 1
    else:
        document["lemmas"][-1]["ns"] *= 2
    files[position].write_text(json.dumps(document))
    assert len(fails(2, "check", *files).strip().splitlines()) <= 3


def test_evidence_is_of_the_run_of_the_schedule(run, fails, tmp_path):
    """Nobody is told that a bound of warm runs is proved by evidence of a cold one."""
    names = problem_file, schedule, evidence = [tmp_path / f"{name}.json" for name in "pse"]
    random_problem(1, operators=12, devices=3, style="bus", memory="generous").save(problem_file)
    made = "schedule", problem_file, "-s", "heft"
    run(*made, "-o", tmp_path / "cold.json", "--evidence", evidence)
    run(*made, "-o", schedule, "--resident", "1")
    assert "warm runs" in fails(2, "explain", problem_file, schedule)
    assert "certificate.requests" in fails(2, "check", *names)
    run(*made, "-o", schedule, "--resident", "1", "--evidence", evidence)
    assert run("check", *names).status == 0


def test_compile_writes_all_three(run, model_file, tmp_path):
    folder, artifact = tmp_path / "proof", tmp_path / "m.so"
    said = run("compile", model_file, "-t", "cpu2", "-s", "heft", "-o", artifact, "--evidence", folder, "--json")
    assert said.json["files"]["evidence"] == str(folder)
    assert run("check", folder / "problem.json", folder / "schedule.json", folder / "evidence.json", "--json").json
    assert Problem.load(folder / "problem.json").topology.name == "cpu2"


def test_a_file_where_the_folder_should_be(fails, model_file, tmp_path):
    message = fails(2, "compile", model_file, "-t", "cpu2", "-o", tmp_path / "m.so", "--evidence", model_file)
    assert "--evidence" in message
    assert not (tmp_path / "m.so").exists()


def test_explain_tells_each_bound_and_what_the_strongest_rests_on(run, files):
    told = run("explain", *files[:2], "--json").json["lines"]
    evidence = json.loads(files[2].read_text())
    assert f"({evidence['certified_by']})" in told[1]
    bounds = ["  by critical path", "  by device work", "  by bus", "  by path and bus", "  by assignment"]
    assert [line.split(":")[0] for line in told[2:7]] == bounds
    assert told[7].startswith("Why")
    parts = [lemma for lemma in evidence["lemmas"] if "last" in lemma]
    assert sum("pass at least" in line or "cannot end before" in line for line in told) == len(parts)
