"""The backend ``cuda`` from model to values on emulated GPUs: tests that need a GPU run in processes that have such ones."""

import subprocess
import sys
from pathlib import Path

import build
import pytest

from thorough import THOROUGH

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CASES = {
    name: HERE / f"cases_{name}.py"
    for name in ("networks", "operators", "libraries", "generation", "schedules", "variants")
}
FOUR = "sm_80,sm_86,sm_89,sm_90"
# Of each run, a process: what pytest is given, and the GPUs.
RUNS = {
    "one GPU": (
        ["tests/cuda", CASES["networks"], CASES["operators"], CASES["libraries"]]
        + ([CASES["generation"]] if THOROUGH else ["-k", "not pipeline"]),
        {"seed": 2},
    ),
    "four, peers": ([CASES["schedules"], CASES["generation"]], {"devices": 4, "archs": FOUR, "seed": 3}),
    "four alike": ([CASES["variants"]], {"devices": 4, "seed": 7}),
    "four, no peers": (
        [CASES["schedules"]],
        {"devices": 4, "archs": "sm_90,sm_90,sm_100,sm_80", "peers": False, "seed": 4},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_on_emulated_gpus(name):
    if reason := build.why_not():
        pytest.skip(reason)
    arguments, gpus = RUNS[name]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "--no-header",
        "-m",
        "gpu",
        *map(str, arguments),
    ]
    environment = build.environment(**gpus)
    environment["TVM_SCHED_CUDA_ARCHS"] = ",".join(sorted(set(environment["FAKE_CUDA_ARCHS"].split(","))))
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=3000 if THOROUGH else 1200
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-4000:]
    assert " passed" in done.stdout
    print(done.stdout.splitlines()[-1])
