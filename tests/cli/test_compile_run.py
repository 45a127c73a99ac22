"""`compile` and `run`: the values, the figures, the files."""

import json
from pathlib import Path

import numpy as np
import pytest

from onnx_text import onnx_model
from tvm_sched.relax.options import CompileOptions
from tvm_sched_runtime.schedule import Timeline

from .conftest import expected, run_command, write_model


def test_compile_says_what_it_made(run, model_file, tmp_path):
    result = run(
        "compile", model_file, "-t", "cpu2", "--time-limit", 5, "-o", tmp_path / "m.so", "--parameters", "external",
        "--report", tmp_path / "r.html", "--json",
    )  # fmt: skip
    assert result.json["plans"][0]["topology"] == "cpu2"
    assert result.json["files"]["parameters"] == str(tmp_path / "m.safetensors")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.safetensors", "m.so", "r.html", "two.onnx"]


def test_several_models_in_one_process(run, model_file, tmp_path):
    other = tmp_path / "other.onnx"
    command = ("compile", model_file, "-t", "cpu1", "-s", "single", "--costs", "roofline")
    weights = write_model(other, batch=3)
    result = run(*command, "-o", tmp_path / "a.so", "--also", f"{other}={tmp_path / 'b.so'}", "--json")
    assert len(result.json["plans"]) == 2
    assert result.json["files"]["artifact"] == [str(tmp_path / "a.so"), str(tmp_path / "b.so")]
    x = np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    run("run", tmp_path / "b.so", "--input", f"x={tmp_path / 'x.npy'}", "--output", tmp_path / "out", "--repeat", 1)
    np.testing.assert_allclose(np.load(tmp_path / "out" / "output_0.npy"), expected(x, weights), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("also", "reason"),
    [
        ("other.onnx", "expected a model and its artifact"),
        ("other.onnx=b.txt", "expected a model and its artifact"),
        ("missing.onnx=b.so", "there is no file missing.onnx"),
        ("{model}=missing/b.so", "there is no folder missing"),
        ("{model}=a.so", "the same artifact twice"),
    ],
)
def test_wrong_further_models_are_refused_before_the_first_is_compiled(also, reason, fails, model_file, tmp_path):
    command = ("compile", model_file, "-t", "cpu1", "-o", "a.so", "--also", also.format(model=model_file))
    assert reason in fails(2, *command)


def test_the_module_behind_a_pass_is_written(run, fails, model_file, tmp_path, monkeypatch):
    made, check = [], CompileOptions.__post_init__
    monkeypatch.setattr(CompileOptions, "__post_init__", lambda options: made.append(check(options)))
    command = ("compile", model_file, "-t", "cpu2", "-s", "single", "--costs", "roofline", "-o")
    run(*command, tmp_path / "lowered.txt", "--stop-after", "LowerToKernels")
    assert len(made) == 1, "options are made and checked once"
    lowered = (tmp_path / "lowered.txt").read_text()
    assert "R.call_tir" in lowered or "R.call_dps_packed" in lowered
    assert "tvm_sched.problem" not in lowered
    run(*command, tmp_path / "fused.txt", "--stop-after", "FuseOperators")
    assert "tvm_sched.constants" in (tmp_path / "fused.txt").read_text()
    assert "tvm_sched.constants" not in lowered
    run(*command, tmp_path / "placed.txt", "--stop-after", "Place")
    assert "tvm_sched.schedule" in (tmp_path / "placed.txt").read_text()
    assert "in order, there run SetCompileTarget" in fails(2, *command, tmp_path / "m.txt", "--stop-after", "Placed")
    assert "a file .txt" in fails(2, *command, tmp_path / "m.so", "--stop-after", "Place")


def test_run_computes_the_model(run, artifact, tmp_path):
    path, weights = artifact
    x = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    result = run(
        "run", path, "--input", f"x={tmp_path / 'x.npy'}", "--output", tmp_path / "out", "--repeat", 2, "--json"
    )
    np.testing.assert_allclose(np.load(tmp_path / "out" / "output_0.npy"), expected(x, weights), rtol=1e-4, atol=1e-5)
    assert result.json["outputs"] == [{"name": "y", "shape": [2, 8], "dtype": "float32"}]
    assert result.json["latency_seconds"]["min"] <= result.json["latency_seconds"]["p99"]


def test_random_inputs_repeat_with_their_seed(run, artifact, tmp_path):
    path, _ = artifact
    results = []
    for n, seed in enumerate((1, 1, 2)):
        run("run", path, "--seed", seed, "--repeat", 1, "--warm-up", 0, "-o", tmp_path / str(n))
        results.append(np.load(tmp_path / str(n) / "output_0.npy"))
    assert np.array_equal(results[0], results[1])
    assert not np.array_equal(results[0], results[2])


