"""`schedule`, `simulate`, `verify`, `compare`, `problem` on files."""

import json

import msgspec
import numpy as np

from tvm_sched import problem_sources, size_ranges
from tvm_sched_bench.testing import random_problem
from tvm_sched_runtime.errors import GraphError
from tvm_sched_runtime.problem import Concurrency, Costs, Problem
from tvm_sched_runtime.schedule import Certificate, Schedule, Timeline

from .conftest import problem_memory, run_command, write_model


def test_schedule_writes_what_it_is_asked_for(run, problem, problem_file, tmp_path):
    files = {name: tmp_path / name for name in ("s.json", "r.html", "t.json")}
    result = run(
        "schedule", problem_file, "-s", "single", "-o", files["s.json"], "--report", files["r.html"], "--trace",
        files["t.json"], "--json",
    )  # fmt: skip
    schedule = Schedule.load(files["s.json"])
    assert schedule.problem == problem.digest == result.json["problem"]
    assert result.json["latency_ns"] == schedule.certificate.latency_ns
    assert 0 <= result.json["gap"] <= 1
    assert "<title>" in files["r.html"].read_text()
    assert json.loads(files["t.json"].read_text())["traceEvents"]
    assert set(result.json["files"]) == {"schedule", "report", "trace"}
    assert not list(tmp_path.glob(".*")), "temporary files are gone"


def test_schedule_shows_latency_bound_and_gap(run, problem_file):
    result = run("schedule", problem_file, "--scheduler", "anytime", "--time-limit", 5, "--seed", 1)
    for word in ("latency", "lower bound", "gap"):
        assert word in result.stdout


def test_options_reach_the_scheduler(run, problem_file):
    result = run("schedule", problem_file, "--option", "seed=5", "--time-limit", 3, "--option", "stage=1", "--json")
    assert result.json["options"]["seed"] == 5
    assert result.json["options"]["time_limit"] == 3
    assert result.json["options"]["stage"] == 1
    assert result.json["status"] in ("optimal", "no better found", "time limit")


def test_a_seed_that_a_scheduler_does_not_know_is_ignored_aloud(run, problem_file):
    result = run("schedule", problem_file, "-s", "single", "--seed", 3, "--json")
    assert "--seed is ignored" in result.stderr
    assert result.json["scheduler"] == "single"


def test_another_topology_replaces_that_of_the_problem(run, problem_file):
    result = run("schedule", problem_file, "-s", "single", "-t", "a40x2", "--json")
    assert result.json["topology"] == "a40x2"


def test_existing_outputs_are_replaced(run, problem_file, tmp_path):
    (tmp_path / "s.json").write_text("old")
    run("schedule", problem_file, "-s", "single", "-o", tmp_path / "s.json")
    assert Schedule.load(tmp_path / "s.json").scheduler == "single"


def test_simulate(run, problem, problem_file, schedule_file, tmp_path):
    timeline, trace, report = tmp_path / "l.json", tmp_path / "t.json", tmp_path / "r.html"
    result = run(
        "simulate", problem_file, schedule_file, "--timeline", timeline, "--trace", trace, "--report", report, "--json"
    )
    assert Timeline.load(timeline).latency_ns == result.json["latency_ns"]
    assert report.stat().st_size > 1_000_000
    # A timeline of a run is drawn beside the predicted one.
    real = msgspec.structs.replace(Timeline.load(timeline), source="measured")
    real.save(tmp_path / "m.json")
    run("simulate", problem_file, schedule_file, "--measured", tmp_path / "m.json", "--trace", trace)
    names = {e["args"]["name"] for e in json.loads(trace.read_text())["traceEvents"] if e["name"] == "process_name"}
    assert names == {"predicted", "measured"}


def test_simulate_certifies_a_schedule_without_certificate(run, problem_file, schedule_file):
    bare = msgspec.structs.replace(Schedule.load(schedule_file), certificate=None)
    bare.save(schedule_file)
    result = run("simulate", problem_file, schedule_file, "--json")
    assert result.json["lower_bound_ns"] > 0


def test_verify_accepts_a_good_schedule(run, problem_file, schedule_file):
    assert run("verify", problem_file, schedule_file, "--json").json == {"feasible": True, "violations": []}


def test_verify_lists_what_is_broken(fails, problem_file, schedule_file):
    schedule = Schedule.load(schedule_file)
    msgspec.structs.replace(schedule, placements=schedule.placements[1:], certificate=None).save(schedule_file)
    result = run_command("verify", problem_file, schedule_file, "--json")
    assert result.status == 2
    assert not result.json["feasible"]
    assert any(schedule.placements[0].operator in row["message"] for row in result.json["violations"])
    assert "rule" in fails(2, "simulate", problem_file, schedule_file)


