"""Kinds of float32 kernels: what share of the processor's arithmetic ours and the peers reach.

A kind is a network of equal layers: a chain of them where a layer's result can be the next one's input, else branches that
read one input, each with a global average behind it, which are added up. So what happens at the network's edges is shared
by many layers. A layer's time is the network's latency less that of the network with a quarter of the layers, over the
difference in their number. On one core a latency is processor time, the least of all runs; on more it is time by the clock.

The arithmetic that the cores can do is the most that any method reaches in any kind. The page keeps what was measured on
other kinds of processors; ``--again`` measures anew what is there for this kind.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from _common import parser
from _result_page import NONE, Page
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).parent
KEPT = HERE.parent / "docs" / "results" / "data" / "kernel_roofline.json"
METHODS = ("ours", "ONNX Runtime", "OpenVINO")
TURNS, SECONDS = 4, 0.15
LAYERS = 12


@dataclass(frozen=True)
class Kind:
    """A kernel's form: a convolution, or with ``rows`` a product, whose terms are the channels."""

    group: str
    image: int
    channels: int
    outputs: int
    window: int = 1
    stride: int = 1
    groups: int = 1
    rows: int = 0

    @property
    def name(self) -> str:
        """How a table calls it."""
        if self.rows:
            return f"product {self.rows}x{self.channels}x{self.outputs}"
        extra = f" stride {self.stride}" if self.stride > 1 else ""
        extra += f" groups {self.groups}" if 1 < self.groups < self.channels else ""
        how = "depthwise " if self.groups == self.channels else ""
        channels = str(self.channels) if how else f"{self.channels} to {self.outputs}"
        return f"{how}{self.window}x{self.window}{extra}, {channels}, {self.image}x{self.image}"

    @property
    def chained(self) -> bool:
        """Whether a layer can read another's result; channels may change there and back."""
        return self.stride == 1 and self.channels >= FEW

    @property
    def operations(self) -> int:
        """Floating-point operations of a layer."""
        if self.rows:
            return 2 * self.rows * self.channels * self.outputs
        side = math.ceil(self.image / self.stride)
        return 2 * side * side * self.outputs * self.window**2 * self.channels // self.groups


FEW = 8
KINDS = (
    Kind("product", 1, 1024, 1024, rows=1024),
    Kind("product", 1, 512, 512, rows=128),
    Kind("product", 1, 512, 2048, rows=128),
    Kind("product", 1, 192, 768, rows=196),
    Kind("product", 1, 64, 256, rows=784),
    Kind("product of one row", 1, 512, 1536, rows=1),
    Kind("1x1", 56, 24, 72),
    Kind("1x1", 28, 40, 240),
    Kind("1x1", 14, 96, 576),
    Kind("1x1", 7, 192, 1152),
    Kind("1x1", 7, 512, 512),
    Kind("3x3", 56, 64, 64, 3),
    Kind("3x3", 28, 128, 128, 3),
    Kind("3x3", 14, 256, 256, 3),
    Kind("3x3", 7, 512, 512, 3),
    Kind("3x3", 28, 32, 32, 3),
    Kind("3x3, stride 2", 56, 64, 128, 3, 2),
    Kind("3x3, stride 2", 14, 256, 512, 3, 2),
    Kind("first layer", 224, 3, 32, 3, 2),
    Kind("first layer", 224, 3, 64, 7, 2),
    Kind("depthwise", 112, 48, 48, 3, 1, 48),
    Kind("depthwise", 56, 144, 144, 3, 1, 144),
    Kind("depthwise", 14, 480, 480, 3, 1, 480),
    Kind("depthwise", 14, 480, 480, 5, 1, 480),
    Kind("depthwise", 7, 960, 960, 5, 1, 960),
    Kind("depthwise, stride 2", 112, 96, 96, 3, 2, 96),
    Kind("depthwise, stride 2", 28, 240, 240, 5, 2, 240),
    Kind("depthwise, stride 2", 14, 672, 672, 5, 2, 672),
    Kind("groups", 14, 384, 384, 3, 1, 24),
)


