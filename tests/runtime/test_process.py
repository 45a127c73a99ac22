"""What only a process of its own can show: Ctrl-C, fork, leaving, and an artifact in a fresh process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from runtime_plans import PlanBuilder, add_and_double

HERE = Path(__file__).parent
PYTHON_PATH = os.pathsep.join([str(HERE.parents[1] / "python"), str(HERE)])


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter; a hang is a failure."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": PYTHON_PATH, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


PREPARE = """
import os, signal, sys, threading, time
import numpy as np
from runtime_plans import add_and_double, register_kernels
register_kernels()
x = np.arange(4, dtype="float32")
"""

LONG_RUN = (
    PREPARE
    + """
module = add_and_double("emulated").module()
module.configure(emulation_scale=1e9)  # a step takes 1000 s
"""
)


def test_interrupt_ends_an_emulated_run_and_the_next_one_works():
    result = run_python(
        LONG_RUN
        + """
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that it is ignored
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    module.run_times(x)
except KeyboardInterrupt:
    module.configure(emulation_scale=1)
    print("interrupted", module.run_times(x) > 0)
"""
    )
    assert result.stdout == "interrupted True\n", result.stderr
    assert result.returncode == 0


def test_a_forked_child_can_run():
    result = run_python(
        PREPARE
        + """
module = add_and_double().module({"w": np.ones(4, "float32")})
print(module.run(x)[0].tolist(), flush=True)
child = os.fork()
ended = os.waitpid(child, 0)[1] if child else None  # first the child, so that their lines do not mix
print(module.run(x)[0].tolist(), flush=True)
if child:
    print("child", ended)
"""
    )
    values = "[2.0, 4.0, 6.0, 8.0]\n"
    assert result.stdout == values * 3 + "child 0\n", result.stderr


def test_interrupt_ends_a_run_of_many_kernels_after_the_one_that_runs():
    result = run_python(
        PREPARE
        + """
import tvm_ffi
from runtime_plans import PlanBuilder
ran = []
def slow(a, out):
    ran.append(1)
    time.sleep(0.05)
tvm_ffi.register_global_func("tvm_sched.test.slow", slow)
builder = PlanBuilder()
value = builder.argument("x", [4])
for k in range(2000):  # 100 s
    out = builder.output([4]) if k == 1999 else builder.arena(0, [4])
    builder.kernel(0, "tvm_sched.test.slow", [value], [out])
    value = out
module = builder.module()
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    module.run(x)
except KeyboardInterrupt:
    print("interrupted", 0 < len(ran) < 1000)
"""
    )
    assert result.stdout == "interrupted True\n", result.stderr
    assert result.returncode == 0


FORK = """
child = os.fork()
if child == 0:
    print(module.run(x)[0].tolist(), flush=True)
    os._exit(0)
print("child", os.waitpid(child, 0)[1], flush=True)
"""


def test_a_fork_between_loading_and_the_first_run():
    result = run_python(
        PREPARE
        + "module = add_and_double().module({'w': np.ones(4, 'float32')})"
        + FORK
        + "print(module.run(x)[0].tolist())"
    )
    values = "[2.0, 4.0, 6.0, 8.0]\n"
    assert result.stdout == values + "child 0\n" + values, result.stderr


@pytest.mark.parametrize("instances", [1, 2])
def test_a_fork_during_a_run(instances):
    """The child runs the module while the run that it was forked from is nobody's; the parent's goes on."""
    result = run_python(
        PREPARE
        + f"""
import tvm_ffi
started, go_on, parent = threading.Event(), threading.Event(), os.getpid()
def wait(a, b, out):
    started.set()
    if os.getpid() == parent:
        go_on.wait(60)
    np.from_dlpack(out)[...] = np.from_dlpack(a) + np.from_dlpack(b)
tvm_ffi.register_global_func("tvm_sched.test.wait", wait)
module = add_and_double(function="tvm_sched.test.wait").module({{"w": np.ones(4, "float32")}})
module.configure(instances={instances})
results = []
thread = threading.Thread(target=lambda: results.extend(module.run(2 * x)))
thread.start()
started.wait(60)
"""
        + FORK
        + "go_on.set()\nthread.join()\nprint(results[0].tolist(), module.run(x)[0].tolist())\n"
    )
    values = "[2.0, 4.0, 6.0, 8.0]"
    assert result.stdout == f"{values}\nchild 0\n[2.0, 6.0, 10.0, 14.0] {values}\n", result.stderr
    assert result.returncode == 0


def test_a_process_ends_while_a_run_is_under_way():
    result = run_python(
        LONG_RUN
        + """