def test_compare(run, problem_file, tmp_path):
    result = run(
        "compare", problem_file, "--schedulers", "anytime,single", "--option", "anytime.stage=1", "--time-limit", 5,
        "--report", tmp_path / "r.html", "--json",
    )  # fmt: skip
    first, second = result.json["schedulers"]
    assert (first["scheduler"], first["speedup_over_single"]) == ("single", 1.0)
    assert second["latency_ns"] <= first["latency_ns"]
    assert (tmp_path / "r.html").read_text().count('class="entry"') == 2
    assert "speed-up" in run("compare", problem_file, "--schedulers", "single").stdout


def test_problems_are_compared_apart_or_together(run, fails, problem_file, tmp_path):
    random_problem(6, operators=6, devices=2, memory="generous").save(tmp_path / "other.json")
    both = ("compare", problem_file, tmp_path / "other.json", "--schedulers", "single,heft")
    told = run(*both, "--each", "--json").json["problems"]
    alone = [run("compare", file, "--schedulers", "single,heft", "--json").json for file in both[1:3]]
    assert [[row["latency_ns"] for row in each["schedulers"]] for each in told] == [
        [row["latency_ns"] for row in each["schedulers"]] for each in alone
    ]
    assert "--report is of one problem" in fails(2, *both, "--each", "--report", tmp_path / "r.html")


def test_compare_goes_on_after_a_failure(problem, tmp_path):
    small = [msgspec.structs.replace(d, memory=problem_memory(problem)) for d in problem.topology.devices]
    topology = msgspec.structs.replace(problem.topology, devices=tuple(small))
    Problem(problem.graph, topology, problem.costs).save(tmp_path / "p.json")
    result = run_command("compare", tmp_path / "p.json", "--schedulers", "single", "--json")
    assert result.status == 1
    assert "error" in result.json["schedulers"][0]


def test_problem_of_a_model(run, model_file, tmp_path):
    result = run("problem", model_file, "--topology", "v100-server", "-o", tmp_path / "p.json", "--json")
    problem = Problem.load(tmp_path / "p.json")
    assert problem.topology.name == "v100-server"
    assert result.json["operators"] == len(problem.graph.operators)
    assert result.json["parameter_bytes"] == 2 * 8 * 8 * 4


def test_schedule_of_a_model(run, model_file):
    result = run("schedule", model_file, "--topology", "cpu2", "-s", "single", "--json")
    assert result.json["topology"] == "cpu2"


def test_simulate_trusts_no_certificate(run, problem_file, schedule_file):
    true = run("simulate", problem_file, schedule_file, "--json").json
    certificate = Certificate(true["latency_ns"], true["latency_ns"], "my word")
    forged = msgspec.structs.replace(Schedule.load(schedule_file), certificate=certificate)
    forged.save(schedule_file)
    said = run("simulate", problem_file, schedule_file, "--json").json
    assert [said[key] for key in ("latency_ns", "lower_bound_ns", "bound")] == [
        true[key] for key in ("latency_ns", "lower_bound_ns", "bound")
    ]


def test_the_time_limit_is_that_of_the_whole(run, problem_file):
    result = run("compare", problem_file, "--schedulers", "sortinghat", "--time-limit", 2, "--json")
    assert [entry["scheduler"] for entry in result.json["schedulers"]] == ["sortinghat"]
    assert [entry["name"] for entry in result.json["references"]] == ["critical-path"]
    chosen = run("schedule", problem_file, "--scheduler", "sortinghat", "--time-limit", 2, "--json").json
    assert chosen["options"]["total_time_limit"] == 2
    assert chosen["options"]["time_limit"] == 30


def test_streams_and_launch_order_of_a_name(run, tmp_path):
    of_one, file = random_problem(5, operators=8, devices=1, memory="generous"), tmp_path / "problem.json"
    together = Concurrency(np.full((len(of_one.graph.operators), 1, 1), 0.2))
    costs = Costs(of_one.costs.operator_ns, of_one.costs.direct_ns, concurrency=together)
    Problem(of_one.graph, of_one.topology, costs).save(file)
    latency = {}
    for streams, count in (("one", 1), ("opara", 2), ("best", 1)):
        output, trace = tmp_path / f"{streams}.json", tmp_path / "trace.json"
        shown = run(
            "schedule",
            file,
            "-s",
            "single",
            "--streams",
            streams,
            "--launch-order",
            "opara",
            "-o",
            output,
            "--trace",
            trace,
        )
        lanes = {placement.stream for placement in Schedule.load(output).placements}
        assert len(lanes) >= count
        assert ("streams" in shown.stdout) == (len(lanes) > 1)
        assert all(f"{of_one.topology.devices[0].name}/{stream}" in trace.read_text() for stream in lanes)
        latency[streams] = Schedule.load(output).certificate.latency_ns
    assert latency["opara"] <= latency["one"]
    assert latency["best"] <= latency["opara"]


