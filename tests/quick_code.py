"""Kernels that LLVM optimises less than for users: compiled in a third of the time, with the same values."""

import functools

import pytest

from thorough import THOROUGH


@pytest.fixture(scope="module", autouse=True)
def quick_code(request):
    """Level 1 of LLVM for the kernels of a module of tests, unless it is marked ``machine_code`` or all is asked for."""
    if THOROUGH or any(mark.name == "machine_code" for mark in request.node.iter_markers()):
        yield
        return
    import tvm

    from tvm_sched.relax import processor

    optimising = processor._target

    @functools.cache
    def quick(name):
        return tvm.target.Target({**optimising(name).export(), "opt-level": 1})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processor, "_target", quick)
        yield
