"""How long stream allocation takes, how many streams and waits come out, and what the simulator predicts of them.

`stream_latency.py` measures them on a GPU.

The paper's figures (Opara, Table I) are of PyTorch graphs on an A100 server; there each operator is a node, here fused
kernels are, so ours have fewer. Times are of one call on a problem whose graph is known: the median of many. A wait is an
event that one stream records and another waits for. Latencies are of one A40 by the cost model `occupancy`, with parameters
on the device.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from _common import Row, instances, parser, report

from tvm_sched.cost_model import occupancy
from tvm_sched.problem import Device, OpGraph, Problem, Topology
from tvm_sched.schedule import simulate
from tvm_sched.schedule._compiled import compiled
from tvm_sched.schedulers import solve
from tvm_sched.streams import ALLOCATORS, allocate_streams, count_synchronizations, order_launches
from tvm_sched.streams.allocation import launches_of

PAPER_MS = {
    "GoogLeNet": {"opara": 0.27, "nimble": 5.80},
    "Inception-v3": {"opara": 0.50, "nimble": 14.40},
    "NASNet-A mobile": {"opara": 1.75, "nimble": 257.83},
    "BERT": {"opara": 0.58, "nimble": 20.8},
    "T5": {"opara": 2.8, "nimble": 161.4},
}
"""Opara, Table I."""


NOTES = """
Ours and the paper's milliseconds are of different machines and graphs: here fused kernels are operators, there
PyTorch's are. BERT and T5 have narrow layers, so that their predicted speeds are of kernels for which launches are
most of the time. Streams and waits are free on the device of this page; what they cost on a GPU is [counted](opara.md)
where a topology has their `stream_overhead` and `wait_overhead`.
"""


def googlenet(batch: int = 1) -> Any:
    from tvm_sched.relax import load_model
    from tvm_sched.testing.models import input_shape, onnx_model

    model = onnx_model("inception_v1")
    name, shape = input_shape(model)
    return model if batch == 1 else load_model(model, {name: (batch, *shape[1:])})


def inception_v3(batch: int = 1) -> Any:
    from tvm_sched.testing.branched import exported, inception_v3

    return exported(inception_v3(), 299, batch)


def nasnet(batch: int = 1) -> Any:
    from tvm_sched.testing.branched import exported, nasnet_mobile

    return exported(nasnet_mobile(), 224, batch)


def transformer(name: str, batch: int = 1) -> Any:
    """BERT-base or T5-small's graph, with narrow layers: the graph is what counts."""
    import torch
    from transformers import BertConfig, BertModel, T5Config, T5ForConditionalGeneration

    class OneResult(torch.nn.Module):
        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            if name == "BERT":
                return self.model(tokens).last_hidden_state
            return self.model(input_ids=tokens, decoder_input_ids=tokens, use_cache=False).logits

    if name == "BERT":
        model = BertModel(BertConfig(hidden_size=96, num_attention_heads=12, intermediate_size=384, vocab_size=128))
    else:
        model = T5ForConditionalGeneration(T5Config(d_model=64, d_kv=8, d_ff=256, vocab_size=128))
    with torch.no_grad():
        return torch.export.export(OneResult(model.eval()), (torch.ones(batch, 32, dtype=torch.int64),))


MODELS: dict[str, Callable[..., Any]] = {
    "GoogLeNet": googlenet,
    "Inception-v3": inception_v3,
    "NASNet-A mobile": nasnet,
    "BERT": partial(transformer, "BERT"),
    "T5": partial(transformer, "T5"),
}
"""By name; each takes the batch."""


def on_one_device(graph: OpGraph) -> Problem:
    """The graph on an A40 whose memory the parameters are in already."""
    device = Device("gpu0", 48 * 10**9, 696e9, {"float32": 37.4e12}, launch_overhead=2e-6, model="A40", arch="sm_86")
    topology = Topology("one A40", (device,))
    return Problem(graph, topology, occupancy(graph, topology))


def median_ms(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times)


def rows_of(name: str, problem: Problem, repeats: int) -> list[Row]:
    base = order_launches(problem, solve(problem, method="single"), "breadth-first")
    sequential = simulate(problem, base).latency
    case = f"{name}, {len(problem.graph.operators)} operators"
    rows = []
    for method in (*ALLOCATORS, "best"):
        if method in ALLOCATORS:
            (operators, devices, _), allocate = launches_of(problem, base), compiled(problem).allocate_streams
            milliseconds = median_ms(lambda a=allocate, m=method, o=operators, d=devices: a(m, o, d), repeats)
            peer = PAPER_MS.get(name, {}).get(method)
            rows.append(Row(case, method, milliseconds, "ms", peer, "paper" if peer else ""))
        found = allocate_streams(problem, base, method)
        rows += [
            Row(case, method, len({placement.stream for placement in found.placements}), "streams"),
            Row(case, method, count_synchronizations(problem, found), "waits"),
            Row(case, method, sequential / simulate(problem, found).latency, "times one stream's speed, predicted"),
        ]
    return rows


def main() -> None:
    arguments = parser(__doc__ or "", models=False)
    arguments.add_argument("--instances", type=Path, metavar="DIR", help="a folder of problem files instead")
    given = arguments.parse_args()
    cases: dict[str, OpGraph] = {}
    if given.instances:
        cases = {name: problem.graph for name, problem in instances(given.instances)}
    else:
        from tvm_sched.relax import make_problem

        for name in list(MODELS)[: 1 if given.quick else None]:
            cases[name] = make_problem(MODELS[name](), "cpu1", name=name).graph
    rows = [
        row for name, graph in cases.items() for row in rows_of(name, on_one_device(graph), 20 if given.quick else 200)
    ]
    report("Stream allocation", rows, given.json, given.markdown, predicted=True)
    if given.markdown:
        given.markdown.write_text(given.markdown.read_text() + NOTES)


if __name__ == "__main__":
    main()
