"""Bodies that are received in place: cut anywhere, followed by other requests, given up in their middle."""

import itertools
import json
import socket
import threading

import numpy as np

from onnx_text import onnx_model


def test_large_bodies_are_received_in_place_and_what_follows_them_is_read(start, tmp_path):
    """A body of more than 64 KB in pieces of any size, then other requests on the same connection, sent in advance."""
    from tvm_sched.relax import compile

    shape = [1, 25_000]
    model = onnx_model(f"(float{shape} x) => (float{shape} y) {{ y = Relu(x) }}")
    compile(model, "cpu1").export(tmp_path / "large.so")
    server = start(tmp_path / "large.so", "--no-grpc", "--receive-timeout", "600")

    def request(x):
        place = {"binary_data_size": x.nbytes}
        entry = {"name": "x", "datatype": "FP32", "shape": shape, "parameters": place}
        document = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
        head = f"Content-Length: {len(document) + x.nbytes}\r\nInference-Header-Content-Length: {len(document)}\r\n\r\n"
        return f"POST /v2/models/large/infer HTTP/1.1\r\nHost: a\r\n{head}".encode() + document + x.tobytes()

    def answer(reader):
        assert reader.readline().split()[1] == b"200"
        headers = dict(line.lower().strip().split(b": ", 1) for line in iter(reader.readline, b"\r\n"))
        body = reader.read(int(headers[b"content-length"]))
        return np.frombuffer(body[int(headers.get(b"inference-header-content-length", 0)) :], np.uint8).tobytes()

    rng = np.random.default_rng(0)
    inputs = [rng.integers(-9, 9, shape).astype(np.float32) for _ in range(6)]
    ready = b"GET /v2/health/ready HTTP/1.1\r\nHost: a\r\n\r\n"
    content = b"".join(request(x) + ready for x in inputs)
    with socket.create_connection(server.address, timeout=30) as connection, connection.makefile("rb") as reader:
        cuts = sorted({*rng.integers(1, len(content), 40).tolist(), 150, 70_000})
        sender = threading.Thread(
            target=lambda: [connection.sendall(content[a:b]) for a, b in itertools.pairwise([0, *cuts, len(content)])]
        )
        sender.start()
        for x in inputs:
            assert answer(reader) == np.maximum(x, 0).tobytes()
            assert json.loads(answer(reader)) == {"ready": True}
        sender.join()
    whole = request(inputs[0])
    with socket.create_connection(server.address, timeout=30) as connection:
        connection.sendall(whole[:80_000])
    with socket.create_connection(server.address, timeout=30) as connection, connection.makefile("rb") as reader:
        expect = whole.replace(b"Host: a\r\n", b"Host: a\r\nExpect: 100-continue\r\n", 1)
        end = expect.index(b"\r\n\r\n") + 4
        connection.sendall(expect[:end])
        assert reader.readline() + reader.readline() == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(expect[end:])
        assert answer(reader) == np.maximum(inputs[0], 0).tobytes()
    assert server.stop() == 0
    hasty = start(tmp_path / "large.so", "--no-grpc", "--receive-timeout", "0.2")
    with socket.create_connection(hasty.address, timeout=30) as connection, connection.makefile("rb") as reader:
        connection.sendall(whole[:80_000])  # one that stops in its middle: the connection is closed
        assert reader.readline().split()[1] == b"408"
        assert reader.read().endswith(b'"}')
    assert hasty.stop() == 0
