"""A sample of ONNX's conformance cases: nothing is wrong, and refusals are messages."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnx")
OURS = "tvm_sched"  # as the script calls us; importing it would make all cases here, too
pytestmark = [
    pytest.mark.xdist_group("onnx_conformance"),  # one run of the sample for all tests
    pytest.mark.thorough,  # test_operators.py runs each operator, on more values
]
BENCHMARK = Path(__file__).parents[3] / "distributions" / "frontends" / "benchmarks" / "onnx_conformance.py"


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Results by case, from a process without threads, which the cases' processes are forked from.

    Each case is a process, a second of a core.
    """
    path = tmp_path_factory.mktemp("conformance") / "results.json"
    search = os.pathsep.join([str(BENCHMARK.parents[3] / "python"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(BENCHMARK), "--sample", "--system", OURS, "--json", str(path)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": search}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {name: answer[OURS] for name, answer in json.loads(path.read_text()).items()}


@pytest.mark.slow
def test_cases_are_right_or_refused_in_a_sentence(answers):
    """One test, so that one part of the thorough tests has the sample."""
    assert not {name: answer for name, answer in answers.items() if answer["status"] in ("wrong", "failed")}
    fixed = [name for name, answer in answers.items() if answer["fixed"]]
    right = [name for name in fixed if answers[name]["status"] == "right"]
    assert len(fixed) > 50
    assert len(right) >= 0.8 * len(fixed), sorted(set(fixed) - set(right))
    refused = {name: answer["reason"] for name, answer in answers.items() if answer["status"] == "refused"}
    assert not {name: reason for name, reason in refused.items() if "Traceback" in reason or not reason.strip()}
