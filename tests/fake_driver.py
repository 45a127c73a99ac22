"""A CUDA driver without a GPU, built once, and scripts that run over it in processes of their own."""

import atexit
import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from docs import command_server

HERE = Path(__file__).parent
SOURCES = sorted((HERE / "cuda_emulator" / "fake_driver").glob("*.cc"))
COMPILER = os.environ.get("CXX") or shutil.which("g++")


@functools.cache
def library():
    """Path of the driver; the first process of a session that asks builds it, in the cache that `conftest.py` names.

    ``FAKE_CUDA_LIBRARY`` names one that is there, for runs of few tests.
    """
    if given := os.environ.get("FAKE_CUDA_LIBRARY"):
        return Path(given)
    built = Path(os.environ["TVM_SCHED_CACHE"], "libfake_cuda.so")
    if not built.exists():
        with tempfile.TemporaryDirectory(dir=built.parent) as folder:
            made = Path(folder, built.name)
            command = [COMPILER, "-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", "-x", "c++", "-", "-o", made]
            # As one file: each alone takes as long, for the headers that they have in common.
            subprocess.run(
                command, input="".join(f'#include "{source}"\n' for source in SOURCES), text=True, check=True
            )
            made.rename(built)  # another process may have been faster
    return built


def environment(gpus=1, peers=1, **more):
    """Variables under which the driver is taken."""
    paths = [str(HERE / "runtime"), str(HERE.parent / "python"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "TVM_SCHED_CUDA_DRIVER": str(library()),
        "FAKE_CUDA_DEVICES": str(gpus),
        "FAKE_CUDA_PEERS": str(peers),
        "TVM_SCHED_PEERS": "trust",  # tests count copies; those of `fake_cuda_order` try
        "PYTHONPATH": os.pathsep.join(paths),
        **more,
    }


@functools.cache
def server():
    """Of scripts that run over the driver; it ends with this process."""
    until_the_end = contextlib.ExitStack()
    atexit.register(until_the_end.close)
    return until_the_end.enter_context(command_server.started("plans", [HERE / "runtime"]))


def run_case(script, case, gpus, peers):
    """Run one function of a script; it fails the test where it raises."""
    status, said = command_server.run_script(server(), script, [case], environment(gpus, peers))
    assert status == 0, said
