"""Compiling for GPUs, with nvcc and without a GPU: what the artifact holds, and what is said where it cannot be made."""

import json

import numpy as np
import pytest
import tvm
from tvm import relax, te

import tvm_sched.relax.codegen.cuda.compile as cuda_compile
from tvm_sched.relax import compile, target
from tvm_sched.relax.codegen.cuda import architectures, compile_cuda_kernels, find_nvcc, needed_architectures
from tvm_sched.relax.toolchain.nvcc import compile_source
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.runtime import load

try:
    find_nvcc()
    NVCC = None
except InputError as error:
    NVCC = str(error)
needs_nvcc = pytest.mark.skipif(NVCC is not None, reason=f"nothing can be compiled for GPUs here: {NVCC}")


@pytest.fixture(autouse=True)
def compiles_for_one_gpu(monkeypatch):
    monkeypatch.setenv("TVM_SCHED_CUDA_ARCHS", "sm_90")
    monkeypatch.setenv("TVM_SCHED_KERNEL_LIBRARIES", "")


@pytest.fixture
def described(monkeypatch):
    """What compile_cuda_kernels tells the runtime of its kernels."""
    documents = []
    original = cuda_compile.library_function

    def spy(name):
        def make(document, binary):
            documents.append((json.loads(document)["functions"], binary))
            return original(name)(document, binary)

        return make

    monkeypatch.setattr(cuda_compile, "library_function", spy)
    return documents


def row_sums():
    a = te.placeholder((64, 128), name="A")
    k = te.reduce_axis((0, 128), name="k")
    b = te.compute((64,), lambda i: te.sum(a[i, k], axis=k), name="B")
    return te.create_prim_func([a, te.compute((64,), lambda i: b[i] * 2.0, name="C")])


def total_of_row_sums():
    """Two reductions: the first one's result lies in a workspace."""
    a = te.placeholder((64, 33), name="A")
    k, m = te.reduce_axis((0, 33), name="k"), te.reduce_axis((0, 64), name="m")
    rows = te.compute((64,), lambda i: te.sum(a[i, k], axis=k), name="rows")
    return te.create_prim_func([a, te.compute((1,), lambda i: te.sum(rows[m], axis=m), name="total")])


