"""Artifacts for other processors and other numbers of threads."""

import os

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_sched.errors import InputError
from tvm_sched.relax import compile
from tvm_sched.relax.emit import executor
from tvm_sched.relax.processor import LEVELS, compiling_for, host_target, needs_of
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
            needs.append(set(needs_of(host_target())["processor"]["features"]))
    assert needs[0] < needs[1] < needs[2]
    assert {"avx2", "fma"} <= needs[1]
    assert "avx512f" in needs[2] - needs[1]


def test_the_native_artifact_names_what_it_needs(tmp_path):
    info = load(_portable(tmp_path)).info()
    assert info["needs"]["processor"]["name"] == tvm.target.codegen.llvm_get_system_cpu()
    assert "threads" not in load(tmp_path / "model.so").plans()[0]


def test_a_processor_that_lacks_something_is_told(tmp_path, monkeypatch):
    needs = {"processor": {"name": "one-of-2040", "features": ["sse2040"]}}
    monkeypatch.setattr(executor, "needs_of", lambda _: needs)
    compiled = compile(_model(), "cpu1", "single")
    said = r"one-of-2040.*lacks sse2040.*--processor"
    with pytest.raises(RuntimeError, match=said):
        compiled.run(np.zeros((4, 300), "float32"))
    compiled.export(tmp_path / "model.so")
    with pytest.raises(InputError, match=said):
        load(tmp_path / "model.so")


def test_other_processors_and_threads_are_refused():
    with pytest.raises(InputError, match=r"processor is 'pentium'.*native"):
        compile(_model(), "cpu1", "single", processor="pentium")
    for wrong in (0, -1, 1 << 17):
        with pytest.raises(InputError, match=rf"threads is {wrong}"):
            compile(_model(), "cpu1", "single", threads=wrong)
        with pytest.raises(InputError, match=rf"threads is {wrong}"):
            load("model.so", threads=wrong)
