"""Setting up of the tests of GPUs, and how a test asks for one."""

import ctypes
import os

import pytest

tvm = pytest.importorskip("tvm")


@pytest.fixture(scope="session", autouse=True)
def registered():
    """Targets and pipeline are there also where the package is not installed and so has no entry point."""
    from tvm_sched.relax.autoload import register

    register()


@pytest.fixture(scope="session")
def gpu():
    """The architecture of the first GPU; the test is skipped, with the reason, where there is none."""
    try:
        driver = ctypes.CDLL(os.environ.get("TVM_SCHED_CUDA_DRIVER") or "libcuda.so.1")
    except OSError as error:
        pytest.skip(f"there is no GPU: {error}")
    if status := driver.cuInit(0):
        pytest.skip(f"there is no GPU: cuInit gave {status}")
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    assert driver.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert driver.cuDeviceGetAttribute(ctypes.byref(major), 75, device) == 0  # compute capability
    assert driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, device) == 0
    return f"sm_{major.value}{minor.value}"
