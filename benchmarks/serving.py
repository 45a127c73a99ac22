"""Pipelines on a Ray cluster of this machine's processes: latency, throughput, seconds until a lost stage is back.

The same pipeline in one process stands beside it. Python's client asks the ingress, clients over HTTP (binary tensors)
ask a gateway. A hop alone is a request to a stage that gives its input back, with nothing else on the way: tensors of
this size go there and back. All processes share this machine's cores, clients included.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _common import parser
from _result_page import Row, report

REQUESTS = 100
CLIENTS = 8
_ECHO = """import sys
from tvm_sched_cluster.serving.stage_server import StageServer
print(StageServer(lambda x: [x], "127.0.0.1", "token", 1 << 20).endpoint.port, flush=True)
sys.stdin.read()
"""


def main() -> None:
    options = parser(__doc__).parse_args()
    try:
        from tvm_sched_cluster.serving.local_cluster import LocalCluster
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error.name} is missing: pip install 'tvm-sched[cluster]'") from None

    requests = 20 if options.quick else REQUESTS
    rows = list(_hops(10 * requests))
    with LocalCluster(3, {"dev": 1}) as cluster, tempfile.TemporaryDirectory() as folder:
        rows += _rows(cluster, Path(folder), requests)
    report("Serving", rows, options.json, options.markdown)


def _hops(requests: int) -> Iterator[Row]:
    """Requests to a stage in another process that gives its input back."""
    import numpy as np

    from tvm_sched_cluster.serving.stage_link import StageLink, StageReplicas
    from tvm_sched_cluster.serving.tensor_channel import Endpoint, new_event_loop

    echo = subprocess.Popen(
        [sys.executable, "-c", _ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    assert echo.stdout is not None
    endpoint = Endpoint("127.0.0.1", int(echo.stdout.readline()), "token")

    async def find() -> Endpoint:
        return endpoint

    async def end(_: Endpoint) -> None: ...

    async def measure(size: int) -> list[float]:
        stage, x, times = StageReplicas([StageLink(find, 2, 1 << 20, 60.0, end)]), np.zeros(size, np.float32), []
        for _ in range(requests):
            started = time.perf_counter()
            await stage.run([x])
            times.append(time.perf_counter() - started)
        await stage.close()
        return times[requests // 10 :]

    for size, name in ((1000, "4 KB"), (3 * 224 * 224, "602 KB")):
        used = _seconds_of(echo.pid) + time.process_time()
        loop = new_event_loop()
        times = loop.run_until_complete(measure(size))
        loop.close()
        used = _seconds_of(echo.pid) + time.process_time() - used
        yield from _of_times(f"a hop alone, {name}", "Client", times)
        yield Row(f"a hop alone, {name}", "Client", used / requests * 1e3, "processor time a request, ms")
    echo.kill()


def _seconds_of(process: int) -> float:
    """Return the processor time of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
    from tvm_sched_runtime.pipeline import load

    pipeline = load(path)
    batch = _batch(path)
    pipeline.run([batch] * 5)
    yield from _latency(case, "one process", lambda: pipeline.run([batch]), requests)
    yield from _throughput(case, "one process", lambda: pipeline.run([batch] * requests), requests, [])


