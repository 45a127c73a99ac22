"""Setting up of the tests of the package that imports TVM."""

import pytest

from quick_code import quick_code  # noqa: F401 - a fixture for all modules here

tvm = pytest.importorskip("tvm")


@pytest.fixture(scope="session", autouse=True)
def registered():
    """Targets and pipeline are there also where the package is not installed and so has no entry point."""
    from tvm_sched.relax.autoload import register

    register()
