"""The command ``serve`` of ``tvm-sched`` and ``tvm-sched-run``."""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.run_artifact import add_verify, exit_status

if TYPE_CHECKING:
    from .repository import Models, OnChange
    from .server import Addresses

_ABOUT = """Serve compiled models on this machine to clients of the Open Inference Protocol (Triton's, KServe's): over HTTP,
gRPC and shared memory. Language models (compile --generate) also to clients of OpenAI's completions and chat. A folder holds
NAME.so, or NAME/VERSION/model.so."""


def main(arguments: Sequence[str], program: str = "tvm-sched serve") -> int:
    """Run the command; return its exit status: 0, 1 for a failure, 2 for wrong input."""
    options = make_parser(program).parse_args(list(arguments))
    return exit_status(lambda: _serve(options))


def _serve(options: argparse.Namespace) -> None:
    from .execution_queue import QueueOptions
    from .repository import LoadOptions, Repository

    queue = QueueOptions(
        instances=options.instances,
        places=options.queue,
        timeout=options.timeout,
        batch_delay=None if options.batch_delay is None else 1e-3 * options.batch_delay,
    )
    load = LoadOptions(options.threads, options.watchdog, options.follow_links, options.verify)
    serve_models(options, lambda on_change: Repository(options.artifact, queue, load, on_change))


def serve_models(options: argparse.Namespace, models: Callable[[OnChange], Models]) -> None:
    """Serve models with the options that `add_server_options` added, until the process is told to end.

    Raises
    ------
    InputError
    """
    try:
        from .http_server import HttpLimits
        from .server import Settings, run
    except ModuleNotFoundError as error:
        raise InputError(
            f"serving needs the package {error.name!r}: pip install 'tvm-sched-runtime[serve]' (or 'tvm-sched[serve]')"
        ) from None
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO, stream=sys.stderr)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    settings = Settings(
        models=models,
        host=options.host,
        port=options.port,
        grpc_port=None if options.no_grpc else options.grpc_port,
        admin_port=options.admin_port,
        token_file=options.token_file,
        admin_token_file=options.admin_token_file,
        tls_certificate=options.tls_certificate,
        tls_key=options.tls_key,
        limits=HttpLimits(options.max_request_bytes, options.max_total_bytes, options.receive_timeout),
        shared_memory=options.shared_memory,
        connections=options.max_connections,
        drain_delay=options.drain_delay,
        drain_seconds=options.drain_timeout,
        otlp_endpoint=options.otlp_endpoint,
    )

    def started(addresses: Addresses, served: Models) -> None:
        scheme = "https" if settings.tls_certificate else "http"
        told: dict[str, Any] = {"http": f"{scheme}://{_text(addresses.http)}"}
        if addresses.grpc is not None:
            told["grpc"] = _text(addresses.grpc)
        if addresses.administration is not None:
            told["administration"] = f"http://{_text(addresses.administration)}"
        if options.json:
            print(json.dumps({"models": served.names(), **told}), flush=True)
        else:
            print(f"serving {', '.join(served.names())}", flush=True)
            for name, address in told.items():
                print(f"{name:15} {address}", flush=True)

    run(settings, started)
    _forget_lost_log()


