"""The backend ``cuda`` from model to values on emulated GPUs: tests that need a GPU run in processes that have such ones."""

from pathlib import Path

import build
import pytest

from docs import command_server
from thorough import PARTS, repeated_here

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CASES = {
    name: HERE / f"cases_{name}.py"
    for name in ("networks", "operators", "libraries", "recurrent", "generation", "language", "schedules", "variants")
}
FOUR = "sm_80,sm_86,sm_89,sm_90"
FEW = (
    "not pipeline and not (every_way and not nvidia) "
    "and not (four_devices and nvidia and branches) and not (four_devices and image and not nvidia)"
)
FEW_SCHEDULES = "not (pipelines and branches) and not (random_schedules and image and handwritten_cuda)"
"""What one GPU and four run in `make test`: each model, and each kind of kernels, once."""
# Of each run, a process: what pytest is given, and the GPUs.
RUNS = {
    "one GPU": (
        ["tests/cuda", *(CASES[name] for name in ("operators", "libraries", "recurrent", "language"))]
        + ([CASES["generation"]] if repeated_here() else ["-k", FEW]),
        {"seed": 2},
    ),
    "networks": ([CASES["networks"]], {"seed": 2}),
    "four, peers": (
        [CASES["schedules"]] + ([CASES["generation"], CASES["language"]] if repeated_here() else ["-k", FEW_SCHEDULES]),
        {"devices": 4, "archs": FOUR, "seed": 3},
    ),
    "four alike": ([CASES["variants"]], {"devices": 4, "seed": 7}),
    "four, pairs": ([CASES["schedules"]], {"devices": 4, "archs": FOUR, "peers": "pairs", "seed": 5}),
    "four, no peers": (
        [CASES["schedules"]],
        {"devices": 4, "archs": "sm_90,sm_90,sm_100,sm_80", "peers": "none", "seed": 4},
    ),
}


# What is released too early is told, but fails no call.
CONFLICTS = """
import ctypes, os
told = ctypes.create_string_buffer(1000)
conflicts = ctypes.CDLL(os.environ["TVM_SCHED_CUDA_DRIVER"]).fake_cuda_conflicts(told, len(told))
sys.exit(told.value.decode() if conflicts and not status else status)
"""
SECONDS = 3000 if PARTS else 540
"""What runs for longer hangs, and is ended."""
# All networks take so long that each run has a worker, and a server, of its own.
pytestmark = [] if repeated_here() else [pytest.mark.xdist_group("emulated_gpus")]


@pytest.fixture(scope="module")
def server():
    """Imports what the four processes need: PyTorch, TVM and SymPy take six seconds of each of them."""
    with command_server.started("models", variables=build.preloaded()) as address:
        yield address


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[pytest.mark.thorough] if name in ("networks", "four, no peers", "four alike", "four, pairs") else [],
        )
        for name in RUNS
    ],
)
def test_on_emulated_gpus(name, server):
    if reason := build.why_not():
        pytest.skip(reason)
    arguments, gpus = RUNS[name]
    environment = build.environment(**gpus)
    environment["TVM_SCHED_CUDA_ARCHS"] = ",".join(sorted(set(environment["FAKE_CUDA_ARCHS"].split(","))))
    code = f"import pytest, signal, sys\nsignal.alarm({SECONDS})\nstatus = pytest.main(sys.argv[1:])\n{CONFLICTS}"
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "--no-header", "-m", "gpu"]
    status, said = command_server.run_code(server, code, [*options, *arguments], environment)
    assert status == 0, said[-10000:]
    assert " passed" in said
    print(said.splitlines()[-1])
