"""Setting up of the tests of the package that imports TVM."""

import pytest

tvm = pytest.importorskip("tvm")


@pytest.fixture(scope="session", autouse=True)
def registered():
    """Targets and pipeline are there also where the package is not installed and so has no entry point."""
    from tvm_sched.relax.autoload import register

    register()
