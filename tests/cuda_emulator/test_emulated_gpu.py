"""The backend ``cuda`` from model to values on emulated GPUs: tests that need a GPU run in processes that have such ones."""

import subprocess
import sys
from pathlib import Path

import build
import pytest

from thorough import THOROUGH

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# Of each run: what pytest is given, and the GPUs.
RUNS = {
    "tests of GPUs": (["-m", "gpu", "tests/cuda", *([] if THOROUGH else ["-k", "not pipeline"])], {}),
    "networks": ([HERE / "cases_networks.py"], {"seed": 2}),
    "operators": ([HERE / "cases_operators.py"], {"seed": 7}),
    "libraries": ([HERE / "cases_libraries.py"], {"seed": 8}),
    **({"generation": ([HERE / "cases_generation.py"], {"seed": 5})} if THOROUGH else {}),
    "generation, four": (
        [HERE / "cases_generation.py"],
        {"devices": 4, "archs": "sm_80,sm_86,sm_89,sm_90", "seed": 6},
    ),
    "schedules, peers": ([HERE / "cases_schedules.py"], {"devices": 4, "archs": "sm_80,sm_86,sm_89,sm_90", "seed": 3}),
    "variants": ([HERE / "cases_variants.py"], {"devices": 4, "seed": 7}),
    "schedules, no peers": (
        [HERE / "cases_schedules.py"],
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
        *map(str, arguments),
    ]
    environment = build.environment(**gpus)
    environment["TVM_SCHED_CUDA_ARCHS"] = ",".join(sorted(set(environment["FAKE_CUDA_ARCHS"].split(","))))
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=3000 if THOROUGH else 600
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-4000:]
    assert " passed" in done.stdout
    print(done.stdout.splitlines()[-1])
