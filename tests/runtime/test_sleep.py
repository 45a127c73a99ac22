"""`ScheduledModule.sleep` and `wake`: memory goes and comes back, values stay."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from runtime_plans import add_and_double
from safetensors.numpy import save_file

from tvm_sched_runtime.errors import ExecutionError, InputError
from tvm_sched_runtime.runtime import load

ONES = np.ones(4, "float32")
X = np.arange(4, dtype="float32")
LAYERS, WIDTH = 6, 1024
MEASURE = """
import json, os, sys
import numpy as np
from tvm_sched_runtime.runtime import load

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

module = load(sys.argv[1])
x = np.ones((4, int(sys.argv[2])), "float32")
first = module.run(x)[0]
before = resident()
freed = module.sleep()
after = resident()
module.wake()
same = bool(np.array_equal(module.run(x)[0], first))
print(json.dumps({"fell": before - after, "freed": freed, "same": same, "back": resident() - after}))
"""


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    """Products with 24 MiB of weights in a file; oneDNN may lay them out in memory of its own."""
    pytest.importorskip("tvm")
    from tvm import relax

    from tvm_sched.relax import compile

    rng = np.random.default_rng(0)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, WIDTH), "float32"))
    with builder.function("main", [x]):
        value = x
        for _ in range(LAYERS):
            weight = relax.const(rng.standard_normal((WIDTH, WIDTH)).astype("float32") / WIDTH)
            value = builder.emit(relax.op.nn.relu(relax.op.matmul(value, weight)))
        builder.emit_func_output(value)
    path = tmp_path_factory.mktemp("sleep") / "model.so"
    compile(builder.get(), "cpu1", "heft", cost_model="roofline", parameters="external").export(path)
    return path


def test_memory_falls_by_the_parameters_bytes_and_values_are_equal_after_waking(artifact):
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(artifact), str(WIDTH)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    parameters = 4 * LAYERS * WIDTH * WIDTH
    assert found["same"]
    assert parameters <= found["freed"] < 1.1 * parameters
    # The interpreter's own memory moves by some pages meanwhile.
    assert found["fell"] > 0.98 * parameters, found
    assert found["back"] > 0.98 * parameters, found


def test_a_sleeping_module_refuses_runs_and_wakes_when_its_file_is_back(artifact, tmp_path):
    for part in (artifact, artifact.with_suffix(".safetensors")):
        shutil.copy(part, tmp_path)
    module = load(tmp_path / artifact.name)
    x = np.ones((4, WIDTH), "float32")
    expected = module.run(x)[0]
    module.sleep()
    assert module.sleep() == 0, "there is nothing more to free"
    with pytest.raises(ExecutionError, match=r"the module sleeps: call wake\(\)"):
        module.run(x)
    file = (tmp_path / artifact.name).with_suffix(".safetensors")
    file.rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=file.name):
        module.wake()
    with pytest.raises(ExecutionError, match="the module sleeps"):
        module.run(x)
    (tmp_path / "elsewhere").rename(file)
    module.wake()
    np.testing.assert_array_equal(module.run(x)[0], expected)
    module.wake()  # does nothing
    np.testing.assert_array_equal(module.run(x)[0], expected)


def test_parameters_that_were_set_stay(tmp_path):
    module = add_and_double().module()
    module.set_parameter("w", 3 * ONES)
    module.sleep()
    module.wake()
    np.testing.assert_array_equal(module.run(X)[0], 2 * (X + 3))
    save_file({"w": 5 * ONES}, tmp_path / "p.safetensors")
    module.load_parameters(tmp_path / "p.safetensors")
    assert module.sleep() >= ONES.nbytes
    module.set_parameter("w", 7 * ONES)
    module.wake()
    np.testing.assert_array_equal(module.run(X)[0], 2 * (X + 7))
