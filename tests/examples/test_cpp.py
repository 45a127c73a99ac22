"""The C++ example compiles and runs an artifact in a process without Python."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tvm_sched_runtime.core_library import load_library

pytestmark = pytest.mark.xdist_group("cpp_example")  # compiled once
ROOT = Path(__file__).resolve().parents[2]


def config(*flags):
    code = "import sys; from tvm_ffi.config import __main__ as m; m()"
    tool = Path(sys.executable).with_name("tvm-ffi-config")
    command = [str(tool)] if tool.is_file() else [sys.executable, "-c", code]
    return subprocess.run([*command, *flags], check=True, capture_output=True, text=True).stdout.split()


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    compiler = shutil.which("g++") or pytest.skip("no g++")
    tvm, tvm_ffi = pytest.importorskip("tvm"), pytest.importorskip("tvm_ffi")
    load_library()
    folders = [
        Path(tvm.__file__).parent / "lib",
        ROOT / "python" / "tvm_sched_runtime" / "_lib",
        Path(tvm_ffi.__file__).parent / "lib",
    ]
    target = tmp_path_factory.mktemp("cpp") / "run_model"
    links = [f"-L{folder}" for folder in folders] + ["-Wl,--no-as-needed", "-ltvm_sched", "-ltvm_runtime", "-ltvm_ffi"]
    rpath = "-Wl,-rpath," + ":".join(map(str, folders))
    source = ROOT / "examples" / "cpp" / "run_model.cc"
    flags = [flag for flag in config("--cxxflags") if not flag.startswith("-std")]
    subprocess.run(
        [compiler, "-std=c++20", "-O0", str(source), "-o", str(target), *flags, *links, rpath], check=True, timeout=200
    )
    return target


def doubled_product():
    """A module that gives (36, 44, 52) for each of two rows of ones."""
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 4), "float32"))
    weight = np.arange(12, dtype="float32").reshape(4, 3)
    with builder.function("main", [x]):
        value = builder.emit(relax.op.matmul(x, relax.const(weight)))
        builder.emit_func_output(builder.emit(relax.op.add(value, value)))
    return builder.get()


@pytest.mark.parametrize("parameters", ["embed", "external"])
def test_the_example_runs_an_artifact(program, tmp_path, parameters):
    from tvm_sched.relax import compile

    model = compile(doubled_product(), "cpu2", "single", parameters=parameters)
    files = model.export(tmp_path / "model.so")
    result = subprocess.run([str(program), *map(str, files)], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert "output of 6 elements: 36 44 52 36 44 52\n" in result.stdout
    assert "warning" not in result.stderr
    damaged = subprocess.run([str(program), "/nowhere.so"], capture_output=True, text=True, timeout=60, check=False)
    assert damaged.returncode == 1
    assert "nowhere.so" in damaged.stderr


def test_the_example_says_how_the_machine_differs(program, tmp_path):
    """As Python does when it loads the artifact."""
    from tvm import relax

    from tvm_sched.relax import compile
    from tvm_sched_runtime.runtime import MachineWarning, load

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.add(x, x)))
    (file,) = compile(builder.get(), "cpu300", "single").export(tmp_path / "model.so")
    result = subprocess.run([str(program), str(file)], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    said = "it is scheduled over 300 CPU devices, and this process may use "
    assert f"{file}: warning: {said}" in result.stderr
    with pytest.warns(MachineWarning, match=said):
        load(file)


def test_emulated_devices_give_values(program, tmp_path):
    """For a topology of GPUs, from a file, too: right values, and the program says that they are emulated."""
    from tvm_sched.relax import compile

    presets = ROOT / "python" / "tvm_sched_runtime" / "problem" / "presets"
    shutil.copy(presets / "v100-server.toml", tmp_path / "machine.toml")
    model = compile(doubled_product(), tmp_path / "machine.toml", "heft", backend="emulated")
    (file,) = model.export(tmp_path / "model.so")
    result = subprocess.run([str(program), str(file)], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert "output of 6 elements: 36 44 52 36 44 52\n" in result.stdout
    assert f"{file}: emulated devices: " in result.stderr
