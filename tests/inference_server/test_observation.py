"""What is seen of a running server: ids of requests, traces, spans for OpenTelemetry."""

import http.client
import http.server
import itertools
import json
import logging
import re
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest
from inference_server_values import expected

from tvm_sched_runtime.errors import ExecutionError
from tvm_sched_serve.execution_queue import ExecutionQueue, QueueOptions
from tvm_sched_serve.failures import Failed
from tvm_sched_serve.request_context import RequestContext

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def ask(server, x, headers=(), path="/v2/models/small/infer", **more):
    """Return status, the answer's request id and its document."""
    tensor = {"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.reshape(-1).tolist()}
    connection = http.client.HTTPConnection(*server.address, timeout=30)
    connection.request("POST", path, json.dumps({"inputs": [tensor], **more}), dict(headers))
    answer = connection.getresponse()
    document = json.loads(answer.read())
    connection.close()
    return answer.status, answer.headers["x-request-id"], document


def test_answers_carry_the_id_of_their_request(server, rows):
    given = {"X-Request-Id": "order-7/a"}
    assert ask(server, rows(1), given)[:2] == (200, "order-7/a")
    assert ask(server, rows(1), given, id="seven")[:2] == (200, "order-7/a")
    status, name, document = ask(server, rows(1), id="seven")
    assert (status, name, document["id"]) == (200, "seven", "seven")
    assert ask(server, rows(3), given)[:2] == (400, "order-7/a")
    assert ask(server, rows(1), given, path="/v2/models/absent/infer")[:2] == (404, "order-7/a")
    own = [
        ask(server, rows(1), headers)[1] for headers in ((), (), {"X-Request-Id": "a b"}, {"X-Request-Id": "x" * 129})
    ]
    assert len(set(own)) == 4
    assert all(re.fullmatch("[0-9a-f]+-[0-9a-f]+", name) for name in own)


def test_grpc_returns_the_id(server):
    grpc = pytest.importorskip("grpc")
    from tvm_sched_serve.grpc_server import SERVICE, messages

    request = messages()["ModelInferRequest"](model_name="small", id="seven", raw_input_contents=[bytes(32)])
    request.inputs.add(name="x", datatype="FP32", shape=(1, 8))
    with grpc.insecure_channel(server.grpc) as channel:
        method = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        for metadata, wanted in (((), "seven"), ((("x-request-id", "eight"),), "eight")):
            _, call = method.with_call(request.SerializeToString(), metadata=metadata)
            assert dict(call.trailing_metadata())["x-request-id"] == wanted


async def test_the_log_names_the_requests_of_a_failed_run(blocking, caplog):
    caplog.set_level(logging.ERROR)
    made = blocking()
    made.module.run = lambda *arrays: (_ for _ in ()).throw(ExecutionError("no memory"))
    queue = ExecutionQueue(made.model, QueueOptions())
    with pytest.raises(Failed):
        await queue.submit([np.ones((1, 3), np.float32)], context=RequestContext.of("order-7", "", "http"))
    await queue.drain()
    assert "no memory (requests order-7)" in caplog.text


def trace_of(address, span):
    """Return status and document of a request for a trace of some seconds."""
    url = address if "://" in address else f"http://{address}"
    request = urllib.request.Request(f"{url}/v2/trace", json.dumps({"seconds": span}).encode())
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def slices(trace):
    """Return begin and end of all async spans of each request, in their order, by the request's id."""
    found, open_ = {}, {}
    for event in trace["traceEvents"]:
        if event["ph"] == "b":
            open_.setdefault(event["id"], []).append([event["name"], event["ts"], None])
        elif event["ph"] == "e":
            of_request = open_[event["id"]]
            next(each for each in of_request if each[0] == event["name"] and each[2] is None)[2] = event["ts"]
            found[of_request[0][0]] = of_request
    return found


def test_a_trace_shows_requests_runs_and_kernels(server, rows):
    traces = []
    recording = threading.Thread(target=lambda: traces.append(trace_of(server.administration, 0.3)))
    recording.start()
    number = 0
    while recording.is_alive():
        number += 1
        assert (
            ask(server, rows(1 + 3 * (number % 2)), {"X-Request-Id": f"order-{number}", "traceparent": PARENT})[0]
            == 200
        )
    recording.join()
    ((status, trace),) = traces
    assert status == 200
    requests = slices(trace)
    assert trace["otherData"]["requests"] == len(requests) > 0
    assert any(event.get("args", {}).get("traceparent") == PARENT for event in trace["traceEvents"])
    runs = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["name"] == "run"]
    kernels = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["name"] != "run"]
    assert {event["args"]["kind"] for event in kernels} == {"kernel"}
    within = 0
    for run in runs:
        begin, end = run["ts"] - 1e-3, run["ts"] + run["dur"] + 1e-3
        of_run = [k for k in kernels if k["pid"] == run["pid"] and begin <= k["ts"] and k["ts"] + k["dur"] <= end]
        within += len(of_run)
        (name,) = run["args"]["requests"]
        if name in requests:
            whole, *parts = requests[name]
            assert [part for part, _, _ in parts] == ["receive", "queue", "join", "compute", "split", "answer"]
            for (_, _, ended), (_, begun, _) in itertools.pairwise(parts):
                assert ended == begun
            assert (parts[0][1], parts[-1][2]) == (whole[1], whole[2])
            compute = {part: (a, b) for part, a, b in parts}["compute"]
            assert compute == pytest.approx((run["ts"], run["ts"] + run["dur"]), abs=1e-2)
    assert within == len(kernels) > 0