def network(kind: Kind, layers: int) -> onnx.ModelProto:
    """Layers of a kind, each with a bias and a ReLU; products without a bias."""
    rng = np.random.default_rng(0)
    nodes, values = [], []
    at, end, forth = "x", "", (kind.channels, kind.outputs)
    for k in range(layers):
        channels, outputs = forth if not kind.chained or k % 2 == 0 else forth[::-1]
        terms = channels // kind.groups * kind.window**2
        shape = (channels, outputs) if kind.rows else (outputs, channels // kind.groups, kind.window, kind.window)
        weights = rng.standard_normal(shape).astype("float32") * math.sqrt(2 / terms)
        values.append(numpy_helper.from_array(weights, f"w{k}"))
        if kind.rows:
            nodes.append(helper.make_node("MatMul", [at, f"w{k}"], [f"p{k}"]))
        else:
            values.append(numpy_helper.from_array(rng.standard_normal(outputs).astype("float32"), f"b{k}"))
            side = [kind.window // 2] * 4
            nodes.append(
                helper.make_node(
                    "Conv", [at, f"w{k}", f"b{k}"], [f"p{k}"], pads=side, strides=[kind.stride] * 2, group=kind.groups
                )
            )
        nodes.append(helper.make_node("Relu", [f"p{k}"], [f"r{k}"]))
        if kind.chained:
            at = f"r{k}"
        else:
            nodes.append(helper.make_node("GlobalAveragePool", [f"r{k}"], [f"g{k}"]))
            if k:  # a sum so far, so that a branch ends before the next one begins
                nodes.append(helper.make_node("Add", [end, f"g{k}"], [f"s{k}"]))
            end = f"s{k}" if k else "g0"
    if not kind.chained:
        at = end
    given = [kind.rows, kind.channels] if kind.rows else [1, kind.channels, kind.image, kind.image]
    made = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, given)],
        [helper.make_tensor_value_info(at, TensorProto.FLOAT, None)],
        values,
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def write(kind: Kind, layers: int, folder: Path, cores: int) -> None:
    """Write the model, our artifact, inputs and outputs."""
    import onnxruntime

    from tvm_sched.relax import compile

    model = network(kind, layers)
    onnx.save(model, folder / "model.onnx")
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(1).standard_normal(shape).astype("float32")
    np.savez(folder / "inputs.npz", x=x)
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    np.savez(folder / "expected.npz", *session.run(None, {"x": x}))
    compile(folder / "model.onnx", "cpu1", "single", parameters="auto").export(folder / f"cpu{cores}.so")


