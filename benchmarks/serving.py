"""Pipelines on a Ray cluster of this machine's processes: latency, throughput, seconds until a lost stage is back.

The same pipeline in one process stands beside it. All nodes share this machine's cores.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _common import parser
from _result_page import Row, report

REQUESTS = 100


def main() -> None:
    options = parser(__doc__).parse_args()
    try:
        from tvm_sched_cluster.serving.local_cluster import LocalCluster
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error.name} is missing: pip install 'tvm-sched[cluster]'") from None

    with LocalCluster(3, {"dev": 1}) as cluster, tempfile.TemporaryDirectory() as folder:
        rows = list(_rows(cluster, Path(folder), 20 if options.quick else REQUESTS))
    report("Serving", rows, options.json, options.markdown)


def _rows(cluster: Any, folder: Path, requests: int) -> Iterator[Row]:
    from tvm_sched.relax import compile_pipeline
    from tvm_sched_bench.testing.models import onnx_model

    model = onnx_model("squeezenet")
    for stages in (1, 2):
        path = folder / f"{stages}.pipeline"
        compile_pipeline(model, "cpu2", stages, "slicegraph", {"evaluations": 100}).export(path)
        case = f"squeezenet, {stages} stage{'s' * (stages > 1)}"
        yield from _in_one_process(case, path, requests)
        yield from _on_cluster(case, path, stages, cluster, requests)


def _in_one_process(case: str, path: Path, requests: int) -> Iterator[Row]:
    from tvm_sched.pipeline import load

    pipeline = load(path)
    batch = _batch(path)
    pipeline.run([batch] * 5)
    yield Row(case, "one process", _median_ms(lambda: pipeline.run([batch]), requests), "latency (median), ms")
    yield Row(case, "one process", _rate(lambda: pipeline.run([batch] * requests), requests), "batches/s")


def _on_cluster(case: str, path: Path, stages: int, cluster: Any, requests: int) -> Iterator[Row]:
    from tvm_sched_cluster.serving import Client, Deployment, StagePlacement, connect, deploy, status, undeploy

    connect(cluster.address)
    cluster.at_least(3)
    batch, started = _batch(path), time.perf_counter()
    deploy(Deployment("bench", str(path), (StagePlacement({"dev": 1}),) * stages, strategy="SPREAD"))
    yield Row(case, "Ray", time.perf_counter() - started, "deployed after, s")
    client = Client("bench")
    list(client.stream([batch] * 5))
    before = _stage_seconds(status("bench"))
    yield Row(case, "Ray", _median_ms(lambda: client.run(batch), requests), "latency (median), ms")
    computing = _stage_seconds(status("bench")) - before
    yield Row(case, "Ray", computing / requests * 1e3, "of it in stages (mean), ms")
    yield Row(case, "Ray", _rate(lambda: list(client.stream([batch] * requests)), requests), "batches/s")
    process = status("bench")["stages"][-1]["process"]
    yield Row(case, "Ray", _recovery(client, batch, lambda: os.kill(process, signal.SIGKILL)), "process killed: s")
    node = status("bench")["stages"][-1]["node"]
    yield Row(case, "Ray", _recovery(client, batch, lambda: cluster.kill(node)), "node killed: s")
    undeploy("bench")


def _batch(path: Path) -> Any:
    """Return zeros for the model's input."""
    import numpy as np

    from tvm_sched.pipeline import load_manifest

    (tensor,) = load_manifest(path).inputs
    return np.zeros(tensor.shape, tensor.dtype)


def _median_ms(work: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e3


def _rate(work: Callable[[], Any], count: int) -> float:
    started = time.perf_counter()
    work()
    return count / (time.perf_counter() - started)


def _stage_seconds(said: dict[str, Any]) -> float:
    return sum(stage["seconds"] for stage in said["stages"])


def _recovery(client: Any, batch: Any, kill: Callable[[], None]) -> float:
    """Return the longest request in the 10 s after a fault."""
    kill()
    longest, end = 0.0, time.perf_counter() + 10
    while time.perf_counter() < end:
        started = time.perf_counter()
        client.run(batch, timeout=120)
        longest = max(longest, time.perf_counter() - started)
    return longest


if __name__ == "__main__":
    main()