def test_a_trace_needs_administration_and_a_span_that_ends(server):
    assert trace_of(server.http, 0.1)[0] == 403
    for span in (0, 61):
        status, document = trace_of(server.administration, span)
        assert status == 400
        assert "seconds" in document["error"]


class Collector(http.server.BaseHTTPRequestHandler):
    """Keeps the spans that it is sent."""

    def do_POST(self):
        import gzip

        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                self.server.spans += [(resource.resource, span) for span in scope.spans]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments):
        pass


def test_spans_continue_the_clients_trace(start, artifacts, rows):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as collector:
        collector.spans = []
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{collector.server_address[1]}"
        server = start(artifacts / "by1.so", "--no-grpc", "--otlp-endpoint", endpoint)
        path = "/v2/models/by1/infer"
        status, _, document = ask(server, rows(4), {"X-Request-Id": "order-7", "traceparent": PARENT}, path=path)
        assert status == 200
        np.testing.assert_array_equal(np.reshape(document["outputs"][0]["data"], (4, 4)), expected(rows(4)))
        ask(server, rows(1), path="/v2/models/absent/infer")
        assert server.stop() == 0  # sends what it has
        collector.shutdown()
    (first,) = [span for _, span in collector.spans if span.name == "http by1"]
    (second,) = [span for _, span in collector.spans if span.name == "http"]
    assert (first.trace_id.hex(), first.parent_span_id.hex()) == tuple(PARENT.split("-")[1:3])
    assert second.trace_id != first.trace_id
    attributes = {each.key: each.value for each in first.attributes}
    assert attributes["request.id"].string_value == "order-7"
    assert attributes["http.response.status_code"].int_value == 200
    parts = [span for _, span in collector.spans if span.parent_span_id == first.span_id]
    assert [span.name for span in parts] == ["receive", "queue", "join", "compute", "split", "answer"]
    times = [(span.start_time_unix_nano, span.end_time_unix_nano) for span in parts]
    assert times[0][0] == first.start_time_unix_nano
    assert times[-1][1] == first.end_time_unix_nano
    assert [end for _, end in times[:-1]] == [begin for begin, _ in times[1:]]
    resource, _ = collector.spans[0]
    assert "tvm-sched" in {each.value.string_value for each in resource.attributes if each.key == "service.name"}


def test_wrong_endpoints_are_told(artifacts, capsys):
    from tvm_sched_runtime.run_artifact import main as run

    assert run(["serve", str(artifacts / "by1.so"), "--port", "0", "--no-grpc", "--otlp-endpoint", "collector"]) == 2
    assert "expected an address like" in capsys.readouterr().err
