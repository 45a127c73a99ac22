"""What is seen of a running server: ids of requests, traces, the command `watch`, spans for OpenTelemetry."""

import asyncio
import http.client
import http.server
import itertools
import json
import logging
import re
import threading

import numpy as np
import pytest
from inference_server_values import expected

from tvm_sched.errors import ExecutionError
from tvm_sched_serve.execution_queue import ExecutionQueue, QueueOptions
from tvm_sched_serve.failures import Failed
from tvm_sched_serve.request_context import RequestContext
from tvm_sched_serve.watch_command import _quantile, _samples, _states, main

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


def test_the_log_names_the_requests_of_a_failed_run(blocking, caplog):
    async def work():
        made = blocking()
        made.module.run = lambda *arrays: (_ for _ in ()).throw(ExecutionError("no memory"))
        queue = ExecutionQueue(made.model, QueueOptions())
        with pytest.raises(Failed):
            await queue.submit([np.ones((1, 3), np.float32)], context=RequestContext.of("order-7", "", "http"))
        await queue.drain()

    with caplog.at_level(logging.ERROR):
        asyncio.run(work())
    assert "no memory (requests order-7)" in caplog.text


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


def test_a_trace_shows_requests_runs_and_kernels(server, rows, tmp_path, capsys):
    statuses = []
    recording = threading.Thread(
        target=lambda: statuses.append(
            main([server.administration, "--trace", str(tmp_path / "trace.json"), "--seconds", "0.3"])
        )
    )
    recording.start()
    number = 0
    while recording.is_alive():
        number += 1
        assert (
            ask(server, rows(1 + 3 * (number % 2)), {"X-Request-Id": f"order-{number}", "traceparent": PARENT})[0]
            == 200
        )
    recording.join()
    assert statuses == [0]
    assert "requests" in capsys.readouterr().out
    trace = json.loads((tmp_path / "trace.json").read_text())
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


def test_watch_counts_what_was_asked(start, artifacts, rows, capsys):
    server = start(artifacts / "by1.so", "--no-grpc")
    for n in (1, 4, 4, 3):
        ask(server, rows(n), path="/v2/models/by1/infer")
    assert main([server.http, "--once", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (model,) = told["models"]
    assert told["ready"]
    assert (model["model"], model["version"], model["waiting"], model["running"]) == ("by1", "1", 0, 0)
    assert (model["requests"], model["failures"], model["batch"]) == (3, 0, 1)
    assert 0 < model["compute"] <= model["p99"]
    assert main([server.http, "--once"]) == 0
    title, heads, line = capsys.readouterr().out.splitlines()
    assert title.endswith("ready")
    assert heads.split()[:4] == ["model", "version", "requests", "failures"]
    assert line.split()[:4] == ["by1", "1", "3", "0"]
    assert server.stop() == 0
    assert main([server.http, "--once"]) == 1
    assert "does not answer" in capsys.readouterr().err


def test_watch_is_refused_what_needs_administration(server, tmp_path, capsys):
    trace = ["--trace", str(tmp_path / "trace.json")]
    assert main([server.http, *trace]) == 2
    assert "status 403" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["127.0.0.1:1", *trace, "--seconds", "61"])
    assert ended.value.code == 2
    assert "a number from 0.001 to 60 is allowed" in capsys.readouterr().err
    for more in (["--json"], ["--once"], ["--interval", "2"]):
        assert main(["127.0.0.1:1", *trace, *more]) == 2
        assert f"error: {more[0]} has no meaning with --trace" in capsys.readouterr().err
    assert main(["127.0.0.1:1", "--seconds", "2"]) == 2
    assert "error: --seconds has no meaning without --trace" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


class Answers(http.server.BaseHTTPRequestHandler):
    """Answers each path with the status that the server has for it."""

    def do_GET(self):
        self.send_response(self.server.statuses[self.path])
        self.end_headers()

    def log_message(self, *arguments):
        pass


def test_watch_tells_a_refusal_from_a_server_that_is_not_ready(capsys):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_address[1]}"
        for metrics, ready, status, told in (
            (200, 503, 0, "not ready"),
            (200, 401, 2, "/v2/health/ready: status 401"),
            (200, 500, 1, "/v2/health/ready: status 500"),
            (401, 200, 2, "/metrics: status 401"),
        ):
            server.statuses = {"/metrics": metrics, "/v2/health/ready": ready}
            assert main([address, "--once"]) == status
            output, errors = capsys.readouterr()
            assert told in (errors or output)
            assert len(errors.splitlines()) == (status != 0)
        assert main([f"https://{address}", "--once"]) == 2
        told = capsys.readouterr().err
        assert "no TLS connection" in told
        assert "does the port speak HTTPS?" in told
        assert "--ca" not in told
        server.shutdown()


def test_quantiles_are_interpolated():
    buckets = {"0.001": 0.0, "0.01": 8.0, "0.1": 10.0, "+Inf": 10.0}
    assert _quantile(buckets, 0.5) == pytest.approx(1 + 9 * 5 / 8)
    assert _quantile(buckets, 0.9) == pytest.approx(10 + 90 / 2)
    assert _quantile({"0.1": 0.0, "+Inf": 2.0}, 0.5) == 100
    assert _quantile({"0.1": 0.0, "+Inf": 0.0}, 0.5) is None


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
    from tvm_sched.run_artifact import main as run

    assert run(["serve", str(artifacts / "by1.so"), "--port", "0", "--no-grpc", "--otlp-endpoint", "collector"]) == 2
    assert "expected an address like" in capsys.readouterr().err


def test_counters_that_fall_count_since_the_restart():
    def look(requests, runs):
        labels = 'model="m",version="1"'
        return _samples(
            f'tvm_sched_requests_total{{{labels},status="200"}} {requests}\ntvm_sched_executions_total{{{labels}}} {runs}\n'
            f"tvm_sched_waiting{{{labels}}} 0\ntvm_sched_running{{{labels}}} 0\n"
            f'tvm_sched_request_seconds_bucket{{{labels},le="1"}} {requests}\n'
            f'tvm_sched_request_seconds_bucket{{{labels},le="+Inf"}} {requests}\n'
        )

    assert _states(look(100, 50), look(140, 60), 2.0)[0].requests == 20
    (state,) = _states(look(100, 50), look(6, 3), 2.0)
    assert state.requests == 3
    assert 0 < state.p50 < state.p99 < 1000
