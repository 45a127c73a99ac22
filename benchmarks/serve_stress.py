"""Requests over HTTP, gRPC and shared memory while a server's models come and go, with every answer counted.

Clients ask with whole numbers of their own, so that values are exact and an answer to another request is seen. Some of
them close the connection or cancel the call before the answer, and some give a request a millisecond. Meanwhile an
administrator replaces and loads a model, unloads it, puts it to sleep, and records traces. At the end of each part the
server is told to end while clients ask, and has to answer what it accepted. A part has its own options: the model's
instances, whether requests are joined to batches. Expected are right values, 503 (no place), 504 (late) and 404 (while a
model is unloaded); other answers and missing ones are faults, and so are requests that wait or run, or queues that are
there, when nobody asks any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from _common import parser
from _result_page import Row, report

PARTS = {
    "1 instance": (),
    "3 instances": ("--instances", "3"),
    "3 instances, batches": ("--instances", "3", "--batch-delay", "1"),
}
MODELS = {"quick": 8, "slow": 1024}
"""The models with the columns of their inputs; the runs of the first are made in the event loop's thread."""
CLIENTS, PATIENCE, COLUMNS = 6, 30.0, 64
COUNTED = ("loaded", "right", "no place", "late", "not loaded", "left")
"""Models that were loaded, and answers that are no faults; who left got none."""
LOADS, MORE_THREADS = 8, 24
"""After so many loads threads are counted; later there may be so many more, of instances that had not run."""


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--seconds", type=float, default=20.0, metavar="SECONDS", help="of each part")
    arguments.add_argument("--only", default="", metavar="TEXT", help="parts with this in their names")
    arguments.add_argument("--seed", type=int, default=0, metavar="N")
    options = arguments.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        versions = {(name, factor): _artifact(Path(folder), name, factor) for name in MODELS for factor in (1, 2)}
        for number, (part, flags) in enumerate(PARTS.items()):
            if options.only not in part:
                continue
            repository = Path(folder) / f"repository{number}"
            repository.mkdir()
            rows += asyncio.run(
                _part(part, flags, repository, versions, options.seconds, random.Random(options.seed + number))
            )
    report("Stress of a server, counted", rows, options.json, options.markdown, notes=" ".join(str(__doc__).split()))
    if faults := [f"{row.case}: {row.figure:g} times {row.method}" for row in rows if row.method not in COUNTED]:
        sys.exit("\n".join(faults))


def _weights(name: str, factor: int) -> Any:
    return factor * np.random.default_rng(1).integers(-9, 10, (MODELS[name], COLUMNS)).astype(np.float32)


def _artifact(folder: Path, name: str, factor: int) -> Path:
    from onnx import TensorProto, helper, numpy_helper

    from tvm_sched.relax import compile

    width = MODELS[name]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", COLUMNS])],
        [numpy_helper.from_array(_weights(name, factor), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / f"{name}{factor}.so"
    compile(model, "cpu1", input_shapes={"x": ({1, 4, 64}, width)}).export(path)
    return path


def _bring(versions: dict[tuple[str, int], Path], name: str, factor: int, repository: Path) -> None:
    for suffix in (".safetensors", ".so"):
        source = versions[name, factor].with_suffix(suffix)
        if source.exists():
            shutil.copy(source, repository / f"new{suffix}.part")
            (repository / f"new{suffix}.part").replace(repository / f"{name}{suffix}")


class Asked:
    """A request: its rows, and whether values are those of one of the model's versions."""

    def __init__(self, rng: random.Random) -> None:
        self.name = rng.choice(list(MODELS))
        rows = rng.choice((1, 4, 64)) if self.name == "slow" else rng.choice((1, 1, 4))
        self.x = np.random.default_rng(rng.getrandbits(32)).integers(-9, 10, (rows, MODELS[self.name]))
        self.x = self.x.astype(np.float32)
        self.parameters: dict[str, Any] = {"priority": rng.randrange(3)}
        if rng.random() < 0.1:
            self.parameters["timeout"] = 1000

    def judge(self, content: bytes) -> str:
        """Say what an answer with these values is."""
        right = [(self.x @ _weights(self.name, factor)).tobytes() for factor in (1, 2)]
        return "right" if content in right else "wrong values"


_STATUS = {503: "no place", 504: "late", 404: "not loaded"}


class HttpClient:
    """Asks over one connection, with binary tensors, which may lie in shared memory."""

    def __init__(self, address: str, region: SharedMemory | None, rng: random.Random) -> None:
        self.host, self.port = address.rsplit(":", 1)
        self.region, self.rng = region, rng
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, asked: Asked) -> str:
        """Send a request; return what became of it."""
        size = asked.x.nbytes
        place: dict[str, Any] = {"binary_data_size": size}
        body = asked.x.tobytes()
        if self.region is not None:
            self.region.buf[:size] = body
            place, body = {"shared_memory_region": self.region.name, "shared_memory_byte_size": size}, b""
        entry = {"name": "x", "datatype": "FP32", "shape": list(asked.x.shape), "parameters": place}
        document = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True, **asked.parameters}})
        head = (
            f"POST /v2/models/{asked.name}/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {len(document) + len(body)}\r\n"
            f"Inference-Header-Content-Length: {len(document)}\r\n\r\n"
        )
        reader, writer = self.streams = self.streams or await asyncio.open_connection(self.host, int(self.port))
        content = (head + document).encode() + body
        if self.rng.random() < 0.1:  # the client goes, with a whole request or a part of it behind
            writer.write(content[: self.rng.randrange(1, 2 * len(content))])
            await asyncio.sleep(self.rng.choice((0.0, 0.002)))
            self.close()
            return "left"
        writer.write(content)
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
        headers = dict(line.lower().split(b": ", 1) for line in answer.split(b"\r\n")[1:-2])
        content = await asyncio.wait_for(reader.readexactly(int(headers[b"content-length"])), PATIENCE)
        status = int(answer.split()[1])
        if status == 200:
            return asked.judge(content[int(headers[b"inference-header-content-length"]) :])
        return _STATUS.get(status) or f"status {status}: {content[:200]!r}"

    async def end(self) -> None:
        """End the connection."""
        self.close()

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self.streams is not None:
            self.streams[1].transport.abort()
            self.streams = None


