"""Running executables and comparing nested results."""

import numpy as np
import tvm


def leaves(value):
    """The arrays of nested results, in order."""
    if hasattr(value, "numpy"):
        return [value.numpy()]
    if isinstance(value, np.ndarray):
        return [value]
    return [leaf for part in value for leaf in leaves(part)]


def run(executable, *arrays):
    """Run ``main`` of an executable on the virtual machine."""
    arguments = [array if isinstance(array, tuple) else tvm.runtime.tensor(array) for array in arrays]
    machine = tvm.relax.VirtualMachine(executable, tvm.cpu())
    return machine["main"](*arguments)


def run_plainly(mod, *arrays):
    """Run ``main`` of a module as TVM compiles it without us, and without optimising: a seventh of the time."""
    return run(tvm.compile(mod, target=tvm.target.Target({"kind": "llvm", "opt-level": 0})), *arrays)


def assert_same(found, expected, rtol=1e-5):
    """Equal shapes and dtypes; values within ``rtol`` of the largest."""
    found, expected = leaves(found), leaves(expected)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        if a.dtype.kind == "f":
            scale = np.abs(b).max(where=~np.isnan(b), initial=0) if b.size else 1
            np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * max(scale, 1e-30))
        else:
            np.testing.assert_array_equal(a, b)