threading.Thread(target=module.run_times, args=(x,), daemon=True).start()
time.sleep(0.3)
print("leaving", flush=True)
"""
    )
    assert result.stdout == "leaving\n", result.stderr
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.thorough
def test_many_runs_leave_memory_where_it_was():
    """Counted in a process of its own, by what malloc has given out and not got back.

    The resident memory of a process that has done other things says less: it grows when the allocator takes pages anew
    that lie scattered, with nothing lost.
    """
    result = run_python(
        PREPARE
        + """
import ctypes, tvm_ffi
FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
class Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS.split()]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Mallinfo2
def used():
    said = libc.mallinfo2()
    return said.uordblks + said.hblkhd  # in the heaps, and mapped
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
module = add_and_double().module({"w": np.ones(4, "float32")})
main, tensor = module.module["main"], tvm_ffi.from_dlpack(x)
def runs(count):
    for _ in range(count):
        main(tensor)
runs(2000)
before = used(), resident()
runs(100_000)
print(used() - before[0], resident() - before[1])
""",
        PYTHONMALLOC="malloc",  # Python's own objects are counted, too
    )
    lost, grown = map(int, result.stdout.split())
    assert lost < 50_000  # half a byte a run
    assert grown < 4 << 20


def test_a_process_ends_with_modules_alive_or_gone():
    result = run_python(
        PREPARE
        + """
