"""The command ``pipeline``."""

import json
import subprocess
import sys

import numpy as np
import pytest
from chain_cases import chain_problem
from typer.testing import CliRunner

from tvm_sched.cli import app
from tvm_sched.pipeline.pipeline_evidence import evidence
from tvm_sched_bench.testing.regal import regal_like
from tvm_sched_runtime.pipeline import PipelinePlan, load, verify

run = CliRunner().invoke


@pytest.fixture
def problem(tmp_path):
    made = chain_problem()
    made.save(tmp_path / "problem.json")
    return made, str(tmp_path / "problem.json")


def test_plan_trace_and_json(problem, tmp_path):
    made, path = problem
    files = ["-o", str(tmp_path / "plan.json"), "--trace", str(tmp_path / "trace.json")]
    files += ["--report", str(tmp_path / "report.html")]
    result = run(app, ["pipeline", path, "-k", "2", "--partitioner", "tarnawski-dp", "--json", *files])
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["cost_ns"] == 4000
    assert said["cost_interval_ns"] is None  # prices from a file, whose errors nobody knows
    assert said["steady_ns"] == 3000
    assert [stage["cost_ns"] for stage in said["stages"]] == [4000, 4000]
    verify(made, PipelinePlan.load(tmp_path / "plan.json"))
    assert json.loads((tmp_path / "trace.json").read_text())
    assert "this cannot be improved." in (tmp_path / "report.html").read_text()


def test_plan_and_evidence_are_checked(problem, tmp_path):
    files = [str(tmp_path / name) for name in ("plan.json", "evidence.json")]
    made = run(app, ["pipeline", problem[1], "-k", "2", "--time-limit", "2", "-o", files[0], "--evidence", files[1]])
    assert made.exit_code == 0, made.output
    found = run(app, ["check", problem[1], *files])
    assert found.exit_code == 0, found.output


def test_the_search_for_evidence_has_the_limits_of_the_search_for_the_plan(problem, tmp_path, monkeypatch):
    given = []

    def noted(*arguments, effort, work):
        given.append((effort.seconds, work))
        return evidence(*arguments, effort=effort, work=work)

    monkeypatch.setattr("tvm_sched.pipeline.pipeline_evidence.evidence", noted)
    for limits in (["--time-limit", "2"], ["--option", "work=0.1"], ["--time-limit", "3", "--option", "work=0.2"], []):
        partitioner = [] if limits else ["--partitioner", "tarnawski-dp"]
        file = str(tmp_path / "evidence.json")
        done = run(app, ["pipeline", problem[1], "-k", "2", *limits, *partitioner, "--evidence", file, "--json"])
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["proved_ns"] == json.loads((tmp_path / "evidence.json").read_text())["ns"]
    inf = float("inf")
    assert given == [(2.0, inf), (inf, 0.1), (3.0, 0.2), (inf, inf)]


