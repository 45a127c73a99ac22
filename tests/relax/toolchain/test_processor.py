"""Artifacts for other processors and other numbers of threads."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_sched.cost_model import roofline
from tvm_sched.relax import compile, passes
from tvm_sched.relax.emit import backend_kernels
from tvm_sched.relax.lower.kernel_libraries import KERNELS
from tvm_sched.relax.toolchain import compile_target
from tvm_sched.relax.toolchain.compile_target import LEVELS, CompileTarget, features_of
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.runtime import load

NATIVE = os.environ.get("TVM_SCHED_TEST_PROCESSOR") or tvm.target.codegen.llvm_get_system_cpu()
"""The processor that kernels are compiled for; `make test-processors` limits it (`tests/conftest.py`)."""


def _model() -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 300), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(builder.emit(relax.op.add(relax.op.exp(x), relax.op.sin(x))))
        builder.emit_func_output(y)
    return builder.get()


def _product() -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((64, 128), "float32"))
    weights = relax.const(np.ones((128, 64), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.matmul(builder.emit(relax.op.exp(x)), weights))
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


@pytest.mark.parametrize(
    ("compiled", "environment", "loaded", "expected"), [(2, "3", 4, 4), (2, "3", None, 3), (2, "", None, 2)]
)
def test_threads_are_those_of_the_caller_the_environment_or_the_artifact(
    tmp_path, monkeypatch, compiled, environment, loaded, expected
):
    monkeypatch.setenv("TVM_SCHED_NUM_THREADS", environment)
    path = _portable(tmp_path, threads=compiled)
    module = load(path, threads=loaded)
    assert module.threads == expected
    module.run(np.zeros((4, 300), "float32"))
    with pytest.raises(InputError, match=r"set_threads\(1\): the module has run"):
        module.set_threads(1)


def test_two_threads_compile_and_run_for_numbers_of_their_own():
    x = np.ones((4, 300), np.float32)

    def work(threads):
        model = compile(_model(), "cpu1", "single", threads=threads)
        model.run(x)
        return model.module.threads

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, (1, 3, 2, 5))) == [1, 3, 2, 5]


@X86
def test_each_level_needs_what_the_one_before_needs():
    needs = []
    for level in LEVELS:
        needs.append(set(features_of(CompileTarget.of(level).host)))
    assert needs[0] < needs[1] < needs[2]
    assert {"avx2", "fma"} <= needs[1]
    assert "avx512f" in needs[2] - needs[1]


def test_the_native_artifact_names_what_it_needs(tmp_path):
    info = load(_portable(tmp_path)).info()
    assert info["needs"]["processor"]["name"] == NATIVE
    assert "threads" not in load(tmp_path / "model.so").plans()[0]


@X86
def test_kernels_do_without_what_is_hidden_of_the_processor(monkeypatch):
    """As a virtual machine without AVX does, on a processor that LLVM knows to have it."""
    own = features_of(CompileTarget.of("x86-64-v2").host)
    monkeypatch.setattr(compile_target, "_target", compile_target._target.__wrapped__)
    function = compile_target.library_function
    monkeypatch.setattr(
        compile_target,
        "library_function",
        lambda name: (lambda: own) if name == "tvm_sched.own_features" else function(name),
    )
    assert set(features_of(CompileTarget().host)) <= set(own)
    assert not CompileTarget.of("x86-64-v3").runs_here()
    assert str(CompileTarget.of("portable").host_here.attrs["mcpu"]) == "x86-64-v2"


def test_a_processor_that_lacks_something_is_told(tmp_path, monkeypatch):
    needs = {"processor": {"name": "one-of-2040", "features": ["sse2040"]}}
    monkeypatch.setattr(backend_kernels, "needs_of", lambda _: needs)
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
            patch.setattr("tvm_sched.relax.codegen.cpu.kernel_objects.can_link", lambda: False)
        return _portable(tmp_path_factory.mktemp("levels"), processor="portable", cost_model="roofline")


@X86
def test_the_highest_level_runs_and_each_gives_the_same_values(for_all_levels, monkeypatch):
    x = np.linspace(-5, 5, 1200, dtype=np.float32).reshape(4, 300)
    fitting, results = [], {}
    for level in LEVELS:
        fitting += [level] if CompileTarget.of(level).runs_here() else []
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
    monkeypatch.setattr(backend_kernels, "needs_of", lambda _: needs)
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


@X86
def test_two_threads_compile_at_once_each_with_its_own_options(tmp_path):
    """Both wait for each other within their compilation, so that hidden settings of one would reach the other."""
    meet = threading.Barrier(2, timeout=60)
    asked = {"one": ("x86-64-v2", 1, False), "other": ("native", 2, True)}

    def work(name):
        processor, threads, cache = asked[name]

        def cost_model(graph, topology):
            meet.wait()
            return roofline(graph, topology)

        options = {"processor": processor, "threads": threads, "cache": cache, "cost_model": cost_model}
        compiled = compile(_product(), "cpu1", "single", **options)
        compiled.export(tmp_path / f"{name}.so")
        return compiled

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, asked))
    one, other = (load(tmp_path / f"{name}.so") for name in asked)
    assert [made.plans()[0]["threads"] for made in (one, other)] == [1, 2]
    names = [made.info()["needs"]["processor"]["name"] for made in (one, other)]
    assert names == ["x86-64-v2", NATIVE]


def test_two_threads_lower_at_once_each_with_its_own_precision():
    meet = threading.Barrier(2, timeout=60)

    def work(precision):
        first = tvm.transform.module_pass(lambda mod, ctx: (meet.wait(), mod)[1], opt_level=0, name="Meet")
        lower = passes.LowerToKernels(libraries=("nvidia",), device_kind="cuda", archs=["sm_90"])
        target = passes.SetCompileTarget(CompileTarget.of(precision=precision))
        mod = tvm.transform.Sequential([target, first, lower])(_product())
        return [json.loads(str(text))["kernel"]["tf32"] for text in mod.attrs[KERNELS].values()]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, ["tf32", "float32"])) == [[True], [False]]
