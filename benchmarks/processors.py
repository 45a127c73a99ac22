"""Run the tests of kernels as older processors would, and add what ran to ``docs/results/processors.md``.

``make test-processors`` calls it. Each row is a configuration: oneDNN limited to an instruction set, kernels compiled for a
level of x86-64, one core, or an artifact and the C++ tests of the runtime under qemu-user with a model of an old processor.
The page has one column for each kind of processor; other columns stay as they are when it runs again.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results" / "processors.md"
TESTS = (
    "tests/frontends/onnx/test_quantized.py",
    "tests/frontends/onnx/test_edge_values.py",
    "tests/relax/lower/test_onednn_integers.py",
    "tests/relax/toolchain/test_processor.py",
    "tests/runtime/test_values.py",
)
INSTRUCTION_SETS = {"SSE41": "sse4_1", "AVX": "avx", "AVX2": "avx2", "AVX512_CORE": "avx512f"}
"""Values of ``ONEDNN_MAX_CPU_ISA``, and the flag of ``/proc/cpuinfo`` that a processor needs for it."""
LEVELS = {"x86-64-v2": "sse4_2", "x86-64-v3": "avx2", "x86-64-v4": "avx512f"}
MODELS = {"Nehalem": ("x86-64-v2", "SSE41"), "Haswell": ("x86-64-v3", "AVX")}
"""Processors that qemu-user emulates, the level of the artifact that runs there, and oneDNN's instruction set.

On qemu's Haswell, a kernel of oneDNN with AVX2 gives a wrong value, which no processor with AVX2 does.
"""
RUNTIME = "Executor*:CpuBackend*:Machine*:PlanReader*:Residency*:Safetensors*:Pool*:ParallelLoops*"
"""The C++ tests of the runtime."""
HEADER = "| configuration |"


def processor() -> str:
    """The kind of this machine's processor: vendor, and the newest instructions that matter here."""
    text = Path("/proc/cpuinfo").read_text()
    vendor = (re.search(r"vendor_id\s*: (\S+)", text) or ["", "unknown"])[1]
    name = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel"}.get(vendor, vendor)
    newest = next((n for n in ("amx_int8", "avx512_vnni", "avx512f", "avx_vnni", "avx2", "avx") if n in flags()), "sse")
    return f"{name}, {newest.replace('_', '-').upper()}"


def flags() -> set[str]:
    """The flags of the processor."""
    found = re.search(r"flags\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return set(found[1].split()) if found else set()


def run_tests(arguments: list[str], *prefix: str, **variables: str) -> str:
    """Run the tests of kernels; the number that passed and the seconds, or what failed."""
    begin = time.monotonic()
    command = [*prefix, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "TVM_SCHED_NO_CACHE": "1", **variables}, capture_output=True, text=True
    )
    last = (done.stdout.strip().splitlines() or ["nothing was run"])[-1]
    counts = re.findall(r"(\d+) (passed|failed|error|errors|skipped)", last)
    for line in done.stdout.splitlines():
        if line.startswith(("FAILED", "ERROR")):
            print(f"  {line}")
    text = ", ".join(f"{count} {what}" for count, what in counts) or last
    mark = "" if done.returncode == 0 else "**"
    return f"{mark}{text}{mark}, {time.monotonic() - begin:.0f} s"


def runtime_tests(model: str, binary: Path) -> str:
    """The C++ tests of the runtime under an emulated processor."""
    begin = time.monotonic()
    command = [
        "qemu-x86_64",
        "-cpu",
        model,
        str(binary),
        f"--gtest_filter={RUNTIME}",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    passed = re.search(r"\[  PASSED  \] (\d+) test", done.stdout)
    failed = re.findall(r"^\[  FAILED  \] ([\w./]+)$", done.stdout, re.MULTILINE)
    if failed:
        return f"**{', '.join(dict.fromkeys(failed))} failed**, {passed[1] if passed else 0} passed"
    if done.returncode or not passed or passed[1] == "0":
        return f"**status {done.returncode}: {(done.stdout + done.stderr).strip().splitlines()[-1:]}**"
    return f"{passed[1]} passed, {time.monotonic() - begin:.0f} s"


PROGRAM = """
import sys
import numpy as np
from tvm_sched.runtime import load
folder = sys.argv[1]
x, right = np.load(folder + "/x.npy"), np.load(folder + "/right.npy")
(found,) = load(folder + "/model.so").run(x)
np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)
print("right", flush=True)
"""


def artifact(model: str, level: str, isa: str) -> str:
    """An artifact for a level, run by the runtime alone under an emulated processor; checked against float64."""
    import numpy as np
    from onnx import parser

    import tvm_sched.relax

    rng = np.random.default_rng(0)
    w, v = rng.standard_normal((8, 3, 3, 3)).astype("float32"), rng.standard_normal((8, 5)).astype("float32")
    x = rng.standard_normal((1, 3, 12, 12)).astype("float32")
    graph = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[1,3,12,12] x, float[8,3,3,3] w, float[8,5] v) => (float[1,5] y) '
        "<int64[2] s = {1, 8}> { c = Conv(x, w) r = Tanh(c) p = GlobalAveragePool(r) f = Reshape(p, s) y = MatMul(f, v) }"
    )
    windows = np.lib.stride_tricks.sliding_window_view(x[0].astype("float64"), (3, 3), (1, 2))
    right = (np.tanh(np.einsum("cijkl,ockl->oij", windows, w)).mean((1, 2)) @ v)[None]
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        compiled = tvm_sched.relax.compile(graph, "cpu1", "single", processor=level, constants={"w": w, "v": v})
        compiled.export(Path(folder) / "model.so")
        np.save(Path(folder) / "x.npy", x)
        np.save(Path(folder) / "right.npy", right)
        command = ["qemu-x86_64", "-cpu", model, sys.executable, "-c", PROGRAM, folder]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env={**os.environ, "OPENBLAS_CORETYPE": "Nehalem", "ONEDNN_MAX_CPU_ISA": isa},
        )
    if done.returncode or "right" not in done.stdout:
        return f"**status {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1]}**"
    return f"right, {time.monotonic() - begin:.0f} s"


