"""Modules that moved to `tvm_sched_runtime` are found by their old names, and are the same modules."""

import subprocess
import sys

import pytest


def python(*arguments):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("import tvm_sched.problem.topology_changes as m", "import tvm_sched_runtime.problem.topology_changes as m"),
        ("from tvm_sched.schedule import Schedule as m",
         "from tvm_sched_runtime.schedule.schedule import Schedule as m"),
        ("from tvm_sched import errors as m", "from tvm_sched_runtime import errors as m"),
        ("import tvm_sched; m = tvm_sched.errors", "import tvm_sched_runtime.errors as m"),
        ("from tvm_sched.pipeline.pipeline_plan import PipelinePlan as m",
         "from tvm_sched.pipeline import PipelinePlan as m"),
        ("import tvm_sched; m = tvm_sched.load", "from tvm_sched_runtime.runtime import load as m"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("first", [False, True])
def test_an_old_name_is_the_same_object(old, new, first):
    """Whichever of both is imported first."""
    lines = [f"{new}; there = m", f"{old}; here = m"]
    done = python("-c", "\n".join([*(reversed(lines) if first else lines), "assert here is there"]))
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_runs_by_its_old_name_and_the_warning_is_asked_for():
    assert python("-m", "tvm_sched.run_artifact", "--version").stdout.startswith("tvm-sched-runtime ")
    done = python("-W", "default", "-c", "import tvm_sched.runtime")
    assert "<string>:1: PendingDeprecationWarning: tvm_sched.runtime is tvm_sched_runtime.runtime now" in done.stderr


def test_what_there_was_never_is_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'tvm_sched_runtime.problem.nothing'"):
        import tvm_sched.problem.nothing  # noqa: F401
