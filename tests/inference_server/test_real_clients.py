"""Requests in the forms in which HTTP clients, proxies and probes send them."""

import gzip
import http.client
import io
import json
import socket
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
from inference_server_values import expected

PATH = "/v2/models/small/infer"
X = np.arange(-4, 4, dtype=np.float32).reshape(1, 8)
BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 8], "datatype": "FP32", "data": X.tolist()}]}).encode()
LARGE = BODY + b" " * 80_000
"""Received in place, in more than one piece."""
UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"


class Reader(io.BufferedReader):
    """Reads a connection; stays open when an answer ends, for it may have read the beginning of the next one."""

    def close(self):
        pass


class Connection:
    """A connection on which several requests may follow one another."""

    def __init__(self, server):
        self._socket = socket.create_connection(server.address, timeout=30)
        reader = Reader(socket.SocketIO(self._socket, "r"))
        self._answers = SimpleNamespace(makefile=lambda mode: reader)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._socket.close()

    def send(self, content, step=None):
        for begin in range(0, len(content), step or len(content)):
            self._socket.sendall(content[begin : begin + (step or len(content))])

    def answer(self, method="POST"):
        """Return status, headers and document of the next answer."""
        response = http.client.HTTPResponse(self._answers, method=method)
        response.begin()
        body = response.read()
        is_json = response.headers["Content-Type"] == "application/json"
        return response.status, response.headers, json.loads(body) if body and is_json else body

    def is_closed(self):
        return self._socket.recv(1) == b""


@pytest.fixture
def connection(server):
    with Connection(server) as opened:
        yield opened


def request(body, fields=b"", path=PATH, method="POST", version="1.1"):
    head = f"{method} {path} HTTP/{version}\r\nHost: a\r\nContent-Length: {len(body)}\r\n".encode()
    return head + fields + b"\r\n" + body


def chunked(body, size, fields=b"", extension=b"", trailers=b"", path=PATH):
    parts = (body[begin : begin + size] for begin in range(0, len(body), size))
    chunks = b"".join(b"%x%s\r\n%s\r\n" % (len(part), extension, part) for part in parts)
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n".encode()
    return head + fields + b"\r\n" + chunks + b"0\r\n" + trailers + b"\r\n"


def is_right(answer):
    status, _, document = answer
    assert status == 200, document
    (output,) = document["outputs"]
    return output["data"] == expected(X).reshape(-1).tolist()


