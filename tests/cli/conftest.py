"""A small problem, a schedule of it, a small model and an artifact; commands run inside of the test's process."""

import json
from functools import cache

import jsonschema
import numpy as np
import pytest
from typer.testing import CliRunner

from onnx_text import onnx_model
from tvm_sched.cli import app
from tvm_sched.cli.schema import all_results
from tvm_sched_bench.testing import random_problem
from tvm_sched_runtime.problem import Problem, load_topology


@cache
def validator(command):
    """Of the schema that `tvm-sched schema` prints for a command."""
    printed = CliRunner().invoke(app, ["schema", *command.split()]).stdout
    return jsonschema.Draft202012Validator(json.loads(printed))


class Result:
    """What a command printed, and its exit status."""

    def __init__(self, result, arguments):
        self.command = next(
            c for c in (" ".join(arguments[:2]), arguments[0]) if c in all_results() or c == arguments[0]
        )
        self.status, self.stdout, self.stderr = result.exit_code, result.stdout, result.stderr
        self.exception = result.exception

    @property
    def json(self):
        """The document, which obeys the command's schema."""
        found = json.loads(self.stdout)
        if self.command != "schema":
            validator(self.command).validate(found)
        return found


def run_command(*arguments):
    arguments = [str(argument) for argument in arguments]
    return Result(CliRunner().invoke(app, arguments, prog_name="tvm-sched"), arguments)


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch):
    """What commands do must not depend on what other tests have compiled; tests of the cache take it away.

    Nor on the width of the terminal, which pytest-xdist sets.
    """
    monkeypatch.setenv("TVM_SCHED_NO_CACHE", "1")
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def run():
    """Run a command that must succeed."""

    def call(*arguments):
        result = run_command(*arguments)
        assert result.status == 0, (result.stderr, result.exception)
        return result

    return call


@pytest.fixture
def fails():
    """Run a command that must end with a status, a message of one line, and nothing on standard output."""

    def call(status, *arguments):
        result = run_command(*arguments)
        assert result.status == status, (result.stdout, result.stderr)
        assert "Traceback" not in result.stderr
        return result.stderr

    return call


@pytest.fixture(scope="session")
def problem() -> Problem:
    return random_problem(7, operators=8, devices=2, memory="generous")


@pytest.fixture
def problem_file(problem, tmp_path):
    problem.save(tmp_path / "problem.json")
    return tmp_path / "problem.json"


@pytest.fixture(scope="session")
def schedule_text(problem, tmp_path_factory):
    """The file of a schedule, as the command writes it."""
    folder = tmp_path_factory.mktemp("schedule")
    problem.save(folder / "problem.json")
    result = run_command("schedule", folder / "problem.json", "--option", "work=0.1", "-o", folder / "schedule.json")
    assert result.status == 0, (result.stderr, result.exception)
    return (folder / "schedule.json").read_text()


@pytest.fixture
def schedule_file(schedule_text, tmp_path):
    (tmp_path / "schedule.json").write_text(schedule_text)
    return tmp_path / "schedule.json"


def write_model(path, batch=2):
    """Two branches that meet: relu(x @ a) + relu(x @ b); `batch` may be a name."""
    onnx = pytest.importorskip("onnx")
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((8, 8)).astype(np.float32) for name in "ab"}
    text = f"""(float[{batch}, 8] x) => (float[{batch}, 8] y) {{
        p = MatMul(x, a)  q = Relu(p)  r = MatMul(x, b)  s = Relu(r)  y = Add(q, s) }}"""
    model = onnx_model(text, weights)
    model.graph.name = "two"
    onnx.save(model, path)
    return list(weights.values())


def expected(x, weights):
    """The values of `write_model`."""
    return sum(np.maximum(x @ weight, 0) for weight in weights)


def refused(status, said, files):
    """One message in our form: what was found, and no bare error of another library."""
    assert status == 2, said
    message = [line for line in said.splitlines() if line.startswith("error: ") or "Invalid value" in line]
    assert len(message) == 1, said
    assert "Traceback" not in said
    assert "--debug" not in said, "an error that nobody expected"
    assert not files


@pytest.fixture
def model_file(tmp_path):
    write_model(tmp_path / "two.onnx")
    return tmp_path / "two.onnx"


@pytest.fixture(scope="session")
def artifact(tmp_path_factory):
    """An artifact for two CPU devices, and its weights."""
    folder = tmp_path_factory.mktemp("artifact")
    weights = write_model(folder / "two.onnx")
    result = run_command("compile", folder / "two.onnx", "-t", "cpu2", "-s", "single", "-o", folder / "two.so")
    assert result.status == 0, (result.stderr, result.exception)
    return folder / "two.so", weights


@pytest.fixture(scope="session")
def v100():
    return load_topology("v100-server")


def problem_memory(problem):
    """Enough for each operator, not for all of them."""
    index = problem.graph.index
    return max(sum(index.size[t] for t in (*index.inputs[o], *index.outputs[o])) for o in range(len(index.inputs)))
