"""Commands that are ended at a random moment: an output that was there stays whole, and nothing partial stays for good.

What a killed process leaves has a name with a dot, and the next one that writes the same output removes it.
"""

import functools
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tvm_sched.cost_model.device_properties import properties
from tvm_sched.cost_model.learned_model import LearnedModel
from tvm_sched.cost_model.profile import Measurement, Profile, this_machine
from tvm_sched_bench.testing import random_problem
from tvm_sched_cluster import Allocation
from tvm_sched_runtime.pipeline import PipelinePlan, load_manifest
from tvm_sched_runtime.problem import Problem, load_topology
from tvm_sched_runtime.runtime.artifact import check_library
from tvm_sched_runtime.schedule import Schedule, Timeline

from .conftest import write_model

PROGRAM = [sys.executable, "-m", "tvm_sched.cli"]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


def check_artifact(path):
    check_library(path)  # its checksum is over the whole file


def check_json(path):
    json.loads(path.read_bytes())


def write_profile(path):
    """Latencies of 100 kernels, to learn from."""
    kernels = tuple(
        Measurement(
            f"onednn.matmul|{1024 * n}|a float32[16,32];p float32[32,{n}]|float32[16,{n}]", f"m{n % 7}", n * 1e-7
        )
        for n in range(8, 108)
    )
    Profile(this_machine(), properties(load_topology("cpu1").devices[0]), kernels).save(path)


