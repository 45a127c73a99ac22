"""Run the tests of kernels as older processors would, and add what ran to ``docs/results/processors.md``.

``make test-processors`` calls it. A row of the page is a processor that this one is limited to: oneDNN, our integer kernels
and generated kernels use no newer instructions than it has. Other rows are one core, and artifacts and the C++ tests of
the runtime under qemu-user with models of old processors. A row takes minutes: ``--only TEXT`` runs some of them.
The page has one column for each kind of processor; other columns, and the text above the table, stay as they are when it
runs again.
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
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results" / "processors.md"
TESTS = (
    "tests/frontends/onnx/test_quantized.py",
    "tests/frontends/onnx/test_edge_values.py",
    "tests/frontends/onnx/test_operators.py",
    "tests/relax/lower/test_onednn_integers.py",
    "tests/relax/toolchain/test_processor.py",
    "tests/runtime/test_values.py",
)


@dataclass(frozen=True)
class Limits:
    """What a processor has: oneDNN's instruction set, that of our integer kernels, the level of generated kernels."""

    onednn: str
    integers: str
    level: str
    flag: str
    """Of ``/proc/cpuinfo``, which a processor needs for it."""

    def variables(self) -> dict[str, str]:
        """Return the environment variables that limit the tests."""
        names = ("ONEDNN_MAX_CPU_ISA", "TVM_SCHED_INTEGERS", "TVM_SCHED_TEST_PROCESSOR")
        return dict(zip(names, (self.onednn, self.integers, self.level), strict=True))


PROCESSORS = {
    "SSE4.1": Limits("SSE41", "sse4.1", "x86-64-v2", "sse4_2"),
    "AVX": Limits("AVX", "sse4.1", "x86-64-v2", "avx"),
    "AVX2": Limits("AVX2", "avx2", "x86-64-v3", "avx2"),
    "AVX-512 without VNNI": Limits("AVX512_CORE", "avx2", "x86-64-v4", "avx512f"),
    "AVX-512 with VNNI": Limits("AVX512_CORE_VNNI", "avx512vnni", "x86-64-v4", "avx512_vnni"),
}
MODELS = {"Nehalem": ("x86-64-v2", "SSE41"), "SandyBridge": ("x86-64-v2", "AVX"), "Haswell": ("x86-64-v3", "AVX")}
"""Processors that qemu-user emulates, the level of the artifacts that run there, and oneDNN's instruction set.

On qemu's Haswell, a kernel of oneDNN with AVX2 gives a wrong value, which no processor with AVX2 does.
"""
RUNTIME = "Executor*:CpuBackend*:Machine*:PlanReader*:Residency*:Safetensors*:Pool*:ParallelLoops*"
"""The C++ tests of the runtime."""
HEADER = "| configuration |"
INTRODUCTION = """# Processors

`make test-processors` runs the tests of kernels in these configurations and fills the column of this processor. The tests
are those of every ONNX operator (a sample), of quantised operators, of edge values, of artifacts for other processors and
of the runtime's values. Their references are exact arithmetic, so they do not depend on the processor.

A processor is limited to an older one by `ONEDNN_MAX_CPU_ISA` for oneDNN, by `TVM_SCHED_INTEGERS` for our integer kernels,
and by a level of x86-64 for which `tests/conftest.py` compiles all other kernels:

| limited to | oneDNN | integer kernels | generated kernels |
|---|---|---|---|
{limits}

Under qemu-user run artifacts that were compiled for a level: a convolution with a product, a chain that meets NaN and
infinities, and a product and a convolution of 8-bit integers, whose results are exact. qemu-user 7.2 with the model Haswell
gives a wrong value for a kernel of oneDNN with AVX2 (0.0251 for 0.0336); the processor itself gives the right one. So oneDNN
is limited to AVX there.

Times are of a shared machine. `-` stands for what has not run. `benchmarks/processors.py --only TEXT` runs some of the rows.
The rows "oneDNN limited to" are of an older form of the script, which left the other kernels as they were.
"""


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
from pathlib import Path
import numpy as np
from tvm_sched_runtime.runtime import load
for folder in sorted(path for path in Path(sys.argv[1]).iterdir()):
    data = np.load(folder / "data.npz")
    found = load(str(folder / "model.so")).run(*(data[f"x{k}"] for k in range(len(data) - 1)))
    found = np.asarray(found[0] if isinstance(found, (list, tuple)) else found)
    right = data["right"]
    assert (found.dtype, found.shape) == (right.dtype, right.shape), folder.name
    exact = right.dtype.kind in "iu"
    np.testing.assert_allclose(found, right, rtol=0 if exact else 1e-4, atol=0 if exact else 1e-5, err_msg=folder.name)
    print("right", flush=True)
