"""Pipelines of real models: every partitioner with the strongest bound known; with --emulated, runs against their plans.

Latencies are those of the learned cost model. Costs are of equation (3) (docs/model.md, Pipelines), bottleneck of a plan in
which a stage gets, computes and sends in turn; `bound / best` is the strongest bound of all methods over the cheapest plan.
`tarnawski-dp` finds the best plan wherever the graph has few enough ideals; its contiguous stages, no replication.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from _checked import partition_verdict, tally
from _common import parser
from _result_page import Row, report

if TYPE_CHECKING:
    from tvm_sched_runtime.problem import OpGraph

BATCHES = 32
EMULATED = ("squeezenet", "inception_v1", "densenet121")
TOPOLOGY = "h200x8"
"""Of equal devices, all joined alike, so that partitions are compared and not the search for devices."""
METHODS: dict[str, dict[str, Any]] = {
    "equal-split": {},
    "pipedream": {},
    "tarnawski-dp": {},
    "slicegraph": {},
    "anytime": {},
}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument(
        "--emulated", action="store_true", help="run emulated pipelines instead, against their plans"
    )
    arguments.add_argument("--model", action="append", metavar="NAME", help="some of them; may stand several times")
    arguments.add_argument("--stages", type=int, nargs="+", default=[4, 8], metavar="K")
    arguments.add_argument("--seconds", type=float, default=60.0, help="of each method, for each case")
    arguments.add_argument("--tokens", type=int, default=512, help="of the language models")
    options = arguments.parse_args()
    if options.emulated:
        names = options.model or (EMULATED[:1] if options.quick else EMULATED)
        rows = [row for name in names for row in _emulated(name)]
        report("Pipelines, emulated", rows, options.json, options.markdown, predicted=True)
        return
    models, seconds = _models(options.tokens), options.seconds
    names = options.model or (["GoogLeNet"] if options.quick else list(models))
    if unknown := [name for name in names if name not in models]:
        raise SystemExit(f"there is no model {unknown[0]!r}; there are {', '.join(models)}")
    seconds = min(seconds, 5.0) if options.quick else seconds
    rows = [row for name in names for row in _partitions(name, models[name](), options.stages, seconds)]
    report(f"Pipelines of real models on {TOPOLOGY}", rows, options.json, options.markdown, predicted=True)


def _models(tokens: int) -> dict[str, Callable[[], OpGraph]]:
    from tvm_sched.relax.decoders import decoder_graph
    from tvm_sched_runtime.problem.decoder_config import PRESETS

    found: dict[str, Callable[[], OpGraph]] = {"GoogLeNet": _googlenet, "MiniLM": partial(_minilm, tokens)}
    return {**found, **{name: partial(decoder_graph, config, 1, tokens) for name, config in PRESETS.items()}}


def _googlenet() -> OpGraph:
    from tvm_sched.relax import make_problem
    from tvm_sched_bench.testing.models import onnx_model

    return make_problem(onnx_model("inception_v1"), TOPOLOGY).graph


def _minilm(tokens: int) -> OpGraph:
    from tvm_sched.relax import make_problem
    from tvm_sched_bench.testing.models import minilm

    return make_problem(minilm(tokens), TOPOLOGY).graph


def _partitions(name: str, graph: OpGraph, stages: list[int], seconds: float) -> Iterator[Row]:
    from tvm_sched.cost_model import costs
    from tvm_sched.pipeline import get, partition
    from tvm_sched.pipeline.partition_relaxation import relax
    from tvm_sched.schedulers import NoOptions
    from tvm_sched_runtime.errors import InfeasibleError
    from tvm_sched_runtime.problem import Problem, load_topology

    topology = load_topology(TOPOLOGY)
    problem = Problem(graph, topology, costs(graph, topology, model="learned"))
    for k in stages:
        relaxed, case = relax(problem, range(k)), f"{name} ({len(graph.operators)} operators), k={k}"
        found = {}
        for method, options in METHODS.items():
            limit = {} if get(method).options is NoOptions else {"time_limit": seconds}
            try:
                found[method] = partition(relaxed, k, method, {**options, **limit})
                tally(partition_verdict(relaxed, k, found[method]))
            except InfeasibleError as error:
                print(f"{case}: {method}: {error}", file=sys.stderr)
        best = min(part.cost for part in found.values())
        bound = max(part.bound for part in found.values())
        for method, part in found.items():
            yield Row(case, method, part.cost / 1e3, "bottleneck, µs")
            yield Row(case, method, part.cost / best, "over the best")
            yield Row(case, method, part.seconds, "s")
            if method == "anytime":
                yield Row(case, method, bound / best, "bound / best")


def _emulated(name: str) -> Iterator[Row]:
    """Stages on four and on eight GPUs."""
    import numpy as np

    from tvm_sched.relax import compile_pipeline
    from tvm_sched_bench.testing.models import input_shape, onnx_model

    model = onnx_model(name)
    shape = input_shape(model)[1]
    for topology in ("v100-server", "p4d"):
        compiled = compile_pipeline(model, topology, "auto", "slicegraph", times_only=True)
        _, run = compiled.trace([np.zeros(shape, np.float32)] * BATCHES)
        predicted = compiled.predict(BATCHES).steady_ns
        case, method = f"{name}, {len(compiled.plan.stages)} stages, on {topology}", "emulated"
        yield Row(case, method, run.steady_ns / 1e3, "µs a batch, ran", predicted / 1e3, "simulated")
        yield Row(case, method, 100 * (run.steady_ns / predicted - 1), "error, %")
        yield Row(case, method, compiled.plan.cost_ns / 1e3, "cost (no overlap), µs")
        yield Row(case, method, compiled.plan.latency_ns / 1e3, "latency, µs")


if __name__ == "__main__":
    main()
