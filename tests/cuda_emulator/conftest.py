"""The emulated GPU for tests of the emulator itself."""

import os

import build
import pytest
from gpu import Gpu


@pytest.fixture
def gpu():
    """One GPU, sm_90, without faults."""
    if reason := build.why_not():
        pytest.skip(reason)
    if build.sanitized() and "asan" not in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("AddressSanitizer's library has to be loaded before Python: see build.environment")
    Gpu.configure()
    yield Gpu()
    Gpu.configure()
