"""Kernels as object files: they run, models share them, and they come from the disk the second time."""

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx

from tvm_sched.blob_cache import kernel_cache
from tvm_sched.progress import report_to
from tvm_sched.relax import compile
from tvm_sched.relax.codegen.cpu import kernel_objects
from tvm_sched.relax.codegen.cpu.kernel_objects import load_kernels, static_kernels
from tvm_sched.relax.codegen.cpu.kernels import prepare_kernel
from tvm_sched.relax.toolchain import linking
from tvm_sched.relax.toolchain.compile_target import CompileTarget
from tvm_sched_runtime.errors import TvmSchedError


def kernel(factor, size=64):
    x = te.placeholder((size,), "float32", name="x")
    return prepare_kernel(te.create_prim_func([x, te.compute((size,), lambda i: x[i] * factor, name="y")]))


def with_assertion(function):
    """Let a kernel assert something before it computes."""
    first, text = tirx.BufferLoad(function.params[0], [0]), tvm.ir.StringImm
    holds = tirx.AssertStmt(first > tirx.const(-1e9, "float32"), text("ValueError"), [text("too small")])
    return function.with_body(tirx.SeqStmt([holds, function.body]))


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """Keys of the kernels that were really compiled, with a cache of its own."""
    monkeypatch.setenv("TVM_SCHED_CACHE", str(tmp_path / "cache"))
    done, right = [], kernel_objects.compile_objects
    monkeypatch.setattr(
        kernel_objects, "compile_objects", lambda these, *given: done.extend(these) or right(these, *given)
    )
    monkeypatch.setattr(kernel_objects, "latest_objects", {})
    return done


def run(module, name):
    x, y = np.arange(64, dtype="float32"), tvm.runtime.tensor(np.zeros(64, "float32"))
    module[name](tvm.runtime.tensor(x), y)
    return y.numpy() / np.maximum(x, 1)


def forget():
    kernel_objects.latest_objects = {}


def test_equal_kernels_are_compiled_once_and_have_all_their_names(compiled):
    functions = {"twice": kernel(2.0), "thrice": kernel(3.0), "double": kernel(2.0)}
    module = load_kernels(functions, CompileTarget().host)
    assert len(compiled) == 2
    assert [run(module, name)[5] for name in functions] == [2, 3, 2]


def test_another_process_finds_them_whatever_their_names(compiled):
    load_kernels({"twice": kernel(2.0)}, CompileTarget().host)
    forget()
    module = load_kernels({"fused_twice_7": kernel(2.0), "thrice": kernel(3.0)}, CompileTarget().host)
    assert len(compiled) == 2
    assert run(module, "fused_twice_7")[5] == 2
    assert run(module, "thrice")[5] == 3


def test_a_kernel_has_the_same_code_whatever_is_compiled_with_it(compiled):
    """Else an artifact would depend on what the cache holds."""

    functions = {"twice": kernel(2.0), "thrice": kernel(3.0), "asserts": with_assertion(kernel(5.0))}
    together = kernel_objects.compile_objects(
        functions, CompileTarget().host, kernel_cache(False), {name: name for name in functions}
    )
    for name, function in functions.items():
        alone = kernel_objects.compile_objects(
            {name: function}, CompileTarget().host, kernel_cache(False), {name: name}
        )
        assert alone == {name: together[name]}, name


def test_other_targets_and_compilers_are_other_kernels(compiled, monkeypatch):
    functions = {"twice": kernel(2.0)}
    load_kernels(functions, CompileTarget().host)
    load_kernels(functions, tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"}))
    monkeypatch.setattr(kernel_objects, "compiler_digest", lambda: "another version")
    load_kernels(functions, CompileTarget().host)
    assert len(compiled) == 3


def test_threads_that_compile_at_once_each_get_their_own(monkeypatch):
    monkeypatch.setattr(kernel_objects, "compile_objects", lambda functions, *_: functions)
    monkeypatch.setattr(kernel_objects, "latest_objects", {})
    former = sys.getswitchinterval()

    def work(thread):
        given = {f"{thread} {k}": b"code" for k in range(100)}
        return all(
            kernel_objects.objects_of(given, None, kernel_cache(), {key: key for key in given}) == given
            for _ in range(600)
        )

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(work, range(4)))
    finally:
        sys.setswitchinterval(former)


def test_a_damaged_cache_does_no_harm(compiled):
    functions = {"twice": kernel(2.0)}
    load_kernels(functions, CompileTarget().host)
    forget()
    kernel_cache().path.write_bytes(b"no database" * 1000)
    assert run(load_kernels(functions, CompileTarget().host), "twice")[5] == 2
    assert len(compiled) == 2


