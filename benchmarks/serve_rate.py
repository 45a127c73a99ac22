"""Requests a second of a core, for many small models: `tvm-sched serve` over HTTP.

One server has 64 small models. Each client asks for one of them, on a connection of its own, and sends its next request
when the answer is there. Clients share one process, whose own work is small and which checks every answer's status and
length, and each client's last values. The processor time is that of all threads of the server, by the kernel's count; its
inverse is how many requests a core answers in a second. Each figure is the median of the rounds, with the best in
brackets: other work on the machine only worsens it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from _common import parser
from _result_page import Row, report
from serve_latency import _http_request, _server, _small_model

MODELS, ROUNDS = 64, 15


def main() -> None:
    options = parser(__doc__).parse_args()
    requests = 640 if options.quick else 2560
    with tempfile.TemporaryDirectory() as folder:
        rows = _rows(Path(folder), requests)
    report("Requests a second of a core", rows, options.json, options.markdown, notes=" ".join(str(__doc__).split()))


def _rows(folder: Path, requests: int) -> list[Row]:
    from tvm_sched.relax import compile
    from tvm_sched_runtime.runtime import load

    compile(_small_model(), "cpu1").export(folder / "m0.so")
    for number in range(1, MODELS):
        for file in folder.glob("m0.*"):
            shutil.copy(file, folder / f"m{number}{file.suffix}")
    module = load(folder / "m0.so")
    (argument,) = module.plans()[0]["arguments"]
    value = np.random.default_rng(1).standard_normal(argument["shape"]).astype(np.float32)
    wanted = module.run(value)[0].tobytes()
    rows = []
    with _server(folder) as (process, addresses):
        contents = [_http_request(f"m{number}", argument, value) for number in range(MODELS)]
        for clients in (1, 8, 64):
            found = asyncio.run(_measure(addresses["http"], contents, clients, requests, process, wanted))
            case = f"{clients} client{'s' * (clients > 1)}"
            used, seconds = (list(each) for each in zip(*found, strict=True))
            for unit, figures in (
                ("processor time a request, ms", [1e3 * each for each in used]),
                ("requests/s of a core", [1 / each for each in used]),
                ("requests/s with the clients beside it", [1 / each for each in seconds]),
            ):
                best = min(figures) if "ms" in unit else max(figures)
                rows.append(Row(case, "HTTP", statistics.median(figures), unit, note=f"{best:.4g}"))
    return rows


class _Client(asyncio.Protocol):
    """Asks for one model, as long as there are requests left."""

    def __init__(self, content: bytes, left: list[int], done: asyncio.Event) -> None:
        self.content, self.left, self.done, self.answer, self.answers = content, left, done, b"", 0
        self.last = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def ask(self) -> None:
        if self.left[0] > 0:
            self.left[0] -= 1
            self.transport.write(self.content)

    def data_received(self, data: bytes) -> None:
        self.answer += data
        head, end, body = self.answer.partition(b"\r\n\r\n")
        if not end or len(body) < int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0]):
            return
        assert head.startswith(b"HTTP/1.1 200"), self.answer
        self.answer, self.last = b"", body
        self.left[1] -= 1
        if not self.left[1]:
            self.done.set()
        self.ask()


async def _measure(
    address: str, contents: list[bytes], clients: int, requests: int, process: int, wanted: bytes
) -> list[tuple[float, float]]:
    """Return processor time of the server and seconds of a request, for each round."""
    host, _, port = address.rpartition(":")
    done, left = asyncio.Event(), [0, 0]
    loop = asyncio.get_running_loop()
    asking = [
        (await loop.create_connection(lambda n=n: _Client(contents[n], left, done), host, int(port)))[1]  # type: ignore[misc]
        for n in range(clients)
    ]
    found = []
    for _ in range(ROUNDS):
        left[:] = requests, requests
        done.clear()
        before, begin = _processor_seconds(process), time.perf_counter()
        for client in asking:
            client.ask()
        await done.wait()
        found.append(((_processor_seconds(process) - before) / requests, (time.perf_counter() - begin) / requests))
    for client in asking:
        assert client.last.endswith(wanted), "the server's values are those of module.run"
        client.transport.close()
    return found[3:]  # the first ones warm the server up


def _processor_seconds(process: int) -> float:
    """Return the processor time of all threads of a process."""
    threads = Path(f"/proc/{process}/task").iterdir()
    return 1e-9 * sum(int((each / "schedstat").read_text().split()[0]) for each in threads)


if __name__ == "__main__":
    uvloop.install()
    print(f"load {os.getloadavg()[0]:.1f}")
    main()
