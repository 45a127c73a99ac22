"""Artifacts for other processors and other numbers of threads."""

import os
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_sched.errors import InputError
from tvm_sched.relax import compile
from tvm_sched.relax.codegen.cpu.kernels import compile_kernels
from tvm_sched.relax.emit import kernel_calls
from tvm_sched.relax.toolchain import processor
from tvm_sched.relax.toolchain.processor import LEVELS, compiling_for, features_of, host_target, runs_here, target_here
from tvm_sched.runtime import load


def _model() -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 300), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(builder.emit(relax.op.add(relax.op.exp(x), relax.op.sin(x))))
        builder.emit_func_output(y)
    return builder.get()


def _portable(tmp_path, **options):
    compiled = compile(_model(), "cpu1", "single", **options)
    path = tmp_path / "model.so"
    compiled.export(path)
    return path


X86 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="levels are of x86-64")


@X86
def test_a_portable_artifact_runs_here(tmp_path):
    path = _portable(tmp_path, processor="x86-64-v2", threads=1)
    module = load(path)
    needed = module.info()["needs"]["processor"]
    assert needed["name"] == "x86-64-v2"
    assert "sse4.2" in needed["features"]
    assert not any(feature.startswith("avx") for feature in needed["features"])
    assert module.plans()[0]["threads"] == 1
    x = np.linspace(-1, 1, 1200, dtype=np.float32).reshape(4, 300)
    np.testing.assert_allclose(module.run(x)[0], np.exp(x) + np.sin(x), rtol=1e-5, atol=1e-6)


@X86
def test_each_level_needs_what_the_one_before_needs():
    needs = []
    for level in LEVELS:
        with compiling_for(level):
            needs.append(set(features_of(host_target())))
    assert needs[0] < needs[1] < needs[2]
    assert {"avx2", "fma"} <= needs[1]
    assert "avx512f" in needs[2] - needs[1]


def test_the_native_artifact_names_what_it_needs(tmp_path):
    info = load(_portable(tmp_path)).info()
    assert info["needs"]["processor"]["name"] == tvm.target.codegen.llvm_get_system_cpu()
    assert "threads" not in load(tmp_path / "model.so").plans()[0]


@X86
def test_kernels_do_without_what_is_hidden_of_the_processor(monkeypatch):
    """As a virtual machine without AVX does, on a processor that LLVM knows to have it."""
    with compiling_for("x86-64-v2"):
        own = features_of(host_target())
    monkeypatch.setattr(processor, "_target", processor._target.__wrapped__)
    function = processor.library_function
    monkeypatch.setattr(
        processor,
        "library_function",
        lambda name: (lambda: own) if name == "tvm_sched.own_features" else function(name),
    )
    assert set(features_of(host_target())) <= set(own)
    with compiling_for("x86-64-v3"):
        assert not runs_here()
    with compiling_for("portable"):
        assert str(target_here().attrs["mcpu"]) == "x86-64-v2"


def test_a_processor_that_lacks_something_is_told(tmp_path, monkeypatch):
    needs = {"processor": {"name": "one-of-2040", "features": ["sse2040"]}}
    monkeypatch.setattr(kernel_calls, "needs_of", lambda _: needs)
    compiled = compile(_model(), "cpu1", "single")
    said = r"one-of-2040.*lacks sse2040.*--processor"
    with pytest.raises(RuntimeError, match=said):
        compiled.run(np.zeros((4, 300), "float32"))
    compiled.export(tmp_path / "model.so")
    with pytest.raises(InputError, match=said):
        load(tmp_path / "model.so")


@pytest.fixture(scope="module", params=["objects", "one module"])
def for_all_levels(request, tmp_path_factory) -> Path:
    """An artifact with kernels for all levels, made of object files or, as where there is no linker, by LLVM alone."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "one module":
            patch.setattr("tvm_sched.relax.api.static_kernels", compile_kernels)
        return _portable(tmp_path_factory.mktemp("levels"), processor="portable", cost_model="roofline")


@X86
def test_the_highest_level_runs_and_each_gives_the_same_values(for_all_levels, monkeypatch):
    x = np.linspace(-5, 5, 1200, dtype=np.float32).reshape(4, 300)
    fitting, results = [], {}
    for level in LEVELS:
        with compiling_for(level):
            fitting += [level] if runs_here() else []
    module = load(for_all_levels)
    assert module.processor() == fitting[-1]
    assert [level["name"] for level in module.info()["needs"]["processor"]["levels"]] == list(LEVELS)
    for level in fitting:
        monkeypatch.setenv("TVM_SCHED_PROCESSOR", level)
        forced = load(for_all_levels)
        assert forced.processor() == level
        results[level] = forced.run(x)[0]
        np.testing.assert_allclose(results[level], np.exp(x) + np.sin(x), rtol=1e-5, atol=1e-6)
    if "x86-64-v3" in fitting:  # rounded once in a multiplication and addition: other code ran
        assert not np.array_equal(results["x86-64-v2"], results["x86-64-v3"])


@X86
def test_a_level_that_the_artifact_has_not_is_refused(for_all_levels, monkeypatch):
    monkeypatch.setenv("TVM_SCHED_PROCESSOR", "x86-64-v9")
    with pytest.raises(InputError, match=r'TVM_SCHED_PROCESSOR asks for kernels for "x86-64-v9".*x86-64-v2, x86-64-v3'):
        load(for_all_levels)


def test_levels_that_this_processor_lacks_are_left_out(tmp_path, monkeypatch):
    few = {"name": "here", "features": [], "suffix": ""}
    more = {"name": "one-of-2040", "features": ["sse2040"], "suffix": "__2040"}
    needs = {"processor": {"name": "here", "features": [], "levels": [few, more]}}
    monkeypatch.setattr(kernel_calls, "needs_of", lambda _: needs)
    path = _portable(tmp_path)
    assert load(path).processor() == "here"
    monkeypatch.setenv("TVM_SCHED_PROCESSOR", "one-of-2040")
    with pytest.raises(InputError, match="one-of-2040, and this processor lacks sse2040"):
        load(path)


def test_other_processors_and_threads_are_refused():
    for wrong in ("pentium", "", "x86-64-v3,native", "x86-64-v3,,x86-64-v4"):
        with pytest.raises(InputError, match=rf"processor is '{wrong}'.*native"):
            compile(_model(), "cpu1", "single", processor=wrong)
    for wrong in (0, -1, 1 << 17):
        with pytest.raises(InputError, match=rf"threads is {wrong}"):
            compile(_model(), "cpu1", "single", threads=wrong)
        with pytest.raises(InputError, match=rf"threads is {wrong}"):
            load("model.so", threads=wrong)
