"""The comparison of TVM's own tests, on a checkout of three tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tvm_suite.run import compare

pytest.importorskip("tvm")
RUN = Path(__file__).with_name("run.py")
CHECKOUT = """
import os
import numpy as np, tvm
from tvm import relax

def made(wrap):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(wrap(builder.emit(relax.op.nn.relu(x))))
    return tvm.compile(builder.get(), "llvm")

def test_values():
    ran = relax.VirtualMachine(made(lambda y: y), tvm.cpu())["main"](tvm.runtime.tensor(np.array([-1, 0, 1, 2], "float32")))
    assert ran.numpy().tolist() == [0, 0, 1, 2]

def test_refused():
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(dtype="float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(x)
    tvm.compile(builder.get(), "llvm")

def test_ends_the_process():
    os._exit(1)

def test_fails_everywhere():
    assert False
"""
DIFFERENT = """
def test_different():
    import tvm
    assert len(tvm.target.list_tags() or ()) >= 0 and "tvm_sched" not in tvm.relax.pipeline.PIPELINE_MAP
"""


def run(tmp_path, content, *arguments):
    folder = tmp_path / "tests" / "python" / "relax"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "test_vm_build.py").write_text(content)
    (tmp_path / "torch.py").write_text("raise ImportError('tvm_ffi imports PyTorch where there is one: two seconds')\n")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "TVM_SOURCE": str(tmp_path), "PYTHONPATH": paths}
    return subprocess.run(
        [sys.executable, RUN, "--record", tmp_path / "record.jsonl", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_what_has_not_run_is_no_agreement():
    plain = {f"{file}::{test}": {"outcome": "passed", "calls": {"for the CPU": 1}} for file in "ab" for test in "xyz"}
    plain["c::x"] = {"outcome": "passed"}
    here = {"a::x": {"outcome": "passed"}, "a::y": {"outcome": "not run"}, "b::x": {"outcome": "failed"}}
    files = {"rerouted": {"a": {"limit": 1}}, "installed": {}}
    tests = {"plain": plain, "rerouted": here, "installed": {}}
    found = compare(tests, files, "rerouted")
    assert found == {
        "same": ["a::x"], "expected": [], "different": ["a::z", "b::x"], "not run": ["a::y", "b::y", "b::z"],
        "nothing": ["c::x"],
    }  # fmt: skip
    assert compare(tests, files, "installed")["not run"] == list(plain)


@pytest.mark.thorough
def test_no_difference(tmp_path):
    done = run(tmp_path, CHECKOUT, "--markdown", tmp_path / "page.md")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rerouted: 1 failed, 2 passed, 1 unfinished" in done.stdout
    said = (tmp_path / "page.md").read_text()
    for way in ("plain", "installed", "rerouted"):
        assert f"| {way} | 1 | 2 / 0 / 1 / 1 / 0 |\n" in said
    assert "| rerouted | 2 | 0 | 0 | 0 | 0 |" in said
    assert "1 modules were compiled by us and 1 were refused" in said
    assert "| 1 | input … has no shape in the module …" in said
    record = (tmp_path / "record.jsonl").read_text()
    assert run(tmp_path, CHECKOUT).returncode == 0
    assert (tmp_path / "record.jsonl").read_text() == record  # nothing runs twice


@pytest.mark.thorough
def test_a_difference_is_told(tmp_path):
    done = run(tmp_path, DIFFERENT)
    assert done.returncode == 1
    assert "installed: test_vm_build.py::test_different is failed, and passes plain" in done.stdout


def test_no_checkout(tmp_path):
    done = subprocess.run([sys.executable, RUN, "--source", tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "name a checkout of TVM" in done.stderr


@pytest.mark.thorough
def test_a_file_that_cannot_be_imported_leaves_nothing_to_compare(tmp_path):
    done = run(tmp_path, "from tvm import no_such_name\n")
    assert done.returncode == 2
    assert "no test passes plain, so nothing can be compared" in done.stderr
    assert "installed:" not in done.stdout
