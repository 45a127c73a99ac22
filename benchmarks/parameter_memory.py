"""Memory that loading and running takes, beside the size of a parameter file that is mapped.

Each figure is the peak of resident memory of a process of its own, less what it was before the file was opened and less
the plan's arenas. The model adds up 64 parameters, one after the other, so that what a kernel keeps for itself meanwhile
(its product of a parameter and the input, as large as that parameter) is a 64th of them. The kernel that reads a parameter
is compiled by TVM and touches every byte, so all pages have been in memory at the end.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from _common import Row, parser, report

CHILD = """
import json, sys
import numpy as np
from tvm_sched.runtime import load

def field(name):  # not getrusage: its peak is inherited from the process that started this one
    (line,) = [line for line in open("/proc/self/status") if line.startswith(name)]
    return int(line.split()[1]) * 1024

def peak(): return field("VmHWM")

def now(): return field("VmRSS")

import tvm.runtime  # not a part of what is measured
before = now()
module = load(sys.argv[1])
loaded = peak() - before
x = np.ones(tuple(module.plans()[0]["arguments"][0]["shape"]), "float32")
first = module.run(x)[0]
arenas = sum(device["arena_bytes"] for device in module.plans()[0]["devices"])
print(json.dumps({"loaded": loaded, "run": peak() - before - arenas, "value": float(first.ravel()[0])}))
"""


def export(folder: Path, megabytes: int, pieces: int = 64) -> Path:
    """An artifact that adds up the sums of ``pieces`` parameters of ``megabytes`` in all."""
    from tvm import relax

    from tvm_sched.relax import compile

    columns, rows = 1024, megabytes * 1024 * 1024 // 4 // 1024 // pieces
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, columns), "float32"))
    with builder.function("main", [x]):
        total = x
        for _ in range(pieces):
            weight = relax.const(np.full((rows, columns), 0.5, "float32"))
            total = builder.emit(relax.op.add(total, builder.emit(relax.op.sum(weight * x, axis=[0], keepdims=True))))
        builder.emit_func_output(total)
    path = folder / "model.so"
    compile(builder.get(), "cpu1", "single", parameters="external").export(path)
    return path


def main() -> None:
    arguments = parser(__doc__ or "", models=False)
    arguments.add_argument("--megabytes", type=int, default=512)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = export(Path(folder), options.megabytes // 8 if options.quick else options.megabytes)
        size = path.with_suffix(".safetensors").stat().st_size
        child = subprocess.run([sys.executable, "-c", CHILD, str(path)], capture_output=True, text=True, check=True)
        figures = json.loads(child.stdout)
    rows = [
        Row(f"{size / 2**20:.0f} MiB of parameters", what, figures[key] / size, "of the file's size", 1.1, "allowed")
        for what, key in (("loaded", "loaded"), ("loaded and run", "run"))
    ]
    report("peak memory", rows, options.json, options.markdown)


if __name__ == "__main__":
    main()