def _on_cluster(case: str, path: Path, stages: int, cluster: Any, requests: int) -> Iterator[Row]:
    from tvm_sched_cluster.serving import Client, Deployment, StagePlacement, connect, deploy, status, undeploy

    connect(cluster.address)
    cluster.at_least(3)
    batch, started = _batch(path), time.perf_counter()
    deploy(Deployment("bench", str(path), (StagePlacement({"dev": 1}),) * stages, strategy="SPREAD"))
    yield Row(case, "Client", time.perf_counter() - started, "deployed after, s")
    client = Client("bench")
    list(client.stream([batch] * 5))
    said = status("bench")
    before = _stage_seconds(said)
    yield from _latency(case, "Client", lambda: client.run(batch), requests)
    computing = _stage_seconds(status("bench")) - before
    yield Row(case, "Client", computing / requests * 1e3, "of it in stages (mean), ms")
    stream = lambda: list(client.stream([batch] * requests))  # noqa: E731
    yield from _throughput(case, "Client", stream, requests, [said["process"], *_processes(said)])
    yield from _over_http(case, cluster, batch, requests)
    process = status("bench")["stages"][-1]["process"]
    yield Row(case, "Client", _recovery(client, batch, lambda: os.kill(process, signal.SIGKILL)), "process killed: s")
    node = status("bench")["stages"][-1]["node"]
    yield Row(case, "Client", _recovery(client, batch, lambda: cluster.kill(node)), "node killed: s")
    undeploy("bench")


def _over_http(case: str, cluster: Any, batch: Any, requests: int) -> Iterator[Row]:
    """Latency and throughput of a gateway."""
    from tvm_sched_cluster.serving import status

    command = [sys.executable, "-m", "tvm_sched.cli", "gateway", "bench", "--address", cluster.address, "--port", "0"]
    gateway = subprocess.Popen(
        [*command, "--no-grpc", "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )  # fmt: skip
    assert gateway.stdout is not None
    port = int(json.loads(gateway.stdout.readline())["http"].rpartition(":")[2])
    (name,) = json.loads(_get(port, "/v2/models/bench"))["inputs"]
    described = {**name, "shape": batch.shape, "parameters": {"binary_data_size": batch.nbytes}}
    head = json.dumps({"inputs": [described], "parameters": {"binary_data_output": True}}).encode()
    body, headers = head + batch.tobytes(), {"Inference-Header-Content-Length": str(len(head))}

    def client(count: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for _ in range(count):
            connection.request("POST", "/v2/models/bench/infer", body, headers)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            answer.read()

    def clients() -> None:
        threads = [threading.Thread(target=client, args=(requests // CLIENTS + 1,)) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    client(5)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask() -> None:
        connection.request("POST", "/v2/models/bench/infer", body, headers)
        connection.getresponse().read()

    yield from _latency(case, "gateway", ask, requests)
    processes = [gateway.pid, *_processes(status("bench"))]
    yield from _throughput(case, "gateway", clients, CLIENTS * (requests // CLIENTS + 1), processes)
    gateway.terminate()
    gateway.wait(60)


def _get(port: int, path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    return connection.getresponse().read()


def _batch(path: Path) -> Any:
    """Return zeros for the model's input."""
    import numpy as np

    from tvm_sched_runtime.pipeline import load_manifest

    (tensor,) = load_manifest(path).inputs
    return np.zeros(tensor.shape, tensor.dtype)


def _latency(case: str, method: str, work: Callable[[], Any], repeats: int) -> Iterator[Row]:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    yield from _of_times(case, method, times)


def _of_times(case: str, method: str, times: list[float]) -> Iterator[Row]:
    yield Row(case, method, statistics.median(times) * 1e3, "latency (median), ms")
    yield Row(case, method, sorted(times)[len(times) // 10] * 1e3, "latency (10th percentile), ms")


def _throughput(case: str, method: str, work: Callable[[], Any], count: int, processes: list[int]) -> Iterator[Row]:
    """Requests a second, and processor time of this and other processes: the best of five bursts."""
    rates, used = [], []
    for _ in range(5):
        before, started = time.process_time() + sum(map(_seconds_of, processes)), time.perf_counter()
        work()
        rates.append(count / (time.perf_counter() - started))
        used.append(time.process_time() + sum(map(_seconds_of, processes)) - before)
    yield Row(case, method, max(rates), "batches/s")
    yield Row(case, method, min(used) / count * 1e3, "processor time a request, ms")


def _processes(said: dict[str, Any]) -> list[int]:
    return [stage["process"] for stage in said["stages"]]


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
