"""The tool `benchmarks/vipr`: the proof of a schedule's bound for checkers of others."""

import subprocess
import sys

import pytest
import vipr

from checker.cases import chain_of_readers, fan
from checker.variants_cases import halved
from checker.vipr_rules import proved
from tvm_sched.bounds.schedule_evidence import evidence


@pytest.fixture
def files(tmp_path):
    for name, problem in (("chain", chain_of_readers()), ("fan", fan(10)), ("halved", halved())):
        problem.save(tmp_path / f"{name}.json")
        evidence(problem).save(tmp_path / f"{name}.evidence.json")
    return tmp_path


def written(*paths):
    return subprocess.run([sys.executable, vipr.__path__[0], *paths], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("name", "status", "bound"),
    [
        ("chain", 0, 618),
        (
            "halved",
            1,
            261,
        ),  # proves 310 by alternatives, which have no translation; the relaxed problem's path takes 261
    ],
)
def test_it_writes_what_a_checker_of_the_format_accepts(files, name, status, bound):
    done = written(files / f"{name}.json", files / f"{name}.evidence.json", files / "bound.vipr")
    assert done.returncode == status
    assert f"the certificate proves {bound} ns" in done.stdout
    assert proved((files / "bound.vipr").read_text()) == bound


@pytest.mark.parametrize(
    ("problem", "proof", "says"),
    [
        ("chain.evidence.json", "chain.evidence.json", "is not of format 'tvm_sched.problem'"),
        ("chain.json", "fan.evidence.json", "the evidence is of problem"),
        ("chain.json", "none.json", "none.json"),
    ],
)
def test_wrong_files_are_told(files, problem, proof, says):
    done = written(files / problem, files / proof, files / "b.vipr")
    assert done.returncode == 2
    assert says in done.stderr
    assert not (files / "b.vipr").exists()
