"""Compare one artifact for all sizes of a model's open dimensions with artifacts for one size and with other runtimes.

Calls alternate between the two that are compared, in one process for each model, with two threads each. The other runtimes
are ONNX Runtime and, if it is installed, OpenVINO with dynamic shapes.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _common import half, parser
from _result_page import Page, write_json

THREADS, REQUESTS, ROUNDS, SIZES = 2, 200, 7, 500
LEAST = 0.05
"""Seconds of a measurement, at least."""


class Kind(NamedTuple):
    """What is open in a model, which sizes are asked for, and the two that artifacts of one size are made for."""

    name: str
    sizes: tuple[int, ...]
    examples: tuple[int, int]
    axes: dict[int, str]


TEXT = Kind("tokens, 1 to 512", tuple(range(1, 513)), (24, 384), {1: "tokens"})
PICTURES = Kind("height and width, 320 to 640", tuple(range(320, 641, 32)), (352, 512), {2: "height", 3: "width"})
BATCHES = Kind("batch, 1 to 16", tuple(range(1, 17)), (3, 8), {0: "batch"})


def models() -> dict[str, tuple[Kind, Callable[[], Any], Callable[[int], Any]]]:
    """Return the models: what is open, the module of PyTorch, and its input for a size."""
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
            self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: Any) -> Any:
            split = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            q, k, v = split[0], split[1], split[2]
            weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1)
            x = self.norms[0](x + self.out((weights @ v).transpose(1, 2).flatten(-2)))
            return self.norms[1](x + self.feed(x))

    def text(width: int, heads: int, layers: int) -> Callable[[], Any]:
        return lambda: nn.Sequential(nn.Embedding(1000, width), *(Layer(width, heads) for _ in range(layers)))

    def vision(width: int, depthwise: bool, dense: bool) -> Callable[[], Any]:
        def block(inputs: int, outputs: int) -> list[Any]:
            first = nn.Conv2d(inputs, outputs, 1 if depthwise else 3, 2, 0 if depthwise else 1)
            second = nn.Conv2d(outputs, outputs, 3, 1, 1, groups=outputs if depthwise else 1)
            return [first, nn.BatchNorm2d(outputs), nn.Hardswish() if depthwise else nn.ReLU(), second, nn.ReLU()]

        widths = [3, *(width << k for k in range(4))]
        blocks = [layer for pair in itertools.pairwise(widths) for layer in block(*pair)]
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 100)] if dense else []
        return lambda: nn.Sequential(*blocks, *head)

    def perceptron() -> Any:
        return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 9))

    def tokens(n: int) -> Any:
        return torch.arange(n).reshape(1, n) % 1000

    def picture(n: int) -> Any:
        return torch.randn(1, 3, n, n)

    def pictures(n: int) -> Any:
        return torch.randn(n, 3, 64, 64)

    return {
        "text-128": (TEXT, text(128, 4, 2), tokens),
        "text-256": (TEXT, text(256, 4, 4), tokens),
        "text-384": (TEXT, text(384, 12, 6), tokens),
        "convolutions": (PICTURES, vision(16, False, True), picture),
        "depthwise": (PICTURES, vision(16, True, True), picture),
        "maps": (PICTURES, vision(12, False, False), picture),
        "perceptron": (BATCHES, perceptron, lambda n: torch.randn(n, 256)),
        "batch-convolutions": (BATCHES, vision(16, False, True), pictures),
        "batch-depthwise": (BATCHES, vision(16, True, True), pictures),
    }


def seconds(call: Callable[[], Any]) -> float:
    """Return the seconds of a call, the mean of as many as take `LEAST`."""
    count, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < LEAST:
        call()
        count += 1
    return passed / count


def once(call: Callable[[], Any]) -> float:
    """Return the seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def ratio(one: Callable[[], Any], other: Callable[[], Any]) -> float:
    """Return the median ratio of the times of two calls in alternation."""
    one(), other()
    return statistics.median(seconds(one) / seconds(other) for _ in range(ROUNDS))


def resident() -> int:
    """Return the resident memory of the process in KiB."""
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in line)


