"""Shapes, symbols and constants on the command line; `inspect`; a compiler that crashes; folders of Hugging Face."""

import os
import signal
import subprocess
import sys

import pytest

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.input_shapes import one_shape, parse_constants, parse_shapes

pytest.importorskip("onnx")
from .conftest import write_model

PROGRAM = [sys.executable, "-m", "tvm_sched.cli"]


def test_sets_of_sizes_and_symbols():
    assert parse_shapes(["a:b:1,{8,4},3", "batch={1, 8}", "n=3", "s:", "n=4"]) == [
        {"a:b": (1, frozenset({4, 8}), 3), "batch": frozenset({1, 8}), "n": 3, "s": ()},
        {"n": 4},
    ]
    assert parse_shapes(["1x128", "{1,8}x32"]) == [
        {"batch": 1, "tokens": 128},
        {"batch": frozenset({1, 8}), "tokens": 32},
    ]


@pytest.mark.parametrize("text", ["x:1,a", "x:{}", "x:{1,}", "x", "=3", "x:-1,2", "batch=-1", "batch={a}"])
def test_shapes_that_are_none(text):
    with pytest.raises(InputError, match="expected NAME:DIMS with whole numbers"):
        parse_shapes([text])


def test_commands_for_one_shape():
    assert one_shape(parse_shapes(["x:1,{2}"]), "") == {"x": (1, 2)}
    with pytest.raises(InputError, match="two shapes; a problem has one, only `compile` takes several"):
        one_shape(parse_shapes(["x:1,{2,3}"]), "a problem has one")


def test_constants():
    assert parse_constants(["sr=16000", "size=1,2", "on=True", "m=[[1],[0.5]]", "e=[]", "a=b=3"]) == {
        "sr": 16000, "size": [1, 2], "on": True, "m": [[1], [0.5]], "e": [], "a=b": 3,
    }  # fmt: skip
    for text, message in (
        ("sr", "expected NAME=VALUE"),
        ("sr=fast", "'fast' is not a value; expected numbers"),
        ("a=x.npy", "cannot be read"),
    ):
        with pytest.raises(InputError, match=message):
            parse_constants([text])


def test_reading_a_model_leaves_out_packages_that_take_long(tmp_path):
    write_model(tmp_path / "m.onnx")
    script = f"""
import sys
from pathlib import Path
from tvm_sched.problem_sources import packages_for
with packages_for(Path({str(tmp_path / "m.onnx")!r})):
    from tvm_sched.relax import make_problem
    make_problem({str(tmp_path / "m.onnx")!r}, "cpu1", cost_model="roofline")
print("onnx_ir" in sys.modules, "sympy.core" in sys.modules, "torch" in sys.modules)"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert said.stdout.split() == ["True", "False", "False"], said.stderr


def test_an_artifact_for_several_shapes(run, fails, tmp_path):
    write_model(tmp_path / "two.onnx", batch="batch")
    compile_it = ["compile", tmp_path / "two.onnx", "-t", "cpu1", "-s", "single", "-o", tmp_path / "two.so"]
    plans = run(*compile_it, "--shape", "batch={1,3}", "--json").json["plans"]
    assert len(plans) == 2
    found = run("inspect", tmp_path / "two.so", "--json").json
    assert [tensor["shape"] for tensor in found["inputs"]] == [[1, 8], [3, 8]]
    assert (found["kind"], found["about"]["plans"], found["parameters"]) == ("artifact", "2", 2)
    assert "symbol 'n', which the model does not have" in fails(2, *compile_it, "--shape", "n=1")
    assert "a constant is given for input 'z'" in fails(2, *compile_it, "--constant", "z=1")


def test_inspect_says_what_is_needed_and_what_is_refused(run, tmp_path):
    import onnx

    write_model(tmp_path / "two.onnx", batch="batch")
    found = run("inspect", tmp_path / "two.onnx", "--json").json
    assert (found["format"], found["version"], found["kind"]) == ("tvm_sched.inspection", 1, "onnx")
    assert found["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["batch", 8]}]
    assert (found["symbols"], found["operators"]) == (["batch"], {"MatMul": 2, "Relu": 2, "Add": 1})
    assert (found["parameters"], found["parameter_bytes"]) == (2, 2 * 8 * 8 * 4)
    assert "dimension 0 ('batch') has no fixed size" in found["needs"]
    assert "`compile` for CPUs makes an artifact that takes any size" in run("inspect", tmp_path / "two.onnx").stdout
    assert run("inspect", tmp_path / "two.onnx", "--shape", "batch=2", "--json").json["checked"] == "import"
    model = onnx.load(tmp_path / "two.onnx")
    model.graph.node[1].op_type, model.graph.node[1].name = "Frobnicate", "odd"
    onnx.save(model, tmp_path / "odd.onnx")
    shown = run("inspect", tmp_path / "odd.onnx").stdout
    assert "refused: Frobnicate (node 'odd')" in shown


def crash(tmp_path, text, **options):
    (tmp_path / "m.py").write_text(f"import os, signal, time\n{text}\n")
    command = [*PROGRAM, "compile", tmp_path / "m.py", "-t", "cpu1", "-o", tmp_path / "m.so"]
    return subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "sigwaitinfo"), reason="needs fork and sigwaitinfo")
def test_a_crash_of_the_compiler_is_a_message(tmp_path):
    process = crash(tmp_path, "os.kill(os.getpid(), signal.SIGSEGV)")
    out, error = process.communicate(timeout=120)
    assert (process.returncode, out) == (2, "")
    assert "error: the compiler crashed (SIGSEGV) during 'Compiling m.py" in error
    assert "Traceback" not in error
    assert not (tmp_path / "m.so").exists()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "sigwaitinfo"), reason="needs fork and sigwaitinfo")
def test_ctrl_c_reaches_the_child(tmp_path):
    process = crash(tmp_path, "print('ready', flush=True, file=__import__('sys').stderr)\nwhile True: time.sleep(0.05)")
    while "ready" not in (line := process.stderr.readline()):
        assert line
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "interrupted; nothing was saved" in error


STOPPED = """
import os, signal, threading
from tvm.script import ir as I
from tvm.script import relax as R
from tvm_sched.blob_cache import BlobCache

