"""`tvm-sched prove`: the proof of a schedule's bound for checkers of others."""

import pytest

from checker.cases import chain_of_readers, fan
from checker.test_variants import halved
from checker.vipr_rules import proved
from tvm_sched.bounds.schedule_evidence import evidence


@pytest.fixture
def files(tmp_path):
    for name, problem in (("chain", chain_of_readers()), ("fan", fan(10)), ("halved", halved())):
        problem.save(tmp_path / f"{name}.json")
        evidence(problem).save(tmp_path / f"{name}.evidence.json")
    return tmp_path


def test_prove_writes_what_a_checker_of_the_format_accepts(files, run):
    made = run("prove", files / "chain.json", files / "chain.evidence.json", "-o", files / "bound.vipr", "--json").json
    assert made["proved_ns"] == made["evidence_ns"] == 618
    assert made["files"] == {"proof": str(files / "bound.vipr")}
    assert proved((files / "bound.vipr").read_text()) == 618


def test_the_status_tells_that_less_is_proved(files, fails):
    """The evidence proves 310 by alternatives, which have no translation; the relaxed problem's path takes 261."""
    fails(1, "prove", files / "halved.json", files / "halved.evidence.json", "-o", files / "bound.vipr", "--json")
    assert proved((files / "bound.vipr").read_text()) == 261


@pytest.mark.parametrize(
    ("problem", "proof", "output", "says"),
    [
        ("chain.evidence.json", "chain.evidence.json", "b.vipr", "is not of format 'tvm_sched.problem'"),
        ("chain.json", "fan.evidence.json", "b.vipr", "the evidence is of problem"),
        ("chain.json", "chain.evidence.json", "b.txt", "the name must end in .vipr"),
        ("chain.json", "none.json", "b.vipr", "none.json"),
    ],
)
def test_wrong_files_are_told(files, fails, problem, proof, output, says):
    assert says in " ".join(fails(2, "prove", files / problem, files / proof, "-o", files / output).split())
    assert not (files / output).exists()
