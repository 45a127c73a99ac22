"""Commands on an artifact that takes any size: `run --shape`, `tvm-sched-run --shape`, `inspect`, `doctor`."""

import json
import warnings

import numpy as np
import pytest

from tvm_sched.doctor.artifact_checks import open_artifact, run_checks
from tvm_sched_runtime.run_artifact import main as run_artifact

from .conftest import expected, write_model


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    """The model of these tests with an open batch of 1 to 6, and its weights."""
    from tvm_sched.relax import compile

    folder = tmp_path_factory.mktemp("open")
    weights = write_model(folder / "two.onnx", batch="batch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = compile(
            folder / "two.onnx", "cpu1", "single", cost_model="roofline", input_shapes={"batch": range(1, 7)}
        )
    compiled.export(folder / "two.so")
    return folder / "two.so", weights


def test_run_takes_sizes_of_open_dimensions_and_shapes_of_inputs(run, fails, artifact, tmp_path, capsys):
    file, weights = artifact
    command = ("run", file, "--repeat", 1, "--output", tmp_path / "out", "--trace", tmp_path / "trace.json", "--json")
    for options, plan, rows in (
        (("--shape", "batch=3"), "two#any[batch=3]", 3),
        (("--shape", "x:2,8"), "two#any[batch=2]", 2),
        (("--shape", "batch=6"), "two", 6),
        ((), "two", 6),
    ):
        told = run(*command, *options).json
        assert (told["plan"], told["outputs"][0]["shape"]) == (plan, [rows, 8])
    np.save(tmp_path / "x.npy", np.random.default_rng(1).standard_normal((5, 8)).astype(np.float32))
    run(*command, "--input", f"x={tmp_path / 'x.npy'}")
    found = np.load(tmp_path / "out" / "output_0.npy")
    np.testing.assert_allclose(found, expected(np.load(tmp_path / "x.npy"), weights), rtol=1e-4, atol=1e-5)
    shown = run("run", file, "--repeat", 1, "--shape", "batch=4").stdout
    assert "x [4, 8] float32" in shown
    assert "predicted latency, at another size" in shown
    for options, reason in (
        ("batch=7", "sizes from 1 to 6 are allowed"),
        ("tokens=3", "--shape tokens: the artifact has no such open dimension; it has batch"),
        ("y:3", "--shape y: the artifact has no such input; it has x"),
        ("x:3", "input 'x' has the shape [3]; the model takes x[batch, 8]"),
        ("batch={1,2}", "a run has one"),
    ):
        assert reason in fails(2, *command, "--shape", options)
    assert run_artifact([str(file), "--shape", "batch=3", "--repeat", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outputs"][0]["shape"] == [3, 8]
    assert run_artifact([str(file), "--shape", "batch=7"]) == 2
    assert "sizes from 1 to 6 are allowed" in capsys.readouterr().err


def test_inspect_and_doctor_know_open_sizes(run, artifact):
    file, _ = artifact
    found = run("inspect", file, "--json").json
    assert found["symbols"] == ["batch"]
    assert found["about"]["any size"] == "batch from 1 to 6"
    assert [tensor["shape"] for tensor in found["inputs"]] == [["batch", 8], [6, 8]]
    assert [tensor["shape"] for tensor in found["outputs"]] == [["batch", 8], [6, 8]]
    module, checks = open_artifact(file, None)
    assert "1 plans, and a template for any size" in checks[0].text
    (check,) = [check for check in run_checks(module) if check.name == "any size"]
    assert (check.status, check.text) == ("ok", "batch 2: two runs gave the same 1 outputs, and all are finite")
