"""`tvm-sched doctor` as people call it, with and without GPUs."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import tvm_ffi
from runtime_plans import PlanBuilder
from typer.testing import CliRunner

import fake_driver
from tvm_sched.cli import app
from tvm_sched.doctor import diagnose
from tvm_sched.doctor.against import against_checks
from tvm_sched.doctor.artifact_checks import run_checks
from tvm_sched_runtime.errors import InputError

needs_compiler = pytest.mark.skipif(fake_driver.COMPILER is None, reason="there is no C++ compiler for the fake driver")


@pytest.fixture
def no_gpu(monkeypatch, tmp_path):
    monkeypatch.setenv("TVM_SCHED_CUDA_DRIVER", str(tmp_path / "libnone.so"))


def doctor(*arguments):
    done = CliRunner().invoke(app, ["doctor", *arguments])
    return done.exit_code, done.stdout


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_the_rest_is_checked():
    status, text = doctor()
    assert status == 0
    assert "absent   driver: the CUDA driver cannot be loaded" in text
    assert "ok       machine" in text


@pytest.mark.usefixtures("no_gpu")
def test_a_gpu_that_is_needed_and_missing_is_a_failure():
    status, text = doctor("--cuda", "--json")
    found = json.loads(text)
    assert status == 1
    assert not found["healthy"]
    assert [check["name"] for check in found["checks"] if check["status"] == "failure"] == ["driver"]


@needs_compiler
@pytest.mark.thorough
def test_gpus_are_compared_with_a_topology():
    few_bytes = "import tvm_sched.doctor.gpus as gpus, tvm_sched.cli\ngpus.COPY_BYTES = 1 << 16\ntvm_sched.cli.main()"
    command = [sys.executable, "-c", few_bytes, "doctor", "--cuda", "-t", "v100-server"]
    named = fake_driver.environment(gpus=4, peers=0, FAKE_CUDA_NAMES="A;B", COLUMNS="300")
    done = subprocess.run(command, env=named, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "GPU 0: A, sm_90, 1.00 GiB" in done.stdout
    assert "GPU 1: B, sm_90" in done.stdout
    assert re.search(r"gpu1 is .* in topology 'v100-server', and GPU 0 is A, sm_90", done.stdout)
    assert "topology 'v100-server' says 12.3 GB/s" in done.stdout


def test_what_is_wrong_with_the_arguments_is_said():
    assert doctor("--against", "other.so")[0] == 2
    assert doctor("--gpus", "0,x")[0] == 2
    status, text = doctor("missing.so")
    assert status == 1
    assert "failure  file: missing.so: there is no such file" in text


def doubling(backend="cpu", factor=2):
    """A module that multiplies by a number, in a kernel of Python's."""

    def kernel(x, out):
        np.from_dlpack(out)[...] = np.from_dlpack(x) * factor

    name = f"doctor_times_{factor}"
    tvm_ffi.register_global_func(name, kernel, override=True)
    builder = PlanBuilder("p", backend, 1)
    x, out = builder.argument("x", [4]), builder.output([4])
    here, there = builder.arena(0, [4]), builder.arena(0, [4])
    kernel_step = builder.kernel(0, name, [here], [there], [builder.copy(x, here)])
    builder.copy(there, out, [kernel_step])
    return builder.module()


def by_name(checks):
    return {check.name: check for check in checks}


def test_an_artifact_for_cpus_is_run_and_compared():
    checks = by_name(run_checks(doubling()))
    assert checks["values"].status == "ok"
    assert len(checks["kernels"].data["kernels"]) == 1
    same = by_name(against_checks(doubling(), doubling()))
    assert same["outputs beside the CPU's"].status == "ok"
    assert same["kernels beside the CPU's"].text.startswith("1 compared")
    other = by_name(against_checks(doubling(), doubling(factor=3)))
    assert other["outputs beside the CPU's"].status == "failure"
    assert "1 have no counterpart" in other["kernels beside the CPU's"].text


def test_values_that_change_from_run_to_run_are_a_failure():
    module = doubling(factor=5)
    calls = []

    def kernel(x, out):
        calls.append(0)
        np.from_dlpack(out)[...] = len(calls)

    tvm_ffi.register_global_func("doctor_times_5", kernel, override=True)
    assert by_name(run_checks(module))["values"].status == "failure"


def test_a_comparison_needs_an_artifact():
    with pytest.raises(InputError, match="--against compares an artifact"):
        diagnose(against="x.so")
