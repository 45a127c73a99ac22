"""What the packages offer when they are imported, and what that costs."""

import importlib
import subprocess
import sys

import pytest

import tvm_sched

HEAVY = {
    "tvm_frontends": ("tvm", "tvm_ffi", "numpy", "onnx", "torch", "transformers", "msgspec", "tvm_sched"),
    "tvm_sched_runtime": ("tvm", "numpy", "msgspec", "tvm_ffi", "tvm_sched"),
    "tvm_sched": ("tvm", "ortools", "xgboost", "numpy", "scipy", "torch", "onnx", "tvm_ffi"),
    "tvm_sched_language": ("tvm", "numpy", "torch", "tokenizers", "tvm_ffi", "typer"),
}
"""What importing a package must not import."""


@pytest.mark.parametrize(("package", "heavy"), HEAVY.items())
def test_importing_the_package_loads_nothing_heavy(package, heavy):
    code = f"import sys, {package}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", HEAVY)
def test_every_name_offered_is_there(name):
    package = importlib.import_module(name)
    assert all(hasattr(package, offered) for offered in package.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        package.nope  # noqa: B018


def test_names_that_are_loaded_late_are_listed():
    assert set(tvm_sched.__all__) <= set(dir(tvm_sched))


def test_a_problem_is_loaded_solved_simulated_and_verified(tmp_path):
    from tvm_sched_bench.testing import random_problem

    random_problem(1).save(tmp_path / "problem.json")
    problem = tvm_sched.load_problem(tmp_path / "problem.json")
    schedule = tvm_sched.solve(problem, method="heft")
    schedule.save(tmp_path / "schedule.json")
    again = tvm_sched.load_schedule(tmp_path / "schedule.json")
    tvm_sched.verify(problem, again)
    assert tvm_sched.simulate(problem, again).latency == schedule.certificate.latency


def test_help_loads_no_arrays():
    """Commands of attached distributions are listed without what they run."""
    code = (
        "import sys\nfrom tvm_sched.cli import main\nsys.argv = ['tvm-sched', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\nprint([m for m in ('numpy', 'scipy', 'ray') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("[]")
