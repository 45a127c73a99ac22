"""What many loads and many runs of an artifact leave behind: threads, descriptors, mappings, memory. Nothing should grow."""

from __future__ import annotations

import ctypes
import gc
import os
import tempfile
from pathlib import Path

import numpy as np
from _common import parser
from _result_page import Row, report

KINDS = ("threads", "descriptors", "mappings", "kB of malloc")


class _Malloc(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _sizes = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keep")
    _fields_ = [(name, ctypes.c_size_t) for name in _sizes]


def held() -> dict[str, float]:
    """Count this process's resources now."""
    gc.collect()
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Malloc
    heap = mallinfo()
    with open("/proc/self/maps") as file:
        mappings = sum(".so" in line or ".safetensors" in line for line in file)
    counts = (len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), mappings)
    return dict(zip(KINDS, (*counts, (heap.uordblks + heap.hblkhd) / 1e3), strict=True))


def artifact(folder: Path) -> Path:
    """Compile two matrix products on two devices, with their weights in a file beside the artifact."""
    from tvm import relax

    from tvm_sched.relax import compile

    rng = np.random.default_rng(0)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 64), "float32"))
    with builder.function("main", [x]):
        weights = [relax.const(rng.standard_normal((64, 64)).astype("float32")) for _ in range(2)]
        a, b = (builder.emit(relax.op.nn.relu(relax.op.matmul(x, weight))) for weight in weights)
        builder.emit_func_output(builder.emit(relax.op.add(a, b)))
    path = folder / "model.so"
    compile(builder.get(), "cpu2", "heft", parameters="external", cost_model="roofline").export(path)
    return path


def main() -> None:
    """Load and run, and report the growth."""
    arguments = parser(__doc__)
    arguments.add_argument("--loads", type=int, default=10_000)
    arguments.add_argument("--runs", type=int, default=100_000)
    options = arguments.parse_args()
    loads, runs = (options.loads, options.runs) if not options.quick else (300, 3_000)
    from tvm_sched_runtime.runtime import load

    x = np.ones((4, 64), "float32")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = artifact(Path(folder))
        module = load(path)

        def load_once() -> None:
            load(path).run(x)

        for what, count, once in (("loads", loads, load_once), ("runs", runs, lambda: module.run(x))):
            for _ in range(100):  # what is made once
                once()
            before = held()
            for _ in range(count):
                once()
            after = held()
            rows += [Row(f"{count} {what}", kind, after[kind] - before[kind], "more than before") for kind in KINDS]
    report("What loads and runs leave behind", rows, options.json, options.markdown)


if __name__ == "__main__":
    main()
