"""All tests: schedules must not depend on how fast the machine is just now, nor on what is kept on disk."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from durations import Meter, quick
from thorough import repeated

os.environ.setdefault("TVM_SCHED_COSTS", "roofline")
os.environ.setdefault("TVM_SCHED_CORE_SPEED", "255,40")
os.environ.pop("TVM_SCHED_NO_CACHE", None)
# Bytecode of tests and package is kept whatever the environment says: else each worker compiles them anew, ten seconds of a
# core, and each of a hundred processes what it imports, up to half a second.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# TVMScript looks at all callers of a decorator. `inspect` would walk through thousands of modules to find the module of each
# frame that has no file, as those of an import and of a worker's `python -c` have none: four seconds of each worker.
for _file, _module in (
    ("<frozen importlib._bootstrap>", "importlib._bootstrap"),
    ("<frozen importlib._bootstrap_external>", "importlib._bootstrap_external"),
    ("<string>", "__main__"),
):
    inspect.modulesbyfile[os.path.abspath(_file)] = _module
if level := os.environ.get(
    "TVM_SCHED_TEST_PROCESSOR"
):  # `make test-processors`: what tests compile is for an older one
    from tvm_sched.relax.toolchain import compile_target

    _named = compile_target.processors_of
    compile_target.processors_of = lambda option: _named(level if option == compile_target.NATIVE else option)
if "PYTEST_XDIST_WORKER" not in os.environ:
    # Kernels that several tests have in common are compiled once a session, whichever process needs them.
    _cache = tempfile.TemporaryDirectory(prefix="tvm_sched_tests.")  # removed when the process ends
    os.environ["TVM_SCHED_CACHE"] = _cache.name

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So it is where a shell started the tests in the background; tests of Ctrl-C need it as it is otherwise.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup():
    # A test must not take Ctrl-C from the tests after it: the command line blocks it in the thread that calls it
    # (cli/interrupt.py), and a solver may put a handler of its own in Python's place, which `signal.getsignal` cannot see.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_pyfunc_call(pyfuncitem):
    """Run a test that is a coroutine in an event loop of its own; a hang is a failure."""
    if not inspect.iscoroutinefunction(test := pyfuncitem.function):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}
    asyncio.run(asyncio.wait_for(test(**given), 60))
    return True


def pytest_addoption(parser):
    parser.addoption(
        "--write-durations", action="store_true", help="write tests/durations.txt anew for the tests that run"
    )


def pytest_configure(config):
    if config.getoption("--write-durations"):
        config.pluginmanager.register(Meter())


def pytest_collection_finish():
    """What was imported until now stays: the collector of garbage need not walk through it again and again."""
    gc.freeze()


CONFORMANCE = tuple(Path(__file__).parent / name for name in ("frontends/onnx", "relax/lower", "relax/codegen"))
"""Folders of operators and types by the hundreds: functions of four or more cases are sampled by 4 unless marked."""


def beside_the_sample(items):
    """The cases of functions that are sampled, marked so or of `CONFORMANCE`, but each n-th; the first always."""
    cases = {}
    for item in items:
        if marker := item.get_closest_marker("sampled"):
            cases.setdefault((item.path, item.originalname), (marker.args[0], []))[1].append(item)
        elif item.path.parent in CONFORMANCE and not item.get_closest_marker("thorough"):
            cases.setdefault((item.path, item.originalname), (0, []))[1].append(item)
    return [
        item
        for step, found in cases.values()
        for n, item in enumerate(found)
        if n % (step or (4 if len(found) > 3 else 1))
    ]


@pytest.hookimpl(tryfirst=True)  # before pytest looks at -m
def pytest_collection_modifyitems(config, items):
    """Leave out thorough cases, and most of sampled ones, unless they belong to this run's part; mark `make test-fast`'s."""
    further = [item for item in items if item.get_closest_marker("thorough")] + beside_the_sample(items)
    gone = {item for item in further if not repeated(item.nodeid)}
    if gone:
        items[:] = [item for item in items if item not in gone]
        config.hook.pytest_deselected(items=list(gone))
    for item in quick(items):
        item.add_marker(pytest.mark.fast)