def product():
    a, b = te.placeholder((256, 300), name="A"), te.placeholder((300, 200), name="B")
    k = te.reduce_axis((0, 300), name="k")
    return te.create_prim_func([a, b, te.compute((256, 200), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")])


@needs_nvcc
def test_kernels_and_their_launches(described):
    made = compile_cuda_kernels({"sums": row_sums(), "total": total_of_row_sums(), "product": product()})
    ((functions, binary),) = described
    assert made.kind == "tvm_sched_cuda"
    assert binary[:4] == b"\x50\xed\x55\xba", "a fat binary"
    assert all(launch["symbol"].encode() in binary for f in functions.values() for launch in f["launches"])

    (sums,) = functions["sums"]["launches"]
    assert sums["pointers"] == [["tensor", 0], ["tensor", 1]]
    assert np.prod(sums["grid"]) * np.prod(sums["block"]) >= 64
    assert functions["sums"]["workspaces"] == []

    first, second = functions["total"]["launches"]
    assert functions["total"]["workspaces"] == [64 * 4]
    assert first["pointers"] == [["tensor", 0], ["workspace", 0]]
    assert second["pointers"] == [["workspace", 0], ["tensor", 1]]

    (product_,) = functions["product"]["launches"]
    assert product_["pointers"] == [["tensor", 0], ["tensor", 1], ["tensor", 2]]
    assert np.prod(product_["grid"]) > 1


@needs_nvcc
def test_several_architectures_in_one_binary(monkeypatch, described):
    monkeypatch.setenv("TVM_SCHED_CUDA_ARCHS", "sm_90, sm_80")
    compile_cuda_kernels({"sums": row_sums()}, ["sm_70"])  # the variable overrides the topology
    ((_, two),) = described
    monkeypatch.setenv("TVM_SCHED_CUDA_ARCHS", "sm_90")
    compile_cuda_kernels({"sums": row_sums()}, ["sm_70"])
    assert len(two) > len(described[1][1])


@needs_nvcc
def test_an_architecture_that_nvcc_does_not_know(monkeypatch):
    monkeypatch.setenv("TVM_SCHED_CUDA_ARCHS", "sm_20")
    with pytest.raises(InputError, match=r"not for sm_20: install a CUDA toolkit that does"):
        compile_cuda_kernels({"sums": row_sums()})


def test_architectures():
    assert architectures([]) == ("sm_90",)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TVM_SCHED_CUDA_ARCHS")
        assert architectures(["", ""]) == ("sm_80",)
        assert architectures(["sm_100", "sm_90a", "sm_90", "sm_90"]) == ("sm_90", "sm_90a", "sm_100")
        with pytest.raises(InputError, match="'compute_90' is not of the form 'sm_90'"):
            architectures(["compute_90"])


def test_without_nvcc_the_error_names_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setattr("tvm_sched.relax.toolchain.nvcc.os.access", lambda *_: False)
    with pytest.raises(InputError, match="install NVIDIA's CUDA toolkit"):
        find_nvcc()
    with pytest.raises(InputError, match="needs nvcc"):
        compile(branches(), "v100-server", "single", backend="cuda")


@needs_nvcc
def test_gpus_that_nvcc_does_not_know_are_named_before_the_long_work(monkeypatch):
    monkeypatch.setenv("TVM_SCHED_CUDA_ARCHS", "sm_80,sm_35")
    monkeypatch.setattr("tvm_sched.relax.api.open_model", lambda *_: pytest.fail("the model was opened"))
    with pytest.raises(InputError, match=r"compiles for .*sm_80.*, not for sm_35: install a CUDA toolkit that does"):
        compile(branches(), "v100-server", "single", backend="cuda")


def branches():
    """Two products of one input, added."""
    x = relax.Var("x", relax.TensorType((64, 64), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            w, v = (relax.const(np.random.default_rng(s).standard_normal((64, 64)).astype("float32")) for s in (1, 2))
            left, right = (builder.emit(relax.op.matmul(x, weights)) for weights in (w, v))
            total = builder.emit(relax.op.nn.relu(relax.op.add(relax.op.nn.softmax(left), right)))
            result = builder.emit_output(total)
        builder.emit_func_output(result)
    return builder.get()


@needs_nvcc
def test_a_compiled_model_is_exported_and_loaded(tmp_path):
    model = compile(branches(), "v100-server", "anytime", backend="cuda")
    model.export(tmp_path / "model.so")
    loaded = load(tmp_path / "model.so")
    (plan,) = loaded.plans()
    assert plan["backend"] == "cuda"
    assert [module.kind for module in loaded.module.imports] == ["tvm_sched_cuda"]
    functions = {step["function"] for step in plan["steps"] if step["kind"] == "kernel"}
    assert all(loaded.module.imports[0].get_function(name) is not None for name in functions)


@needs_nvcc
def test_a_target_with_the_backend():
    made = tvm.compile(branches(), target=target("v100-server", "single", backend="cuda"))
    assert "tvm_sched_cuda" in str([module.kind for module in _all_modules(made.mod)])


def _all_modules(module):
    return [module, *(inner for imported in module.imports for inner in _all_modules(imported))]


def test_cpus_are_refused():
    with pytest.raises(InputError, match=r"the backend 'cuda' runs on GPUs, and 'cpu0', 'cpu1' of the topology 'cpu2'"):
        _compile_without_nvcc("cpu2")


def _compile_without_nvcc(topology):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tvm_sched.relax.api.check_architectures", lambda archs: "nvcc")
        return compile(branches(), topology, "single", backend="cuda")


def test_functions_of_the_host_are_refused():
    x = relax.Var("x", relax.TensorType((8,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            call = relax.call_dps_packed("my.own", relax.Tuple([x]), out_ty=relax.TensorType((8,), "float32"))
            result = builder.emit_output(builder.emit(call))
        builder.emit_func_output(result)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tvm_sched.relax.api.check_architectures", lambda archs: "nvcc")
        with pytest.raises(InputError, match=r"calls 'my\.own', a function of the host"):
            compile(builder.get(), "v100-server", "single", backend="cuda")


def test_an_unknown_backend_lists_those_there_are():
    with pytest.raises(InputError, match="allowed are 'cpu', 'emulated', 'cuda'"):
        compile(branches(), "v100-server", backend="gpu")


def test_newer_gpus_translate_the_newest_portable_code(monkeypatch):
    monkeypatch.delenv("TVM_SCHED_CUDA_ARCHS")
    assert needed_architectures(["sm_90", "sm_80"]) == {"architectures": ["sm_80", "sm_90"], "ptx": "compute_90"}
    assert needed_architectures(["sm_90a", "sm_80"])["ptx"] == "compute_80"
    assert needed_architectures(["sm_90a"])["ptx"] is None


@needs_nvcc
def test_the_binary_holds_that_code(monkeypatch, described):
    monkeypatch.setenv("TVM_SCHED_CUDA_ARCHS", "sm_90")
    compile_cuda_kernels({"sums": row_sums()})
    with_ptx = len(described[0][1])
    monkeypatch.setattr("tvm_sched.relax.toolchain.nvcc.ptx_architecture", lambda archs: None)
    cuda_compile.kept_images.clear()  # the code of the last models is kept, by their kernels and by their source
    compile_source.cache_clear()
    compile_cuda_kernels({"sums": row_sums()})
    assert with_ptx > len(described[1][1])
