"""Counters and histograms of the server in Prometheus's format."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from .execution_queue import ExecutionQueue, Timing
from .repository import Queue
from .text_queue import TextQueue, TextTiming

_SECONDS = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_BUCKETS = (*map(str, _SECONDS), "+Inf")
_LABELS = ("model", "version")
_PARTS = {
    "request": "Time of answered requests from their arrival in the queue",
    "queue": "Time that requests waited",
    "join": "Time to join requests to a batch",
    "compute": "Time of the model's runs",
    "split": "Time to split a batch's outputs",
    "first_token": "Time of texts from their arrival to their first token",
    "token": "Mean time of a text's further tokens",
}
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Histogram:
    """Counts of times. Five of prometheus_client's, with locks, took 7 of the 100 us of a short request."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * len(_BUCKETS)
        self.seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Add a time."""
        self.counts[bisect_left(_SECONDS, seconds)] += 1
        self.seconds += seconds


class _VersionMetrics:
    """What is counted of one version of a model; in the event loop's thread."""

    def __init__(self) -> None:
        self.parts = {name: _Histogram() for name in _PARTS}
        self.requests: Counter[int] = Counter()
        self.tokens: Counter[str] = Counter()

    def observe(self, status: int, seconds: float, timing: Timing | None) -> None:
        """Add a request that ended."""
        self.requests[status] += 1
        if timing is not None:
            parts = self.parts
            parts["request"].observe(seconds)
            parts["queue"].observe(1e-9 * timing.queue_ns)
            parts["join"].observe(1e-9 * timing.input_ns)
            parts["compute"].observe(1e-9 * timing.compute_ns)
            parts["split"].observe(1e-9 * timing.output_ns)

    def observe_text(self, timing: TextTiming) -> None:
        """Add a text that ended."""
        self.tokens["prompt"] += timing.prompt_tokens
        self.tokens["generated"] += timing.tokens
        self.parts["first_token"].observe(timing.first_seconds)
        if timing.tokens > 1:
            self.parts["token"].observe((timing.seconds - timing.first_seconds) / (timing.tokens - 1))


class Metrics(Collector):
    """Metrics that ``/metrics`` reports."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._queues: list[Queue] = []
        self._versions: defaultdict[tuple[str, str], _VersionMetrics] = defaultdict(_VersionMetrics)
        self._registry.register(self)

    def change(self, queue: Queue, opened: bool) -> None:
        """Begin or end to watch a version of a model."""
        if not opened:
            self._queues.remove(queue)
            return
        self._queues.append(queue)
        counted = self._versions[queue.model.name, queue.model.version]
        queue.observe = counted.observe
        if isinstance(queue, TextQueue):
            queue.observe_text = counted.observe_text

    def text(self) -> bytes:
        """Return all metrics."""
        return bytes(generate_latest(self._registry))

    def collect(self) -> Iterator[Any]:
        """Return all metrics in Prometheus's form; its registry calls this."""
        yield from self._counts()
        yield from self._contents()

    def _counts(self) -> Iterator[Any]:
        """Return what was counted since the server began."""
        for part, text in _PARTS.items():
            histogram = HistogramMetricFamily(f"tvm_sched_{part}_seconds", text, labels=_LABELS)
            for labels, counted in self._versions.items():
                found = counted.parts[part]
                buckets = list(zip(_BUCKETS, accumulate(found.counts), strict=True))
                histogram.add_metric(labels, buckets, found.seconds)
            yield histogram
        requests = CounterMetricFamily("tvm_sched_requests", "Requests by outcome", labels=(*_LABELS, "status"))
        tokens = CounterMetricFamily("tvm_sched_tokens", "Tokens of texts", labels=(*_LABELS, "kind"))
        for labels, counted in self._versions.items():
            for status, count in counted.requests.items():
                requests.add_metric((*labels, str(status)), count)
            for kind, count in counted.tokens.items():
                tokens.add_metric((*labels, kind), count)
        yield from (requests, tokens)

    def _contents(self) -> Iterator[Any]:
        """Return the current contents of the queues, and what these count themselves."""
        waiting = GaugeMetricFamily("tvm_sched_waiting", "Requests that wait", labels=_LABELS)
        running = GaugeMetricFamily("tvm_sched_running", "Runs under way", labels=_LABELS)
        executions = CounterMetricFamily("tvm_sched_executions", "Runs of the model", labels=_LABELS)
        retried = CounterMetricFamily("tvm_sched_retried", "Requests sent again when a stage was lost", labels=_LABELS)
        for labels, queues in self._by_version().items():
            waiting.add_metric(labels, sum(queue.waiting for queue in queues))
            running.add_metric(labels, sum(queue.running for queue in queues))
            executions.add_metric(labels, sum(queue.statistics.executions for queue in queues))
            again = [queue.retried for queue in queues if isinstance(queue, ExecutionQueue)]
            if any(count is not None for count in again):
                retried.add_metric(labels, sum(count or 0 for count in again))
        yield from (waiting, running, executions, retried)

    def _by_version(self) -> dict[tuple[str, str], list[Queue]]:
        """Return the queues of each version: two while one that was loaded anew still answers its last requests."""
        found: dict[tuple[str, str], list[Queue]] = {}
        for queue in self._queues:
            found.setdefault((queue.model.name, queue.model.version), []).append(queue)
        return found