def _forget_lost_log() -> None:
    """Drop what a full disk did not take of the log: Python would flush it again at its end, and end with status 120."""
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _text(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def whole(least: int, largest: int) -> Callable[[str], int]:
    """Return a parser of whole numbers of a range."""

    def number(text: str) -> int:
        value = int(text)
        if not least <= value <= largest:
            raise argparse.ArgumentTypeError(f"{value}: {least} to {largest} are allowed")
        return value

    return number


def seconds(least: float, most: float = 1e6) -> Callable[[str], float]:
    """Return a parser of numbers from ``least`` to ``most``."""

    def number(text: str) -> float:
        value = float(text)
        if not (math.isfinite(value) and least <= value <= most):
            raise argparse.ArgumentTypeError(f"{text}: a number from {least:g} to {most:.7g} is allowed")
        return value

    return number


def make_parser(program: str) -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    parser = argparse.ArgumentParser(
        prog=program,
        description=_ABOUT,
        epilog=f"Examples: {program} model.so | {program} repository/ --instances 2 --batch-delay 2 --admin-port 8002",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("artifact", type=Path, metavar="MODEL.so|FOLDER", help="what `tvm-sched compile` wrote")
    _add_addresses(parser)
    _add_runs(parser)
    _add_limits(parser)
    return parser


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every server, whatever runs its models."""
    _add_addresses(parser)
    _add_limits(parser)


def _add_addresses(parser: argparse.ArgumentParser) -> None:
    port = whole(0, 65535)
    where = parser.add_argument_group("where")
    where.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="to listen on; another than loopback needs --token-file"
    )
    where.add_argument("--port", type=port, default=8000, metavar="N", help="of HTTP; 0 takes a free one")
    where.add_argument("--grpc-port", type=port, default=8001, metavar="N", help="of gRPC; 0 takes a free one")
    where.add_argument("--no-grpc", action="store_true", help="serve HTTP only")
    where.add_argument("--admin-port", type=port, metavar="N", help="of administration and metrics, on 127.0.0.1")
    where.add_argument(
        "--shared-memory",
        action="store_true",
        help="let clients name POSIX shared memory: they can then read and write every segment of the server's user",
    )
    where.add_argument(
        "--otlp-endpoint",
        metavar="URL",
        help="send a span of each request to that collector of OpenTelemetry, over HTTP (http://127.0.0.1:4318)",
    )
    access = parser.add_argument_group("who")
    access.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="bearer tokens of clients, one a line; a number after it: most requests under way",
    )
    access.add_argument(
        "--admin-token-file", type=Path, metavar="FILE", help="bearer tokens that may load and unload models"
    )
    access.add_argument("--tls-certificate", type=Path, metavar="FILE", help="PEM file, with --tls-key")
    access.add_argument("--tls-key", type=Path, metavar="FILE", help="PEM file")


def _add_runs(parser: argparse.ArgumentParser) -> None:
    run = parser.add_argument_group("how models run")
    run.add_argument("--instances", type=whole(1, 1024), default=1, metavar="N", help="runs of a model at once")
    run.add_argument("--threads", type=whole(1, 4096), metavar="N", help="threads of a run's CPU devices together")
    add_verify(run)
    run.add_argument(
        "--batch-delay",
        type=seconds(0),
        metavar="MS",
        help="join requests to batches; milliseconds that one may wait for others",
    )
    run.add_argument(
        "--queue",
        type=whole(1, 1 << 20),
        default=256,
        metavar="N",
        help="requests (or texts) of a model that may wait; others get 503",
    )
    run.add_argument(
        "--timeout",
        type=seconds(1e-3),
        default=60.0,
        metavar="SECONDS",
        help="for a request, waiting included; of a text: for each token",
    )
    run.add_argument(
        "--no-follow-links",
        dest="follow_links",
        action="store_false",
        help="do not open artifacts to which links lead out of the folder; links within it are always followed",
    )
    run.add_argument(
        "--watchdog", type=seconds(0), metavar="SECONDS", help="give up a run in which no step ended for that long"
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--max-request-bytes", type=whole(1, 1 << 40), default=64 << 20, metavar="N", help="of a request's body"
    )
    limits.add_argument(
        "--max-total-bytes",
        type=whole(1, 1 << 44),
        default=1 << 30,
        metavar="N",
        help="of all bodies over HTTP at once",
    )
    limits.add_argument(
        "--max-connections",
        type=whole(1, 1 << 20),
        default=1024,
        metavar="N",
        help="of HTTP, and requests of gRPC at once",
    )
    for flag, least, default, text in (
        ("--receive-timeout", 1e-3, 30.0, "for headers, for a body, and to take an answer"),
        ("--drain-delay", 0, 0.0, "after SIGTERM: not ready, and requests are still accepted"),
        ("--drain-timeout", 1e-3, 30.0, "after that: until unanswered requests are given up"),
    ):
        limits.add_argument(flag, type=seconds(least), default=default, metavar="SECONDS", help=text)
    parser.add_argument("--json", action="store_true", help="print the addresses as one JSON line")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
