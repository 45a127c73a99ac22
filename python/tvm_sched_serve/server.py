"""One process that serves models: listeners, signals, and the end without a lost request."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import ipaddress
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import uvicorn
import uvloop

from tvm_sched_runtime.errors import InputError

from .access import Access, read_tokens
from .grpc_server import GrpcService
from .health_service import HealthService
from .http_protocol import limited_protocol
from .http_server import HttpLimits, InferenceServer
from .metrics import Metrics
from .reflection_service import reflection_handlers
from .repository import Models, OnChange, Queue
from .request_context import Recorder
from .shared_memory import SharedMemory

if TYPE_CHECKING:
    from .telemetry import Telemetry

LOG = logging.getLogger("tvm_sched.serve")


@dataclass(frozen=True)
class Settings:
    """Settings of a server; the options of the command have the same names.

    Parameters
    ----------
    models : callable
        Returns the models, given what is to be called when one of them is opened or closed.
    host : str
    port, grpc_port : int
        0 chooses a free port, and None for gRPC opens none.
    admin_port : int or None
        A port of its own for administration and metrics, always on loopback.
    token_file, admin_token_file, tls_certificate, tls_key : Path or None
    limits : HttpLimits
    shared_memory : bool
    connections : int
    drain_delay, drain_seconds : float
        Seconds for which the server still accepts requests when it is told to end, but is not ready; and seconds after
        which requests that are still there are given up.
    otlp_endpoint : str or None
        Where spans of the requests are sent by OpenTelemetry's protocol over HTTP.
    """

    models: Callable[[OnChange], Models]
    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = 8001
    admin_port: int | None = None
    token_file: Path | None = None
    admin_token_file: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    limits: HttpLimits = field(default_factory=HttpLimits)
    shared_memory: bool = False
    connections: int = 1024
    drain_delay: float = 0.0
    drain_seconds: float = 30.0
    otlp_endpoint: str | None = None


@dataclass(frozen=True)
class Addresses:
    """Addresses at which a server listens."""

    http: tuple[str, int]
    grpc: tuple[str, int] | None
    administration: tuple[str, int] | None


class _Http(uvicorn.Server):
    """uvicorn's server, which leaves the signals to us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run(settings: Settings, started: Callable[[Addresses, Models], None]) -> None:
    """Serve until SIGTERM or SIGINT, then answer what was accepted.

    Raises
    ------
    InputError
        A file cannot be read, an artifact not be loaded, or a port not be opened.
    """
    _keep_freed_memory()
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(serve(settings, started))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def serve(settings: Settings, started: Callable[[Addresses, Models], None]) -> None:
    """Serve until SIGTERM or SIGINT; see `run`."""
    access = Access(read_tokens(settings.token_file), read_tokens(settings.admin_token_file))
    _check(settings, access)
    metrics, recorder = Metrics(), Recorder()

    def change(queue: Queue, opened: bool) -> None:
        queue.recorder = recorder
        metrics.change(queue, opened)

    repository = settings.models(change)
    telemetry = _telemetry(settings.otlp_endpoint, recorder)
    memory = SharedMemory(settings.shared_memory)
    ends = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _end, ends)
    socket_of_http = _listen(settings.host, settings.port)
    await repository.load_all()
    application = InferenceServer(repository, memory, metrics, access, settings.limits, recorder)
    servers = [_http(settings, application, tls=True)]
    sockets = [socket_of_http]
    if settings.admin_port is not None:
        application = InferenceServer(
            repository, memory, metrics, access, settings.limits, recorder, administration=True
        )
        servers.append(_http(settings, application, tls=False))
        sockets.append(_listen("127.0.0.1", settings.admin_port))
    inference, health = GrpcService(repository, memory, access, recorder), HealthService(repository, access)
    service, grpc_port = _grpc(settings, [inference.handler(), health.handler(), *reflection_handlers()])
    if service is not None:
        await service.start()
    tasks = [asyncio.create_task(server.serve([one])) for server, one in zip(servers, sockets, strict=True)]
    while not all(server.started for server in servers):
        await asyncio.sleep(0.005)
    started(
        Addresses(
            _address(sockets[0]),
            (settings.host, grpc_port) if service is not None else None,
            _address(sockets[1]) if len(sockets) > 1 else None,
        ),
        repository,
    )
    await ends.wait()
    LOG.info("draining")
    repository.ready = False
    await asyncio.sleep(settings.drain_delay)
    for server in servers:
        server.should_exit = True
    if service is not None:
        inference.end_streams()
        health.end()
        await service.stop(settings.drain_seconds)
    await asyncio.gather(*tasks)
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(repository.drain(), settings.drain_seconds)
    memory.unregister()
    if telemetry is not None:
        await asyncio.to_thread(telemetry.close)


