"""What a request through `tvm-sched serve` costs over `module.run`: latency, throughput, processor time of the server.

Clients send prepared bytes on open connections, so that their own work counts little; they share the processor with the
server. The peer is ONNX Runtime behind a minimal HTTP server in Python (Starlette on uvicorn, without checks, queue and
batches). `grpc.aio alone` is a server that receives the same bytes and answers with zeros: what the library costs, without
us. With `--peer-python`, other servers with ONNX Runtime stand beside it; MLServer is asked over gRPC. With
`--triton`, Triton Inference Server runs the same artifact, exported for its Python backend and with our C++ backend,
and gets the requests of the column HTTP. The parts take turns within each round. Figures over a run in this process are
differences of medians of one round, and differences of the 10th percentiles of all rounds, which other work on the
machine disturbs less. On a busy machine, differences that are small against the time of the model are noise; the
processor time a request still counts. It is that of all of a server's processes.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _common import parser
from _result_page import Row, add_portions, earlier_rows, report

PEER = """
import sys, numpy as np, onnxruntime, uvicorn
from starlette.concurrency import run_in_threadpool
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
(entry,), shape = session.get_inputs(), tuple(map(int, sys.argv[3].split(",")))
def run(body):
    return session.run(None, {entry.name: np.frombuffer(body, np.float32).reshape(shape)})[0].tobytes()
async def app(scope, receive, send):
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message.get("more_body")
    answer = await run_in_threadpool(run, body)
    length = str(len(answer)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": answer})
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), lifespan="off", log_level="error", access_log=False,
            timeout_keep_alive=75)
"""
ECHO = """
import asyncio, grpc, sys, uvloop
answer = bytes(int(sys.argv[1]))
async def echo(request, context):
    return answer