keep = BlobCache.keep

def keep_and_stop(cache, entries):
    keep(cache, entries)
    if entries and cache.path.name == "kernels.sqlite":
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait()

BlobCache.keep = keep_and_stop

@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((4, 8), "float32")):
        return R.sin(x)
"""


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "sigwaitinfo"), reason="needs fork and sigwaitinfo")
def test_ctrl_c_says_what_is_in_the_cache(tmp_path):
    (tmp_path / "m.py").write_text(STOPPED)
    command = [*PROGRAM, "compile", "m.py", "-t", "cpu1", "-s", "single", "--costs", "roofline", "-o", "m.so"]
    environment = {**os.environ, "TVM_SCHED_CACHE": str(tmp_path / "cache"), "TVM_SCHED_NO_CACHE": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 130, done.stderr
    assert done.stderr.splitlines()[-1] == (
        "interrupted; no file was written; kept in the cache: compiled kernels (1), measurements (0); the same command goes "
        "on from there"
    )
    assert not (tmp_path / "m.so").exists()


SEARCHES = """
import os, signal
from tvm.script import ir as I
from tvm.script import relax as R
from tvm_sched.schedulers.anytime import scheduler
from tvm_sched_runtime.search_budget import Turn

class Interrupted:
    name = "interrupted"

    def step(self, state, part):
        os.kill(os.getpid(), signal.SIGINT)
        while True:
            pass

turns = scheduler.turns
scheduler.turns = lambda *a, **k: [*turns(*a, **k)[:1], Turn(Interrupted(), 1.0)]

@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((4, 8), "float32")):
        return R.concat((R.exp(R.nn.softmax(x)), R.sin(R.nn.softmax(R.negative(x)))))
"""


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "sigwaitinfo"), reason="needs fork and sigwaitinfo")
def test_ctrl_c_in_the_search_compiles_the_best_schedule_so_far(tmp_path):
    (tmp_path / "m.py").write_text(SEARCHES)
    command = [*PROGRAM, "compile", "m.py", "-t", "v100-server", "--costs", "roofline", "-o", "m.so", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "interrupted: going on with the best schedule so far; Ctrl-C again ends at once" in done.stderr
    assert "interrupted" in done.stdout, "the status of the schedule"
    assert subprocess.run([*PROGRAM, "run", "m.so", "--repeat", "1"], cwd=tmp_path, check=False).returncode == 0


def test_a_model_that_tvm_cannot_compile(fails, tmp_path):
    """Status 2, and in one line the model, TVM's pass and its reason."""
    path = tmp_path / "squares.py"
    path.write_text(
        "from tvm.script import ir as I\nfrom tvm.script import relax as R\n@I.ir_module\nclass Module:\n    @R.function\n"
        "    def main(x: R.Tensor((4,), 'uint8')):\n        return R.power(x, x)\n"
    )
    for command, output in (("compile", "m.so"), ("problem", "p.json")):
        said = " ".join(fails(2, command, path, "-t", "cpu2", "-o", tmp_path / output).split())
        assert "model 'squares': TVM cannot compile this: its pass LegalizeOps failed: " in said
        assert "power only applies to float; change that part of the model" in said
