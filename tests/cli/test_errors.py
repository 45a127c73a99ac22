"""Every wrong input ends with status 2 and says what is wrong; failures of the work end with 1."""

import json
import os

import msgspec
import pytest

from tvm_sched_runtime.errors import InfeasibleError
from tvm_sched_runtime.problem import Problem
from tvm_sched_runtime.schedule import Schedule

from .conftest import problem_memory, run_command


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["schedule", "none.json"], "none.json"),
        (["schedule", "none.onnx", "-t", "cpu2"], "no such file"),
        (["schedule", "{problem}", "-s", "fastest"], "anytime"),
        (["schedule", "{problem}", "--option", "speed=9"], "speed"),
        (
            ["schedule", "{problem}", "--streams", "oprara"],
            "streams is 'oprara'; did you mean 'opara'?; allowed are one,",
        ),
        (["schedule", "{problem}", "--launch-order", "x"], "launch_order is 'x'; allowed are depth-first,"),
        (["schedule", "{problem}", "-s", "single", "--streams", "opara"], "streams of 'opara' would have no effect"),
        (["compile", "{model}", "-t", "cpu2", "-o", "{folder}/m.so", "--streams", "two"], "allowed are one, opara,"),
        (["compile", "{model}", "-t", "cpu2", "-o", "{folder}/m.so", "--graph"], "graph is for GPUs"),
        (["schedule", "{problem}", "--option", "seed"], "KEY=VALUE"),
        (["schedule", "{problem}", "--option", "seed=many"], "seed"),
        (["schedule", "{problem}", "--time-limit", "-1"], "above 0"),
        (["schedule", "{problem}", "--time-limit", "soon"], "--time-limit"),
        (["schedule", "{problem}", "--shape", "x:1"], "problem file"),
        (["schedule", "{problem}", "-t", "v100-serve"], "v100-server"),
        (["schedule", "{problem}", "-o", "{folder}/s.txt"], ".json"),
        (["schedule", "{problem}", "-o", "{folder}/no/s.json"], "no directory"),
        (["schedule", "{problem}", "-o", "{problem}"], "the input"),
        (["schedule", "{problem}", "-o", "{folder}/a.json", "--trace", "{folder}/a.json"], "--output"),
        (["schedule", "{problem}", "-o", "{folder}/folder.json"], "directory"),
        (["schedule", "{problem}", "--report", "{folder}/r.pdf"], ".html"),
        (["schedule", "{model}"], "--topology"),
        (["schedule", "{model}", "-t", "cpu2", "--shape", "x:1,a"], "NAME:DIMS"),
        (["schedule", "{model}", "-t", "cpu2", "--shape", "x:1", "--shape", "x:2"], "two shapes"),
        (["schedule", "{model}", "-t", "cpu2", "--shape", "z:2,8"], "z"),
        (["problem", "{model}", "-o", "{folder}/p.json"], "--topology"),
        (["problem", "{model}", "-t", "cpu2"], "--output"),
        (["compare", "{problem}", "--schedulers", "single,fast"], "fast"),
        (["compare", "{problem}", "--option", "single.seed=1"], "none of the schedulers"),
        (["compile", "{model}", "-t", "cpu2", "-o", "{folder}/m.onnx"], ".so"),
        (["compile", "{model}", "-t", "cpu2", "-o", "{folder}/m.so", "--parameters", "cloud"], "embed"),
        (["compile", "{problem}", "-t", "cpu2", "-o", "{folder}/m.so"], "problem"),
        (["run", "{folder}/none.so"], "no such file"),
        (["run", "{problem}"], "not a shared library"),
        (["run", "{folder}/none.so", "--seed", "-1"], "0 or more"),
        (["run", "{folder}/none.so", "--repeat", "0"], "at least 1"),
        (["simulate", "{problem}", "{problem}"], "tvm_sched.schedule"),
        (["verify", "{problem}", "none.json"], "none.json"),
        (["topology", "show", "dgx"], "dgx"),
        (["nonsense"], "nonsense"),
        (["schedule"], ""),
    ],
)
def test_bad_input(fails, problem_file, model_file, tmp_path, arguments, words):
    (tmp_path / "folder.json").mkdir()
    places = {"problem": problem_file, "model": model_file, "folder": tmp_path}
    before = sorted(tmp_path.iterdir())
    message = fails(2, *(argument.format(**places) for argument in arguments))
    assert words in " ".join(message.split())
    assert sorted(tmp_path.iterdir()) == before, "nothing is left behind"


