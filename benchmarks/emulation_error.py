"""How far the total latency of emulated runs is from the simulator's, on Llama- and GPT-2-sized schedules.

The graphs are made from the models' configurations, shapes only, with roofline latencies; the plans have no kernels. So
threads, queues, waits and copies are the executor's own, and time is the plan's, dilated.

Two errors are given, of the same run. "wall clock" is the honest one: the time from the caller's start of the run until it
knew that all steps had ended, as the machine's clock has it, with the dilation divided out, against the prediction. In it
are all waits and wake-ups of the executor's threads, so it is to be measured on a machine that does nothing else. "record"
is what the emulated devices noted down: a step begins when those that it waits for ended by their records, up to 20 ms of
the machine's time before the thread that plays its device noticed. It shows wrong waits and orders even where the machine is
busy, and says nothing of wake-ups.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import numpy as np
from _common import parser
from _result_page import Row, report
from rich.console import Console

from tvm_sched.cost_model import roofline
from tvm_sched.execution_plan import emit_plan
from tvm_sched.schedulers import solve
from tvm_sched_bench.testing.shapes_only import ShapesOnly
from tvm_sched_runtime.errors import TvmSchedError
from tvm_sched_runtime.problem import Operator, OpGraph, Problem, Tensor, load_topology, preset_names
from tvm_sched_runtime.runtime import ScheduledModule, make_module
from tvm_sched_runtime.schedule import simulate

BYTES = 2  # float16


class GraphMaker:
    """Adds matmuls and element-wise operators to a transformer's graph."""

    def __init__(self, name: str, tokens: int) -> None:
        self.name, self.tokens = name, tokens
        self.operators: list[Operator] = []
        self.tensors = [self.tensor("x", (tokens, 1), "input")]

    def tensor(self, name: str, shape: tuple[int, ...], kind: str) -> Tensor:
        """A tensor of float16."""
        return Tensor(name, int(np.prod(shape)) * BYTES, kind, shape, "float16")  # type: ignore[arg-type]

    def add(self, name: str, kind: str, inputs: tuple[str, ...], width: int, weight: int = 0) -> str:
        """An operator with an output of ``width`` a token, and a weight of ``weight`` x ``width`` if there is one."""
        flops = self.tokens * width * max(2 * weight, 4)
        if weight:
            self.tensors.append(self.tensor(f"{name}.w", (weight, width), "parameter"))
            inputs = (*inputs, f"{name}.w")
        self.tensors.append(self.tensor(f"{name}.y", (self.tokens, width), "activation"))
        self.operators.append(Operator(name, kind, inputs, (f"{name}.y",), flops))
        return f"{name}.y"

    def graph(self, output: str) -> OpGraph:
        """All that was added."""
        return OpGraph(self.name, tuple(self.operators), tuple(self.tensors), (output,))