def test_several_models_say_when_each_ends_and_how_much_slower_that_is(run, problem_file):
    result = run("schedule", problem_file, problem_file, "-s", "heft", "--alone", "--json").json
    assert [each["model"] for each in result["models"]] == ["random", "random.2"]
    assert max(each["latency_ns"] for each in result["models"]) == result["latency_ns"]
    assert result["largest_slowdown"] == max(each["slowdown"] for each in result["models"])
    assert all(each["slowdown"] == each["latency_ns"] / each["alone_ns"] for each in result["models"])
    without = run("schedule", problem_file, problem_file, "-s", "heft", "--json").json
    assert [each["alone_ns"] for each in without["models"]] == [None, None]
    assert run("schedule", problem_file, "-s", "heft", "--alone", "--json").json["models"] is None


def test_the_largest_slowdown_can_be_the_objective(run, fails, problem_file):
    fair = ("schedule", problem_file, problem_file, "-s", "heft", "--objective", "slowdown")
    told = run(*fair, "--weights", "1,2", "--json").json
    assert told["weights"] == [1, 2]
    assert told["objective"] == max(w * each["slowdown"] for w, each in zip([1, 2], told["models"], strict=True))
    assert told["objective_lower_bound"] <= told["objective"]
    assert "no schedule has less than" in run(*fair).stderr
    assert "anytime, heft, peft" in fails(2, *fair[:3], "-s", "single", "--objective", "slowdown")
    assert "is one model" in fails(2, "schedule", problem_file, "-s", "heft", "--objective", "slowdown")
    assert "latency and slowdown" in fails(2, *fair[:5], "--objective", "speed")
    assert "--weights is for" in fails(2, *fair[:5], "--weights", "1,2")
    assert "numbers separated by commas" in fails(2, *fair, "--weights", "1,two")


def test_a_range_of_sizes_has_one_certificate(run, fails, tmp_path, monkeypatch):
    model, file = tmp_path / "two.onnx", tmp_path / "range.json"
    write_model(model, "batch")
    call = "schedule", model, "-t", "v100-server", "-s", "heft", "--shape", "batch=16..4096"
    found = run(*call, "--anchors", 3, "--factor", 1.01, "-o", file, "--json").json
    assert found["files"] == {"range": str(file)}
    assert [anchor["sizes"]["batch"] for anchor in found["anchors"]] == [16, 256, 4096]
    verdict = run("check", file, "--json").json
    assert verdict["anchors"] == 3
    assert round(verdict["claimed"], 3) == round(found["factor"], 3) >= 1
    assert "batch from 16 to 4096: 3 anchors" in run("check", file).stdout
    other = "schedule", model, "-s", "heft", "--anchors", 2, "--shape", "batch=1..4096", "-t"
    check, differ = size_ranges._check_form, [GraphError("a tensor is split at large sizes only")]

    def checked(*problems):
        if differ:
            raise differ.pop()
        check(*problems)

    with monkeypatch.context() as patched:
        patched.setattr(size_ranges, "_check_form", checked)
        result = run(*other, "v100-server", "-o", file)
    assert "alternatives that only some of the sizes have are left out" in " ".join(result.stderr.split())
    run("check", file)
    with monkeypatch.context() as patched:  # a lowering for each size might take kernels of oneDNN at some of them only
        patched.setattr(problem_sources, "load_problem", None)
        run(*other, "cpu2", "-o", file)
    run("check", file)
    for wrong, words in (
        (("--shape", "batch=2..4"), "a range for each symbol"),
        (("--evidence", tmp_path / "e.json"), "-o writes schedules and evidence of all sizes"),
        (("--streams", "one"), "--streams"),
    ):
        assert words in fails(2, *call, *wrong)
    assert "for a range of sizes" in fails(2, *call[:-2], "--shape", "batch=8", "--factor", 2)
    assert "cannot be read as JSON" in fails(2, "check", model)
    assert "give problem, schedule and evidence" in fails(2, "check", file, file)