def test_a_damaged_problem_is_named_by_its_place(fails, problem_file):
    data = json.loads(problem_file.read_text())
    data["graph"]["operators"][0]["flops"] = "many"
    problem_file.write_text(json.dumps(data))
    assert "$.graph.operators[0].flops" in fails(2, "schedule", problem_file)


def test_a_schedule_of_another_problem(fails, problem_file, schedule_file):
    msgspec.structs.replace(Schedule.load(schedule_file), problem="0" * 16).save(schedule_file)
    assert "0000" in fails(2, "simulate", problem_file, schedule_file)


def test_a_failure_of_the_work(fails, problem_file, monkeypatch, tmp_path):
    def fail(*arguments, **options):
        raise InfeasibleError("gpu0 is short of 5 bytes")

    monkeypatch.setattr("tvm_sched.schedulers.solve", fail)
    output = tmp_path / "s.json"
    assert "short of 5 bytes" in fails(1, "schedule", problem_file, "-o", output)
    assert not output.exists()


def test_an_unexpected_error_is_one_line(fails, problem_file, monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("first\nsecond")

    monkeypatch.setattr("tvm_sched.schedulers.solve", fail)
    message = fails(1, "schedule", problem_file)
    assert message.strip() == "error: RuntimeError: first second (--debug shows the traceback)"


def test_debug_shows_the_traceback(problem_file, monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("first")

    monkeypatch.setattr("tvm_sched.schedulers.solve", fail)
    for arguments, environment in ((["--debug"], ""), ([], "1")):
        monkeypatch.setenv("TVM_SCHED_DEBUG", environment)
        result = run_command("schedule", problem_file, *arguments)
        assert result.status == 1
        assert "Traceback" in result.stderr


def test_ctrl_c_says_what_was_saved(problem_file, monkeypatch, tmp_path):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("tvm_sched.report.trace.write_trace", stop)
    result = run_command(
        "schedule", problem_file, "-s", "single", "-o", tmp_path / "s.json", "--trace", tmp_path / "t.json"
    )
    assert result.status == 130
    assert f"saved before: {tmp_path / 's.json'}" in result.stderr
    assert not (tmp_path / "t.json").exists()


def test_a_report_without_plotly(fails, problem_file, monkeypatch, tmp_path):
    import sys

    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    message = fails(1, "schedule", problem_file, "--report", tmp_path / "r.html")
    assert "pip install 'tvm-sched[report]'" in message


def test_a_directory_that_may_not_be_written(fails, problem_file, monkeypatch, tmp_path):
    monkeypatch.setattr("tvm_sched.cli.inputs.os.access", lambda path, mode: not mode & os.W_OK)
    assert "may not be written" in fails(2, "schedule", problem_file, "-o", tmp_path / "s.json")


def test_infeasible_problem(fails, problem, tmp_path):
    small = [msgspec.structs.replace(d, memory=problem_memory(problem)) for d in problem.topology.devices]
    topology = msgspec.structs.replace(problem.topology, devices=tuple(small))
    Problem(problem.graph, topology, problem.costs).save(tmp_path / "p.json")
    assert "memory" in fails(1, "schedule", tmp_path / "p.json", "-s", "single")


def test_a_cut_off_problem_is_no_model(fails, problem_file):
    text = problem_file.read_text()
    for damaged in (text[: len(text) // 2], "[]", "{}"):
        problem_file.write_text(damaged)
        message = fails(2, "schedule", problem_file)
        assert "is a model" not in message
        assert "JSON" in message or "$.format" in message
