"""Faults while requests are under way, counted: requests that were lost, answered twice or wrong.

Clients ask without a pause, each request with numbers of its own that are exact in float32, so that an answer to
another request is seen. Meanwhile faults happen, one after the other: to the server, or to a pipeline of two stages
with two replicas each, which three clients ask through two gateways and one through Ray. A request whose connection
breaks, or that gets 503, is sent again by its client, to the next gateway if there are several. It counts as lost if it
gets another error, or no answer in a minute.
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
from _result_page import Row, add_portions, earlier_rows, report

CLIENTS, SIZE = 4, 8
PATIENCE = 60.0


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=100, metavar="N", help="of each fault of the server")
    arguments.add_argument(
        "--cluster-rounds", type=int, default=0, metavar="N", help="of each fault of a pipeline on Ray"
    )
    arguments.add_argument(
        "--cluster-seconds", type=float, default=60.0, metavar="SECONDS", help="after which a fault has no more rounds"
    )
    arguments.add_argument(
        "--total-seconds",
        type=float,
        default=float("inf"),
        metavar="SECONDS",
        help="after which no fault has more rounds",
    )
    arguments.add_argument(
        "--requests", type=int, default=100_000, metavar="N", help="to the pipeline, before memory is read again; or 0"
    )
    arguments.add_argument(
        "--server-requests",
        type=int,
        default=0,
        metavar="N",
        help="to the server, before its memory is read again; or 0",
    )
    add_portions(arguments, "faults")
    options = arguments.parse_args()
    rounds = 5 if options.quick else options.rounds
    end = time.monotonic() + options.total_seconds
    rows = earlier_rows(options)
    with tempfile.TemporaryDirectory() as folder:
        if rounds or options.server_requests:
            rows += _server_faults(Path(folder), rounds, options.server_requests, options.only)
        if options.cluster_rounds:
            rows += _cluster_faults(
                Path(folder), options.cluster_rounds, options.cluster_seconds, end, options.requests, options.only
            )
    report("Faults under load, counted", rows, options.json, options.markdown, notes=" ".join(str(__doc__).split()))


class _LostError(Exception):
    """An answer that is an error."""


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
            begin = time.monotonic()
            end = begin + PATIENCE
            while True:
                try:
                    answer = ask(x)
                except _LostError:
                    self._count("lost")
                    break
                except (OSError, http.client.HTTPException) as error:
                    if not isinstance(error, ConnectionRefusedError):  # otherwise nothing was sent
                        self._count("sent again")
                    time.sleep(0.01)
                    if time.monotonic() > end:
                        print(f"lost after {time.monotonic() - begin:.1f} s: {error}", flush=True)
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
            sys.executable, "-m", "tvm_sched_runtime.run_artifact", "serve", repository, "--port", str(self.port),
            "--no-grpc", "--admin-port", str(self.admin_port), "--json", "--threads", "1", "--receive-timeout", "1",
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


def _http_client(port: int, counts: Callable[[str], None], seconds: float = PATIENCE) -> Callable[[Any], Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)

    def ask(x: Any) -> Any:
        document = {"inputs": [{"name": "x", "shape": x.shape, "datatype": "FP32", "data": x.reshape(-1).tolist()}]}
        if connection.sock is not None:
            connection.sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                if connection.sock.recv(1, socket.MSG_PEEK):
                    counts("answered twice")
            connection.sock.settimeout(seconds)
        connection.request("POST", "/v2/models/m/infer", json.dumps(document))
        answer = connection.getresponse()
        content = answer.read()
        if answer.status == 503:
            raise OSError("busy")
        if answer.status != 200:
            print(answer.status, content[:300], flush=True)
            raise _LostError
        return np.array(json.loads(content)["outputs"][0]["data"], np.float32).reshape(1, 4)

    return ask


def _server_faults(folder: Path, rounds: int, requests: int, only: str) -> Iterator[Row]:
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
        if requests:
            yield from _memory({"server": server.process.pid}, [server.port], requests)
        for name, fault in faults.items() if rounds else ():
            if only not in name:
                continue
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
    seconds: float = float("inf"),
) -> Iterator[Row]:
    began = time.monotonic()
    load: Load | None = None

    def count(what: str) -> None:
        if load is not None:
            load._count(what)

    load = Load(lambda: client(count), expected)
    faults = 0
    while faults < rounds and time.monotonic() < began + seconds:
        before = load.counts["right"]
        fault(faults)
        faults += 1
        while load.counts["right"] < before + 2 * CLIENTS and time.monotonic() < began + 600:
            time.sleep(0.001)
    yield from _rows(name, faults, load.end(), time.monotonic() - began)
    print(name, dict(load.counts), flush=True)


class Gateway:
    """`tvm-sched gateway` as a process that may be started again on its port."""

    def __init__(self, address: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as found:
            self.port = found.getsockname()[1]
        self._command = [
            sys.executable, "-m", "tvm_sched.cli", "gateway", "m", "--address", address, "--port", str(self.port),
            "--no-grpc", "--json",
        ]  # fmt: skip
        self.start()

    def start(self) -> None:
        """Start it, and wait until it serves."""
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline(), "the gateway did not start"


def _cluster_faults(folder: Path, rounds: int, seconds: float, end: float, requests: int, only: str) -> list[Row]:
    """Faults of a pipeline on a Ray cluster of this machine's processes, which clients ask through two gateways."""
    from tvm_sched.relax import compile_pipeline
    from tvm_sched_cluster.serving import Deployment, connect, deploy
    from tvm_sched_cluster.serving.deployment import StagePlacement
    from tvm_sched_cluster.serving.local_cluster import LocalCluster

    paths = [folder / f"{factor}.pipeline" for factor in (1, 2)]
    for factor, path in enumerate(paths, 1):
        compile_pipeline(_two_layers(factor), "cpu2", 2, "equal-split", cost_model="roofline").export(path)
    rows: list[Row] = []
    with _small_disk(folder / "cache"), LocalCluster(3, {"dev": 4}) as cluster:
        connect(cluster.address)
        deployment = Deployment(
            "m", str(paths[0]), (StagePlacement({"dev": 1}),) * 2, "SPREAD", replicas=2, hang_timeout=3.0,
            timeout=PATIENCE, retries=9,
        )  # fmt: skip
        deploy(deployment, seconds=300)
        gateways = [Gateway(cluster.address) for _ in range(2)]
        try:
            which = itertools.count()
            through_ray = threading.Event()

            def client(count: Callable[[str], None]) -> Callable[[Any], Any]:
                number = next(which)
                if name != _HEAD_KILLED and number % CLIENTS == CLIENTS - 1:
                    return _ray_client(through_ray)
                # A stopped gateway answers nothing, and keeps its connections.
                return _http_client(gateways[number % len(gateways)].port, count, 10.0)

            if requests:
                rows += _memory_of_cluster(gateways, requests)
            for name, fault in _faults_of_cluster(cluster, gateways, paths, through_ray).items():
                if only not in name:
                    continue
                rows += _under_load(
                    f"pipeline: {name}", 1 if name == _HEAD_KILLED else rounds, fault, client,
                    lambda x: [x @ _square(factor) @ _weights(factor) for factor in (1, 2)],
                    min(seconds, end - time.monotonic()),
                )  # fmt: skip
        finally:
            for gateway in gateways:
                gateway.process.kill()
                gateway.process.wait()
    return rows


