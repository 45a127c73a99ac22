"""Kernels of oneDNN: which operators they take, and that they compute what TVM's own kernels compute."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tvm import relax

import tvm_sched
from relax.compare import assert_same
from relax.lower.onednn_cases import check, needs_onednn
from relax.onednn_cases import CASES, IMAGE, LEFT_ALONE, SEVERAL, arrays, channels, constant, convolution, module, steps
from tvm_sched.relax import compile
from tvm_sched.relax.api import make_problem
from tvm_sched.relax.lower.kernel_libraries import available_libraries, get_library, kernel_library
from tvm_sched.relax.lower.kernel_libraries.kernel_library import VARIABLE
from tvm_sched_runtime.cores import processor_fields

op = relax.op
pytestmark = needs_onednn
WITHOUT_AVX = (
    os.environ.get("ONEDNN_MAX_CPU_ISA") == "SSE41" or "avx" not in processor_fields().get("flags", "").split()
)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(9)
def test_chains(monkeypatch, name):
    shapes, functions, kind = CASES[name]
    check(monkeypatch, module(lambda b, x: steps(b, x, *functions), shapes), arrays(shapes), kind)


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.sampled(6)
def test_graphs(monkeypatch, name):
    shapes, make, kind = SEVERAL[name]
    if WITHOUT_AVX and kind is not None and kind.startswith("conv2d_add"):
        kind = "conv2d"  # oneDNN's convolutions for SSE4.1 cannot add a tensor
    check(monkeypatch, module(make, shapes), arrays(shapes), kind)


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_does_not_fit_is_left_to_tvm(monkeypatch, name):
    shapes, dtype, make = LEFT_ALONE[name]
    check(monkeypatch, module(make, shapes, dtype), arrays(shapes, dtype), None)


def network():
    return module(
        lambda b, x: steps(
            b, x, convolution, lambda v: op.add(v, channels(8)), op.nn.relu, lambda v: convolution(v, 4, 1)
        ),
        [IMAGE],
    )


@pytest.mark.parametrize(
    ("layouts", "build", "shape", "filters"),
    [
        (("NHWC", "HWIO"), op.nn.conv2d, (1, 8, 8, 3), (3, 3, 3, 3)),
        (("NHWC", "HWOI"), op.nn.conv2d, (2, 5, 5, 3), (3, 3, 3, 3)),
        (("NHWC", "OHWI"), op.nn.conv2d, (1, 3, 3, 3), (3, 1, 1, 3)),
        (("NHWC", "OIHW"), op.nn.conv2d, (1, 8, 8, 3), (4, 3, 3, 3)),
        (("NCHW", "HWIO"), op.nn.conv2d, (1, 3, 8, 8), (3, 3, 3, 3)),
        (("NDHWC", "DHWIO"), op.nn.conv3d, (1, 4, 4, 4, 3), (3, 3, 3, 3, 3)),
        (("NWC", "WIO"), op.nn.conv1d, (1, 9, 3), (3, 3, 3)),
    ],
)  # fmt: skip
def test_layouts_that_a_model_gives(monkeypatch, layouts, build, shape, filters):
    """Images and weights of equal sizes, so that one layout taken for another gives wrong values and no error."""
    data, kernel = layouts

    def function(_, x):
        made = build(x, constant(*filters), padding=1, data_layout=data, kernel_layout=kernel)
        return op.nn.relu(made)

    kind = None if data == "NCHW" else "conv1d_relu" if data == "NWC" else f"{build.__name__}_relu"
    check(monkeypatch, module(function, [shape]), arrays([shape]), kind)


@pytest.mark.parametrize("rows", [1, 7, 5000])
@pytest.mark.parametrize("widths", [(1, 3), (4, 7, 8), (5, 12, 16, 1), (17, 33, 63), (64, 2, 131)])
def test_concatenations_copy_every_element(rows, widths):
    shapes = [(rows, width) for width in widths]
    compiled = compile(module(lambda b, *parts: b.emit(relax.op.concat(list(parts), 1)), shapes), "cpu1", "single")
    assert [operator.kind for operator in compiled.problem.graph.operators] == ["onednn.concat"]
    inputs = arrays(shapes)
    np.testing.assert_array_equal(compiled.run(*inputs), np.concatenate(inputs, 1))


@pytest.mark.parametrize("topology", ["cpu1", "v100-server"])
def test_new_parameters_are_noticed(topology):
    compiled = compile(network(), topology, "single", parameters="external")
    x = arrays([IMAGE])[0]
    first = compiled.run(x)
    name, value = next((n, v) for n, v in compiled.parameters.items() if v.shape == (4, 8, 1, 1))
    compiled.module.set_parameter(name, 2 * value)
    assert_same(compiled.run(x), 2 * first)
    compiled.module.set_parameter(name, value)
    assert_same(compiled.run(x), first)


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("runtime_only", ["0", "1"])
def test_artifacts_load_in_a_new_process(tmp_path, runtime_only):
    compiled = compile(network(), "cpu2", "single")
    x = arrays([IMAGE])[0]
    np.savez(tmp_path / "values.npz", x=x, y=compiled.run(x))
    compiled.export(tmp_path / "model.so")
    script = f"""
import sys
sys.modules['torch'] = None  # tvm_ffi would import it, which takes longer than the rest
import numpy as np, tvm
from tvm.runtime.vm import VirtualMachine
values = np.load({str(tmp_path / "values.npz")!r})
machine = VirtualMachine(tvm.runtime.load_module({str(tmp_path / "model.so")!r}), tvm.cpu())
np.testing.assert_allclose(machine["main"](tvm.runtime.tensor(values["x"])).numpy(), values["y"], rtol=1e-6)
"""
    environment = {**_environment(), "TVM_USE_RUNTIME_LIB": runtime_only}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)


def test_missing_library_says_what_to_install(tmp_path):
    script = "from tvm_sched_runtime.core_library import function; print(function('tvm_sched.why_not_onednn')())"
    environment = {**_environment(), "TVM_SCHED_DNNL": str(tmp_path / "libdnnl.so.3")}
    found = subprocess.run([sys.executable, "-c", script], check=True, env=environment, capture_output=True, text=True)
    assert "TVM_SCHED_DNNL" in found.stdout
    assert "cannot be loaded" in found.stdout


def _environment():
    return {**os.environ, "PYTHONPATH": str(Path(tvm_sched.__file__).parents[1])}


def test_a_library_is_there_whatever_was_registered_before(monkeypatch):
    """Its import registers nothing, so it does not matter who imported it first, nor what became of the registry then."""
    monkeypatch.setattr(kernel_library.LIBRARIES, "entries", {})
    monkeypatch.setattr(kernel_library.LIBRARIES, "installed_loaded", False)
    assert get_library("onednn").name == "onednn"
    assert "onednn" in available_libraries()


def test_libraries_are_chosen_by_the_environment(monkeypatch):
    assert "onednn" in available_libraries()
    monkeypatch.setenv(VARIABLE, "")
    assert available_libraries() == ()
    monkeypatch.setenv(VARIABLE, "onednn")
    assert available_libraries("cuda") == ()


def test_the_same_model_gives_the_same_problem():
    assert make_problem(network(), "cpu1").digest == make_problem(network(), "cpu1").digest


def test_a_pad_of_nothing_is_no_kernel():
    make = lambda b, x: steps(b, x, lambda v: op.nn.pad(v, [0] * 8), convolution)  # noqa: E731
    kinds = [operator.kind for operator in make_problem(module(make, [IMAGE]), "cpu1").graph.operators]
    assert "onednn.conv2d" in kinds
    assert not any("pad" in kind for kind in kinds)
