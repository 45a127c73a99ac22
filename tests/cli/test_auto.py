"""`auto`: an artifact, a report and three lines; Ctrl-C leaves the artifact that was there."""

import importlib.util
import signal
import subprocess
import sys

import numpy as np
import pytest

from tvm_sched.report.gains import Gains, Rival
from tvm_sched_runtime import runtime

from .conftest import write_model

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("auto")]


def expected(x, weights):
    return sum(np.maximum(x @ weight, 0) for weight in weights)


def check(path, weights):
    x = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)
    (result,) = runtime.load(path).run(x)
    np.testing.assert_allclose(result, expected(x, weights), rtol=1e-4, atol=1e-5)


def test_it_writes_artifact_and_report_and_says_what_was_gained(run, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    weights = write_model(tmp_path / "two.onnx")
    result = run("auto", "two.onnx", "--json")
    check(tmp_path / "two-auto" / "model.so", weights)
    assert "report-data" in (tmp_path / "two-auto" / "report.html").read_text()
    assert result.json["files"] == {"artifact": "two-auto/model.so", "report": "two-auto/report.html"}
    rival = result.json["onnxruntime"]
    assert rival["difference"] < 1e-5
    assert rival["seconds"] > 0
    assert result.json["seconds"] == rival["ours"]
    assert (result.json["one_device"] is None) == (result.json["schedule"] == "one device with all cores")


def test_without_onnxruntime_it_says_so(run, model_file, tmp_path, monkeypatch):
    from tvm_sched import auto

    monkeypatch.setattr(
        auto, "find_spec", lambda name: None if name == "onnxruntime" else importlib.util.find_spec(name)
    )
    lines = run("auto", model_file, "-o", tmp_path / "out").stdout.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("two.onnx on ")
    assert lines[2] == "ONNX Runtime: not installed, so there is no comparison: pip install onnxruntime"


def test_several_shapes_are_refused(fails, model_file, tmp_path):
    said = fails(2, "auto", model_file, "--shape", "x:{2,4},8", "-o", tmp_path / "out")
    assert "one set of shapes" in said
    assert not (tmp_path / "out").exists()


def test_ctrl_c_leaves_the_artifact_for_one_device(tmp_path):
    weights = write_model(tmp_path / "two.onnx")
    command = [sys.executable, "-m", "tvm_sched.cli", "auto", "two.onnx"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith("report:"):
            process.send_signal(signal.SIGINT)
            break
    said += process.stderr.readlines()
    assert process.wait(timeout=60) == 130, said
    assert said[-1] == "interrupted; saved before: two-auto/model.so, two-auto/report.html\n"
    check(tmp_path / "two-auto" / "model.so", weights)


def gains(**changes):
    given = {
        "model": "m.onnx", "machine": "two cores", "schedule": "in parallel", "seconds": 0.010, "others": [],
        "one_device": Rival(name="one device", seconds=0.0125, ours=0.010, quiet=True), "onnxruntime": None,
        "onnxruntime_absent": "not installed",
    }  # fmt: skip
    return Gains(**{**given, **changes}).lines()


def test_the_lines_give_the_ratio_of_the_measured_times():
    assert gains() == [
        "m.onnx on two cores: 10.0 ms (operators in parallel)",
        "1.25 times as fast as one device (10.0 ms against 12.5 ms)",
        "ONNX Runtime: not installed",
    ]
    slower = Rival(name="ONNX Runtime 1", seconds=0.005, ours=0.010, quiet=False, difference=2e-6)
    assert gains(onnxruntime=slower, one_device=None, others=["logical devices"])[1:] == [
        "one device is fastest here (not faster: a device for each core)",
        "0.50 times as fast as ONNX Runtime 1 (10.0 ms against 5.00 ms, outputs within 2e-06 of the largest; other "
        "processes were busy)",
    ]
    same = Rival(name="ONNX Runtime 1", seconds=0.010, ours=0.010, quiet=True, difference=0.0)
    assert gains(onnxruntime=same)[2] == "as fast as ONNX Runtime 1 (10.0 ms against 10.0 ms, equal outputs)"