"""


@dataclass(frozen=True)
class Example:
    """A graph in ONNX's text form, the values of its inputs and constants, and its result by exact arithmetic."""

    graph: str
    inputs: tuple[Any, ...]
    constants: dict[str, Any]
    right: Any


def examples() -> dict[str, Example]:
    """Models whose kernels are oneDNN's, ours and generated ones; some inputs are NaN and infinite."""
    import numpy as np

    def windows(x: Any, size: int) -> Any:
        return np.lib.stride_tricks.sliding_window_view(x[0].astype("float64"), (size, size), (1, 2))

    rng = np.random.default_rng(0)
    w, v = rng.standard_normal((8, 3, 3, 3)).astype("float32"), rng.standard_normal((8, 5)).astype("float32")
    x = rng.standard_normal((1, 3, 12, 12)).astype("float32")
    sums = np.einsum("cijkl,ockl->oij", windows(x, 3), w)
    special = rng.integers(-3, 4, (1, 3, 12, 12)).astype("float32")
    special[0, 0, 2, 3], special[0, 1, 8, 8], special[0, 2, 11, 0] = np.nan, np.inf, -np.inf
    whole = rng.choice([-1, 1], (8, 3, 3, 3)).astype("float32")
    with np.errstate(invalid="ignore"):
        reached = np.maximum(np.einsum("cijkl,ockl->oij", windows(special, 3), whole), 0)
    a, b = rng.integers(0, 256, (19, 70)).astype("uint8"), rng.integers(-128, 128, (70, 33)).astype("int8")
    image, filters = rng.integers(0, 256, (1, 5, 9, 9)).astype("uint8"), rng.integers(-128, 128, (16, 5, 3, 3))
    byte_sums = np.einsum("cijkl,ockl->oij", windows(image.astype("int64") - 128, 3), filters)
    # Scales are powers of two, so that the quotients are exact and only rounding half to even is left.
    bytes_ = np.clip(np.rint(byte_sums * (0.5 * 0.25 / 32)) + 100, 0, 255).astype("uint8")[None]
    head = '<ir_version: 8, opset_import: ["": 18]> g '
    return {
        "float": Example(
            f"{head}(float[1,3,12,12] x, float[8,3,3,3] w, float[8,5] v) => (float[1,5] y) <int64[2] s = {{1, 8}}> "
            "{ c = Conv(x, w) r = Tanh(c) p = GlobalAveragePool(r) f = Reshape(p, s) y = MatMul(f, v) }",
            (x,),
            {"w": w, "v": v},
            (np.tanh(sums).mean((1, 2)) @ v)[None].astype("float32"),
        ),
        "NaN": Example(
            f"{head}(float[1,3,12,12] x, float[8,3,3,3] w) => (float[1,8,9,9] y) "
            "{ c = Conv(x, w) r = Relu(c) y = MaxPool<kernel_shape=[2,2]>(r) }",
            (special,),
            {"w": whole},
            windows(reached[None], 2).max((3, 4))[None].astype("float32"),
        ),
        "integer product": Example(
            f"{head}(uint8[19,70] a, int8[70,33] b) => (int32[19,33] y) {{ y = MatMulInteger(a, b) }}",
            (a,),
            {"b": b},
            (a.astype("int64") @ b.astype("int64")).astype("int32"),
        ),
        "integer convolution": Example(
            f"{head}(uint8[1,5,9,9] x, int8[16,5,3,3] w) => (uint8[1,16,7,7] y) <float xs = {{0.5}}, uint8 xz = {{128}}, "
            "float ws = {0.25}, int8 wz = {0}, float ys = {32.0}, uint8 yz = {100}> "
            "{ y = QLinearConv(x, xs, xz, w, ws, wz, ys, yz) }",
            (image,),
            {"w": filters.astype("int8")},
            bytes_,
        ),
    }


