"""The command as a process of its own: imports, help, signals, pipes."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from onnx_text import onnx_model
from tvm_sched import __version__
from tvm_sched_bench.testing import random_problem
from tvm_sched_runtime.schedule import Schedule

from .conftest import write_model

COMMANDS = ["compile", "run", "schedule", "simulate", "verify", "compare", "pipeline", "problem", "schedulers"]
COMMANDS += [
    "auto",
    "sweep",
    "inspect",
    "check",
    "explain",
    "deploy",
    "serve",
    "rollout",
    "status",
    "request",
    "undeploy",
]
PROGRAM = [sys.executable, "-m", "tvm_sched.cli"]


def call(*arguments):
    return subprocess.run([*PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)


def test_the_command_imports_nothing_heavy():
    heavy = ("tvm", "tvm_ffi", "numpy", "ortools", "onnx", "plotly", "torch", "rustworkx")
    script = f"import sys, tvm_sched.cli; sys.exit(', '.join(m for m in {heavy!r} if m in sys.modules) or None)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("package", "native"),
    [
        ("tvm_sched.schedulers", "tvm_sched_runtime.schedule.native_problem"),
        ("tvm_sched.pipeline", "tvm_sched_runtime.problem.native_partition"),
        ("tvm_sched_cluster", "tvm_sched_cluster.search.native_search"),
    ],
)
def test_solvers_and_frameworks_are_imported_where_they_are_used(package, native):
    heavy = ("ortools", "torch", "tvm")
    script = f"""
import sys, {package}, {native}
sys.exit(', '.join(m for m in {heavy!r} if m in sys.modules) or None)"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_version_and_help():
    assert call("--version").stdout.strip() == f"tvm-sched {__version__}"
    shown = call("--help").stdout
    assert all(command in shown for command in [*COMMANDS, "topology"])


@pytest.mark.parametrize("command", [[c] for c in COMMANDS] + [["topology", c] for c in ("list", "show", "check")])
def test_every_command_teaches_by_example(run, command):
    shown = " ".join(run(*command, "--help").stdout.split())
    assert f"tvm-sched {' '.join(command)}" in shown.split("Examples")[1]
    assert "--json" in shown


def interrupted(tmp_path, word, operators, work=1000):
    """What is left of a schedule that was interrupted when its progress spoke of ``word``."""
    random_problem(1, operators, devices=4, memory="generous").save(tmp_path / "p.json")
    options = ["--time-limit", 1000, "--option", f"work={work}", "-o", tmp_path / "s.json"]
    process = subprocess.Popen(
        [*PROGRAM, "schedule", tmp_path / "p.json", *map(str, options)], stderr=subprocess.PIPE, text=True
    )
    line = process.stderr.readline()
    assert line.startswith("Scheduling with anytime"), "the first line of progress"
    while word not in line:
        line = process.stderr.readline()
        assert line, f"it ended before its progress spoke of {word}"
    process.send_signal(signal.SIGINT)
    return process, process.communicate(timeout=60)[1]


def test_ctrl_c_before_there_is_a_schedule(tmp_path):
    process, rest = interrupted(tmp_path, "Scheduling", operators=600)
    if process.returncode == 0:
        pytest.skip("the first schedule was there before the signal")
    assert process.returncode == 130
    assert "interrupted; nothing was saved" in rest
    assert not (tmp_path / "s.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("word", "work"), [("annealing", 1000), ("local search", 10)])
@pytest.mark.sampled(6)
def test_ctrl_c_while_a_search_works_gives_the_best_schedule_so_far(tmp_path, word, work):
    process, _ = interrupted(tmp_path, word, 150, work)
    assert process.returncode == 0
    assert Schedule.load(tmp_path / "s.json").certificate.latency_ns > 0


@pytest.mark.slow
def test_a_ctrl_c_that_comes_by_two_ways_is_one(tmp_path):
    """`timeout -s INT` sends it to the process and to its group, which has the child that computes."""
    random_problem(1, 150, devices=4, memory="generous").save(tmp_path / "p.json")
    options = ["--option", "work=1000", "-o", tmp_path / "s.json"]
    process = subprocess.Popen(
        [*PROGRAM, "schedule", tmp_path / "p.json", *map(str, options)], stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    line = ""
    while "annealing" not in line:
        line = process.stderr.readline()
        assert line
    process.send_signal(signal.SIGINT)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert Schedule.load(tmp_path / "s.json").certificate.latency_ns > 0


@pytest.mark.slow
def test_a_closed_standard_output():
    command = " ".join([*PROGRAM, "schedulers", "--json"])
    result = subprocess.run(["sh", "-c", f"{command} >&-"], capture_output=True, text=True, timeout=120, check=False)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.slow
def test_without_the_compiler(tmp_path):
    pytest.importorskip("onnx")
    write_model(tmp_path / "m.onnx")
    environment = {**os.environ, "TVM_USE_RUNTIME_LIB": "1"}
    command = [*PROGRAM, "compile", tmp_path / "m.onnx", "-t", "cpu1", "-o", tmp_path / "m.so"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 2
    assert "error: TVM_USE_RUNTIME_LIB=1 loads TVM without its compiler" in result.stderr
    assert "Traceback" not in result.stderr


def test_nothing_follows_the_line_of_an_error(tmp_path):
    """TVM warns, in C++, of a module left half built: when it is destroyed, which is after the error."""
    onnx = pytest.importorskip("onnx")
    path, text = tmp_path / "wrong.onnx", "(float[2, 8] x) => (float[2, 8] y) { y = MatMul(x, w) }"
    onnx.save(onnx_model(text, {"w": np.zeros((4, 4), "float32")}), path)
    result = call("schedule", path, "-t", "cpu1", "-s", "single", "--costs", "roofline")
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith("error: ")


def test_an_ignored_ctrl_c_stays_ignored():
    """A script's background job ignores it, because it is meant for what runs in front."""
    script = """
import os, signal, threading
signal.signal(signal.SIGINT, signal.SIG_IGN)
from tvm_sched.cli import interrupt
interrupt.watch()
os.kill(os.getpid(), signal.SIGINT)
print(signal.sigpending(), len(threading.enumerate()))
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "set() 1\n")
