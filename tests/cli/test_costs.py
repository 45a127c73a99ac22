"""`profile`, `learn`, `--costs`, `simulate --samples`, `topology detect`."""

from pathlib import Path

import pytest

from tvm_sched.cost_model.cost_model_registry import COST_MODELS
from tvm_sched.cost_model.profile import Machine, Measurement, Profile, this_machine
from tvm_sched.cost_model.signature import signatures
from tvm_sched_runtime.problem import Problem, load_topology, read_topology

RECORDINGS = Path(__file__).parents[1] / "data" / "detect"


@pytest.fixture(autouse=True)
def own_database(monkeypatch, tmp_path):
    monkeypatch.setenv("TVM_SCHED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("tvm_sched.relax.profile_models.MOST_SECONDS", 0.05)


@pytest.mark.thorough
@pytest.mark.slow
def test_profile_then_compile_with_what_was_measured(run, model_file, tmp_path):
    said = run("profile", model_file, "-o", tmp_path / "p.json", "--in-run-only", "--json").json
    profile = Profile.load(tmp_path / "p.json")
    assert said["kernels"] == len(profile.kernels) > 0
    assert all(0 < row.in_run < 1 and row.repeats >= 10 for row in profile.kernels)
    again = run("profile", model_file, "-o", tmp_path / "q.json", "--json").json
    assert Profile.load(tmp_path / "q.json").kernels == profile.kernels, "the database knows them"
    assert again["latencies"] == {}, "nothing was run"
    for costs in ("measured", tmp_path / "p.json"):
        made = run("problem", model_file, "-t", "cpu1", "--costs", costs, "-o", tmp_path / "problem.json")
        assert "warning" not in made.stderr
        problem = Problem.load(tmp_path / "problem.json")
        times = {row.signature: round(row.in_run * 1e9) for row in profile.kernels}
        assert problem.costs.operator_ns[:, 0].tolist() == [times[text] for text in signatures(problem.graph)]
    run("compile", model_file, "-t", "cpu1", "-s", "single", "--costs", tmp_path / "p.json", "-o", tmp_path / "m.so")


@pytest.mark.thorough
def test_kernels_alone_warm_and_cold(run, model_file, tmp_path):
    run("profile", model_file, "-o", tmp_path / "p.json")
    assert all(row.warm > 0 and row.cold > 0 for row in Profile.load(tmp_path / "p.json").kernels)


def test_schedule_with_learned_latencies_says_how_sure_it_is(run, problem, problem_file, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # tables break words off where the terminal is narrow
    new = tmp_path / "new.json"
    machine = run("schedule", problem_file, "--costs", "learned", "-s", "single", "--json").json
    assert machine["problem"] != problem.digest
    low, high = machine["interval_ns"]
    assert low < machine["latency_ns"] < high
    assert "with 80 %" in run("schedule", problem_file, "--costs", "learned", "-s", "single").stdout
    Problem(problem.graph, problem.topology, learned(problem)).save(new)
    compared = run("compare", new, "--schedulers", "single", "--json").json["schedulers"]
    assert compared[0]["interval_ns"] == pytest.approx(machine["interval_ns"], abs=1)
    run("schedule", new, "-s", "single", "-o", tmp_path / "s.json", "--report", tmp_path / "r.html")
    assert "Most useful to measure" in (tmp_path / "r.html").read_text()
    said = run("simulate", new, tmp_path / "s.json", "--samples", 40, "--seed", 3, "--json").json
    levels = list(said["percentiles_ns"].values())
    assert levels == sorted(levels)
    assert levels[0] < levels[-1]
    assert levels[-1] > said["latency_ns"]
    assert 0 < len(said["useful_measurements"]) <= 10
    shown = run("simulate", new, tmp_path / "s.json", "--samples", 40).stdout
    assert "95 %" in shown
    assert "most useful to measure" in shown


def learned(problem):
    from tvm_sched.cost_model import costs

    return costs(problem.graph, problem.topology, "learned")


def test_a_table_of_latencies(run, fails, problem_file, tmp_path):
    (tmp_path / "t.csv").write_text("operator,device,seconds\n*,*,0.001\n")
    said = run("schedule", problem_file, "--costs", tmp_path / "t.csv", "-s", "single", "--json").json
    assert said["latency_ns"] >= 8 * 10**6
    (tmp_path / "t.csv").write_text("operator,device,seconds\nnobody,*,0.001\n")
    assert "no operator 'nobody'" in fails(2, "schedule", problem_file, "--costs", tmp_path / "t.csv")


@pytest.mark.parametrize("command", ["schedule", "compare", "problem", "compile"])
def test_wrong_costs(fails, model_file, tmp_path, command):
    output = {"problem": ["-o", tmp_path / "p.json"], "compile": ["-o", tmp_path / "m.so"]}.get(command, [])
    message = fails(2, command, model_file, "-t", "cpu1", "--costs", "lerned", *output)
    assert "did you mean 'learned'" in message
    assert "no such file" in fails(2, command, model_file, "-t", "cpu1", "--costs", "none.csv", *output)


def test_samples_need_uncertain_latencies(fails, problem_file, schedule_file):
    assert "does not estimate their errors" in fails(2, "simulate", problem_file, schedule_file, "--samples", 5)
    assert "0 or more" in fails(2, "simulate", problem_file, schedule_file, "--samples", -5)


def test_wrong_profiles(fails, model_file, tmp_path):
    assert ".parquet or .json" in fails(2, "profile", model_file, "-o", tmp_path / "p.txt")
    assert "no such file; give models" in fails(2, "profile", "nothing.onnx", "-o", tmp_path / "p.json")
    assert "pip install 'tvm-sched[cuda]'" in fails(
        2, "profile", model_file, "--device", "cuda:0", "-o", tmp_path / "p.json"
    )
    assert "at least 0 are allowed" in fails(2, "profile", model_file, "--pairs", -1, "-o", tmp_path / "p.json")
    assert "allowed are cpuN" in fails(2, "profile", model_file, "--device", "a40x2", "-o", tmp_path / "p.json")


def test_a_profile_of_another_machine_warns(run, model_file, tmp_path):
    run("problem", model_file, "-t", "cpu1", "-o", tmp_path / "problem.json")
    graph = Problem.load(tmp_path / "problem.json").graph
    from tvm_sched.cost_model.device_properties import properties

    kernels = tuple(Measurement(text, "m", 1e-6) for text in list(dict.fromkeys(signatures(graph)))[1:])
    Profile(Machine("another", 2), properties(load_topology("cpu1").devices[0]), kernels).save(tmp_path / "p.json")
    said = run("schedule", tmp_path / "problem.json", "--costs", tmp_path / "p.json", "-s", "single").stderr
    assert f"measured on 'another', this is '{this_machine().processor}'" in said.replace("\n", " ")
    assert "were not measured and are predicted" in said


def test_learn(run, fails, tmp_path):
    from tvm_sched.cost_model.device_properties import properties

    kernels = tuple(
        Measurement(
            f"onednn.matmul|{2 * 16 * n * 32}|a float32[16,32];p float32[32,{n}]|float32[16,{n}]", f"m{n % 7}", n * 1e-7
        )
        for n in range(8, 108)
    )
    Profile(this_machine(), properties(load_topology("cpu1").devices[0]), kernels).save(tmp_path / "p.json")
    said = run("learn", tmp_path / "p.json", "--no-published", "-o", tmp_path / "m.msgpack", "--json").json
    assert said["samples"] == 100
    assert "p.json" in said["about"]
    assert "give a profile" in fails(2, "learn", "--no-published", "-o", tmp_path / "n.msgpack")


def test_detect(run, fails, tmp_path):
    for name in ("dgx1_quad", "hgx_h200"):
        said = run(
            "topology",
            "detect",
            "--recording",
            RECORDINGS / f"{name}.json",
            "-o",
            tmp_path / "m.toml",
            "--name",
            name,
            "--json",
        ).json
        assert said["topology"]["name"] == read_topology(tmp_path / "m.toml").name == name
    here = run("topology", "detect", "--save-recording", tmp_path / "here.json").stdout
    assert "this-machine" in here
    assert "cannot be read" in fails(2, "topology", "detect", "--recording", tmp_path / "none.json")


@pytest.mark.parametrize("named", ["", "roofline"])
def test_commands_price_gpus_by_the_learned_model_unless_told_otherwise(run, model_file, tmp_path, monkeypatch, named):
    monkeypatch.delenv("TVM_SCHED_COSTS", raising=False)
    monkeypatch.setenv("COLUMNS", "200")  # so that no cell of a table is wrapped
    asked, found = [], type(COST_MODELS).get

    def noted(self, name):
        if self is COST_MODELS:
            asked.append(name)
        return found(self, name)

    monkeypatch.setattr(type(COST_MODELS), "get", noted)
    limits = ("--throughput-floor", "1", "--latency-ceiling", "1", "--backend", "cpu", "--cluster", "rampa-base")
    on_gpus, file = ("-t", "a40x2"), tmp_path / "p.json"
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 10}')
    intervals = []
    for command in (
        ("problem", model_file, *on_gpus, "-o", file),
        ("generation", config, "--shape", "1x4", *on_gpus, "-o", file),
        ("schedule", model_file, *on_gpus, "-s", "single"),
        ("compile", model_file, *on_gpus, "-s", "single", "-o", tmp_path / "m.so"),
        ("pipeline", model_file, *on_gpus, "--stages", "1"),
        ("plan", "llama-3-8b", *on_gpus, "--for", "llama.cpp"),
        ("sweep", model_file, *on_gpus, "-s", "single", "--vary", "gpus=1"),
        ("cluster", "service", model_file, *limits, "-o", tmp_path / "s.toml"),
    ):
        asked.clear()
        file.unlink(missing_ok=True)
        made = run(*command, *(("--costs", named) if named else ()))
        assert set(asked) - {"calibrated"} == {named or "learned"}, (
            command
        )  # `service` is compiled for this machine, too
        in_file = file.is_file() and Problem.load(file).costs.uncertainty is not None
        if "with 80 %" in made.stdout or in_file:
            intervals.append(command[0])
    assert intervals == ([] if named else ["problem", "generation", "schedule", "compile", "pipeline", "plan", "sweep"])
