"""A suite of one small instance of each kind."""

import pytest

from bench_suite import write_suite
from tvm_sched_bench import load_suite


@pytest.fixture
def folder(tmp_path):
    """A folder with a suite."""
    (tmp_path / "suite").mkdir()
    return write_suite(tmp_path / "suite")


@pytest.fixture
def suite(folder):
    """The suite."""
    return load_suite(folder)