def configurations(binary: Path | None, quick: bool) -> dict[str, Callable[[], str]]:
    """What runs each configuration, by name; a processor that lacks its instructions says so."""
    arguments = ["-x", "-k", "linear or max or Gemm or portable"] if quick else []

    def needs(flag: str, run: Callable[[], str]) -> Callable[[], str]:
        return run if flag in flags() else lambda: "not this processor"

    rows = {
        f"oneDNN limited to {isa}": needs(flag, partial(run_tests, arguments, ONEDNN_MAX_CPU_ISA=isa))
        for isa, flag in INSTRUCTION_SETS.items()
    }
    for level, flag in LEVELS.items():
        rows[f"kernels for {level}"] = needs(flag, partial(run_tests, arguments, TVM_SCHED_TEST_PROCESSOR=level))
    rows["one core"] = partial(run_tests, arguments, "taskset", "-c", "0")
    for model, (level, isa) in MODELS.items() if shutil.which("qemu-x86_64") else ():
        rows[f"qemu {model}: an artifact for {level}, oneDNN limited to {isa}"] = partial(artifact, model, level, isa)
        if binary is not None and binary.exists():
            rows[f"qemu {model}: C++ tests of the runtime"] = partial(runtime_tests, model, binary)
    return rows


def merged(text: str, column: str, rows: dict[str, str]) -> str:
    """The page with the column of one processor made anew, and all others as they were."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    table = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    columns = table[0][1:] if table else []
    old = {row[0]: dict(zip(columns, row[1:], strict=True)) for row in table[1:]}
    columns = [*(c for c in columns if c != column), column]
    for name in dict.fromkeys([*old, *rows]):
        cells = old.setdefault(name, {})
        cells[column] = rows.get(name, cells.get(column, "-"))
    head = [
        "# Processors",
        "",
        "`make test-processors` runs the tests of kernels in these configurations and fills the column of this processor.",
        "The tests are those of quantised operators, of edge values, of artifacts for other processors and of the runtime's",
        "values. Their references are exact arithmetic, so they do not depend on the processor.",
        "",
        "`ONEDNN_MAX_CPU_ISA` limits oneDNN; `tests/conftest.py` compiles generated kernels for a level. Times are of",
        "a shared machine. `-` stands for what has not run. `benchmarks/processors.py --only TEXT` runs some of the rows.",
        "",
        "qemu-user 7.2 with the model Haswell gives a wrong value for a kernel of oneDNN with AVX2 (0.0251 for 0.0336);",
        "the processor itself gives the right one. So oneDNN is limited to AVX there.",
        "",
        f"{HEADER} {' | '.join(columns)} |",
        f"|{'---|' * (len(columns) + 1)}",
    ]
    body = [f"| {name} | {' | '.join(found.get(c, '-') for c in columns)} |" for name, found in old.items()]
    return "\n".join([*head, *body]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, help="the C++ tests, to run those of the runtime under qemu")
    parser.add_argument("--quick", action="store_true", help="a few tests of each configuration; the page stays")
    parser.add_argument("--only", default="", metavar="TEXT", help="the configurations whose names contain this")
    options = parser.parse_args()
    failed = False
    for name, run in configurations(options.binary, options.quick).items():
        if options.only not in name:
            continue
        result = run()
        failed |= "**" in result
        print(f"{name}: {result}", flush=True)
        if not options.quick:
            cell = result if "processor" in result else f"{result} ({date.today()})"
            PAGE.write_text(merged(PAGE.read_text() if PAGE.exists() else "", processor(), {name: cell}))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