def _ray_client(answered: threading.Event) -> Callable[[Any], Any]:
    """Return what asks through Ray, and sets the event at each answer."""
    from tvm_sched_cluster.serving import Client
    from tvm_sched_runtime.errors import TvmSchedError

    asked: list[Client] = []

    def ask(x: Any) -> Any:
        try:
            asked[:] = asked or [Client("m")]
            answer = asked[0].run(x)[0]
            answered.set()
            return answer
        except TvmSchedError as error:
            raise OSError(str(error)) from None

    return ask


_HEAD_KILLED = "the head killed: 90 s without it"


def _faults_of_cluster(
    cluster: Any, gateways: list[Gateway], paths: list[Path], through_ray: threading.Event
) -> dict[str, Callable[[int], None]]:
    import ray

    from tvm_sched_cluster.serving import rollout, status
    from tvm_sched_cluster.serving.artifact_store import local_folder
    from tvm_sched_runtime.errors import ServingError, TvmSchedError
    from tvm_sched_runtime.pipeline import load_manifest

    served = 0

    def stage(number: int) -> dict[str, Any]:
        """Return a process that is ready; another one each time."""
        while True:
            with contextlib.suppress(TvmSchedError, IndexError):
                ready = [each for each in status("m")["stages"] if each["state"] == "ready"]
                if len(ready) == 4:
                    return dict(ready[number % 4])
            time.sleep(0.05)

    def ingress_killed(number: int) -> None:
        through_ray.clear()
        assert through_ray.wait(2 * PATIENCE)  # so it has been started again, and had time for an answer
        ray.kill(ray.get_actor("m/ingress", "tvm_sched"), no_restart=False)

    def node_killed(number: int) -> None:
        cluster.kill(stage(number)["node"])
        cluster.add()

    def gateway_killed(number: int) -> None:
        gateways[number % 2].process.kill()
        gateways[number % 2].process.wait()
        gateways[number % 2].start()

    def gateway_stopped(number: int) -> None:
        gateways[number % 2].process.send_signal(signal.SIGSTOP)
        time.sleep(0.3)
        gateways[number % 2].process.send_signal(signal.SIGCONT)

    def rolled_out(number: int) -> None:
        nonlocal served
        served = 1 - served
        rollout("m", paths[served], seconds=300)

    def disk_full(number: int) -> None:
        """Without room on the nodes' disk, a rollout fails and a stage that is lost starts again."""
        shutil.rmtree(local_folder(load_manifest(paths[1 - served])), ignore_errors=True)
        filler = Path(os.environ["TVM_SCHED_CACHE"]) / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 12))
        try:
            with contextlib.suppress(ServingError):
                rollout("m", paths[1 - served], seconds=300)
                raise AssertionError("it was rolled out without room on the disk")
            os.kill(stage(number)["process"], signal.SIGKILL)
            stage(number)
        finally:
            filler.unlink()

    def head_killed(number: int) -> None:
        cluster.kill_head()
        time.sleep(90)

    faults = {
        "a stage's process killed": lambda number: os.kill(stage(number)["process"], signal.SIGKILL),
        "a stage's process stopped (SIGSTOP)": lambda number: os.kill(stage(number)["process"], signal.SIGSTOP),
        "the ingress killed": ingress_killed,
        "a gateway killed": gateway_killed,
        "a gateway stopped (SIGSTOP) and continued": gateway_stopped,
        "a node killed, another joins": node_killed,
        "another artifact rolled out": rolled_out,
        "the disk full: a rollout fails, a stage killed": disk_full,
        _HEAD_KILLED: head_killed,
    }
    if not os.path.ismount(os.environ["TVM_SCHED_CACHE"]):
        faults.pop("the disk full: a rollout fails, a stage killed")
    return faults


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[None]:
    """Let nodes keep artifacts on a disk of 8 MiB, if this user may make one."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    mounted = shutil.which("mount") is not None and subprocess.run(command, capture_output=True).returncode == 0
    os.environ["TVM_SCHED_CACHE"] = str(folder)
    try:
        yield
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _memory_of_cluster(gateways: list[Gateway], requests: int) -> Iterator[Row]:
    from tvm_sched_cluster.serving import status

    processes = {f"gateway {number}": gateway.process.pid for number, gateway in enumerate(gateways)}
    for each in status("m")["stages"]:
        processes[f"stage {each['stage']}.{each['replica']}"] = each["process"]
    yield from _memory(processes, [gateway.port for gateway in gateways], requests)


def _memory(processes: dict[str, int], ports: list[int], requests: int) -> Iterator[Row]:
    """Resident memory of the processes, before and after many requests."""
    x = np.ones((1, SIZE), np.float32)

    def ask(count: int) -> None:
        def work(number: int) -> None:
            client = _http_client(ports[number % len(ports)], lambda _: None)
            for _ in range(count // CLIENTS):
                client(x)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    ask(requests // 10)
    before = {name: _resident_mib(process) for name, process in processes.items()}
    ask(requests)
    for name, process in processes.items():
        yield Row(name, f"after {requests // 10:,} requests", before[name], "MiB resident")
        yield Row(name, f"after {requests:,} more", _resident_mib(process), "MiB resident")


def _resident_mib(process: int) -> float:
    (line,) = [line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


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
