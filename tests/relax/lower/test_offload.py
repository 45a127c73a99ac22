"""Kernels of oneDNN in builds of TVM's own."""

import subprocess
import sys

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_sched.relax.lower.kernel_libraries import OffloadKernels, claimed_functions
from tvm_sched_runtime.errors import InputError

RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((8, 6)).astype("float32")
X = RNG.standard_normal((4, 8)).astype("float32")
WANTED = np.cumsum(np.maximum(X.astype("float64") @ WEIGHT, 0), 1)


def module(name="main"):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    with builder.function(name, [x]):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(x, relax.const(WEIGHT)))
            result = builder.emit_output(relax.op.cumsum(relax.op.nn.relu(product), 1))
        builder.emit_func_output(result)
    return builder.get()


def test_a_plain_build_runs_them_and_so_does_its_file(tmp_path):
    offloaded = OffloadKernels(threads=1)(module())
    assert claimed_functions(offloaded) == {"onednn.matmul_relu_0"}
    executable = tvm.compile(offloaded, "llvm")
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(X)).numpy()
    np.testing.assert_allclose(found, WANTED, rtol=1e-5, atol=1e-5)
    executable.export_library(str(tmp_path / "model.so"))
    np.save(tmp_path / "x.npy", X)
    code = (
        "import numpy, tvm; machine = tvm.relax.VirtualMachine(tvm.runtime.load_module('model.so'), tvm.cpu());"
        "numpy.save('y.npy', machine['main'](tvm.runtime.tensor(numpy.load('x.npy'))).numpy())"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), found)


def test_what_was_linked_before_stays():
    other = tvm.compile(tvm.IRModule(), "llvm").mod
    offloaded = OffloadKernels()(module().with_attr("external_mods", [other]))
    assert len(offloaded.attrs["external_mods"]) == 2


def test_wrong_uses_are_named():
    with pytest.raises(InputError, match="before"):
        OffloadKernels()(OffloadKernels()(module()))
    with pytest.raises(InputError, match="no kernel library"):
        OffloadKernels("cublas")
    with pytest.raises(InputError, match="no function 'main'"):
        OffloadKernels()(module("other"))
