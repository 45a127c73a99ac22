"""What is no input is refused by an error of ours, at each entry, and never ends the process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm_ffi
from runtime_plans import PlanBuilder
from wrong_inputs import ONE, RIGHT

from onnx_text import onnx_model
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.runtime import to_tensor

HERE = Path(__file__).parent


def said_by(entry, folder="."):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-W", "ignore", str(HERE / "wrong_inputs.py"), entry, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def check(said, kinds):
    assert {what for what, error in said.items() if error[0] == "taken"} == said.keys() & set(RIGHT)
    assert "complex64" in said
    assert "ml_dtypes bfloat16" in said
    odd = {what: error for what, error in said.items() if error[0] not in (*kinds, "taken")}
    assert not odd


@pytest.mark.parametrize("entry", ["module", "parameter"])
def test_a_module_refuses_what_is_no_input(entry):
    check(said_by(entry), ["InputError"])


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A model, its artifact, and its pipeline."""
    onnx = pytest.importorskip("onnx")
    from tvm_sched.relax import compile, compile_pipeline

    folder = tmp_path_factory.mktemp("files")
    file = folder / "model.onnx"
    onnx.save(onnx_model("(float[2, 3] x) => (float[2, 3] y) { y = Neg(x) }"), file)
    compile(file, "cpu1", "single").export(folder / "model.so")
    compile_pipeline(file, "cpu1", stages=1).export(folder / "model.pipeline")
    return folder


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("entry", "kinds"),
    [
        ("loaded", ["InputError"]),
        ("compiled", ["InputError"]),
        ("pipeline", ["ExecutionError"]),  # of the batch
        ("machine", ["ValueError", "RuntimeError", "TypeError", "BufferError", "AttributeError"]),  # TVM's interface
    ],
)
def test_an_artifact_refuses_what_is_no_input(files, entry, kinds):
    said = said_by(entry, files)
    if entry == "machine":
        assert "no plan of this module takes arguments (complex64[2, 3]); it has" in said["complex64"][1]
    check(said, kinds)


@pytest.mark.slow
def test_the_command_line_refuses_what_is_no_input(files, tmp_path):
    from typer.testing import CliRunner

    from tvm_sched.cli import app

    kinds = ["complex64", "longdouble", "S4", "M8[s]", "float64", [("a", "f4")], object]
    for value in (*(ONE.astype(kind) if isinstance(kind, str) else np.zeros((2, 3), kind) for kind in kinds), ONE[0]):
        np.save(tmp_path / "x.npy", value)
        np.savez(tmp_path / "x.npz", x=value)
        for given in (f"x={tmp_path / 'x.npy'}", str(tmp_path / "x.npz")):
            done = CliRunner().invoke(app, ["run", str(files / "model.so"), "--input", given])
            assert done.exit_code == 2, done.output
            assert "Traceback" not in done.stderr


def test_the_message_names_the_input_and_its_type():
    builder = PlanBuilder()
    x, _, out = builder.argument("x", [2, 3]), builder.argument("mask", [2], "bool"), builder.output([2, 3])
    builder.copy(x, out)
    module = builder.module()
    with pytest.raises(InputError, match=r"input 1 \(mask\): a value of type str cannot be taken as a tensor"):
        module.run(ONE, "yes")
    with pytest.raises(
        InputError, match=r"arguments \(complex64\[2, 3\], bool\[2\]\); it has\n  plan \"plan\": \(x: float32"
    ):
        module.run(ONE.astype("complex64"), np.ones(2, bool))


def test_types_without_a_name_are_described():
    """A type of DLPack that tvm_ffi cannot print, in an error of C++."""
    with pytest.raises(ValueError, match=r"a complex64\[2\] cannot be taken as int8"):
        tvm_ffi.get_global_func("tvm_sched.reinterpret")(to_tensor(np.ones(2, "complex64")), "int8")


def test_errors_are_thrown_when_their_message_is_complete():
    """tvm_ffi's macros throw from a destructor, which ends the process if an operand throws."""
    used = [
        f"{file.name}: {line}"
        for file in (HERE.parents[1] / "cpp").rglob("*.[hc]*")
        for line in file.read_text().splitlines()
        if any(
            f"{macro}(" in line
            for macro in ("TVM_FFI_THROW", "TVM_FFI_CHECK", "TVM_FFI_ICHECK", "TVM_FFI_LOG_AND_THROW")
        )
    ]
    assert not used