kept = add_and_double().module({"w": np.ones(4, "float32")})
gone = add_and_double().module({"w": np.ones(4, "float32")})
never_run = add_and_double().module()
outputs = [kept.run(x), gone.run(x)]
del gone
print(outputs[1][0].tolist())
"""
    )
    assert result.stdout == "[2.0, 4.0, 6.0, 8.0]\n", result.stderr
    assert result.returncode == 0


def test_the_runtime_loads_no_compiler_and_no_solver():
    result = run_python(
        """
        import sys
        from tvm_sched_runtime.core_library import load_library
        import tvm_sched_runtime.runtime
        load_library()
        print(sorted({"tvm", "ortools", "xgboost", "onnx", "torch"} & set(sys.modules)))
        """
    )
    assert result.stdout == "[]\n", result.stderr


def test_missing_library_says_how_to_build_it():
    result = run_python("import tvm_sched_runtime.core_library as l; l.load_library()", TVM_SCHED_LIBRARY="/nowhere.so")
    assert "FileNotFoundError: /nowhere.so, which the environment variable TVM_SCHED_LIBRARY names" in result.stderr


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    """A VM executable that calls our module, which imports kernels that TVM compiled."""
    tvm = pytest.importorskip("tvm")
    from tvm import relax, te

    from tvm_sched_runtime.runtime import ScheduledModule, make_module

    def kernel(name, compute, *dtypes):
        tensors = [te.placeholder((4, 5), dtype, f"t{i}") for i, dtype in enumerate(dtypes)]
        return te.create_prim_func([*tensors, compute(*tensors)]).with_attr("global_symbol", name)

    kernels = {
        "add": kernel("add", lambda a, b: te.compute((4, 5), lambda i, j: a[i, j] + b[i, j]), "float32", "float32"),
        "less": kernel("less", lambda a, b: te.compute((4, 5), lambda i, j: a[i, j] < b[i, j]), "float32", "float32"),
        "half": kernel("half", lambda a: te.compute((4, 5), lambda i, j: a[i, j].astype("float16")), "float32"),
        "scalar": te.create_prim_func(
            [a := te.placeholder((4, 5), "float32", "a"), te.compute((), lambda: a[1, 2].astype("int64"))]
        ).with_attr("global_symbol", "scalar"),
    }
    library = tvm.compile(tvm.IRModule(kernels), "llvm")
    library = getattr(library, "mod", library)

    builder = PlanBuilder()
    x, w = builder.argument("x", [4, 5]), builder.parameter("w", [4, 5])
    here, there = builder.arena(0, [4, 5]), builder.arena(1, [4, 5])
    outs = [builder.output([4, 5], dtype) for dtype in ("float32", "bool", "float16")]
    outs.append(builder.output([], "int64"))
    first = builder.kernel(0, "add", [x, w], [here])
    moved = builder.copy(here, there, [first])
    builder.kernel(1, "add", [there, there], [outs[0]], [moved])
    builder.kernel(0, "less", [here, w], [outs[1]])
    builder.kernel(1, "half", [there], [outs[2]])
    builder.kernel(0, "scalar", [here], [outs[3]])
    ours = make_module([builder.plan], {"made": "by a test"})
    ours.import_module(library)

    block = relax.BlockBuilder()
    tensor = relax.Var("x", relax.TensorType((4, 5), "float32"))
    types = [relax.TensorType((4, 5), d) for d in ("float32", "bool", "float16")] + [relax.TensorType((), "int64")]
    with block.function("main", [tensor]):
        call = relax.Call(relax.ExternFunc("tvm_sched.main"), [tensor], ty_args=[relax.TupleType(types)])
        block.emit_func_output(block.emit(call))
    module = block.get().with_attr("external_mods", [ours])
    executable = relax.build(module, "llvm")
    folder = tmp_path_factory.mktemp("artifact")
    executable.export_library(str(folder / "model.so"))

    from tvm_sched_runtime.runtime import write_parameters

    write_parameters(folder / "model.safetensors", {"w": np.full((4, 5), 2, "float32")})
    assert ScheduledModule(executable).module.kind == "tvm_sched"
    return folder / "model.so"


CHECK = """
x = np.arange(20, dtype="float32").reshape(4, 5)
one, two, three, four = (np.asarray(o) for o in outputs)
np.testing.assert_array_equal(one, 2 * (x + 2))
np.testing.assert_array_equal(two, x + 2 < 2)
np.testing.assert_array_equal(three, (x + 2).astype("float16"))
assert four == int(x[1, 2] + 2) and four.dtype == np.int64, four
print("ok", sorted({"tvm.relax", "ortools", "xgboost"} & set(sys.modules)))
"""


def test_artifact_in_a_fresh_process_with_the_runtime_alone(artifact):
    result = run_python(
        f"import sys\nimport numpy as np\nfrom tvm_sched_runtime.runtime import load\nmodule = load({str(artifact)!r})\n"
        "outputs = module.run(np.arange(20, dtype='float32').reshape(4, 5))\n"
        "assert module.info() == {'made': 'by a test'}\n" + CHECK,
        TVM_USE_RUNTIME_LIB="1",
    )
    assert result.stdout == "ok []\n", result.stderr


def test_artifact_in_the_virtual_machine(artifact):
    parameters = str(artifact.with_suffix(".safetensors"))
    result = run_python(
        "import sys\nimport numpy as np\nimport tvm.runtime, tvm.runtime.vm\n"
        "from tvm_sched_runtime.core_library import load_library\nload_library()\n"
        f"vm = tvm.runtime.vm.VirtualMachine(tvm.runtime.load_module({str(artifact)!r}), tvm.runtime.device('cpu'))\n"
        "outputs = [o.numpy() for o in vm['main'](tvm.runtime.tensor(np.arange(20, dtype='float32').reshape(4, 5)))]\n"
        + CHECK,
        TVM_USE_RUNTIME_LIB="1",
        TVM_SCHED_PARAMETERS=parameters,
    )
    assert result.stdout == "ok []\n", result.stderr


def test_bytes_that_are_no_module_are_refused():
    import tvm_ffi

    from tvm_sched_runtime import core_library

    read = core_library.function("ffi.Module.load_from_bytes.tvm_sched")
    with pytest.raises(ValueError, match="cut off"):
        read(b"")
    with pytest.raises(ValueError, match="another format"):
        read(b"x" * 100)
    with pytest.raises(ValueError, match="cut off"):
        read(b"tvm_sched.module" + (1000).to_bytes(8, "little"))
    header = b'{"version":9}'
    with pytest.raises(ValueError, match="newer tvm_sched"):
        read(b"tvm_sched.module" + len(header).to_bytes(8, "little") + header)
    assert isinstance(add_and_double().module().module, tvm_ffi.Module)