def processor_seconds() -> float:
    """Return the processor time of this process and of those that it waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def peers(file: Path) -> dict[str, Callable[[], Callable[[Any], Any]]]:
    """Return what opens a model in each other runtime that is installed, as a function of the input."""

    def onnx_runtime() -> Callable[[Any], Any]:
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = THREADS
        session = onnxruntime.InferenceSession(file, settings)
        return lambda x: session.run(None, {"x": x})

    def openvino() -> Callable[[Any], Any]:
        import openvino as engine

        settings = {"INFERENCE_NUM_THREADS": THREADS, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
        request = engine.Core().compile_model(file, "CPU", settings).create_infer_request()
        return lambda x: list(request.infer([x], share_outputs=True).values())

    return {"ONNX Runtime": onnx_runtime, **({"OpenVINO": openvino} if find_spec("openvino") else {})}


def measure(name: str, folder: Path, requests: int) -> dict[str, Any]:
    """Measure one model."""
    import torch

    from tvm_sched.relax import compile
    from tvm_sched_runtime.runtime import load

    torch.manual_seed(0)
    kind, make, made = models()[name]
    file = folder / "m.onnx"
    named = {"input_names": ["x"], "dynamic_axes": {"x": kind.axes}, "dynamo": False}
    torch.onnx.export(make().eval(), (made(kind.examples[0]),), file, **named)
    inputs = {n: made(n).numpy() for n in kind.sizes}

    def compiled(target: str, sizes: Any) -> float:
        begun = processor_seconds()
        shapes = dict.fromkeys(kind.axes.values(), sizes)
        compile(file, "cpu1", "single", input_shapes=shapes, cost_model="roofline", cache=False).export(folder / target)
        return processor_seconds() - begun

    def opened(target: str) -> Callable[[Any], Any]:
        return load(folder / target, threads=THREADS).run

    # The first compilation imports and warms up.
    compile_seconds = {target: compiled(f"{target}.so", target) for target in kind.examples}
    open_seconds = compiled("open.so", range(kind.sizes[0], kind.sizes[-1] + 1))
    others, largest = peers(file), kind.examples[-1]
    ours, theirs = opened("open.so"), {peer: start() for peer, start in others.items()}
    first = theirs["ONNX Runtime"]
    row: dict[str, Any] = {"half": half(name), "open": kind.name, "one size": [], **{peer: [] for peer in others}}
    row["error"] = max(float(np.abs(ours(inputs[n])[0] - first(inputs[n])[0]).max()) for n in kind.examples)
    for n in kind.examples:
        for other, run in {"one size": opened(f"{n}.so"), **theirs}.items():
            row[other].append(ratio(partial(ours, inputs[n]), partial(run, inputs[n])))
    systems = {"ours": opened("open.so"), **{peer: start() for peer, start in others.items()}}
    totals, firsts, used = dict.fromkeys(systems, 0.0), {system: list[float]() for system in systems}, set[int]()
    for n in np.random.default_rng(0).choice(kind.sizes, requests).tolist():
        for system, run in systems.items():
            call = partial(run, inputs[n])
            totals[system] += (passed := once(call))
            if n not in used:
                firsts[system].append(passed - min(once(call) for _ in range(3)))
        used.add(n)
    row["asked"] = requests
    row["requests"] = {peer: totals["ours"] / totals[peer] for peer in others}
    row["first"] = {system: statistics.median(times) * 1e3 for system, times in firsts.items()}
    row["bytes"] = _bytes(folder, "open.so") / _bytes(folder, f"{largest}.so")
    row["compile"] = open_seconds / compile_seconds[largest]
    return row


def memory(name: str, folder: Path, sizes: int) -> float:
    """Return the resident memory after different sizes over that after the largest alone, in a process of its own."""
    from tvm_sched_runtime.runtime import load

    kind, _, made = models()[name]
    inputs = {n: made(n).numpy() for n in kind.sizes}
    module = load(folder / "open.so", threads=THREADS)
    module.run(inputs[kind.sizes[-1]])
    before = resident()
    for n in np.random.default_rng(1).permutation(kind.sizes)[:sizes].tolist():
        module.run(inputs[n])
    return resident() / before


def _bytes(folder: Path, file: str) -> int:
    return sum(each.stat().st_size for each in folder.glob(f"{Path(file).stem}.*") if each.suffix != ".onnx")


def two(figures: Iterable[Iterable[float]]) -> list[str]:
    """Return figures with two digits, one after the other."""
    return [f"{figure:.2f}" for part in figures for figure in part]


def page(rows: dict[str, dict[str, Any]], path: Path | None) -> Page:
    """Make the page of results."""
    result = Page("Any shape: one artifact beside artifacts for one size and other runtimes", path)
    first = next(iter(rows.values()))
    others, requests = list(first["requests"]), first["asked"]
    result.text(
        "An artifact for any size, compiled with a range (`--shape 'tokens=1..512'`), runs a size that it has run before; "
        f"so does an artifact that was compiled for that size alone, and {' and '.join(others)}. Each figure is the "
        "time of the artifact for any size divided by the other's; below 1 that artifact is faster. Small and large are two "
        f"sizes of the range. All have two threads; each figure is the median of {ROUNDS} ratios in alternation. "
        "[How it works](../tasks/any_shape.md)."
    )
    columns = [column for other in ("one size", *others) for column in (f"of {other}, small", "large")]
    result.text("## A size that ran before")
    cells = [
        [name, row["half"], row["open"], f"{row['error']:.1e}", *two(row[other] for other in ("one size", *others))]
        for name, row in rows.items()
    ]
    result.table(("model", "half", "open", "error", *columns), cells, 3)
    for part in dict.fromkeys(row["half"] for row in rows.values()):
        those = [row for row in rows.values() if row["half"] == part]
        repeats = [
            f"{statistics.geometric_mean(figures):.2f} of {other} (worst {max(figures):.2f})"
            for other in ("one size", *others)
            if (figures := [figure for row in those for figure in row[other]])
        ]
        totals = [
            f"{statistics.geometric_mean(row['requests'][peer] for row in those):.2f} of {peer}" for peer in others
        ]
        result.text(
            f"Geometric means, {part}: repeats take {', '.join(repeats)}; {requests} requests {', '.join(totals)}."
        )
    result.text("## Requests, first uses, memory and compilation")
    result.text(
        f"{requests} requests have sizes drawn from the range, and first uses are among them. A first use is what the first "
        "call of a size takes beyond the fastest of three repeats, in ms, the median over sizes. Memory is resident after "
        f"as many sizes as the range has, {SIZES} at most, over that after the largest alone. Bytes of the artifact and "
        "processor time of the compilation are those of any size over those of the larger size alone."
    )
    ratios, first_uses = (f"requests, of {peer}" for peer in others), (f"of {peer}" for peer in others)
    cells = [
        [name, *two((row["requests"].values(), row["first"].values(), (row["memory"], row["bytes"], row["compile"])))]
        for name, row in rows.items()
    ]
    result.table(("model", *ratios, "first use", *first_uses, "memory", "bytes", "compilation"), cells)
    return result


def main() -> None:
    """Measure the models, each in processes of its own."""
    arguments = parser(__doc__)
    arguments.add_argument("--only", default="", metavar="TEXT", help="models whose name contains it")
    arguments.add_argument("--resume", type=Path, metavar="FILE", help="keep rows there, and do not measure them again")
    arguments.add_argument(
        "--one", nargs=2, metavar=("MODEL", "FOLDER"), help="measure one in this process, and print JSON"
    )
    arguments.add_argument("--memory", nargs=2, metavar=("MODEL", "FOLDER"), help="measure its memory")
    options = arguments.parse_args()
    share = 10 if options.quick else 1
    if options.memory:
        print(memory(options.memory[0], Path(options.memory[1]), SIZES // share))
        return
    if options.one:
        print(json.dumps(measure(options.one[0], Path(options.one[1]), REQUESTS // share)))
        return
    rows = json.loads(options.resume.read_text()) if options.resume and options.resume.exists() else {}
    quick = ["--quick"] * options.quick
    for name in models():
        if options.only in name and name not in rows:
            with tempfile.TemporaryDirectory() as folder:
                printed = [
                    subprocess.run(
                        [sys.executable, __file__, part, name, folder, *quick],
                        stdout=subprocess.PIPE,
                        text=True,
                        check=True,
                    ).stdout.splitlines()[-1]
                    for part in ("--one", "--memory")
                ]
            rows[name] = {**json.loads(printed[0]), "memory": float(printed[1])}
            print(name, rows[name], file=sys.stderr, flush=True)
            write_json(options.resume, rows)
    write_json(options.json, rows)
    page(rows, options.markdown).write()


if __name__ == "__main__":
    main()
