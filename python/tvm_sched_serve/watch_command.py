"""The command ``watch`` of ``tvm-sched`` and ``tvm-sched-run``: the state of a running server."""

from __future__ import annotations

import argparse
import json
import math
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tvm_sched.errors import InputError, TvmSchedError
from tvm_sched.files import write_atomically
from tvm_sched.run_artifact import exit_status

from .access import read_tokens
from .command import seconds
from .http_documents import MAX_TRACE_SECONDS

_NAME = "tvm_sched_"
_INTERVAL, _TRACE_SECONDS = 1.0, 1.0
_NOT_ALLOWED, _NOT_READY = (401, 403), 503


class UnreachableError(TvmSchedError):
    """The server does not answer, or refuses to.

    Parameters
    ----------
    message : str
    status : int, optional
        Of an answer that is an error.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class ModelState:
    """What a version of a model did within some seconds; rates are per second, times in milliseconds."""

    model: str
    version: str
    requests: float
    failures: float
    waiting: int
    running: int
    p50: float | None
    """None if nothing was answered. Quantiles are interpolated between the bounds of the server's histogram."""
    p99: float | None
    queue: float | None
    compute: float | None
    batch: float | None
    """Requests of a run, in the mean."""
    retried: float | None
    """Requests that a gateway sent again because a stage was lost; None without a gateway."""
    tokens: float
    first_token: float | None


Samples = dict[tuple[str, str], dict[str, dict[str, float]]]
"""For each model and version: values by name of the metric and by the label that the metric has besides."""


def main(arguments: Sequence[str], program: str = "tvm-sched watch") -> int:
    """Run the command; return its exit status: 0, 1 if the server does not answer, 2 for wrong input."""
    options = make_parser(program).parse_args(list(arguments))
    return exit_status(lambda: _watch(options))


def _watch(options: argparse.Namespace) -> None:
    for_table = {"--interval": options.interval, "--once": options.once, "--json": options.json}
    useless = {"--seconds": options.seconds} if options.trace is None else for_table
    for option in (option for option, given in useless.items() if given):
        raise InputError(
            f"{option} has no meaning {'without' if options.trace is None else 'with'} --trace; leave it out"
        )
    url = options.url.rstrip("/")
    if not url.startswith(("http://", "https://")):
        url = f"http://{url}"
    tokens = read_tokens(options.token_file)
    server = _Server(url, next(iter(tokens)).decode() if tokens else "", options.ca)
    if options.trace is not None:
        _record(server, options.trace, options.seconds or _TRACE_SECONDS)
        return
    interval = options.interval or _INTERVAL
    before: Samples = {}
    begin = 0.0
    if not options.once:
        before, begin = _samples(server.ask("/metrics").decode()), time.monotonic()
        time.sleep(interval)
    while True:
        now, end = _samples(server.ask("/metrics").decode()), time.monotonic()
        states = _states(before, now, end - begin if begin else math.inf)
        ready = server.is_ready()
        if options.json:
            print(json.dumps({"ready": ready, "models": [asdict(state) for state in states]}), flush=True)
        else:
            clear = "\033[H\033[J" if sys.stdout.isatty() and not options.once else ""
            print(f"{clear}{url}  {'ready' if ready else 'not ready'}\n{_table(states, options.once)}", flush=True)
        if options.once:
            return
        before, begin = now, end
        time.sleep(interval)


def _record(server: _Server, file: Path, span: float) -> None:
    """Write a trace of the next seconds."""
    content = server.ask("/v2/trace", {"seconds": span})
    write_atomically(file, content)
    told = json.loads(content)["otherData"]
    print(f"{file}: {told['requests']} requests, {told['runs']} runs in {span:g} s")


class _Server:
    def __init__(self, url: str, token: str, authority: Path | None) -> None:
        self._url, self._token = url, token
        try:
            self._context = ssl.create_default_context(cafile=authority) if url.startswith("https") else None
        except OSError as error:
            raise InputError(f"{authority}: is no certificate that can be read ({error.strerror or error})") from None

    def ask(self, path: str, document: Any = None) -> bytes:
        """Return the body of an answer."""
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        body = None if document is None else json.dumps(document).encode()
        limit = 60 + (document or {}).get("seconds", 0)
        try:
            request = urllib.request.Request(f"{self._url}{path}", body, headers)
            with urllib.request.urlopen(request, timeout=limit, context=self._context) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            content = error.read()
            try:
                message = json.loads(content)["error"]
            except (ValueError, KeyError, TypeError):
                message = "is this a server of tvm-sched?"
            text = f"{self._url}{path}: status {error.code}, {message}"
            if error.code in _NOT_ALLOWED:
                raise InputError(f"{text}; --token-file names the file of a token that lets in") from None
            raise UnreachableError(text, error.code) from None
        except (OSError, ValueError) as error:
            if isinstance(reason := getattr(error, "reason", error), ssl.SSLError):
                unknown = isinstance(reason, ssl.SSLCertVerificationError)
                advice = "--ca names the authority's file" if unknown else "does the port speak HTTPS?"
                raise InputError(f"{self._url}: no TLS connection ({reason}); {advice}") from None
            raise UnreachableError(f"{self._url}: does not answer ({getattr(error, 'reason', error)})") from None

    def is_ready(self) -> bool:
        """Return whether the server is ready."""
        try:
            self.ask("/v2/health/ready")
        except UnreachableError as error:
            if error.status == _NOT_READY:
                return False
            raise
        return True


