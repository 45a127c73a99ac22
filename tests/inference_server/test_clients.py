"""Conformance: tritonclient over HTTP, gRPC, asyncio and shared memory, against exact values."""

import asyncio
import uuid

import numpy as np
import pytest
from inference_server_values import expected

pytest.importorskip("tritonclient")
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
import tritonclient.utils.shared_memory as shared_memory
from tritonclient.utils import InferenceServerException

CLIENTS = {"http": tritonclient.http, "grpc": tritonclient.grpc}


@pytest.fixture(params=CLIENTS)
def client(request, server):
    kind = CLIENTS[request.param]
    opened = kind.InferenceServerClient(getattr(server, request.param))
    opened.kind = kind
    opened.options = {"as_json": True} if request.param == "grpc" else {}
    yield opened
    opened.close()


def given(kind, value, **options):
    tensor = kind.InferInput("x", list(value.shape), "FP32")
    tensor.set_data_from_numpy(value, **options)
    return tensor


def test_health_and_metadata(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("small")
    assert client.is_model_ready("versioned", "2")
    assert not client.is_model_ready("absent")
    assert "statistics" in client.get_server_metadata(**client.options)["extensions"]
    metadata = client.get_model_metadata("versioned", **client.options)
    assert metadata["versions"] == ["1", "2"]
    assert (metadata["inputs"][0]["name"], metadata["outputs"][0]["name"]) == ("x", "activations")
    assert [int(size) for size in metadata["inputs"][0]["shape"]] == [-1, 8]


@pytest.mark.parametrize("count", [1, 4])
def test_values(client, rows, count):
    x = rows(count)
    result = client.infer("small", [given(client.kind, x)], request_id="seven")
    np.testing.assert_array_equal(result.as_numpy("activations"), expected(x))
    response = result.get_response(**client.options)
    assert response["id"] == "seven"
    assert response["model_name"] == "small"


@pytest.mark.parametrize("binary_input", [True, False])
@pytest.mark.parametrize("binary_output", [True, False])
def test_json_and_binary_data(server, rows, binary_input, binary_output):
    kind, x = tritonclient.http, rows(4)
    with kind.InferenceServerClient(server.http) as client:
        wanted = kind.InferRequestedOutput("activations", binary_data=binary_output)
        result = client.infer("small", [given(kind, x, binary_data=binary_input)], outputs=[wanted])
    np.testing.assert_array_equal(result.as_numpy("activations"), expected(x))


def test_versions(client, rows):
    x = rows(1)
    for version, factor in (("1", 1), ("2", 2), ("", 2)):
        result = client.infer("versioned", [given(client.kind, x)], model_version=version)
        np.testing.assert_array_equal(result.as_numpy("activations"), expected(x, factor))


def test_statistics_count_requests(client, rows):
    def count():
        (found,) = client.get_inference_statistics("versioned", "1", **client.options)["model_stats"]
        return int(found["inference_stats"]["success"].get("count", 0))

    before = count()
    for _ in range(3):
        client.infer("versioned", [given(client.kind, rows(1))], model_version="1")
    assert count() == before + 3


def test_wrong_requests_are_told(client, rows):
    kind = client.kind
    other = kind.InferInput("y", [1, 8], "FP32")
    other.set_data_from_numpy(rows(1))
    doubles = kind.InferInput("x", [1, 8], "FP64")
    doubles.set_data_from_numpy(rows(1).astype(np.float64))
    for inputs, message in (
        ([other], "expected x"),
        ([doubles], "expected FP32"),
        ([given(kind, rows(3))], "allowed are"),
        ([given(kind, np.zeros((1, 7), np.float32))], "shape"),
        ([given(kind, rows(1)), given(kind, rows(1))], "each once"),
    ):
        with pytest.raises(InferenceServerException, match=message):
            client.infer("small", inputs)
    with pytest.raises(InferenceServerException, match="no output 'logits'"):
        client.infer("small", [given(kind, rows(1))], outputs=[kind.InferRequestedOutput("logits")])
    with pytest.raises(InferenceServerException, match="no model 'absent'"):
        client.infer("absent", [given(kind, rows(1))])
    with pytest.raises(InferenceServerException, match="sequence_id"):
        client.infer("small", [given(kind, rows(1))], sequence_id=3)


def test_shared_memory(client, rows):
    x = rows(4)
    name = f"tvm_sched_test_{uuid.uuid4().hex}"
    size = x.nbytes
    region = shared_memory.create_shared_memory_region("part", f"/{name}", 2 * size)
    try:
        shared_memory.set_shared_memory_region(region, [x])
        client.register_system_shared_memory("part", f"/{name}", 2 * size)
        status = client.get_system_shared_memory_status(**client.options)
        assert "part" in str(status)
        tensor = client.kind.InferInput("x", list(x.shape), "FP32")
        tensor.set_shared_memory("part", size)
        wanted = client.kind.InferRequestedOutput("activations")
        wanted.set_shared_memory("part", size // 2, offset=size)
        result = client.infer("small", [tensor], outputs=[wanted])
        assert "shared_memory_region" in str(result.get_response(**client.options))
        value = shared_memory.get_contents_as_numpy(region, np.float32, [4, 4], offset=size)
        np.testing.assert_array_equal(value, expected(x))
        tensor.set_shared_memory("part", size, offset=2 * size - 4)
        with pytest.raises(InferenceServerException, match="are not in it"):
            client.infer("small", [tensor])
        with pytest.raises(InferenceServerException, match="new name"):
            client.register_system_shared_memory("part", f"/{name}", 8)
        for key in ("/../../etc/passwd", "/absent", "a/b"):
            with pytest.raises(InferenceServerException, match=r"not allowed|no segment"):
                client.register_system_shared_memory("other", key, 8)
    finally:
        client.unregister_system_shared_memory("part")
        shared_memory.destroy_shared_memory_region(region)


def test_a_segment_that_is_cut_off_ends_nothing(client, rows, tmp_path):
    import os

    name = f"tvm_sched_test_{uuid.uuid4().hex}"
    region = shared_memory.create_shared_memory_region("cut", f"/{name}", 4096)
    try:
        client.register_system_shared_memory("cut", f"/{name}", 4096)
        os.truncate(f"/dev/shm/{name}", 16)
        tensor = client.kind.InferInput("x", [4, 8], "FP32")
        tensor.set_shared_memory("cut", 128)
        with pytest.raises(InferenceServerException, match="shorter than it was"):
            client.infer("small", [tensor])
        client.infer("small", [given(client.kind, rows(1))])
    finally:
        client.unregister_system_shared_memory("cut")
        shared_memory.destroy_shared_memory_region(region)


@pytest.mark.parametrize("name", CLIENTS)
def test_asyncio(server, rows, name):
    kind = {"http": tritonclient.http.aio, "grpc": tritonclient.grpc.aio}[name]

    async def work():
        client = kind.InferenceServerClient(getattr(server, name))
        inputs = [rows(n) for n in (1, 4) for _ in range(8)]
        results = await asyncio.gather(*(client.infer("small", [given(CLIENTS[name], x)]) for x in inputs))
        await client.close()
        return zip(inputs, results, strict=True)

    for x, result in asyncio.run(work()):
        np.testing.assert_array_equal(result.as_numpy("activations"), expected(x))


def test_stream(server, rows):
    import queue

    answers = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number in range(8):
            client.async_stream_infer("small", [given(tritonclient.grpc, rows(1) + number)], request_id=str(number))
        client.async_stream_infer("absent", [given(tritonclient.grpc, rows(1))], request_id="wrong")
        got = [answers.get(timeout=20) for _ in range(9)]
        client.stop_stream()
    errors = [error for _, error in got if error is not None]
    assert len(errors) == 1
    assert "absent" in str(errors[0])
    for result, error in got:
        if error is None:
            number = int(result.get_response(as_json=True)["id"])
            np.testing.assert_array_equal(result.as_numpy("activations"), expected(rows(1) + number))