def test_without_a_linker_kernels_run_and_are_exported_all_the_same(compiled, monkeypatch, tmp_path):
    monkeypatch.setattr(linking, "linker_path", lambda: None)
    assert run(load_kernels({"twice": kernel(2.0)}, CompileTarget().host), "twice")[5] == 2
    static_kernels({"twice": kernel(2.0)}, CompileTarget().host).export_library(str(tmp_path / "library.so"))
    assert run(tvm.runtime.load_module(str(tmp_path / "library.so")), "twice")[5] == 2


def test_what_the_linker_says_is_in_the_message(compiled, monkeypatch):
    monkeypatch.setattr(
        kernel_objects, "compile_objects", lambda functions, *_: dict.fromkeys(functions, b"no object file")
    )
    with pytest.raises(TvmSchedError, match=r"cannot link the compiled kernels: .*\.o"):
        load_kernels({"twice": kernel(2.0)}, CompileTarget().host)


def test_static_kernels_run_once_they_are_exported(compiled, tmp_path):
    static_kernels({"twice": kernel(2.0), "thrice": kernel(3.0)}, CompileTarget().host).export_library(
        str(tmp_path / "library.so")
    )
    module = tvm.runtime.load_module(str(tmp_path / "library.so"))
    assert [run(module, name)[5] for name in ("twice", "thrice")] == [2, 3]


def model(seed):
    """A product, and a chain that is generated."""
    op, x = relax.op, relax.Var("x", relax.TensorType((4, 8), "float32"))
    weight = np.random.default_rng(seed).standard_normal((8, 8)).astype("float32")
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            product = builder.emit(op.matmul(builder.emit(op.cumsum(x, axis=1)), relax.const(weight)))
            result = builder.emit_output(op.cumsum(builder.emit(op.tanh(product)), axis=0))
        builder.emit_func_output(result)
    return builder.get(), lambda value: np.tanh(value.cumsum(1) @ weight).cumsum(0)


def test_a_model_with_other_weights_compiles_no_kernel_anew(compiled):
    compile(model(1)[0], "cpu1", "single")
    count = len(compiled)
    assert count
    forget()
    other, expected = model(2)
    value = np.linspace(-1, 1, 32, dtype="float32").reshape(4, 8)
    assert np.allclose(compile(other, "cpu1", "single").run(value), expected(value), atol=1e-5)
    assert len(compiled) == count


def test_nothing_is_read_or_stored_where_caches_are_switched_off(compiled):
    for _ in range(2):
        forget()
        compile(model(1)[0], "cpu1", "single", cost_model="roofline", cache=False)
    assert len(compiled) == 2 * len(set(compiled)) > 0, "each kernel is compiled in both compilations"
    assert kernel_cache().contents() == (0, 0)


def test_only_the_compilers_own_code_is_in_the_key(tmp_path):
    """Kernels that were compiled stay known where a converter, a pass or the emitter changes."""
    relax_folder = Path(kernel_objects.__file__).parents[2]
    shutil.copytree(relax_folder, copy := tmp_path / "relax", ignore=shutil.ignore_patterns("__pycache__"))
    before = kernel_objects.digest_of_compiler(copy)
    assert before == kernel_objects.compiler_digest()
    assert any(file.suffix == ".so" for file in kernel_objects.compiler_sources(copy))
    for elsewhere in ("lower/new_pass.py", "emit/new.py", "../tvm_frontends/onnx/operators/new.py"):
        (file := copy / elsewhere).parent.mkdir(parents=True, exist_ok=True)
        file.write_text("CONVERTERS = {}\n")
        assert kernel_objects.digest_of_compiler(copy) == before, elsewhere
    for inside in ("codegen/cpu/parallel.py", "ir/statements.py"):
        with (copy / inside).open("a") as file:
            file.write("# changed\n")
        after = kernel_objects.digest_of_compiler(copy)
        assert after != before, inside
        before = after


def test_an_interrupted_compilation_goes_on_where_it_was(compiled, monkeypatch):
    monkeypatch.setattr(kernel_objects, "KEPT_AT_ONCE", 1)
    functions = {str(n): kernel(n + 2.0) for n in range(3)}

    def stop(what, done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), report_to(stop):
        load_kernels(functions, CompileTarget().host)
    assert kernel_cache().contents()[0] == 2
    del compiled[:]
    load_kernels(functions, CompileTarget().host)
    assert len(compiled) == 1