class GrpcClient:
    """Asks over one channel."""

    def __init__(self, address: str, rng: random.Random) -> None:
        import grpc

        from tvm_sched_serve.grpc_server import SERVICE, messages

        self.rng, self.messages = rng, messages()
        self.channel = grpc.aio.insecure_channel(address)
        self.method = self.channel.unary_unary(f"/{SERVICE}/ModelInfer")

    async def ask(self, asked: Asked) -> str:
        """Send a request; return what became of it."""
        import grpc

        request = self.messages["ModelInferRequest"](model_name=asked.name, raw_input_contents=[asked.x.tobytes()])
        request.inputs.add(name="x", datatype="FP32", shape=asked.x.shape)
        for name, value in asked.parameters.items():
            request.parameters[name].int64_param = value
        call = self.method(request.SerializeToString(), timeout=PATIENCE)
        if self.rng.random() < 0.1:
            await asyncio.sleep(self.rng.choice((0.0, 0.002)))
            call.cancel()
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
                await call
            return "left"
        try:
            answer = self.messages["ModelInferResponse"].FromString(await call)
        except grpc.aio.AioRpcError as error:
            known = {"UNAVAILABLE": 503, "DEADLINE_EXCEEDED": 504, "NOT_FOUND": 404}
            if "connect" in str(error.details()).lower() or "GOAWAY" in str(error.details()):
                raise ConnectionError from None
            return _STATUS.get(known.get(error.code().name, 0)) or f"{error.code().name}: {error.details()}"
        return asked.judge(answer.raw_output_contents[0])

    def close(self) -> None:
        """Keep the channel, which connects again by itself."""

    async def end(self) -> None:
        """End the connection."""
        await self.channel.close()


async def _client(
    client: HttpClient | GrpcClient,
    rng: random.Random,
    counts: Counter[str],
    ends: asyncio.Event,
    drains: asyncio.Event,
) -> None:
    while not ends.is_set():
        try:
            what = await client.ask(Asked(rng))
            if what.startswith("CANCELLED") and drains.is_set():
                what = "left"  # gRPC had received the call, and the server had not
            counts[what] += 1
        except (OSError, asyncio.IncompleteReadError) as error:
            client.close()
            if drains.is_set():  # the server had not accepted it
                return
            counts[f"{type(error).__name__}: {error}"] += 1
        except asyncio.TimeoutError:
            client.close()
            counts["no answer"] += 1
    await client.end()


async def _part(
    part: str,
    flags: tuple[str, ...],
    repository: Path,
    versions: dict[tuple[str, int], Path],
    seconds: float,
    rng: random.Random,
) -> list[Row]:
    for name in MODELS:
        _bring(versions, name, 1, repository)
    command = [sys.executable, "-m", "tvm_sched_runtime.run_artifact", "serve", repository, "--port", "0",
               "--grpc-port", "0", "--admin-port", "0", "--json", "--threads", "1", "--shared-memory",
               "--queue", "4", *flags]  # fmt: skip
    counts: Counter[str] = Counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            administrator = Administrator(told["administration"], repository, versions, rng, counts)
            await _ask_until(told, process, administrator, seconds)
        finally:
            process.kill()
    return [
        Row(part, what, counts[what], "count")
        for what in sorted({*COUNTED, *counts}, key=_order)
        if counts[what] or what in COUNTED
    ]


def _order(what: str) -> tuple[int, str]:
    return COUNTED.index(what) if what in COUNTED else len(COUNTED), what