def llama(layers: int, tokens: int, hidden: int = 3072, inner: int = 8192, vocabulary: int = 128256) -> OpGraph:
    """Llama-3.2-3B's sizes."""
    make = GraphMaker(f"llama-{layers}", tokens)
    value = make.add("embed", "take", ("x",), hidden)
    for k in range(layers):
        norm = make.add(f"{k}.norm1", "rms_norm", (value,), hidden)
        widths = {"q": hidden, "k": hidden // 3, "v": hidden // 3}
        q, key, v = (make.add(f"{k}.{n}", "matmul", (norm,), width, hidden) for n, width in widths.items())
        attention = make.add(f"{k}.attention", "attention", (q, key, v), hidden)
        out = make.add(f"{k}.o", "matmul", (attention,), hidden, hidden)
        value = make.add(f"{k}.add1", "add", (value, out), hidden)
        norm = make.add(f"{k}.norm2", "rms_norm", (value,), hidden)
        gate, up = (make.add(f"{k}.{n}", "matmul", (norm,), inner, hidden) for n in ("gate", "up"))
        product = make.add(f"{k}.silu", "silu", (gate, up), inner)
        down = make.add(f"{k}.down", "matmul", (product,), hidden, inner)
        value = make.add(f"{k}.add2", "add", (value, down), hidden)
    return make.graph(make.add("head", "matmul", (value,), vocabulary, hidden))


def gpt2(layers: int, tokens: int, hidden: int = 768, vocabulary: int = 50257) -> OpGraph:
    """GPT-2's sizes."""
    make = GraphMaker(f"gpt2-{layers}", tokens)
    value = make.add("embed", "take", ("x",), hidden)
    for k in range(layers):
        norm = make.add(f"{k}.norm1", "layer_norm", (value,), hidden)
        parts = make.add(f"{k}.qkv", "matmul", (norm,), 3 * hidden, hidden)
        attention = make.add(f"{k}.attention", "attention", (parts,), hidden)
        out = make.add(f"{k}.o", "matmul", (attention,), hidden, hidden)
        value = make.add(f"{k}.add1", "add", (value, out), hidden)
        norm = make.add(f"{k}.norm2", "layer_norm", (value,), hidden)
        up = make.add(f"{k}.up", "matmul", (norm,), 4 * hidden, hidden)
        activated = make.add(f"{k}.gelu", "gelu", (up,), 4 * hidden)
        down = make.add(f"{k}.down", "matmul", (activated,), hidden, 4 * hidden)
        value = make.add(f"{k}.add2", "add", (value, down), hidden)
    return make.graph(make.add("head", "matmul", (value,), vocabulary, hidden))


def problems(quick: bool) -> Iterator[Problem]:
    graphs = [llama(4 if quick else 28, 128), gpt2(4 if quick else 12, 128)]
    for graph in graphs:
        for preset in preset_names():
            topology = load_topology(preset)
            yield Problem(graph, topology, roofline(graph, topology))


def errors(problem: Problem, scheduler: str, options: dict[str, float], resident: float) -> tuple[float, float]:
    """Relative errors of an emulated run's latency, by its record and by the wall clock, in percent."""
    schedule = solve(problem, method=scheduler, options=options)
    calls = ShapesOnly(problem.graph)
    values = tuple(calls.parameters)
    plan = emit_plan(problem, schedule, calls, name="p", backend="emulated", functions={}, values=values)
    module = ScheduledModule(make_module([plan], {}))
    module.configure(resident=resident, trace=True)
    inputs = [np.zeros(spec["shape"], spec["dtype"]) for spec in plan["arguments"]]
    if resident:
        module.configure(emulation_scale=1)
        module.run_times(*inputs)  # loads what remains
        module.configure(emulation_scale="auto")
    module.run_times(*inputs)
    predicted, wall = simulate(problem, schedule, resident=resident).latency, module.timeline()["wall_ns"] * 1e-9
    return abs(module.latency() / predicted - 1) * 100, abs(wall / predicted - 1) * 100


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--time-limit", type=float, default=5.0, help="seconds for `anytime`")
    options = arguments.parse_args()
    methods: list[tuple[str, dict[str, float], float]] = [
        ("single", {}, 0.0), ("single", {}, 0.5), ("anytime", {"time_limit": options.time_limit}, 0.0),
    ]  # fmt: skip
    rows, found = [], []
    for problem in problems(options.quick):
        case = f"{problem.graph.name} on {problem.topology.name}"
        for scheduler, settings, resident in methods:
            try:
                error = errors(problem, scheduler, settings, resident)
            except TvmSchedError as failure:
                Console(stderr=True).print(f"{case}: {scheduler}: {failure}")
                continue
            found.append(error)
            rows.append(_row(case, f"{scheduler}, {resident:.0%} resident", error))
    if found:
        records, walls = zip(*found, strict=True)
        rows.append(_row("mean of all", "all methods", (statistics.fmean(records), statistics.fmean(walls))))
        rows.append(_row("largest", "all methods", (max(records), max(walls))))
    report("Emulated against simulated latency", rows, options.json, options.markdown, predicted=True)


def _row(case: str, method: str, error: tuple[float, float]) -> Row:
    return Row(case, method, error[1], "% error by the wall clock", error[0], "by the record")


if __name__ == "__main__":
    main()