async def serve():
    server = grpc.aio.server(options=(("grpc.max_receive_message_length", -1),))
    methods = {"ModelInfer": grpc.unary_unary_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("inference.GRPCInferenceService", methods),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()
uvloop.run(serve())
"""
MS = "latency over a run here (median), ms"
MS_10 = "latency over a run here (10th percentiles), ms"
P50, P99, RATE, CPU = "latency (median), ms", "99th percentile, ms", "requests/s", "processor time a request, ms"


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument(
        "--peer-python",
        action="append",
        default=[],
        metavar="FILE",
        help="Python that has onnxruntime and peers: bentoml, fastapi, litserve, mlserver, ray[serve]; several may be given",
    )
    arguments.add_argument(
        "--triton", type=Path, metavar="FOLDER", help="into which the wheel of nvidia-pytriton was unpacked"
    )
    arguments.add_argument(
        "--busy",
        action="store_true",
        help="report processor time alone, on a machine with other work that slows the rest",
    )
    add_portions(arguments, "models")
    options = arguments.parse_args()
    requests, rounds = (40, 2) if options.quick else (150, 4)
    processor = _processor()
    with tempfile.TemporaryDirectory() as folder:
        rows = earlier_rows(options)
        rows += _rows(Path(folder), requests, rounds, options)
    load = os.getloadavg()[0]
    print(f"{processor}, {len(os.sched_getaffinity(0))} cores, load {load:.1f} at the end")
    cores = len(os.sched_getaffinity(0))
    notes = f"{' '.join(str(__doc__).split())}\n\nProcessor: {processor}, {cores} cores. Load at the end: {load:.1f}."
    if options.busy:
        rows = [row for row in rows if row.unit == CPU]
    report(
        "Processor time of servers" if options.busy else "Serving on one machine",
        rows,
        options.json,
        options.markdown,
        notes=notes,
    )


def _rows(folder: Path, requests: int, rounds: int, options: argparse.Namespace) -> Iterator[Row]:
    import onnx

    from tvm_sched.relax import compile
    from tvm_sched_bench.testing.models import onnx_model

    small = _small_model()
    for name, model in (("squeezenet, 602 KB", onnx_model("squeezenet")), ("small, 4 KB", small)):
        if options.only not in name:
            continue
        stem = folder / name.partition(",")[0]
        onnx.save(model, stem.with_suffix(".onnx"))
        compile(model, "cpu1").export(stem.with_suffix(".so"))
        yield from _measure(name, stem, requests, rounds, options)


def _small_model() -> Any:
    from onnx import TensorProto, helper, numpy_helper

    weights = np.random.default_rng(0).standard_normal((1024, 16)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1024])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16])],
        [numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _measure(case: str, stem: Path, requests: int, rounds: int, options: argparse.Namespace) -> Iterator[Row]:
    from tvm_sched_runtime.runtime import load

    module = load(stem.with_suffix(".so"))
    (argument,) = module.plans()[0]["arguments"]
    value = np.random.default_rng(1).standard_normal(argument["shape"]).astype(np.float32)
    aligned = np.empty(value.nbytes + 64, np.uint8)
    begin = -aligned.ctypes.data % 64
    here = aligned[begin : begin + value.nbytes].view(np.float32).reshape(value.shape)
    here[...] = value
    wanted = module.run(here)[0]
    with contextlib.ExitStack() as stack:
        served, addresses = stack.enter_context(_server(stem.with_suffix(".so")))
        peer, peer_address = stack.enter_context(_peer(stem.with_suffix(".onnx"), argument["shape"]))
        region = stack.enter_context(_region(value, addresses["http"]))
        http = _http_request(stem.stem, argument, value)
        memory = _http_request(stem.stem, argument, value, region)
        grpc_call = stack.enter_context(_grpc_call(stem.stem, argument, value, addresses["grpc"]))
        plain = _head("/", value.nbytes) + value.tobytes()
        calls: dict[str, tuple[Callable[[], Any], int]] = {
            "HTTP": (stack.enter_context(_connection(addresses["http"], http)), served),
            "gRPC": (grpc_call, served),
            "shared memory": (stack.enter_context(_connection(addresses["http"], memory)), served),
            "Starlette + ONNX Runtime": (stack.enter_context(_connection(peer_address, plain)), peer),
        }
        echo, address = stack.enter_context(_echo(wanted.nbytes))
        calls["grpc.aio alone"] = stack.enter_context(_grpc_call(stem.stem, argument, value, address)), echo
        document = json.dumps({"x": base64.b64encode(value.tobytes()).decode()}).encode()
        as_json = _head("/predict", len(document), "Content-Type: application/json") + document
        for name, package, content in (
            ("FastAPI", "fastapi", plain), ("LitServe", "litserve", as_json), ("BentoML", "bentoml", as_json),
            ("Ray Serve", "ray.serve", plain), ("MLServer", "mlserver", None),
        ):  # fmt: skip
            python = next((each for each in options.peer_python if _has(each, package)), None)
            if python is None:
                continue
            command = [python, Path(__file__).with_name("_serve_peers.py"), name]
            process, address = stack.enter_context(_peer(stem.with_suffix(".onnx"), argument["shape"], command))
            call = _connection(address, content) if content else _grpc_call(stem.stem, argument, value, address)
            calls[f"{name} + ONNX Runtime"] = stack.enter_context(call), process
            _until_it_answers(calls[f"{name} + ONNX Runtime"][0])
        tritons = []
        for backend in ("python", "cpp") if options.triton else ():
            process, address = stack.enter_context(_triton(options.triton, stem.with_suffix(".so"), backend))
            calls[f"Triton, {backend} backend"] = stack.enter_context(_connection(address, http)), process
            tritons.append((f"Triton, {backend} backend", address, http, process))
        assert calls["HTTP"][0]().endswith(wanted.tobytes()), "the server's values are those of module.run"
        latencies: dict[str, list[list[float]]] = {name: [] for name in ("here", *calls)}
        processor: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in [("here", lambda: module.run(here)), *((n, c) for n, (c, _) in calls.items())]:
                before = _seconds_of(calls[name][1]) if name in calls else 0.0
                latencies[name].append(_times(call, requests))
                if name in calls:
                    processor[name].append((_seconds_of(calls[name][1]) - before) / (requests + 10))
        for name, found in latencies.items():
            every = sorted(seconds for one in found for seconds in one)
            method = "module.run in this process" if name == "here" else name
            yield Row(case, method, 1e3 * statistics.median(every), P50)
            yield Row(case, method, 1e3 * every[int(0.99 * (len(every) - 1))], P99)
            if name in calls:
                over = [
                    statistics.median(a) - statistics.median(b) for a, b in zip(found, latencies["here"], strict=True)
                ]
                if name in ("HTTP", "gRPC", "shared memory") or "Triton" in name:  # others run it in another runtime
                    yield Row(case, name, 1e3 * statistics.median(over), MS)
                    yield Row(case, name, 1e3 * (_tenth(found) - _tenth(latencies["here"])), MS_10)
                yield Row(case, name, 1e3 * statistics.median(processor[name]), CPU)
        rate = 1 / statistics.median([seconds for one in latencies["here"] for seconds in one])
        yield Row(f"{case}, 1 client", "module.run in this process", rate, RATE)
        for clients in (8, 64):
            for name, address, content, process in (
                ("HTTP", addresses["http"], http, served),
                ("shared memory", addresses["http"], memory, served),
                ("Starlette + ONNX Runtime", peer_address, plain, peer),
                *tritons,
            ):
                count, seconds, used = _throughput(address, content, clients, 2.0 if requests < 100 else 5.0, process)
                yield Row(f"{case}, {clients} clients", name, count / seconds, RATE)
                yield Row(f"{case}, {clients} clients", name, 1e3 * used / count, CPU)


def _tenth(rounds: Sequence[Sequence[float]]) -> float:
    """Return the 10th percentile of all rounds."""
    every = sorted(seconds for one in rounds for seconds in one)
    return every[len(every) // 10]


def _has(python: str, package: str) -> bool:
    """Whether a Python has a package."""
    return subprocess.run([python, "-c", f"import {package}"], capture_output=True).returncode == 0


def _until_it_answers(call: Callable[[], Any]) -> None:
    """Call until it succeeds: servers listen before their models are loaded."""
    for _ in range(240):
        with contextlib.suppress(Exception):
            call()
            return
        time.sleep(0.25)
    raise SystemExit("a peer does not answer")


@contextlib.contextmanager
def _triton(wheel: Path, artifact: Path, backend: str) -> Iterator[tuple[int, str]]:
    """Run NVIDIA's server on an exported artifact."""
    from tvm_sched_serve.triton_export import TritonOptions, export_triton

    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        root, server = Path(folder), wheel / "pytriton" / "tritonserver"
        export_triton(artifact, root / "models", TritonOptions(backend=backend))
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        shutil.copytree(server / "backends", root / "backends")
        stub = shutil.copy(
            server / "python_backend_stubs" / version / "triton_python_backend_stub", root / "backends/python"
        )
        program = Path(shutil.copy(server / "bin" / "tritonserver", root))
        for file in (Path(stub), program):
            file.chmod(0o755)
        sources = str(Path(__file__).resolve().parents[1] / "python")
        for file in (root / "models").rglob("model.py"):  # Triton's Python takes no PYTHONPATH
            file.write_text(f"import sys\nsys.path.insert(0, {sources!r})\n{file.read_text()}")
        command = [program, "--model-repository", root / "models", "--backend-directory", root / "backends",
                   "--http-port", str(port), "--http-address", "127.0.0.1", "--allow-grpc=false",
                   "--allow-metrics=false"]  # fmt: skip
        environment = os.environ | {"LD_LIBRARY_PATH": str(wheel / "nvidia_pytriton.libs")}
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        try:
            for _ in range(600):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.1)
            yield process.pid, f"127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)