def test_the_plan_is_there_however_the_search_for_evidence_ends(problem, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("tvm_sched.cli.pipeline_command.store_pipeline_evidence", interrupt)
    files = ["-o", str(tmp_path / "plan.json"), "--evidence", str(tmp_path / "evidence.json")]
    assert run(app, ["pipeline", problem[1], "-k", "2", "--partitioner", "tarnawski-dp", *files]).exit_code != 0
    verify(problem[0], PipelinePlan.load(tmp_path / "plan.json"))


def test_operators_in_an_order_of_least_peak(problem, tmp_path):
    # `in` sends 4 to `a` and `b`, which make 6 each for `c` and `d`, which make 1: 16 bytes at once, or 11.
    # As given, 10 bytes of parameters and a peak of 16 exceed the 20 bytes of memory by 6.
    sizes = {"in": 4, "a": 6, "b": 6, "c": 1, "d": 1, "e": 1}
    nodes = [
        {"id": name, "work": 1, "size_out": size, "size_param": 10 * (name == "a")} for name, size in sizes.items()
    ]
    edges = [{"source": u, "target": v} for u, v in (("in", "a"), ("in", "b"), *("ac", "bd", "ce", "de"))]
    graph = tmp_path / "graph.json"
    graph.write_text(json.dumps({"nodes": nodes, "edges": edges, "memory": 20}))
    command = ["pipeline", str(graph), "-k", "1", "--partitioner", "equal-split"]
    given = json.loads(run(app, [*command, "--json"]).stdout)
    assert (given["cost"], given["peaks"]) == (6 + 6, None)
    least = json.loads(run(app, [*command, "--stage-order", "least-peak", "--json"]).stdout)
    assert least["cost"] == 6 + 1
    assert [(each["given"], each["peak"], each["bound"]) for each in least["peaks"]] == [(16, 11, 11)]
    shown = run(app, [*command, "--stage-order", "least-peak"]).output
    assert "peak as given" in shown
    assert "16 B" in shown
    made = run(app, ["pipeline", problem[1], "-k", "2", "--partitioner", "tarnawski-dp", "--stage-order", "least-peak"])
    assert made.exit_code == 0, made.output
    assert "no order below" in made.output
    wrong = run(app, [*command, "--stage-order", "best"])
    assert wrong.exit_code == 2
    assert "least-peak" in wrong.output


def test_people_see_bars_and_what_is_known(problem):
    _, path = problem
    result = run(app, ["pipeline", path, "--time-limit", "5"])
    assert result.exit_code == 0, result.output
    assert "█" in result.stdout
    assert "this cannot be improved" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stages", "many"], "--stages many: a number from 1, or auto, is allowed"),
        (["--stages", "9"], "1 to 3 are allowed"),
        (["--partitioner", "best"], "there is no partitioner 'best'"),
        (["--option", "speed=1"], "has no option 'speed'"),
        (["--latency-ceiling", "-1"], "latency ceiling is -1.0"),
    ],
)
def test_wrong_input_is_told(problem, arguments, message):
    result = run(app, ["pipeline", problem[1], *arguments])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


@pytest.mark.slow
def test_json_is_alone_on_standard_output_while_the_partitioner_works(tmp_path):
    graph = regal_like(3, 24)
    nodes = [
        {"id": v, "work": work, "size_param": 0, "size_out": tensor.size}
        for v, (work, tensor) in enumerate(zip(graph.work.tolist(), graph.tensors, strict=True))
    ]
    edges = [{"source": u, "target": v} for u, v in graph.edges]
    (tmp_path / "graph.json").write_text(json.dumps({"nodes": nodes, "edges": edges}))
    command = ["pipeline", tmp_path / "graph.json", "-k", "3", "--json", "--time-limit", "2", "--option", "moves=1000"]
    done = subprocess.run(
        [sys.executable, "-m", "tvm_sched.cli", *command], capture_output=True, text=True, timeout=120, check=True
    )
    assert len(json.loads(done.stdout)["stages"]) <= 3
    assert "Partitioning with anytime" in done.stderr


@pytest.mark.filterwarnings("ignore::tvm_sched_runtime.runtime.MachineWarning")
def test_a_model_is_compiled_and_its_stages_run(tmp_path):
    from small_pipeline import batches, layers_model

    onnx = pytest.importorskip("onnx")
    onnx.save(layers_model(), tmp_path / "layers.onnx")
    (batch,) = batches(1)
    np.save(tmp_path / "x.npy", batch)
    folder = str(tmp_path / "layers.pipeline")
    made = run(
        app, ["pipeline", str(tmp_path / "layers.onnx"), "-t", "cpu2", "--time-limit", "3", "--artifact", folder]
    )
    assert made.exit_code == 0, made.output
    ran = run(app, ["run", folder, "--input", f"x={tmp_path / 'x.npy'}", "-o", str(tmp_path / "out"), "--json"])
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["steady_ns"] > 0
    (expected,) = load(folder).run([batch])
    for n, value in enumerate(expected.value()):
        np.testing.assert_array_equal(np.load(tmp_path / "out" / f"output_{n}.npy"), value)
    wrong = run(app, ["run", folder, "--times-only"])
    assert wrong.exit_code == 2


def test_only_a_model_with_weights_is_compiled(problem, tmp_path):
    _, path = problem
    (tmp_path / "mine").write_text("a letter")
    for artifact, message in (
        (tmp_path / "x.pipeline", "compiles one model file"),
        (tmp_path / "mine", "is no pipeline artifact"),
    ):
        result = run(app, ["pipeline", path, "--artifact", str(artifact)])
        assert result.exit_code == 2
        assert message in " ".join(result.output.split())
