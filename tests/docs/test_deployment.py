"""docs/deployment.md: its programs run as they stand there."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tvm_sched_runtime.core_library import load_library

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "docs" / "deployment.md").read_text(), flags=re.DOTALL)
PYTHON = [text for language, text in BLOCKS if language == "python"]
(BASH,) = (text for language, text in BLOCKS if language == "bash")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with ``model.so``: twice the sum of eight numbers, and so 16 of ones; ``several.so`` takes 2 or 4 rows."""
    pytest.importorskip("tvm")
    from tvm import relax, tirx

    from tvm_sched.relax import compile

    def model(rows):
        builder = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType((rows, 8), "float32"))
        with builder.function("main", [x]):
            value = builder.emit(relax.op.matmul(x, relax.const(np.ones((8, 3), "float32"))))
            builder.emit_func_output(builder.emit(relax.op.add(value, value)))
        return builder.get()

    folder = tmp_path_factory.mktemp("deployment")
    compile(model(2), "cpu2", "single").export(folder / "model.so")
    both = [{"x": (rows, 8)} for rows in (2, 4)]
    compile(model(tirx.Var("rows", "int64")), "cpu2", "single", input_shapes=both).export(folder / "several.so")
    return folder


@pytest.mark.slow
def test_without_the_compiler(place):
    code = PYTHON[0] + "\nimport sys\nassert 'tvm' not in sys.modules\nprint(y)"
    done = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["[[16.", "16.", "16.]", "[16.", "16.", "16.]]"]


@pytest.mark.slow
def test_the_virtual_machine_without_the_compiler(place):
    # tvm_ffi would import PyTorch, which takes longer than the rest.
    code = "import sys\nsys.modules['torch'] = None\n" + PYTHON[1] + "\nassert tvm._RUNTIME_ONLY"
    done = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["[[16.", "16.", "16.]", "[16.", "16.", "16.]]"]


@pytest.mark.thorough
@pytest.mark.slow
def test_the_commands_for_cpp(place):
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    load_library()
    (place / "examples").symlink_to(ROOT / "examples")
    tools = place / "bin"
    tools.mkdir()
    (tools / "python").symlink_to(sys.executable)
    config = f'#!/bin/sh\nexec "{sys.executable}" -m tvm_ffi.config "$@"\n'
    (tools / "tvm-ffi-config").write_text(config)
    (tools / "tvm-ffi-config").chmod(0o755)
    script = "set -e\n" + BASH.replace("python -c", f'"{sys.executable}" -c')
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path[1:])}
    command = ["bash", "-c", script.replace("./run_model model.so", "./run_model model.so && ./run_model ./several.so")]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("output of 6 elements: 16 16 16 16 16 16\n") == 2
    assert done.stdout.count("output of 12 elements: 16 16 16 16 16 16 16 16\n") == 1