def _times(call: Callable[[], Any], requests: int) -> list[float]:
    for _ in range(10):
        call()
    found = []
    for _ in range(requests):
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return found


def _throughput(address: str, content: bytes, clients: int, seconds: float, process: int) -> tuple[int, float, float]:
    """Return the answers to that many clients, the seconds in which they came, and the server's processor time."""
    counts = [0] * clients
    end = time.perf_counter() + seconds

    def work(number: int) -> None:
        with _connection(address, content) as call:
            while time.perf_counter() < end:
                call()
                counts[number] += 1

    before, begin = _seconds_of(process), time.perf_counter()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts), time.perf_counter() - begin, _seconds_of(process) - before


def _seconds_of(process: int) -> float:
    """Processor time of a process and those that it started."""
    return sum(_family(process).values())


def _family(process: int) -> dict[int, float]:
    """Return the processor time of a process and of each that it started."""
    seconds: dict[int, float] = {}
    parents: dict[int, int] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = file.read_text().rpartition(")")[2].split()
            number = int(file.parent.name)
            parents[number] = int(fields[1])
            seconds[number] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    found = {process}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return {number: seconds[number] for number in found if number in seconds}


@contextlib.contextmanager
def _server(artifact: Path) -> Iterator[tuple[int, dict[str, str]]]:
    command = [
        sys.executable,
        "-m",
        "tvm_sched_runtime.run_artifact",
        "serve",
        artifact,
        "--port",
        "0",
        "--grpc-port",
        "0",
    ]
    process = subprocess.Popen([*command, "--json", "--shared-memory"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        yield process.pid, {"http": told["http"].partition("//")[2], "grpc": told["grpc"]}
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


@contextlib.contextmanager
def _echo(size: int) -> Iterator[tuple[int, str]]:
    process = subprocess.Popen([sys.executable, "-c", ECHO, str(size)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.pid, f"127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait(30)


@contextlib.contextmanager
def _peer(
    model: Path, shape: list[int], command: Sequence[Any] = (sys.executable, "-c", PEER)
) -> Iterator[tuple[int, str]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    given = [*command, model, str(port), ",".join(map(str, shape))]
    process = subprocess.Popen(given, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        for _ in range(2400):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        yield process.pid, f"127.0.0.1:{port}"
    finally:
        for number in _family(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        process.wait(30)


def _head(path: str, length: int, *more: str) -> bytes:
    return "\r\n".join((f"POST {path} HTTP/1.1", "Host: a", f"Content-Length: {length}", *more, "", "")).encode()


def _http_request(model: str, argument: dict[str, Any], value: Any, region: str = "") -> bytes:
    size = value.nbytes
    place = {"shared_memory_region": region, "shared_memory_byte_size": size} if region else {"binary_data_size": size}
    entry = {"name": argument["name"], "datatype": "FP32", "shape": list(value.shape), "parameters": place}
    document = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    body = document + (b"" if region else value.tobytes())
    return _head(f"/v2/models/{model}/infer", len(body), f"Inference-Header-Content-Length: {len(document)}") + body


@contextlib.contextmanager
def _connection(address: str, content: bytes) -> Iterator[Callable[[], bytes]]:
    host, port = address.rsplit(":", 1)

    def connected() -> socket.socket:
        connection = socket.create_connection((host, int(port)), timeout=60)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    connections = [connected()]

    def begin() -> bytes:
        with contextlib.suppress(ConnectionError):
            connections[-1].sendall(content)
            if part := connections[-1].recv(1 << 20):
                return part
        # Some servers close connections that are idle while others have their turn.
        connections.append(connected())
        connections[-1].sendall(content)
        return connections[-1].recv(1 << 20)

    def call() -> bytes:
        answer = begin()
        while b"\r\n\r\n" not in answer:
            part = connections[-1].recv(1 << 20)
            assert part, "the server closed the connection"
            answer += part
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b" 200 " in head.split(b"\r\n")[0], answer
        length = next(int(x.split(b":")[1]) for x in head.lower().split(b"\r\n") if x.startswith(b"content-length"))
        while len(body) < length:
            body += connections[-1].recv(1 << 20)
        return body

    try:
        yield call
    finally:
        for connection in connections:
            connection.close()


@contextlib.contextmanager
def _grpc_call(model: str, argument: dict[str, Any], value: Any, address: str) -> Iterator[Callable[[], bytes]]:
    import grpc

    from tvm_sched_serve.grpc_server import SERVICE, messages

    request = messages()["ModelInferRequest"](model_name=model, raw_input_contents=[value.tobytes()])
    request.inputs.add(name=argument["name"], datatype="FP32", shape=value.shape)
    content = request.SerializeToString()
    with grpc.insecure_channel(address) as channel:
        method = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        yield lambda: method(content)


@contextlib.contextmanager
def _region(value: Any, address: str) -> Iterator[str]:
    """A segment that holds the input."""
    from multiprocessing.shared_memory import SharedMemory
    from urllib.request import Request, urlopen

    memory = SharedMemory(create=True, size=value.nbytes)
    try:
        memory.buf[: value.nbytes] = value.tobytes()
        document = json.dumps({"key": memory.name, "byte_size": value.nbytes}).encode()
        urlopen(Request(f"http://{address}/v2/systemsharedmemory/region/input/register", document, method="POST"))
        yield "input"
    finally:
        memory.close()
        memory.unlink()


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    main()
