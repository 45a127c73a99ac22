"""Artifacts that take any admissible size: metadata, values, refusals, batches along the open dimension, Triton's files."""

import asyncio
import json
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from inference_server_values import Backend, copy_artifact, expected, until

pytest.importorskip("tritonclient")
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tvm_sched_runtime.runtime import load
from tvm_sched_serve.execution_queue import ExecutionQueue, QueueOptions
from tvm_sched_serve.served_model import ServedModel
from tvm_sched_serve.triton_command import main
from tvm_sched_serve.triton_export import TritonOptions, export_triton
from tvm_sched_serve.triton_model import ARTIFACT, TritonPythonModel

CLIENTS = {"http": tritonclient.http, "grpc": tritonclient.grpc}


def values(rows, tokens, others=None):
    """Return inputs of whole numbers, and their result."""
    rng = np.random.default_rng(rows * 1000 + tokens)
    x = rng.integers(-9, 9, (rows, tokens, 8)).astype("float32")
    y = rng.integers(-9, 9, (rows, tokens if others is None else others, 4)).astype("float32")
    return x, y, expected(x) + y if others is None else None


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    """relu(x[n, tokens, 8] @ w) + y[n, u, 4], where n is 1 to 6 and u must equal tokens."""
    import onnx
    from inference_server_values import weights

    from tvm_sched.relax import compile

    text = """<ir_version: 8, opset_import: ["": 17]> open (float[n, tokens, 8] x, float[n, u, 4] y) => (float[n, t, 4] z)
        { product = MatMul(x, w) rectified = Relu(product) z = Add(rectified, y) }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights(), "w"))
    path = tmp_path_factory.mktemp("open") / "open.so"
    with pytest.warns(match="takes any size"):
        compile(model, "cpu1", input_shapes={"n": range(1, 7)}).export(path)
    return path


def infer(kind, client, inputs):
    tensors = []
    for name, value in zip("xy", inputs, strict=True):
        tensors.append(kind.InferInput(name, list(value.shape), "FP32"))
        tensors[-1].set_data_from_numpy(value)
    return client.infer("open", tensors).as_numpy("z")


@pytest.mark.parametrize("name", CLIENTS)
def test_any_admissible_size_over_both_protocols(start, artifact, name):
    kind = CLIENTS[name]
    server = start(artifact, "--instances", "2", "--batch-delay", "1")
    with kind.InferenceServerClient(getattr(server, name)) as client:
        options = {"as_json": True} if name == "grpc" else {}
        told = client.get_model_metadata("open", **options)
        assert [list(map(int, t["shape"])) for t in told["inputs"]] == [[-1, -1, 8], [-1, -1, 4]]
        assert [list(map(int, t["shape"])) for t in told["outputs"]] == [[-1, -1, 4]]
        for given, message in (
            (
                (values(2, 3)[0], values(3, 3)[1]),
                r"dimension 0 of input 'y' \('n'\) is 3, and .* is 2; they must be equal",
            ),
            (values(7, 3)[:2], r"\('n'\) is 7; sizes from 1 to 6 are allowed"),
            (values(0, 3)[:2], r"\('n'\) is 0; sizes from 1 to 6 are allowed"),
            (values(2, 3, 5)[:2], r"is 3, and 5 is needed|is 5, and 3 is needed"),
        ):
            with pytest.raises(InferenceServerException, match=message) as refused:
                infer(kind, client, given)
            assert refused.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")

        def ask(number):
            rows, tokens = 1 + number % 6, (0, 1, 5, 40)[number % 4]
            x, y, z = values(rows, tokens)
            with kind.InferenceServerClient(getattr(server, name)) as own:
                np.testing.assert_array_equal(infer(kind, own, (x, y)), z)

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(ask, range(48)))


async def test_requests_join_along_the_open_batch_if_their_other_sizes_agree(artifact, monkeypatch):
    model = ServedModel.of(load(artifact, threads=1), artifact, "open", "1")
    assert (model.open_batch, model.batch_sizes) == (6, ())
    ran = []
    run = ServedModel.run
    monkeypatch.setattr(ServedModel, "run", lambda self, arrays: ran.append(arrays[0].shape[:2]) or run(self, arrays))
    queue = ExecutionQueue(model, QueueOptions(batch_delay=30.0))
    sizes = [(1, 5), (2, 3), (2, 5), (3, 5), (1, 3), (3, 3)]  # 6 rows of 5 tokens, and then of 3
    tasks = [asyncio.create_task(queue.submit(list(values(*size)[:2]))) for size in sizes]
    for size, (z,) in zip(sizes, await asyncio.wait_for(asyncio.gather(*tasks), 20), strict=True):
        np.testing.assert_array_equal(z, values(*size)[2])
    late = asyncio.create_task(queue.submit(list(values(4, 2)[:2]), priority=9))
    await until(lambda: queue.waiting == 1)
    full = asyncio.create_task(queue.submit(list(values(6, 9)[:2]), priority=1))
    np.testing.assert_array_equal((await asyncio.wait_for(full, 20))[0], values(6, 9)[2])
    assert not late.done()  # its batch may still grow
    late.cancel()
    assert ran == [(6, 5), (6, 3), (6, 9)]


@pytest.mark.parametrize(
    ("arguments", "outputs", "conditions", "rows"),
    [
        ([["n", 4]], [["n", 4]], [], 9),
        ([["m", 4]], [["m", 4]], [], 64),
        ([["n", 4], ["n", "m"]], [["n", ["*", "m", 2]]], [["m", 3]], 9),
        ([["n", 4]], [["n", 4]], [["m", ["+", "n", 1]]], 0),
        ([["n", "n"]], [["n"]], [], 0),
        ([["n", 4], ["m", 4]], [["n"]], [], 0),
        ([["n", 4]], [[["+", "n", 1]]], [], 0),
        ([["n", 4]], [["n", ["%", 7, "n"]]], [], 0),
        ([["n", 4]], [[]], [], 0),
        ([[3, "n"]], [[3]], [], 0),
    ],
)
def test_which_dimension_is_a_batch(arguments, outputs, conditions, rows):
    from tvm_sched_serve.served_model import open_batch

    template = {
        "symbols": [{"name": "n", "low": 0, "high": 9}, {"name": "m"}],
        "arguments": [{"shape": shape} for shape in arguments],
        "outputs": [{"shape": shape} for shape in outputs],
        "conditions": [{"where": "n", "size": size, "needed": needed} for size, needed in conditions],
    }
    assert open_batch(template) == rows


def test_triton_takes_open_sizes(artifact, tmp_path, monkeypatch):
    assert main([str(artifact), "-o", str(tmp_path)]) == 0
    text = (tmp_path / "open" / "config.pbtxt").read_text()
    assert 'name: "x" data_type: TYPE_FP32 dims: [ -1, -1, 8 ]' in text
    assert 'name: "z" data_type: TYPE_FP32 dims: [ -1, -1, 4 ]' in text
    assert main([str(artifact), "-o", str(tmp_path), "--batch-delay", "2"]) == 0
    text = (tmp_path / "open" / "config.pbtxt").read_text()
    assert "max_batch_size: 6" in text
    assert 'name: "x" data_type: TYPE_FP32 dims: [ -1, 8 ]' in text
    assert "dynamic_batching { max_queue_delay_microseconds: 2000 }" in text
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", Backend())
    copy_artifact(artifact, tmp_path / "1" / ARTIFACT)
    model = TritonPythonModel()
    about = {"model_repository": str(tmp_path), "model_version": "1", "model_name": "open"}
    model.initialize({**about, "model_config": json.dumps({"max_batch_size": 6})})
    asked = [values(2, 3), values(1, 5), values(4, 3), values(2, 3, 4), values(1, 5)]
    answers = model.execute([[Backend.Tensor("x", x), Backend.Tensor("y", y)] for x, y, _ in asked])
    assert [answer.error is not None for answer in answers] == [False, False, False, True, False]
    for answer, (_, _, z) in zip(answers, asked, strict=True):
        if z is not None:
            np.testing.assert_array_equal(answer.tensors[0].value, z)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["python", "cpp"])
def test_nvidias_server_takes_any_size(triton, artifact, tmp_path, backend, request):
    if backend == "cpp":
        request.getfixturevalue("backend_library")
    for delay in (None, 0.005):
        repository = tmp_path / f"delay {delay}"
        export_triton(artifact, repository, TritonOptions(threads=1, instances=2, batch_delay=delay, backend=backend))
        address = triton(repository).removeprefix("http://")

        def ask(number, address=address):
            x, y, z = values(1 + number % 6, (1, 3, 40)[number % 3])
            with tritonclient.http.InferenceServerClient(address) as client:
                np.testing.assert_array_equal(infer(tritonclient.http, client, (x, y)), z)

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(ask, range(48)))
        with (
            tritonclient.http.InferenceServerClient(address) as client,
            pytest.raises(InferenceServerException, match=r"is 3, and 5 is needed|is 5, and 3 is needed"),
        ):
            infer(tritonclient.http, client, values(2, 3, 5)[:2])