def _samples(text: str) -> Samples:
    """Read the metrics of all models."""
    from prometheus_client.parser import text_string_to_metric_families

    found: Samples = defaultdict(lambda: defaultdict(dict))
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = sample.labels
                if sample.name.startswith(_NAME) and {"model", "version"} <= set(labels):
                    other = next((labels[name] for name in ("le", "status", "kind") if name in labels), "")
                    name = sample.name.removeprefix(_NAME)
                    found[labels["model"], labels["version"]][name][other] = sample.value
    except ValueError:
        raise UnreachableError("the answer is not in Prometheus's format: is this a server of tvm-sched?") from None
    return found


def _states(before: Samples, now: Samples, elapsed: float) -> list[ModelState]:
    return [
        _state(model, version, before.get((model, version), {}), values, elapsed)
        for (model, version), values in sorted(now.items())
        if "waiting" in values
    ]


def _state(
    model: str, version: str, before: dict[str, dict[str, float]], now: dict[str, dict[str, float]], elapsed: float
) -> ModelState:
    # Counters fall when the server or the model's version is started again: then all that they count is new.
    again = any(
        now.get("requests_total", {}).get(each, 0.0) < count for each, count in before.get("requests_total", {}).items()
    )
    earlier: Mapping[str, dict[str, float]] = {} if again else before

    def grown(name: str) -> dict[str, float]:
        return {label: value - earlier.get(name, {}).get(label, 0.0) for label, value in now.get(name, {}).items()}

    def mean(part: str) -> float | None:
        count = grown(f"{part}_seconds_count").get("", 0.0)
        return 1e3 * grown(f"{part}_seconds_sum")[""] / count if count else None

    requests = grown("requests_total")
    answered = requests.get("200", 0.0)
    runs = grown("executions_total").get("", 0.0)
    # Without an earlier look there are counts since the server's start, not rates.
    per = elapsed if math.isfinite(elapsed) else 1.0
    return ModelState(
        model=model,
        version=version,
        requests=answered / per,
        failures=(sum(requests.values()) - answered) / per,
        waiting=int(now["waiting"][""]),
        running=int(now["running"][""]),
        p50=_quantile(grown("request_seconds_bucket"), 0.5),
        p99=_quantile(grown("request_seconds_bucket"), 0.99),
        queue=mean("queue"),
        compute=mean("compute"),
        retried=grown("retried_total")[""] / per if "retried_total" in now else None,
        batch=grown("request_seconds_count").get("", 0.0) / runs if runs else None,
        tokens=grown("tokens_total").get("generated", 0.0) / per,
        first_token=mean("first_token"),
    )


def _quantile(buckets: dict[str, float], part: float) -> float | None:
    """Return a quantile in milliseconds of a histogram whose counts are cumulative, as Prometheus interpolates it."""
    bounds = sorted((float(bound), count) for bound, count in buckets.items())
    total = bounds[-1][1] if bounds else 0.0
    if not total:
        return None
    lower, below = 0.0, 0.0
    for bound, count in bounds:
        if count >= part * total:
            if not math.isfinite(bound):
                return 1e3 * lower
            return 1e3 * (lower + (bound - lower) * (part * total - below) / (count - below))
        lower, below = bound, count
    return 1e3 * lower


def _table(states: Sequence[ModelState], counts: bool) -> str:
    unit = "" if counts else "/s"
    heads = ["model", "version", f"requests{unit}", f"failures{unit}", "waiting", "running", "p50 ms", "p99 ms", "queue ms",
             "compute ms", "batch"]  # fmt: skip
    text = any(state.tokens for state in states)
    stages = any(state.retried is not None for state in states)
    heads += [f"retried{unit}"] if stages else []
    heads += [f"tokens{unit}", "first token ms"] if text else []
    rows = [heads]
    for state in states:
        values = [state.requests, state.failures, state.waiting, state.running, state.p50, state.p99, state.queue,
                  state.compute, state.batch, *([state.retried] if stages else []),
                  *([state.tokens, state.first_token] if text else [])]  # fmt: skip
        rows.append([state.model, state.version, *map(_number, values)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if isinstance(value, int) or value >= 100 or value == 0 else f"{value:.3g}"


def make_parser(program: str) -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    parser = argparse.ArgumentParser(
        prog=program,
        description="""Show what a running server does, anew each interval: models, queues and latencies. Or record a
trace that Perfetto opens: requests, runs, and the executor's kernels within them.""",
        epilog=f"Examples: {program} | {program} http://127.0.0.1:8002 --trace trace.json --seconds 2",
    )
    parser.add_argument("url", metavar="URL", help="of `tvm-sched serve`: http://127.0.0.1:8000, or HOST:PORT")
    parser.add_argument(
        "--interval",
        type=seconds(0.05),
        metavar="SECONDS",
        help=f"between two looks; rates are of that time (default: {_INTERVAL:g})",
    )
    parser.add_argument("--once", action="store_true", help="print the counts since the server's start, and end")
    parser.add_argument("--json", action="store_true", help="print a JSON line for each look")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE",
        help="record a trace in place of the table; needs the server's administration port or token",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=seconds(1e-3, MAX_TRACE_SECONDS), metavar="SECONDS",
        help=f"that a trace spans, at most {MAX_TRACE_SECONDS} (default: {_TRACE_SECONDS:g})",
    )  # fmt: skip
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="bearer token, if the server asks for one")
    parser.add_argument("--ca", type=Path, metavar="FILE", help="PEM file of the authority that signed its certificate")
    return parser
