"""Helpers of the GPU benchmarks: alternating runs, PyTorch's side, and networks lowered for CUDA."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tvm_sched.problem import OpGraph, Problem, Topology


def gpu_graph(make: Callable[[], Any], topology: Topology, kept: Path | None = None) -> OpGraph:
    """Lower the model that ``make`` returns for CUDA, without nvcc: register counts are assumed.

    Lowering a large network takes minutes, so the graph is stored in the file ``kept`` and read from it the next time.
    """
    if kept is not None and kept.exists():
        return Problem.load(kept).graph
    import tvm

    from tvm_sched.relax import load_model
    from tvm_sched.relax.api import model_with_name
    from tvm_sched.relax.ir.attributes import get_problem
    from tvm_sched.relax.passes import DescribeLaunches, EstimateLatencies, LowerToKernels

    archs = sorted({device.arch for device in topology.devices})
    passes = [
        LowerToKernels(device_kind="cuda", libraries=("nvidia",), archs=archs),
        DescribeLaunches(archs),
        EstimateLatencies(topology, "occupancy"),
    ]
    problem = get_problem(tvm.transform.Sequential(passes)(model_with_name(load_model(make()))))
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        problem.save(kept)
    return problem.graph


Run = Callable[[], Any]
EAGER, GRAPH = "PyTorch", "PyTorch, CUDA graph"


def medians(runs: Mapping[str, Run], repeat: int) -> dict[str, float]:
    """Return the median microseconds of each run; the runs alternate."""
    rows, warm_up = 4, 3
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rows):
        for name, run in runs.items():
            for turn in range(warm_up + repeat // rows):
                begin = time.perf_counter()
                run()
                if turn >= warm_up:
                    times[name].append(1e6 * (time.perf_counter() - begin))
    return {name: statistics.median(found) for name, found in times.items()}


def torch_runs(torch: Any, module: Any, value: Any) -> dict[str, Run]:
    """Return PyTorch's runs, eager and as a CUDA graph, with the input on the GPU."""
    module, value = module.cuda(), value.cuda()

    def eager() -> None:
        module(value)
        torch.cuda.synchronize()

    for _ in range(3):
        eager()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module(value)

    def replay() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return {EAGER: eager, GRAPH: replay}