@pytest.mark.parametrize("step", [None, 1, 150])
@pytest.mark.parametrize(
    "content",
    [
        request(BODY, UPGRADE),
        chunked(BODY, 50, UPGRADE),
        request(BODY, b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"),
        request(BODY, b"Connection: keep-alive, Upgrade\r\nUpgrade: TLS/1.0, HTTP/2.0\r\n"),
    ],
    ids=["h2c", "h2c in chunks", "websocket", "list"],
)
def test_an_offer_to_upgrade_is_ignored_and_the_connection_goes_on(connection, content, step):
    """RFC 9110 (7.8); every client of Java offers h2c in its first request."""
    connection.send(content + content + request(BODY), step)
    for _ in range(3):
        assert is_right(connection.answer())


def test_an_offer_to_upgrade_with_no_body_or_a_large_one(connection):
    for body in (b"", LARGE):
        connection.send(request(body, UPGRADE + b"Expect: 100-continue\r\n" if body else UPGRADE) + request(BODY))
        if body:
            status, _, _ = connection.answer()
            assert status == 200
        else:
            assert connection.answer()[0] == 400
        assert is_right(connection.answer())
    connection.send(b"GET /v2/health/ready HTTP/1.1\r\nHost: a\r\n" + UPGRADE + b"\r\n" + request(BODY))
    assert connection.answer("GET")[::2] == (200, {"ready": True})
    assert is_right(connection.answer())


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_bodies_in_chunks(connection, size):
    connection.send(chunked(BODY, size, extension=b";name=value") + chunked(LARGE, 3000) + request(BODY))
    for _ in range(3):
        assert is_right(connection.answer())


def test_trailers_are_no_headers(connection):
    trailers = b"X-Request-Id: trailer\r\nInference-Header-Content-Length: 3\r\nContent-Encoding: gzip\r\n"
    connection.send(chunked(BODY, 50, b"X-Request-Id: head\r\nTrailer: X-Request-Id\r\n", trailers=trailers))
    answer = connection.answer()
    assert is_right(answer)
    assert answer[1]["X-Request-Id"] == "head"


def test_binary_tensors_in_chunks(connection):
    entry = {"name": "x", "shape": [1, 8], "datatype": "FP32", "parameters": {"binary_data_size": X.nbytes}}
    document = json.dumps({"inputs": [entry]}).encode()
    length = b"Inference-Header-Content-Length: %d\r\n"
    connection.send(chunked(document + X.tobytes(), 9, length % len(document)))
    assert is_right(connection.answer())
    connection.send(chunked(document, 9, length % (len(document) + 1)))
    assert connection.answer()[::2] == (400, {"error": "Inference-Header-Content-Length is more than the body"})


def test_a_body_in_chunks_has_the_limits_of_others(server):
    begun = b"POST %s HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" % PATH.encode()
    with Connection(server) as connection:
        connection.send(begun + b"fffff\r\n" + b" " * 110_000)  # of 1 MB; 100 KB are allowed
        status, _, document = connection.answer()
        assert (status, "100000 are allowed" in document["error"]) == (413, True)
    with Connection(server) as connection:
        connection.send(begun + b"1\r\n{\r\n1\r\n")
        status, headers, _ = connection.answer()
        assert (status, headers["Connection"]) == (408, "close")
        assert connection.is_closed()


def test_a_request_without_a_body(connection):
    connection.send(f"POST {PATH} HTTP/1.1\r\nHost: a\r\n\r\n".encode() + request(BODY))
    assert connection.answer()[::2] == (400, {"error": "the request has no body"})
    assert is_right(connection.answer())


def test_who_waits_for_100_continue_and_is_refused_may_leave_out_the_body(server):
    """What follows could be the body or the next request, so that the connection ends."""
    with Connection(server) as connection:
        connection.send(
            request(b"", b"Expect: 100-continue\r\n", path="/v2/models/absent/infer").replace(b": 0", b": 9")
        )
        status, headers, _ = connection.answer()
        assert (status, headers["Connection"]) == (404, "close")
        assert connection.is_closed()
    with Connection(server) as connection:
        connection.send(request(BODY, b"Expect: 100-continue\r\n") + request(BODY))
        assert is_right(connection.answer())
        assert is_right(connection.answer())


def test_an_early_refusal_reaches_a_client_that_still_sends(server):
    """Proxies send whole bodies and close the connection: unread data would reset it."""
    with Connection(server) as connection:
        content = request(b" " * 90_000, b"Connection: close\r\n", path="/v2/models/absent/infer")
        connection.send(content[:200])
        status, headers, document = connection.answer()
        assert (status, headers["Connection"]) == (404, "close")
        assert "absent" in document["error"]
        connection.send(content[200:])
        assert connection.is_closed()


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
@pytest.mark.parametrize("body", [BODY, LARGE])
def test_compressed_bodies(connection, compress, body):
    coding = b"Content-Encoding: %s\r\n" % (b"GZIP" if compress is gzip.compress else b"deflate")
    connection.send(request(compress(body), coding) + chunked(compress(body), 10, coding))
    assert is_right(connection.answer())
    assert is_right(connection.answer())


@pytest.mark.parametrize(
    ("body", "coding", "status", "message"),
    [
        (gzip.compress(b" " * 1_000_000, mtime=0), "gzip", 413, "100000 are allowed"),
        (gzip.compress(BODY, mtime=0)[:-3], "gzip", 400, "cut off"),
        (gzip.compress(BODY, mtime=0) + b"more", "gzip", 400, "bytes after its end"),
        (BODY, "gzip", 400, "not compressed"),
        (BODY, "br", 415, "gzip and deflate"),
        (BODY, "gzip, gzip", 415, "gzip and deflate"),
    ],
)
def test_wrong_compressed_bodies_are_told(connection, body, coding, status, message):
    connection.send(request(body, f"Content-Encoding: {coding}\r\n".encode()) + request(BODY))
    found, headers, document = connection.answer()
    assert (found, message in document["error"]) == (status, True), document
    assert headers["Accept-Encoding"] == ("gzip, deflate" if status == 415 else None)
    assert is_right(connection.answer())


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_the_compression_of_tritonclient(server, algorithm):
    triton = pytest.importorskip("tritonclient.http")
    entry = triton.InferInput("x", [1, 8], "FP32")
    entry.set_data_from_numpy(X)
    with triton.InferenceServerClient(server.http) as client:
        options = {"request_compression_algorithm": algorithm, "response_compression_algorithm": algorithm}
        result = client.infer("small", [entry], **options)
    np.testing.assert_array_equal(result.as_numpy("activations"), expected(X))


def test_null_stands_for_what_is_not_given(connection):
    entry = {"name": "x", "shape": [1, 8], "datatype": "FP32", "data": X.tolist()}
    none = {"binary_data_size": None, "shared_memory_region": None}
    output = {"name": "activations", "parameters": {"binary_data": None, "classification": None}}
    options = {"priority": None, "timeout": None, "sequence_id": None, "binary_data_output": None}
    for document in (
        {"id": None, "parameters": None, "outputs": None, "inputs": [entry | {"parameters": None}]},
        {"parameters": options, "outputs": [output], "inputs": [entry | {"parameters": none}]},
        {"outputs": [{"name": "activations", "parameters": None}], "inputs": [entry], "unknown": None},
    ):
        connection.send(request(json.dumps(document).encode()))
        assert is_right(connection.answer())
    connection.send(request(json.dumps({"inputs": [entry | {"data": None}]}).encode()))
    status, _, document = connection.answer()
    assert (status, "'x' has no values" in document["error"]) == (400, True)
    connection.send(request(b'{"ready": null}', path="/v2/repository/index"))
    assert connection.answer()[0] == 200


def test_null_in_requests_for_text():
    from tvm_sched_serve.text_protocol import ChatCall, CompletionCall, GenerateCall

    none = dict.fromkeys(("stream", "stream_options", "n", "return_token_ids", "stop", "seed", "temperature", "tools"))
    assert CompletionCall(memoryview(json.dumps({"model": "m", "prompt": "a", **none}).encode())).stream is False
    message = {"role": "user", "content": [{"type": "text", "text": None}]}
    chat = ChatCall(memoryview(json.dumps({"model": "m", "messages": [message], **none}).encode()))
    assert chat.prompts[0].messages == [{"role": "user", "content": ""}]
    for parameters in (None, {"details": None, "max_tokens": None}):
        body = json.dumps({"text_input": "a", "parameters": parameters}).encode()
        assert GenerateCall.of_body(memoryview(body), "m", "", stream=False).prompts[0].text == "a"


@pytest.mark.parametrize(
    "content",
    [
        request(BODY, path=f"{PATH}/"),
        request(BODY, path=f"http://proxy.example:80{PATH}"),
        request(BODY, path=PATH.replace("small", "%73mall")),
        request(BODY, path=f"{PATH}?trace=1"),
        request(BODY, b"CONTENT-TYPE: Application/JSON; charset=UTF-8\r\naccept-encoding: gzip, br\r\n"),
        request(BODY).replace(b"Content-Length", b"content-length"),
        b"\r\n" + request(BODY),
    ],
    ids=["slash", "absolute", "percent", "query", "charset", "lower case", "empty line"],
)
def test_forms_of_requests(connection, content):
    connection.send(content + content)
    assert is_right(connection.answer())
    assert is_right(connection.answer())


def test_http_1_0_ends_the_connection(connection):
    connection.send(request(BODY, version="1.0"))
    assert is_right(connection.answer())
    assert connection.is_closed()


def test_probes(connection):
    ready = "/v2/health/ready"
    for method, path in (("HEAD", ready), ("GET", f"{ready}/"), ("GET", ready), ("HEAD", "/v2/models/small")):
        connection.send(f"{method} {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        assert connection.answer(method)[0] == 200
    connection.send(request(b"{}", path=ready, method="GET") + request(BODY))
    assert connection.answer("GET")[0] == 200
    assert is_right(connection.answer())


def test_other_methods_are_told_which_there_are(connection):
    for method, path, allowed in (
        ("OPTIONS", PATH, {"POST"}),
        ("GET", PATH, {"POST"}),
        ("POST", "/v2/health/live", {"GET", "HEAD"}),
    ):
        connection.send(request(b"", path=path, method=method))
        status, headers, document = connection.answer(method)
        assert (status, set(headers["Allow"].split(", "))) == (405, allowed)
        assert method in document["error"]


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: gzip\r\n",
        b"Content-Length: -5\r\n",
    ],
)
def test_bodies_of_doubtful_length_end_the_connection(server, head):
    """Who sits before the server could see another request than the server does."""
    with Connection(server) as connection:
        connection.send(f"POST {PATH} HTTP/1.1\r\nHost: a\r\n".encode() + head + b"\r\n")
        assert connection.answer()[0] == 400
        assert connection.is_closed()