EQUAL = ["pipeline", "two.onnx", "-t", "cpu2", "--stages", "2", "--partitioner", "equal-split"]
COMMANDS = {
    "schedule": (["schedule", "p.json", "-s", "heft", "-o", "out.json"], "out.json", Schedule.load),
    "problem": (["problem", "two.onnx", "-t", "cpu2", "-o", "out.json"], "out.json", Problem.load),
    "simulate": (["simulate", "p.json", "s.json", "--timeline", "out.json"], "out.json", Timeline.load),
    "pipeline": (
        [*EQUAL, "-o", "out.json"], "out.json", PipelinePlan.load,
    ),
    "compile": (["compile", "two.onnx", "-t", "cpu2", "-s", "single", "-o", "out.so"], "out.so", check_artifact),
    "artifact": (
        [*EQUAL, "--artifact", "out.pipeline"],
        "out.pipeline",
        load_manifest,
    ),
    "place": (["cluster", "place", "rampa-base", "--demand", "same", "--count", "40", "-o", "out.json"], "out.json",
              Allocation.load),
    "learn": (["learn", "profile.json", "--no-published", "-o", "out.msgpack"], "out.msgpack", LearnedModel.load),
    "run": (["run", "m.so", "--repeat", "300", "--trace", "out.json"], "out.json", check_json),
}  # fmt: skip
PREPARED = {"run": ["compile", "two.onnx", "-t", "cpu2", "-s", "single", "-o", "m.so"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("signals")
    problem = random_problem(3, operators=12, devices=2, memory="generous")
    problem.save(place / "p.json")
    from tvm_sched.schedulers import solve

    solve(problem, method="heft").save(place / "s.json")
    pytest.importorskip("onnx")
    write_model(place / "two.onnx")
    write_profile(place / "profile.json")
    return place


def hidden(folder):
    return sorted(p.name for p in folder.iterdir() if p.name.startswith("."))


def finish(place, arguments, **more):
    done = subprocess.run(
        [*PROGRAM, *arguments], cwd=place, capture_output=True, text=True, timeout=300, check=False, **more
    )
    return done


def end_at_a_random_moment(place, arguments, number, seconds):
    """Send a signal while a command works; its exit status, or 0 where it was done before."""
    process = subprocess.Popen([*PROGRAM, *arguments], cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(number)
    _, said = process.communicate(timeout=120)
    assert b"Traceback" not in said
    return process.returncode


@pytest.fixture(scope="module")
def undisturbed(folder, tmp_path_factory):
    """A copy of the folder in which a command was run to its end, and how long that took; each command once."""

    @functools.cache
    def of(name):
        place = tmp_path_factory.mktemp(name) / "work"
        shutil.copytree(folder, place)
        if name in PREPARED:
            assert finish(place, PREPARED[name]).returncode == 0
        begin = time.monotonic()
        done = finish(place, COMMANDS[name][0])
        assert done.returncode == 0, done.stderr
        return place, time.monotonic() - begin

    return of


def disturb(undisturbed, tmp_path, name, rounds, seed):
    arguments, output, check = COMMANDS[name]
    first, whole = undisturbed(name)
    shutil.copytree(first, tmp_path / "work")
    place = tmp_path / "work"
    rng = random.Random(seed)
    for _ in range(rounds):
        number = rng.choice(SIGNALS)
        status = end_at_a_random_moment(place, arguments, number, rng.uniform(0.3, 1.0) * whole)
        check(place / output)
        assert status in (0, 1, 130, -number), status
    last = finish(place, arguments)
    assert last.returncode == 0, last.stderr
    assert hidden(place) == []


ROUNDS = int(os.environ.get("TVM_SCHED_SIGNAL_ROUNDS", "0"))
"""Random moments at which each command is ended in the long test."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["schedule", "compile"])
@pytest.mark.sampled(6)
def test_ended_at_a_random_moment(undisturbed, tmp_path, name):
    disturb(undisturbed, tmp_path, name, rounds=2 if name == "schedule" else 1, seed=0)


@pytest.mark.slow
@pytest.mark.skipif(ROUNDS == 0, reason="takes an hour; TVM_SCHED_SIGNAL_ROUNDS=50 asks for it")
@pytest.mark.parametrize("name", COMMANDS)
def test_ended_at_many_random_moments(undisturbed, tmp_path, name):
    disturb(undisturbed, tmp_path, name, rounds=ROUNDS, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["schedule", "compile"])
@pytest.mark.sampled(6)
def test_no_room_on_the_disk(folder, tmp_path, name):
    """As where the disk is full: no file may grow beyond a page."""
    arguments, output, _ = COMMANDS[name]
    shutil.copytree(folder, tmp_path / "work")
    place = tmp_path / "work"
    content = b"what was there"
    (place / output).write_bytes(content)

    def no_room():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    # Coverage, where that is measured, could not write what it measures of this process either, and would say so.
    unmeasured = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_PROCESS")}
    done = finish(place, arguments, preexec_fn=no_room, env=unmeasured)
    assert done.returncode in (1, 2), done.stderr
    assert "Traceback" not in done.stderr
    assert (place / output).read_bytes() == content
    again = finish(place, arguments)  # LLVM ends the process where it cannot write: the next one clears up
    assert again.returncode == 0, again.stderr
    assert hidden(place) == []


@pytest.mark.thorough
@pytest.mark.slow
def test_two_processes_write_one_artifact(folder, tmp_path):
    place = tmp_path / "work"
    shutil.copytree(folder, place)
    arguments, output, _ = COMMANDS["compile"]
    both = [subprocess.Popen([*PROGRAM, *arguments], cwd=place, stderr=subprocess.PIPE) for _ in range(2)]
    for process in both:
        assert process.communicate(timeout=300)[1] is not None
        assert process.returncode == 0
    check_artifact(place / output)
    assert hidden(place) == []
    np.save(place / "x.npy", np.ones((2, 8), "float32"))
    assert finish(place, ["run", output, "--repeat", "1", "--input", "x=x.npy"]).returncode == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_may_only_be_read(folder, tmp_path):
    place = tmp_path / "work"
    shutil.copytree(folder, place)
    place.chmod(0o500)
    try:
        done = finish(place, COMMANDS["schedule"][0])
    finally:
        place.chmod(0o700)
    assert done.returncode == 2
    assert "may not be written" in done.stderr