class Worker:
    """A method on a model, in a process of its own."""

    def __init__(self, method: str, folder: Path, cores: int) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": str(cores), "TVM_SCHED_NUM_THREADS": str(cores)}
        command = [sys.executable, str(HERE / "_cpu_worker.py"), method, str(folder), str(cores)]
        self.log = (folder / f"{method}.log").open("w")
        self.process = subprocess.Popen(
            [*command, str(folder / f"cpu{cores}.so")],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
        )  # fmt: skip
        self.times: list[float] = []
        self.failed = self._answer().get("failed", "")

    def turn(self, clock: str) -> None:
        """Measure for a while."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{SECONDS}\n")
        self.process.stdin.flush()
        self.times += self._answer()[clock]

    def end(self) -> None:
        """Let the process end."""
        self.process.communicate()
        self.log.close()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return dict(json.loads(line)) if line else {"failed": "ended"}


def measure(kind: Kind, cores: int) -> dict[str, float]:
    """Return a layer's seconds by method."""
    least: dict[str, list[float]] = {}
    for layers in (LAYERS // 4, LAYERS):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write(kind, layers, folder, cores)
            workers = {method: Worker(method, folder, cores) for method in METHODS}
            good = {method: worker for method, worker in workers.items() if not worker.failed}
            for _ in range(TURNS):
                for worker in good.values():
                    worker.turn("processor" if cores == 1 else "times")
            for method, worker in workers.items():
                worker.end()
                if method in good:
                    least.setdefault(method, []).append(min(worker.times))
    return {
        method: (many - few) / (LAYERS - LAYERS // 4)
        for method, (few, many) in ((method, each) for method, each in least.items() if len(each) == 2)
    }


def page(kept: dict[str, Any], path: Path) -> Page:
    """The page of results."""
    made = Page("Kernels and the roofline", path)
    made.text(
        "Microseconds of a layer and, in brackets, the share of the arithmetic that the cores can do, which is the most "
        f"that any method reaches in any kind. A kind is a network of {LAYERS} equal layers, each with a ReLU; its latency "
        f"less that of {LAYERS // 4} layers, over the number of layers between. Least of all runs in {TURNS} turns of "
        f"{SECONDS} s, in which the methods alternate; on one core it is processor time, which other work on the machine "
        "changes little. *Ours / best* is ours over the faster peer. A small share of a depthwise layer is no fault: it "
        "reads and writes more than it computes. Other work on the machine changes the processor's clock between kinds, so "
        "shares of two kinds are comparable within some 15 %."
    )
    for processor, by_cores in kept.items():
        for cores, results in sorted(by_cores.items()):
            rates = [OPERATIONS[name] / seconds for name, times in results.items() for seconds in times.values()]
            peak = max(rates, default=None)
            made.text(f"## {processor}, {cores} core{'s' if cores != '1' else ''}")
            if peak:
                made.text(f"The cores can do {peak / 1e9:.0f} GFLOP/s.")
            rows, ratios = [], []
            for kind in KINDS:
                if (times := results.get(kind.name)) is None:
                    continue
                peers = [times[method] for method in METHODS[1:] if method in times]
                ratio = times["ours"] / min(peers) if "ours" in times and peers else None
                ratios += [ratio] if ratio else []
                cells = [_cell(times.get(method), kind, peak) for method in METHODS]
                rows.append([kind.name, *cells, NONE if ratio is None else f"{ratio:.2f}"])
            made.table(["kind", *METHODS, "ours / best"], rows)
            if ratios:
                mean = math.exp(statistics.fmean(map(math.log, ratios)))
                made.text(f"Geometric mean of *ours / best*: {mean:.2f}; worst {max(ratios):.2f}.")
    return made


OPERATIONS = {kind.name: kind.operations for kind in KINDS}


def _cell(seconds: float | None, kind: Kind, peak: float | None) -> str:
    if seconds is None:
        return NONE
    share = f" ({kind.operations / seconds / peak:.2f})" if peak else ""
    return f"{seconds * 1e6:.1f}{share}"


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--cores", type=int, action="append", help="default: one, and all that there are")
    arguments.add_argument(
        "--again", action="store_true", help="measure kinds anew that were measured on this processor"
    )
    arguments.add_argument("--only", default="", help="kinds whose name or group contains this text")
    options = arguments.parse_args()
    from tvm_sched.cost_model.profile import this_machine

    kept: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    mine = kept.setdefault(this_machine().processor, {})
    wanted: Callable[[Kind], bool] = lambda kind: options.only in kind.name or options.only in kind.group  # noqa: E731
    for cores in options.cores or sorted({1, len(os.sched_getaffinity(0))}):
        found = mine.setdefault(str(cores), {})
        for kind in KINDS[:2] if options.quick else filter(wanted, KINDS):
            if kind.name in found and not (options.again or options.quick):
                continue
            found[kind.name] = measure(kind, cores)
            text = ", ".join(f"{method} {seconds * 1e6:.1f}" for method, seconds in found[kind.name].items())
            print(f"{kind.name}, {cores} core(s): us a layer: {text}", flush=True)
            if not options.quick:
                KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    if options.json:
        options.json.write_text(json.dumps(kept, indent=1) + "\n")
    if options.markdown:
        page(kept, options.markdown).write()


if __name__ == "__main__":
    main()
