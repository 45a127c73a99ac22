"""The emulated GPU for tests of the emulator itself."""

import pytest

import build
from gpu import Gpu


@pytest.fixture
def gpu():
    """One GPU, sm_90, without faults."""
    if reason := build.why_not():
        pytest.skip(reason)
    Gpu.configure()
    yield Gpu()
    Gpu.configure()