def test_run_shows_percentiles_prediction_and_the_split_of_time(run, artifact):
    shown = run("run", artifact[0], "--repeat", 3).stdout
    for word in ("median", "p90", "p99", "predicted latency", "lower bound", "gap", "loading", "computing", "copying"):
        assert word in shown


def test_run_writes_timeline_and_trace(run, artifact, tmp_path):
    run("run", artifact[0], "--timeline", tmp_path / "l.json", "--trace", tmp_path / "t.json")
    timeline = Timeline.load(tmp_path / "l.json")
    assert timeline.source == "measured"
    assert {event.kind for event in timeline.events} >= {"kernel"}
    trace = json.loads((tmp_path / "t.json").read_text())
    names = [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"]
    assert names == ["predicted", "measured", "start of the process"]


def test_an_emulated_artifact(run, model_file, tmp_path):
    path = tmp_path / "m.so"
    made = run("compile", model_file, "-t", "v100-server", "-s", "single", "--costs", "learned", "-o", path)
    assert "4 GPUs of the topology 'v100-server' are emulated: kernels and copies take the time" in made.stderr
    assert "with 80 %" in made.stdout
    given = ["--repeat", 1, "--input", f"x={tmp_path / 'x.npy'}"]
    np.save(tmp_path / "x.npy", np.linspace(-1, 1, 16, dtype="float32").reshape(2, 8))
    said = run("run", path, *given, "-o", tmp_path / "out", "--json").json
    assert said["source"] == "emulated"
    low, high = said["interval_ns"]
    assert 0 < low < high
    assert said["time_ns"]["loading"]["predicted"] > 0
    assert said["compiled_with"]["emulated"].endswith("this machine's CPU computes the values")
    run("compile", model_file, "-t", "cpu1", "-s", "single", "-o", tmp_path / "cpu.so")
    run("run", tmp_path / "cpu.so", *given, "-o", tmp_path / "expected")
    found, expected = (np.load(tmp_path / folder / "output_0.npy") for folder in ("out", "expected"))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert "emulated" in run("inspect", path).stdout


def test_times_alone_have_no_outputs(run, fails, model_file, tmp_path):
    path = tmp_path / "m.so"
    run("compile", model_file, "-t", "v100-server", "-s", "single", "-o", path, "--backend", "emulated")
    assert run("run", path, "--repeat", 1, "--times-only", "--json").json["outputs"] == []
    assert "no outputs for --output" in fails(2, "run", path, "--times-only", "-o", tmp_path / "out")
    warm = run("run", path, "--repeat", 1, "--times-only", "--resident", 1).stdout
    assert "predicted latency, cold" in warm
    assert "lower bound, cold" in warm
    assert "cold" not in run("run", path, "--repeat", 1, "--times-only").stdout
    run("compile", model_file, "-t", "cpu1", "-s", "single", "-o", path)
    assert "these are real" in fails(2, "run", path, "--times-only")


def test_the_plan_promises_what_the_simulator_says(run, model_file, tmp_path):
    run("problem", model_file, "-t", "v100-server", "-o", tmp_path / "p.json")
    run("schedule", tmp_path / "p.json", "-s", "single", "-o", tmp_path / "s.json")
    promised = run("simulate", tmp_path / "p.json", tmp_path / "s.json", "--json").json["latency_ns"]
    run("compile", model_file, "-t", "v100-server", "-s", "single", "-o", tmp_path / "m.so")
    assert run("run", tmp_path / "m.so", "--repeat", 1, "--json").json["predicted_latency_ns"] == promised


def test_several_shapes_in_one_artifact(run, fails, tmp_path):
    weights = write_model(tmp_path / "open.onnx", batch="n")
    assert "n" in fails(2, "compile", tmp_path / "open.onnx", "-t", "v100-server", "-o", tmp_path / "m.so")
    shapes = ("--shape", "x:1,8", "--shape", "x:4,8")
    run("compile", tmp_path / "open.onnx", "-t", "cpu2", "-s", "single", *shapes, "-o", tmp_path / "m.so")
    for batch in (1, 4):
        x = np.ones((batch, 8), np.float32)
        np.save(tmp_path / "x.npy", x)
        run("run", tmp_path / "m.so", "--input", f"x={tmp_path / 'x.npy'}", "-o", tmp_path / "out", "--repeat", 1)
        np.testing.assert_allclose(np.load(tmp_path / "out" / "output_0.npy"), expected(x, weights), rtol=1e-4)
    np.save(tmp_path / "x.npy", np.ones((3, 8), np.float32))
    assert "[1, 8]" in fails(2, "run", tmp_path / "m.so", "--input", f"x={tmp_path / 'x.npy'}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x", "NAME=FILE.npy"),
        ("y={x}", "no such input"),
        ("x={none}", "cannot be read"),
        ("x={text}", "cannot be read"),
    ],
)
def test_wrong_inputs(fails, artifact, tmp_path, text, words):
    np.save(tmp_path / "x.npy", np.ones((2, 8), np.float32))
    (tmp_path / "text.npy").write_text("no array")
    places = {name: tmp_path / f"{name}.npy" for name in ("x", "none", "text")}
    assert words in fails(2, "run", artifact[0], "--input", text.format(**places))


