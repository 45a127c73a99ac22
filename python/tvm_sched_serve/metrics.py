"""Counters and histograms of the server in Prometheus's format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from .execution_queue import ExecutionQueue, Timing
from .repository import Queue
from .text_queue import TextQueue, TextTiming

_SECONDS = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_LABELS = ("model", "version")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Metrics that ``/metrics`` reports."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._queues: list[Queue] = []
        self._histograms = {
            part: Histogram(f"tvm_sched_{part}_seconds", text, _LABELS, buckets=_SECONDS, registry=self._registry)
            for part, text in (
                ("request", "Time of answered requests from their arrival in the queue"),
                ("queue", "Time that requests waited"),
                ("join", "Time to join requests to a batch"),
                ("compute", "Time of the model's runs"),
                ("split", "Time to split a batch's outputs"),
                ("first_token", "Time of texts from their arrival to their first token"),
                ("token", "Mean time of a text's further tokens"),
            )
        }
        self._requests = Counter(
            "tvm_sched_requests", "Requests by outcome", (*_LABELS, "status"), registry=self._registry
        )
        self._tokens = Counter("tvm_sched_tokens", "Tokens of texts", (*_LABELS, "kind"), registry=self._registry)
        self._registry.register(_Gauges(self._queues))

    def change(self, queue: Queue, opened: bool) -> None:
        """Begin or end to watch a version of a model."""
        if not opened:
            self._queues.remove(queue)
            return
        self._queues.append(queue)
        labels = (queue.model.name, queue.model.version)
        parts = {name: histogram.labels(*labels) for name, histogram in self._histograms.items()}
        counters: dict[int, Any] = {}
        if isinstance(queue, TextQueue):
            read, generated = (self._tokens.labels(*labels, kind) for kind in ("prompt", "generated"))

            def observe_text(timing: TextTiming) -> None:
                read.inc(timing.prompt_tokens)
                generated.inc(timing.tokens)
                parts["first_token"].observe(timing.first_seconds)
                if timing.tokens > 1:
                    parts["token"].observe((timing.seconds - timing.first_seconds) / (timing.tokens - 1))

            queue.observe_text = observe_text

        def observe(status: int, seconds: float, timing: Timing | None) -> None:
            if status not in counters:
                counters[status] = self._requests.labels(*labels, str(status))
            counters[status].inc()
            if timing is not None:
                parts["request"].observe(seconds)
                parts["queue"].observe(1e-9 * timing.queue_ns)
                parts["join"].observe(1e-9 * timing.input_ns)
                parts["compute"].observe(1e-9 * timing.compute_ns)
                parts["split"].observe(1e-9 * timing.output_ns)

        queue.observe = observe

    def text(self) -> bytes:
        """Return all metrics."""
        return bytes(generate_latest(self._registry))


class _Gauges(Collector):
    """Current contents of the queues."""

    def __init__(self, queues: list[Queue]) -> None:
        self._queues = queues

    def collect(self) -> Iterator[Any]:
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
