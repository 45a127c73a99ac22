"""Faults while requests are under way, counted: requests that were lost, answered twice or wrong.

Clients ask without a pause, each request with numbers of its own that are exact in float32, so that an answer to another
request is seen. Meanwhile faults happen to the server, one after the other. A request whose connection breaks, or that gets
503, is sent again by its client. It counts as lost if it is never answered.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _common import parser
from _result_page import Row, report

CLIENTS, SIZE = 4, 8
PATIENCE = 60.0


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=100, metavar="N", help="of each fault of the server")
    arguments.add_argument(
        "--cluster-rounds", type=int, default=0, metavar="N", help="of each fault of a pipeline on Ray"
    )
    options = arguments.parse_args()
    rounds = 5 if options.quick else options.rounds
    with tempfile.TemporaryDirectory() as folder:
        rows = list(_server_faults(Path(folder), rounds))
        if options.cluster_rounds:
            rows += _cluster_faults(Path(folder), options.cluster_rounds)
    report("Faults under load, counted", rows, options.json, options.markdown, notes=" ".join(str(__doc__).split()))


class Load:
    """Clients that ask until they are told to end; ``ask`` gives the answer to the numbers of a request."""

    def __init__(self, make: Callable[[], Callable[[Any], Any]], expected: Callable[[Any], list[Any]]) -> None:
        self.counts: Counter[str] = Counter()
        self._make, self._expected = make, expected
        self._numbers, self._ends, self._lock = itertools.count(1), threading.Event(), threading.Lock()
        self._threads = [threading.Thread(target=self._client) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _client(self) -> None:
        ask = self._make()
        while not self._ends.is_set():
            x = np.full((1, SIZE), next(self._numbers) % 4096, np.float32)
            end = time.monotonic() + PATIENCE
            while True:
                try:
                    answer = ask(x)
                except (OSError, http.client.HTTPException) as error:
                    if not isinstance(error, ConnectionRefusedError):  # otherwise nothing was sent
                        self._count("sent again")
                    time.sleep(0.01)
                    if time.monotonic() > end:
                        self._count("lost")
                        break
                    ask = self._make()
                    continue
                right = any(np.array_equal(answer, each) for each in self._expected(x))
                self._count("right" if right else "wrong")
                break

    def _count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def end(self) -> Counter[str]:
        """Stop the clients; return what became of their requests."""
        self._ends.set()
        for thread in self._threads:
            thread.join()
        return self.counts


def _rows(case: str, rounds: int, counts: Counter[str], seconds: float) -> Iterator[Row]:
    yield Row(case, "faults", rounds, "count")
    yield Row(case, "requests", counts["right"] + counts["wrong"] + counts["lost"], "count")
    for what in ("lost", "wrong", "answered twice", "sent again"):
        yield Row(case, what, counts[what], "count")
    yield Row(case, "seconds", seconds, "count")


def _weights(factor: int) -> Any:
    return factor * np.arange(1, 1 + SIZE * 4, dtype=np.float32).reshape(SIZE, 4)


def _artifact(path: Path, factor: int) -> Path:
    from onnx import TensorProto, helper, numpy_helper

    from tvm_sched.relax import compile

    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "m",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, SIZE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(_weights(factor), "w")],
    )
    compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "cpu1").export(path)
    return path


class Server:
    """`tvm-sched serve` as a process that may be started again on its port."""

    def __init__(self, repository: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as http_port, socket.create_server(("127.0.0.1", 0)) as admin_port:
            self.port, self.admin_port = http_port.getsockname()[1], admin_port.getsockname()[1]
        self._command = [
            sys.executable, "-m", "tvm_sched.run_artifact", "serve", repository, "--port", str(self.port), "--no-grpc",
            "--admin-port", str(self.admin_port), "--json", "--threads", "1", "--receive-timeout", "1",
        ]  # fmt: skip
        self.start()

    def start(self) -> None:
        """Start it, and wait until it serves."""
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline(), "the server did not start"

    def post(self, path: str) -> None:
        """Call the administration."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port, timeout=PATIENCE)
        connection.request("POST", path, "{}")
        assert connection.getresponse().status == 200
        connection.close()


def _http_client(port: int, counts: Callable[[str], None]) -> Callable[[Any], Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)

    def ask(x: Any) -> Any:
        document = {"inputs": [{"name": "x", "shape": x.shape, "datatype": "FP32", "data": x.reshape(-1).tolist()}]}
        if connection.sock is not None:
            connection.sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                if connection.sock.recv(1, socket.MSG_PEEK):
                    counts("answered twice")
            connection.sock.settimeout(PATIENCE)
        connection.request("POST", "/v2/models/m/infer", json.dumps(document))
        answer = connection.getresponse()
        content = answer.read()
        if answer.status == 503:
            raise OSError("busy")
        if answer.status != 200:
            return None
        return np.array(json.loads(content)["outputs"][0]["data"], np.float32).reshape(1, 4)

    return ask