def artifacts(model: str, level: str, isa: str) -> str:
    """Artifacts for a level, run by the runtime alone under an emulated processor, against `Example.right`."""
    import numpy as np
    from onnx import parser

    import tvm_sched.relax

    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for name, each in examples().items():
            place = Path(folder) / name
            place.mkdir()
            graph = parser.parse_model(each.graph)
            compiled = tvm_sched.relax.compile(graph, "cpu1", "single", processor=level, constants=each.constants)
            compiled.export(place / "model.so")
            inputs = {f"x{k}": value for k, value in enumerate(each.inputs)}
            np.savez(place / "data.npz", right=each.right, **inputs)
        done = subprocess.run(
            ["qemu-x86_64", "-cpu", model, sys.executable, "-c", PROGRAM, folder],
            capture_output=True,
            text=True,
            env={**os.environ, "OPENBLAS_CORETYPE": "Nehalem", "ONEDNN_MAX_CPU_ISA": isa},
        )
    right = done.stdout.count("right")
    if done.returncode or right != len(examples()):
        return f"**{right} right, then status {done.returncode}: {' '.join(done.stderr.split())[-200:]}**"
    return f"{right} right, {time.monotonic() - begin:.0f} s"


def configurations(binary: Path | None, quick: bool) -> dict[str, Callable[[], str]]:
    """What runs each configuration, by name; a processor that lacks its instructions says so."""
    arguments = ["-x", "-k", "linear or max or Gemm or portable"] if quick else []

    rows: dict[str, Callable[[], str]] = {"all that it has": partial(run_tests, arguments)}
    for name, limits in PROCESSORS.items():
        run = partial(run_tests, arguments, **limits.variables())
        rows[f"limited to {name}"] = run if limits.flag in flags() else lambda: "not this processor"
    rows["one core"] = partial(run_tests, arguments, "taskset", "-c", "0")
    for model, (level, isa) in MODELS.items() if shutil.which("qemu-x86_64") else ():
        rows[f"qemu {model}: artifacts for {level}, oneDNN limited to {isa}"] = partial(artifacts, model, level, isa)
        if binary is not None and binary.exists():
            rows[f"qemu {model}: C++ tests of the runtime"] = partial(runtime_tests, model, binary)
    return rows


def merged(text: str, column: str, rows: dict[str, str]) -> str:
    """The page with the column of one processor made anew; all others, and the text above the table, as they were."""
    lines = [line for line in text[max(0, text.find(HEADER)) :].splitlines() if line.startswith("| ")]
    table = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    columns = table[0][1:] if table else []
    old = {row[0]: dict(zip(columns, row[1:], strict=True)) for row in table[1:]}
    columns = [*(c for c in columns if c != column), column]
    for name in dict.fromkeys([*old, *rows]):
        cells = old.setdefault(name, {})
        cells[column] = rows.get(name, cells.get(column, "-"))
    limits = [f"| {name} | {p.onednn} | {p.integers} | {p.level} |" for name, p in PROCESSORS.items()]
    above = text[: text.find(HEADER)] if HEADER in text else INTRODUCTION.format(limits="\n".join(limits)) + "\n"
    head = [above + f"{HEADER} {' | '.join(columns)} |"]
    head.append(f"|{'---|' * (len(columns) + 1)}")
    old = {n: cells for n, cells in old.items() if {*cells.values()} - {"-", "not this processor"} or n in rows}
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
