"""Spans of requests for OpenTelemetry: each request is a child of its client's span, and its parts are children of it."""

from __future__ import annotations

import time

from tvm_sched_runtime import __version__
from tvm_sched_runtime.errors import InputError

from .request_context import RequestContext, RunRecord

_BAD = 500
"""Status from which on a span is marked as an error."""


class Telemetry:
    """Sends spans to a collector, in a thread of OpenTelemetry's.

    OpenTelemetry's environment variables say more: ``OTEL_SERVICE_NAME``, ``OTEL_TRACES_SAMPLER``,
    ``OTEL_EXPORTER_OTLP_HEADERS`` and the others.

    Parameters
    ----------
    endpoint : str
        The collector's address for OTLP over HTTP.

    Raises
    ------
    InputError
        OpenTelemetry is not installed, or the address is none.
    """

    timelines = False

    def __init__(self, endpoint: str) -> None:
        if not endpoint.startswith(("http://", "https://")):
            raise InputError(f"--otlp-endpoint {endpoint}: expected an address like http://127.0.0.1:4318")
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ModuleNotFoundError as error:
            raise InputError(
                f"--otlp-endpoint needs the package {error.name!r}: pip install 'tvm-sched-runtime[telemetry]' "
                "(or 'tvm-sched[telemetry]')"
            ) from None
        about = Resource.create({"service.version": __version__})
        if about.attributes.get("service.name", "").__str__().startswith("unknown_service"):
            about = about.merge(Resource({"service.name": "tvm-sched"}))
        self._provider = TracerProvider(resource=about)
        url = endpoint if endpoint.rstrip("/").endswith("/v1/traces") else f"{endpoint.rstrip('/')}/v1/traces"
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
        self._tracer = self._provider.get_tracer("tvm_sched.serve", __version__)

    def request(self, context: RequestContext) -> None:
        """Send the span of a request."""
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract({"traceparent": context.parent} if context.parent else {})
        offset = time.time_ns() - time.perf_counter_ns()  # to the time of day
        span = self._tracer.start_span(
            f"{context.protocol} {context.model}".strip(),
            parent,
            trace.SpanKind.SERVER,
            start_time=context.arrived_ns + offset,
            attributes={
                "request.id": context.id,
                "rpc.system": context.protocol,
                "model.name": context.model,
                "model.version": context.version,
                "http.response.status_code": context.status,
            },
        )
        if span.is_recording():
            inside = trace.set_span_in_context(span, parent)
            for name, begin, end in context.phases():
                self._tracer.start_span(name, inside, start_time=begin + offset).end(end + offset)
            if context.tokens:
                span.set_attribute("gen_ai.usage.output_tokens", context.tokens)
            if context.status >= _BAD:
                span.set_status(trace.StatusCode.ERROR)
        span.end(context.ended_ns + offset)

    def run(self, record: RunRecord) -> None:
        """Send nothing: a run belongs to several requests."""

    def close(self) -> None:
        """Send what has not been sent."""
        self._provider.shutdown()