def test_wrong_output_directory(fails, artifact, tmp_path):
    assert "no directory" in fails(2, "run", artifact[0], "-o", tmp_path / "a" / "b")
    (tmp_path / "file").write_text("")
    assert "a file" in fails(2, "run", artifact[0], "-o", tmp_path / "file")


def test_a_failed_compilation_leaves_the_old_artifact(fails, model_file, tmp_path, monkeypatch):
    def fail(self, path):
        Path(path).write_bytes(b"half")
        raise RuntimeError("linker")

    monkeypatch.setattr("tvm.relax.VMExecutable.export_library", fail)
    (tmp_path / "m.so").write_bytes(b"old")
    assert "linker" in fails(1, "compile", model_file, "-t", "cpu1", "-s", "single", "-o", tmp_path / "m.so")
    assert (tmp_path / "m.so").read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.so", "two.onnx"]


def test_missing_parameters(run, fails, model_file, tmp_path):
    path = tmp_path / "m.so"
    run("compile", model_file, "-t", "cpu1", "-s", "single", "-o", path, "--parameters", "external")
    (tmp_path / "m.safetensors").rename(tmp_path / "other.safetensors")
    assert "name it with --parameter-file" in fails(2, "run", path)
    run("run", path, "--repeat", 1, "--parameter-file", tmp_path / "other.safetensors")


def test_damaged_parameters(run, fails, model_file, tmp_path, monkeypatch, capsys):
    """Small files are compared with their checksum by every load, others by --verify and by doctor."""
    from tvm_sched_runtime.run_artifact import main as run_artifact
    from tvm_sched_runtime.runtime import load, loading

    path, file = tmp_path / "m.so", tmp_path / "m.safetensors"
    run("compile", model_file, "-t", "cpu1", "-s", "single", "-o", path, "--parameters", "external")
    whole = file.read_bytes()
    assert "2 parameters: as written, by its checksum" in " ".join(run("doctor", path).stdout.split())
    file.write_bytes(whole[:-100] + bytes([whole[-100] ^ 0x40]) + whole[-99:])
    asked = ("run", path, "--repeat", 1)
    for arguments in (asked, (*asked, "--parameter-file", file), ("generate", path, "text")):
        assert "was altered after it was written" in fails(2, *arguments).replace("\n", " ")
    failed = run_command("doctor", path)
    assert failed.status == 1
    assert "was altered after" in " ".join(failed.stdout.split())
    monkeypatch.setattr(loading, "CHEAP_BYTES", 0)
    run(*asked)
    assert "compiled without --generate" in fails(2, "generate", path, "text").replace("\n", " ")
    for arguments in (asked, ("generate", path, "text"), ("serve", path, "--port", 0, "--no-grpc")):
        assert "was altered after it was written" in fails(2, *arguments, "--verify").replace("\n", " ")
    for command in ([], ["generate"]):
        assert run_artifact([*command, str(path), *(["text"] if command else []), "--verify"]) == 2
        assert "was altered after it was written" in capsys.readouterr().err
    file.write_bytes(whole.replace(b"tvm_sched.crc32c", b"tvm_sched.nothing"[:16]))
    with pytest.warns(UserWarning, match="cannot be verified, since it has no checksum"):
        load(path, verify=True)
    assert "it has no checksum" in " ".join(run("doctor", path).stdout.split())


def test_run_says_what_ran(run, artifact):
    shown = run("run", artifact[0], "--repeat", 1).stdout
    for words in ("cpu2", "single", "x [2, 8] float32", "y [2, 8] float32"):
        assert words in shown


def test_a_model_that_computes_nothing(run, tmp_path):
    onnx = pytest.importorskip("onnx")
    onnx.save(onnx_model("(float[3] x) => (float[3] y) { y = Identity(x) }"), tmp_path / "same.onnx")
    said = run("compile", tmp_path / "same.onnx", "-t", "cpu1", "-s", "single", "-o", tmp_path / "m.so").stderr
    assert "computes nothing: a run returns its inputs" in said
    np.save(tmp_path / "x.npy", np.arange(3, dtype="float32"))
    run("run", tmp_path / "m.so", "--repeat", 1, "--input", f"x={tmp_path / 'x.npy'}", "-o", tmp_path / "out")
    assert np.load(tmp_path / "out" / "output_0.npy").tolist() == [0, 1, 2]


def test_places_that_refuse_files(fails, model_file, artifact):
    assert "cannot be written" in fails(2, "compile", model_file, "-t", "cpu1", "-s", "single", "-o", "/proc/m.so")
    assert "cannot be created" in fails(2, "run", artifact[0], "--repeat", 1, "-o", "/proc/outputs")
