"""`tvm_frontends` by itself, without tvm_sched."""

import subprocess
import sys

import numpy as np
import pytest

ALONE = """
import sys
sys.modules.update(dict.fromkeys(("tvm_sched", "tvm_sched_check", "tvm_sched_cluster", "torch")))
"""


def run(script, *arguments):
    """What a script prints in a fresh process that cannot import tvm_sched."""
    done = subprocess.run([sys.executable, "-c", ALONE + script, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_an_onnx_model_is_imported_built_by_tvm_and_run(tmp_path):
    onnx = pytest.importorskip("onnx")
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> '
        "g (float[N, 3] x) => (float[N, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> { y = MatMul(x, w) }"
    )
    onnx.save(model, tmp_path / "m.onnx")
    found = run(
        """
import numpy as np, tvm, tvm_frontends
imported = tvm_frontends.onnx.load(sys.argv[1], shapes={"x": (2, 3)})
assert list(imported.parameters) == ["w"]
executable = tvm.relax.build(tvm.relax.get_pipeline("zero")(imported.mod), "llvm")
machine = tvm.relax.VirtualMachine(executable, tvm.cpu())
values = [np.ones((2, 3), "float32"), *imported.parameters.values()]
print(machine["main"](*map(tvm.runtime.tensor, values)).numpy().tolist())
""",
        tmp_path / "m.onnx",
    )
    assert found == str((np.ones((2, 3)) @ [[1, 2], [3, 4], [5, 6]]).tolist())


@pytest.mark.thorough
def test_every_module_can_be_imported():
    pytest.importorskip("onnx")
    found = run(
        """
del sys.modules["torch"]
import importlib, pkgutil, tvm_frontends
names = [item.name for item in pkgutil.walk_packages(tvm_frontends.__path__, "tvm_frontends.")]
print(sum(importlib.import_module(name) is not None for name in names))
"""
    )
    assert int(found) > 50