def _server_faults(folder: Path, rounds: int) -> Iterator[Row]:
    versions = [_artifact(folder / f"by{factor}.so", factor) for factor in (1, 2)]
    repository = folder / "repository"
    repository.mkdir()

    def bring(number: int) -> None:
        for suffix in (".safetensors", ".so"):
            source = versions[number % 2].with_suffix(suffix)
            if source.exists():
                shutil.copy(source, repository / f"new{suffix}.part")
                (repository / f"new{suffix}.part").replace(repository / f"m{suffix}")

    bring(0)
    server = Server(repository)
    rng = random.Random(1)

    def reload(number: int) -> None:
        bring(number)
        server.post("/v2/repository/models/m/load")

    def client_killed(number: int) -> None:
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            body = json.dumps({"inputs": [{"name": "x", "shape": [1, SIZE], "datatype": "FP32", "data": [0] * SIZE}]})
            head = f"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall((head + body)[: rng.randrange(1, len(head + body) + 1)].encode())
            connection.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
            )  # a reset, as of a killed process

    def stopped(number: int) -> None:
        server.process.send_signal(signal.SIGSTOP)
        time.sleep(0.02 + 0.1 * rng.random())
        server.process.send_signal(signal.SIGCONT)

    def drained(number: int) -> None:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0
        server.start()

    def killed(number: int) -> None:
        server.process.kill()
        server.process.wait()
        server.start()

    faults = {
        "artifact replaced and loaded": reload, "client killed within its request": client_killed,
        "server stopped (SIGSTOP) and continued": stopped, "server drained (SIGTERM) and started": drained,
        "server killed (SIGKILL) and started": killed,
    }  # fmt: skip
    try:
        for name, fault in faults.items():
            few = rounds if fault in (reload, client_killed, stopped) else max(1, rounds // 10)
            yield from _under_load(
                name, few, fault,
                lambda count: _http_client(server.port, count),
                lambda x: [x @ _weights(factor) for factor in (1, 2)],
            )  # fmt: skip
    finally:
        server.process.terminate()
        server.process.wait(PATIENCE)


def _under_load(
    name: str,
    rounds: int,
    fault: Callable[[int], None],
    client: Callable[[Callable[[str], None]], Callable[[Any], Any]],
    expected: Callable[[Any], list[Any]],
) -> Iterator[Row]:
    began = time.monotonic()
    load: Load | None = None

    def count(what: str) -> None:
        if load is not None:
            load._count(what)

    load = Load(lambda: client(count), expected)
    for number in range(rounds):
        before = load.counts["right"]
        fault(number)
        while load.counts["right"] < before + 2 * CLIENTS and time.monotonic() < began + 600:
            time.sleep(0.001)
    yield from _rows(name, rounds, load.end(), time.monotonic() - began)
    print(name, dict(load.counts), flush=True)


def _cluster_faults(folder: Path, rounds: int) -> list[Row]:
    """Faults of a pipeline of two stages on a Ray cluster of this machine's processes."""
    import ray

    from tvm_sched.errors import TvmSchedError
    from tvm_sched.relax import compile_pipeline
    from tvm_sched_cluster.serving import Client, Deployment, StagePlacement, connect, deploy, rollout, status, undeploy
    from tvm_sched_cluster.serving.local_cluster import LocalCluster

    paths = [folder / f"{factor}.pipeline" for factor in (1, 2)]
    for factor, path in enumerate(paths, 1):
        compile_pipeline(_two_layers(factor), "cpu2", 2, "equal-split", cost_model="roofline").export(path)
    rows: list[Row] = []
    with LocalCluster(4, {"dev": 1}) as cluster:
        connect(cluster.address)
        deploy(
            Deployment("m", str(paths[0]), (StagePlacement({"dev": 1}),) * 2, hang_timeout=3.0, timeout=PATIENCE),
            seconds=300,
        )

        def stage_process(number: int) -> int:
            while True:
                with contextlib.suppress(TvmSchedError, KeyError):
                    return int(status("m")["stages"][number % 2]["process"])

        def entry(number: int) -> None:
            ray.kill(ray.get_actor("m/ingress", "tvm_sched"), no_restart=False)

        faults = {
            "a stage's process killed": lambda number: os.kill(stage_process(number), signal.SIGKILL),
            "a stage's process stopped (SIGSTOP)": lambda number: os.kill(stage_process(number), signal.SIGSTOP),
            "the ingress killed": entry,
            "another artifact rolled out": lambda number: rollout("m", paths[(number + 1) % 2], seconds=300) and None,
        }

        def client(count: Callable[[str], None]) -> Callable[[Any], Any]:
            asked = Client("m")

            def ask(x: Any) -> Any:
                try:
                    return asked.run(x)[0]
                except TvmSchedError as error:
                    raise OSError(str(error)) from None

            return ask

        for name, fault in faults.items():
            rows += _under_load(
                f"pipeline: {name}", rounds, fault, client,
                lambda x: [x @ _square(factor) @ _weights(factor) for factor in (1, 2)],
            )  # fmt: skip
        undeploy("m")
    return rows


def _square(factor: int) -> Any:
    return factor * np.eye(SIZE, dtype=np.float32)


def _two_layers(factor: int) -> Any:
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "a"], ["h"]),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("MatMul", ["r", "b"], ["y"]),
        ],
        "m",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, SIZE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(_square(factor), "a"), numpy_helper.from_array(_weights(factor), "b")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


if __name__ == "__main__":
    main()