def _telemetry(endpoint: str | None, recorder: Recorder) -> Telemetry | None:
    if endpoint is None:
        return None
    from .telemetry import Telemetry

    telemetry = Telemetry(endpoint)
    recorder.add(telemetry)
    return telemetry


def _check(settings: Settings, access: Access) -> None:
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise InputError("--tls-certificate and --tls-key: both are needed, or none")
    for file in (settings.tls_certificate, settings.tls_key):
        if file is not None and not file.is_file():
            raise InputError(f"{file}: there is no such file")
    if not _is_loopback(settings.host) and not access.clients:
        raise InputError(
            f"--host {settings.host}: others may then send requests, so give a file of tokens (--token-file), or listen on "
            "127.0.0.1 behind a proxy"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _end(ends: asyncio.Event) -> None:
    if ends.is_set():  # asked twice: at once
        LOG.warning("ended while requests were under way")
        sys.stderr.flush()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)
    ends.set()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        raise InputError(
            f"--host {host} --port {port}: cannot listen there ({getattr(error, 'strerror', None) or error})"
        ) from None


def _address(listening: socket.socket) -> tuple[str, int]:
    host, port = listening.getsockname()[:2]
    return str(host), int(port)


def _http(settings: Settings, application: Any, *, tls: bool) -> _Http:
    with_tls = tls and settings.tls_certificate is not None
    config = uvicorn.Config(
        application,
        loop="none",
        http=limited_protocol(settings.limits.seconds),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=settings.connections,
        timeout_keep_alive=75,  # clients keep connections for later requests
        timeout_graceful_shutdown=int(settings.drain_seconds) or 1,
        ssl_certfile=settings.tls_certificate if with_tls else None,
        ssl_keyfile=settings.tls_key if with_tls else None,
    )
    return _Http(config)


def _grpc(settings: Settings, handlers: Sequence[Any]) -> tuple[Any, int]:
    if settings.grpc_port is None:
        return None, 0
    size = settings.limits.body_bytes + (1 << 20)
    options = (
        ("grpc.max_receive_message_length", size), ("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", settings.connections),
        # Clients and load balancers ping connections to keep them. Without these options more than two pings in five
        # minutes without data end the connection with all its streams. A ping costs less than any request.
        ("grpc.keepalive_permit_without_calls", 1), ("grpc.http2.max_ping_strikes", 0),
    )  # fmt: skip
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=settings.connections, handlers=handlers)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"{host}:{settings.grpc_port}"
    try:
        if settings.tls_certificate is not None and settings.tls_key is not None:
            pair = (settings.tls_key.read_bytes(), settings.tls_certificate.read_bytes())
            port = server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
        else:
            port = server.add_insecure_port(address)
    except (RuntimeError, OSError):
        port = 0
    if not port:
        raise InputError(f"--grpc-port {settings.grpc_port}: cannot listen on {address}")
    return server, port


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Options of glibc's `mallopt`."""
_LARGEST_BLOCK = 32 << 20
"""glibc's limit; larger blocks are mapped and unmapped each time."""
_KEPT = 64 << 20


def _keep_freed_memory() -> None:
    """Let glibc keep up to 64 MiB of freed memory in each arena; else it returns it to the system when a request ends.

    The next request would take it again page by page: with an input of 602 KB, hundreds of page faults. Other C libraries
    are left as they are.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)
        mallopt(_TRIM_THRESHOLD, _KEPT)