class Administrator:
    """Changes the server's models, and looks into it."""

    def __init__(
        self,
        address: str,
        repository: Path,
        versions: dict[tuple[str, int], Path],
        rng: random.Random,
        counts: Counter[str],
    ) -> None:
        self.address, self.repository, self.versions, self.rng, self.counts = address, repository, versions, rng, counts

    async def act(self) -> None:
        """Do something, then pause."""
        name = self.rng.choice(list(MODELS))
        kind = self.rng.randrange(6)
        if kind < 3:
            await self.load(name)
        elif kind == 3:
            await self.unload(name)
        elif kind == 4:
            await self.unload(name, sleep=True)
        else:
            await self._post("/v2/trace", {"seconds": 0.2})
        await asyncio.sleep(self.rng.choice((0.0, 0.05, 0.2)))

    async def load(self, name: str) -> None:
        """Replace the artifact, or not, and load it."""
        if self.rng.random() < 0.7:
            _bring(self.versions, name, self.rng.choice((1, 2)), self.repository)
        await self._post(f"/v2/repository/models/{name}/load")
        self.counts["loaded"] += 1

    async def unload(self, name: str, *, sleep: bool = False) -> None:
        """Unload a model, and load it a little later."""
        await self._post(f"/v2/repository/models/{name}/unload", {"parameters": {"sleep": sleep}})
        await asyncio.sleep(0.02)
        await self.load(name)

    async def left(self) -> int:
        """Return the requests that wait or run; those whose clients went may take a moment."""
        for _ in range(100):
            text = await asyncio.to_thread(self._get, "/metrics")
            lines = [
                line for line in text.splitlines() if line.startswith(("tvm_sched_waiting{", "tvm_sched_running{"))
            ]
            found = sum(float(line.split()[-1]) for line in lines)
            if len(lines) != 2 * len(MODELS):
                self.counts["queues that did not end"] += 1
            if not found:
                break
            await asyncio.sleep(0.05)
        return int(found)

    async def _post(self, path: str, document: Any = None) -> None:
        status = await asyncio.to_thread(self._status, path, json.dumps(document or {}).encode())
        if status != 200:
            self.counts[f"{path}: {status}"] += 1

    def _status(self, path: str, body: bytes) -> int:
        try:
            with urllib.request.urlopen(urllib.request.Request(self.address + path, body), timeout=PATIENCE) as answer:
                answer.read()
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(self.address + path, timeout=PATIENCE) as answer:
            return str(answer.read().decode())


async def _ask_until(
    told: dict[str, str], process: subprocess.Popen[str], administrator: Administrator, seconds: float
) -> None:
    counts = administrator.counts
    with contextlib.ExitStack() as stack:
        regions = [stack.enter_context(_region(told["http"])) for _ in range(2)]
        async with _asking(told, regions, administrator.rng, counts, asyncio.Event()):
            threads = 0
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                await administrator.act()
                if not threads and counts["loaded"] >= LOADS:
                    threads = _threads(process.pid)
        counts["that wait or run at the end"] += await administrator.left()
        counts["threads of ended queues"] += max(0, _threads(process.pid) - threads - MORE_THREADS)
        drains = asyncio.Event()
        async with _asking(told, regions, administrator.rng, counts, drains):
            await asyncio.sleep(0.5)
            drains.set()
            process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.5)
        counts["status at the end"] += abs(await asyncio.to_thread(process.wait, PATIENCE))


@contextlib.asynccontextmanager
async def _asking(
    told: dict[str, str],
    regions: list[SharedMemory],
    rng: random.Random,
    counts: Counter[str],
    drains: asyncio.Event,
) -> AsyncIterator[None]:
    """Let clients ask within the context."""
    ends = asyncio.Event()
    own = [random.Random(rng.getrandbits(32)) for _ in range(CLIENTS)]
    http = told["http"].partition("//")[2]
    clients: list[HttpClient | GrpcClient]
    clients = [HttpClient(http, region, each) for region, each in zip((None, None, *regions), own, strict=False)]
    clients += [GrpcClient(told["grpc"], each) for each in own[len(clients) :]]
    async with asyncio.TaskGroup() as group:
        for client, each in zip(clients, own, strict=True):
            group.create_task(_client(client, each, counts, ends, drains))
        try:
            yield
        finally:
            ends.set()


def _threads(process: int) -> int:
    return len(list(Path(f"/proc/{process}/task").iterdir()))


@contextlib.contextmanager
def _region(address: str) -> Iterator[SharedMemory]:
    """A segment for the inputs of one client."""
    memory = SharedMemory(create=True, size=64 * max(MODELS.values()) * 4)
    try:
        document = json.dumps({"key": memory.name, "byte_size": memory.size}).encode()
        path = f"{address}/v2/systemsharedmemory/region/{memory.name}/register"
        urllib.request.urlopen(urllib.request.Request(path, document)).close()
        yield memory
    finally:
        memory.close()
        memory.unlink()


if __name__ == "__main__":
    uvloop.install()
    main()
