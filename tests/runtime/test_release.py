"""What a loaded module holds goes with its last reference: threads, memory, mapped files, descriptors."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

COUNT = """
import ctypes, gc, json, os, sys
from pathlib import Path
import numpy as np
from tvm_sched_runtime.runtime import load

class Malloc(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Malloc

def held():
    gc.collect()
    said = libc.mallinfo2()
    return {"threads": len(os.listdir("/proc/self/task")), "descriptors": len(os.listdir("/proc/self/fd")),
            "maps": sum(".so" in line or ".safetensors" in line for line in open("/proc/self/maps")),
            "malloc": said.uordblks + said.hblkhd}

artifact, loads = Path(sys.argv[1]), int(sys.argv[2])
x = np.ones((4, 64), "float32")

def turn():
    module = load(artifact)
    (out,) = module.run(x)
    return float(out.sum())

for _ in range(20):
    expected = turn()
before = held()
for _ in range(loads):
    assert turn() == expected
print(json.dumps([before, held()]))
"""


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    """Two devices, so that there are threads; parameters in a file, so that there is a mapping."""
    pytest.importorskip("tvm")
    from tvm import relax

    from tvm_sched.relax import compile

    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((64, 64)).astype("float32") for _ in range(2)]
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 64), "float32"))
    with builder.function("main", [x]):
        a, b = (builder.emit(relax.op.nn.relu(relax.op.matmul(x, relax.const(w)))) for w in weights)
        builder.emit_func_output(builder.emit(relax.op.add(a, b)))
    path = tmp_path_factory.mktemp("release") / "model.so"
    written = compile(builder.get(), "cpu2", "heft", parameters="external").export(path)
    assert len(written) == 2
    return path


def test_300_loads_leave_nothing_behind(artifact):
    done = subprocess.run(
        [sys.executable, "-c", COUNT, str(artifact), "300"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout)
    for what in ("threads", "descriptors", "maps"):
        assert after[what] == before[what], (what, before, after)
    # Two arenas and two copies of the weights are some 40 kB a load: 300 would be 12 MB.
    assert after["malloc"] - before["malloc"] < 300_000, (before, after)


def test_a_deep_header_is_refused(artifact, tmp_path):
    """The reader of parameters calls itself for each list in a list: 100,000 of them would end the process."""
    from tvm_sched_runtime.errors import InputError
    from tvm_sched_runtime.runtime import load

    header = b"[" * 100_000
    deep = tmp_path / "deep.safetensors"
    deep.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(InputError, match=r"deep.safetensors: header: lists and objects lie more than 8 deep"):
        load(artifact, deep)
    many = tmp_path / "many.safetensors"
    header = b"[" + b"0," * 10_000_000 + b"0]"
    many.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(InputError, match=r"many.safetensors: header: has more than 10000000 values"):
        load(artifact, many)
    save_file({"other": np.zeros(1, "float32")}, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match=r"these parameters of the module are not in it"):
        load(artifact, tmp_path / "other.safetensors")
