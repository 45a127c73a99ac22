"""What benchmarks on a GPU share: runs that take turns, and PyTorch's side."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

Run = Callable[[], Any]
EAGER, GRAPH = "PyTorch", "PyTorch, CUDA graph"


def medians(runs: Mapping[str, Run], repeat: int) -> dict[str, float]:
    """Median microseconds of each."""
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
    """PyTorch step by step and as a CUDA graph, with its input on the GPU."""
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
