"""Faults of clients and of the service's life: what each gets, and that the server goes on."""

import json
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
from inference_server_values import copy_artifact, expected

PATH = "/v2/models/small/infer"


def body_of(x):
    tensor = {"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.reshape(-1).tolist()}
    return json.dumps({"inputs": [tensor]}).encode()


def post(address, path, body=b"", token=None):
    """Return status, headers and document of a request."""
    request = urllib.request.Request(f"{address}{path}", body, method="POST")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, error.headers, json.loads(error.read() or b"null")


def send(server, *parts, finish=False):
    """Send bytes; return all that comes back until the server closes the connection."""
    with socket.create_connection(server.address, timeout=30) as connection:
        try:
            for part in parts:
                connection.sendall(part)
            if finish:
                connection.shutdown(socket.SHUT_WR)
        except OSError:  # refused before the end
            pass
        answer = b""
        try:
            while part := connection.recv(65536):
                answer += part
        except ConnectionResetError:
            pass
        return answer


def head(length, *more):
    lines = [f"POST {PATH} HTTP/1.1", "Host: a", "Connection: close", f"Content-Length: {length}", *more]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@pytest.fixture(autouse=True)
def serves_on(request, rows):
    """After each fault the server gives right values."""
    yield
    if "server" in request.fixturenames:
        server, x = request.getfixturevalue("server"), rows(1)
        status, _, document = post(f"http://{server.http}", PATH, body_of(x))
        assert status == 200
        np.testing.assert_array_equal(np.reshape(document["outputs"][0]["data"], (1, 4)), expected(x))
        assert server.process.poll() is None


BAD_BODIES = {
    "no JSON": (b"{", "not what the protocol says"),
    "deep": (b'{"inputs":' + b"[" * 40000, "not what the protocol says"),
    "not UTF-8": (b'{"id":"\xff","inputs":[]}', "not what the protocol says"),
    "no inputs": (b'{"inputs":[]}', "expected x"),
    "words": (b'{"inputs":[{"name":"x","shape":[1,8],"datatype":"FP32","data":["a"]}]}', "FP32"),
    "too few": (b'{"inputs":[{"name":"x","shape":[1,8],"datatype":"FP32","data":[1]}]}', "8 values"),
    "ragged": (b'{"inputs":[{"name":"x","shape":[1,8],"datatype":"FP32","data":[[1],[2,3]]}]}', "8 values"),
    "huge shape": (b'{"inputs":[{"name":"x","shape":[99999999999,8],"datatype":"FP32","data":[1]}]}', "8|values"),
    "negative": (b'{"inputs":[{"name":"x","shape":[-1,8],"datatype":"FP32","data":[1]}]}', "shape"),
    "binary outside": (
        b'{"inputs":[{"name":"x","shape":[1,8],"datatype":"FP32","parameters":{"binary_data_size":32}}]}', "fit the body"
    ),
    "no region": (
        b'{"inputs":[{"name":"x","shape":[1,8],"datatype":"FP32","parameters":{"shared_memory_region":"r"}}]}',
        "no shared memory region",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_BODIES)
def test_bad_documents(server, name):
    body, message = BAD_BODIES[name]
    status, _, document = post(f"http://{server.http}", PATH, body)
    assert status == 400
    assert any(part in document["error"] for part in message.split("|")), document


def test_half_a_body_and_a_client_that_goes(server):
    assert send(server, head(1000), b"x" * 10, finish=True) == b""
    with socket.create_connection(server.address) as connection:
        connection.sendall(head(1000) + b"x" * 10)


def test_a_slow_body_ends_in_time(server):
    begin = time.monotonic()
    assert b" 408 " in send(server, head(1000), b"x" * 10).splitlines()[0]
    assert time.monotonic() - begin < 20


def test_slow_headers_end_in_time(server):
    assert send(server, b"POST /v2 HTTP/1.1\r\nHost:") == b""


def test_wrong_lengths(server):
    assert b" 413 " in send(server, head(10**12)).splitlines()[0]
    assert b" 400 " in send(server, head("many")).splitlines()[0]
    assert b" 400 " in send(server, head(5, "Inference-Header-Content-Length: 6"), b"{...}").splitlines()[0]
    assert b" 400 " in send(server, head(5, "Inference-Header-Content-Length: -1"), b"{...}").splitlines()[0]
    assert b" 400 " in send(server, head(0)).splitlines()[0]
    chunked = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    assert b" 400 " in send(server, chunked.encode()).splitlines()[0]


def test_a_million_headers(server):
    many = b"".join(b"h%d: v\r\n" % n for n in range(1_000_000))
    answer = send(server, b"GET /v2 HTTP/1.1\r\nHost: a\r\n", many, b"\r\n")
    assert not answer or b" 400 " in answer.splitlines()[0]
    answer = send(server, b"GET /v2 HTTP/1.1\r\nHost: a\r\nlong: ", b"x" * 10_000_000, b"\r\n\r\n")
    assert not answer or b" 400 " in answer.splitlines()[0]


@pytest.mark.parametrize("name", ["../small", "..%2fsmall", "%2e%2e", "/etc/passwd", "small.so", "a" * 5000])
def test_names_from_outside_open_nothing(server, name):
    status, _, _ = post(f"http://{server.http}", f"/v2/models/{name}/infer", b"{}")
    assert status == 404
    status, _, _ = post(server.administration, f"/v2/repository/models/{name}/load")
    assert status in (400, 404)


def test_links_out_of_the_repository_can_be_left_out(artifacts, tmp_path):
    from tvm_sched_serve.repository import LoadOptions, Repository

    copy_artifact(artifacts / "by1.so", tmp_path / "folder" / "inside.so")
    (tmp_path / "folder" / "outside.so").symlink_to(artifacts / "by1.so")
    (tmp_path / "folder" / "linked").symlink_to(artifacts)
    assert Repository(tmp_path / "folder", load=LoadOptions(follow_links=False)).names() == ["inside"]


def test_administration_is_apart(server, start, artifacts, tmp_path):
    assert post(f"http://{server.http}", "/v2/repository/models/small/load")[0] == 403
    assert post(server.administration, PATH, b"{}")[0] in (404, 405)
    (tmp_path / "clients").write_text("client-token-1\nclient-token-2\n")
    (tmp_path / "administrators").write_text("administrator-1\n")
    tokens = ("--token-file", str(tmp_path / "clients"), "--admin-token-file", str(tmp_path / "administrators"))
    guarded = start(artifacts / "by1.so", *tokens, "--no-grpc")
    address, load = f"http://{guarded.http}", "/v2/repository/models/by1/load"
    body = body_of(np.zeros((1, 8), np.float32))
    path = "/v2/models/by1/infer"
    assert post(address, path, body)[0] == 401
    assert post(address, path, body, "client-token-3")[0] == 401
    assert post(address, path, body, "client-token-2")[0] == 200
    assert post(address, load, b"", "client-token-2")[0] == 401
    assert post(address, load, b"", "administrator-1")[0] == 200
    assert urllib.request.urlopen(f"{address}/v2/health/live", timeout=10).status == 200
    assert guarded.stop() == 0


class Noted(list):
    """A list that threads append to, and of which one waits for a state."""

    def __init__(self):
        self.changed = threading.Condition()

    def append(self, value):
        with self.changed:
            super().append(value)
            self.changed.notify_all()

    def wait(self, holds):
        with self.changed:
            assert self.changed.wait_for(lambda: holds(self), 30), list(self)


def load_until(stop, server, path, wanted, counts):
    """Send requests until told; count the answers, of which each must be one of ``wanted``.

    The first refused connection is the last request: the system may give the port to another test's server.
    """
    x = np.ones((1, 8), np.float32)
    body = body_of(x)
    while not stop.is_set():
        try:
            status, _, document = post(f"http://{server.http}", path, body)
        except OSError as error:
            counts.append(error)
            if isinstance(getattr(error, "reason", error), ConnectionRefusedError):
                return
            continue
        value = np.reshape(document["outputs"][0]["data"], (1, 4)) if status == 200 else None
        found = [factor for factor in wanted if value is not None and np.array_equal(value, expected(x, factor))]
        counts.append(found[0] if found else (status, document))


def test_reload_and_unload_under_load(start, artifacts, tmp_path):
    """No request is lost or wrong while versions replace each other; a damaged one replaces nothing."""
    target = tmp_path / "changing.so"
    copy_artifact(artifacts / "by1.so", target)
    server = start(tmp_path, "--admin-port", "0", "--no-grpc")
    stop, counts = threading.Event(), Noted()
    arguments = (stop, server, "/v2/models/changing/infer", (1, 2), counts)
    threads = [threading.Thread(target=load_until, args=arguments) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(6):
            copy_artifact(artifacts / f"by{1 + (turn + 1) % 2}.so", target)
            assert post(server.administration, "/v2/repository/models/changing/load")[0] == 200
        target.with_suffix(".damaged").write_bytes(target.read_bytes()[:5000])
        target.with_suffix(".damaged").replace(target)
        status, _, document = post(server.administration, "/v2/repository/models/changing/load")
        assert status == 400
        assert str(tmp_path) not in document["error"]
        counts.wait(lambda counts: {1, 2} <= set(counts))
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert set(counts) == {1, 2}
    assert post(server.administration, "/v2/repository/models/changing/unload")[0] == 200
    assert post(f"http://{server.http}", "/v2/models/changing/infer", b"{}")[0] == 404
    assert server.stop() == 0


def test_a_sleeping_model_wakes_at_its_load(start, artifacts, tmp_path):
    copy_artifact(artifacts / "by1.so", tmp_path / "resting.so")
    server = start(tmp_path, "--admin-port", "0", "--no-grpc")
    x, model = np.ones((1, 8), "float32"), "/v2/repository/models/resting"

    def infer():
        return post(f"http://{server.http}", "/v2/models/resting/infer", body_of(x))

    def answer():
        status, _, document = infer()
        assert status == 200
        return np.reshape(document["outputs"][0]["data"], (1, 4))

    np.testing.assert_array_equal(answer(), expected(x, 1))
    body = json.dumps({"parameters": {"sleep": True}}).encode()
    assert post(server.administration, f"{model}/unload", body)[0] == 200
    status, _, document = infer()
    assert (status, document) == (404, {"error": "model 'resting' sleeps; load it to wake it"})
    _, _, document = post(server.administration, "/v2/repository/index", b"{}")
    assert [(entry["state"], entry["reason"]) for entry in document] == [("UNAVAILABLE", "asleep")]
    assert post(server.administration, f"{model}/load")[0] == 200
    np.testing.assert_array_equal(answer(), expected(x, 1))
    # A changed artifact is loaded instead of the model that sleeps.
    assert post(server.administration, f"{model}/unload", body)[0] == 200
    copy_artifact(artifacts / "by2.so", tmp_path / "resting.so")
    assert post(server.administration, f"{model}/load")[0] == 200
    np.testing.assert_array_equal(answer(), expected(x, 2))
    # Also if it was changed before the model was put to sleep, but not loaded.
    copy_artifact(artifacts / "by1.so", tmp_path / "resting.so")
    assert post(server.administration, f"{model}/unload", body)[0] == 200
    assert post(server.administration, f"{model}/load")[0] == 200
    np.testing.assert_array_equal(answer(), expected(x, 1))
    assert server.stop() == 0


def test_sigterm_answers_what_was_accepted(start, artifacts):
    server = start(artifacts / "by1.so", "--no-grpc")
    stop, counts = threading.Event(), Noted()
    arguments = (stop, server, "/v2/models/by1/infer", (1,), counts)
    threads = [threading.Thread(target=load_until, args=arguments) for _ in range(4)]
    for thread in threads:
        thread.start()
    counts.wait(lambda counts: len(counts) >= 50)
    assert server.stop() == 0
    stop.set()
    for thread in threads:
        thread.join(30)
    answered = [each for each in counts if each == 1]
    refused = [each for each in counts if isinstance(each, OSError)]
    assert len(answered) + len(refused) == len(counts), [each for each in counts if each not in answered + refused]
    reasons = {type(getattr(each, "reason", each)) for each in refused}
    # A connection that the system, and not the server, had accepted may be reset; no answer is cut off.
    assert reasons <= {ConnectionRefusedError, ConnectionResetError, BrokenPipeError}


def test_a_killed_client_leaves_no_request_behind(start, artifacts):
    """Its request is cancelled: the statistics count it as failed or done, and nothing waits."""
    server = start(artifacts / "by1.so", "--admin-port", "0", "--no-grpc")
    body = body_of(np.ones((1, 8), np.float32))
    request = head(len(body)).replace(b"small", b"by1") + body
    for _ in range(50):
        with socket.create_connection(server.address) as connection:
            connection.sendall(request)
    for _ in range(2000):
        with urllib.request.urlopen(f"{server.administration}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        if 'tvm_sched_waiting{model="by1",version="1"} 0.0' in text and 'running{model="by1",version="1"} 0.0' in text:
            break
    else:
        raise AssertionError(text)
    assert server.stop() == 0


def test_a_full_disk_under_the_log_stops_nothing(monkeypatch, start, artifacts, tmp_path):
    """Every line of the log is lost; requests, a refused reload and the end are as always."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # what a buffer keeps, Python would write again at its end
    copy_artifact(artifacts / "by1.so", tmp_path / "m.so")
    with open("/dev/full", "wb") as full:
        server = start(tmp_path, "--admin-port", "0", "--no-grpc", stderr=full)
    x = np.ones((1, 8), np.float32)
    (tmp_path / "m.damaged").write_bytes((tmp_path / "m.so").read_bytes()[:5000])
    (tmp_path / "m.damaged").replace(tmp_path / "m.so")
    assert post(server.administration, "/v2/repository/models/m/load")[0] == 400
    status, _, document = post(f"http://{server.http}", "/v2/models/m/infer", body_of(x))
    assert status == 200
    np.testing.assert_array_equal(np.reshape(document["outputs"][0]["data"], (1, 4)), expected(x))
    assert server.stop() == 0


def test_no_room_for_an_output_in_shared_memory_is_told(monkeypatch, tmp_path):
    import errno
    import os

    from tvm_sched_serve.failures import Failed
    from tvm_sched_serve.shared_memory import Region

    (tmp_path / "segment").write_bytes(bytes(16))
    descriptor = os.open(tmp_path / "segment", os.O_RDWR)
    region = Region("part", "/part", 0, 16, descriptor)

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(Failed, match=r"'part': cannot be written \(No space left"):
        region.write(0, 16, memoryview(bytes(16)))
    os.close(descriptor)


def test_tls(start, artifacts, tmp_path):
    import shutil

    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = [
        "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost", "-addext",
    ]  # fmt: skip
    subprocess.run(
        [*made, "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate], check=True, capture_output=True
    )
    server = start(artifacts / "by1.so", "--tls-certificate", str(certificate), "--tls-key", str(key))
    context = ssl.create_default_context(cafile=certificate)
    with urllib.request.urlopen(f"https://{server.http}/v2", context=context, timeout=10) as answer:
        assert json.load(answer)["name"] == "tvm_sched"
    assert send(server, b"GET /v2 HTTP/1.1\r\n\r\n", finish=True)[:4] != b"HTTP"
    assert server.stop() == 0


def test_wrong_options(artifacts, tmp_path, capsys):
    from tvm_sched_runtime.run_artifact import main

    (tmp_path / "short").write_text("abc\n")
    (tmp_path / "bad.so").write_text("no library")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        model = artifacts / "by1.so"
        for arguments, message in (
            ([tmp_path / "none.so"], "there is no such artifact"),
            ([tmp_path / "bad.so"], "not a shared library"),
            ([model, "--host", "0.0.0.0"], "--token-file"),
            ([model, "--token-file", tmp_path / "short"], "at least 8"),
            ([model, "--timeout", "nan"], "--timeout"),
            ([model, "--instances", "0"], "--instances"),
            ([model, "--tls-key", model], "both are needed"),
            ([model, "--port", port], "cannot listen"),
            ([model, "--port", "0", "--grpc-port", port], "cannot listen"),
        ):
            try:
                status = main(["serve", *map(str, arguments)])
            except SystemExit as ended:
                status = ended.code
            assert status == 2, arguments
            assert message in capsys.readouterr().err.splitlines()[-1]
