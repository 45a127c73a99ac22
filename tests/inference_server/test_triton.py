"""`tvm-sched export-triton`: configuration, the model of the Python backend, and a server of NVIDIA's."""

import asyncio
import json
import sys
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest
from inference_server_values import Backend, copy_artifact, expected

from tvm_sched_runtime.errors import InputError
from tvm_sched_serve import triton_export
from tvm_sched_serve.datatypes import TensorType
from tvm_sched_serve.execution_queue import QueueOptions
from tvm_sched_serve.repository import Repository
from tvm_sched_serve.served_model import ServedModel
from tvm_sched_serve.triton_command import main
from tvm_sched_serve.triton_export import TritonOptions, configuration, export_triton
from tvm_sched_serve.triton_model import ARTIFACT, TritonPythonModel


def test_command_writes_a_repository_and_replaces_it_as_a_whole(repository, tmp_path, capsys):
    output = tmp_path / "triton"
    (output / "small" / "9").mkdir(parents=True)
    assert main([str(repository), "-o", str(output), "--instances", "3", "--threads", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["models"]
    assert [(model["name"], model["versions"]) for model in told] == [("small", ["1"]), ("versioned", ["1", "2"])]
    assert {str(file.relative_to(output)) for file in output.rglob("*.so")} == {
        f"small/1/{ARTIFACT}", f"versioned/1/{ARTIFACT}", f"versioned/2/{ARTIFACT}"
    }  # fmt: skip
    assert sorted(entry.name for entry in (output / "small").iterdir()) == ["1", "config.pbtxt"]
    assert sorted(entry.name for entry in output.iterdir()) == ["small", "versioned"]


def test_an_artifact_without_batches_says_that_requests_are_not_joined(
    artifacts, tmp_path, capsys, caplog, monkeypatch
):
    monkeypatch.setattr(ServedModel, "batch_sizes", ())
    artifact = artifacts / "by1.so"
    assert main([str(artifact), "-o", str(tmp_path), "--batch-delay", "2"]) == 0
    assert "by1: versions 1; requests are not joined" in capsys.readouterr().out
    asyncio.run(Repository(artifact, QueueOptions(batch_delay=0.002)).load_all())
    assert "model by1 version 1: requests are not joined" in caplog.text


def test_configuration_has_batches_and_instances_of_the_artifact():
    scalar, rows = TensorType("s", "int8", ()), TensorType('r"', "float16", (-1, 3))
    model = ServedModel("m", "1", None, (rows,), (rows,), frozenset(((n, 3),) for n in (1, 2, 8)))
    assert configuration(model, TritonOptions(2, 4, 0.0015)) == (
        'name: "m"\nbackend: "python"\nmax_batch_size: 8\n'
        'input [ { name: "r\\"" data_type: TYPE_FP16 dims: [ 3 ] } ]\n'
        'output [ { name: "r\\"" data_type: TYPE_FP16 dims: [ 3 ] } ]\n'
        "version_policy { all { } }\n"
        "instance_group [ { count: 2 kind: KIND_CPU } ]\n"
        "dynamic_batching { preferred_batch_size: [ 2, 8 ] max_queue_delay_microseconds: 1500 }\n"
        'parameters { key: "threads" value { string_value: "4" } }\n'
    )
    single = ServedModel("m", "1", None, (scalar,), (rows,), frozenset({((),)}))
    text = configuration(single, TritonOptions(batch_delay=0.1))
    assert 'input [ { name: "s" data_type: TYPE_INT8 dims: [ 1 ] reshape { shape: [ ] } } ]' in text
    assert "max_batch_size: 0" in text
    assert "dynamic_batching" not in text


def test_the_library_of_the_backend_is_in_the_models_folder(backend_library, artifacts, tmp_path):
    arguments = [str(artifacts / "by1.so"), "-o", str(tmp_path), "--backend", "cpp", "--threads", "2"]
    assert main(arguments) == 0
    assert {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()} == {
        f"by1/1/{ARTIFACT}", f"by1/{backend_library.name}", "by1/libtvm_ffi.so", "by1/config.pbtxt"
    }  # fmt: skip
    text = (tmp_path / "by1" / "config.pbtxt").read_text()
    assert 'backend: "tvm_sched"' in text
    assert f'"libraries" value {{ string_value: "{backend_library.parent}' in text
    assert main([*arguments, "--libraries", "/opt/a:/opt/b"]) == 0
    assert '"libraries" value { string_value: "/opt/a:/opt/b" }' in (tmp_path / "by1" / "config.pbtxt").read_text()


def test_what_triton_cannot_run_is_refused(artifacts, tmp_path, capsys, monkeypatch):
    assert main([str(tmp_path / "none.so"), "-o", str(tmp_path / "triton")]) == 2
    assert "there is no such artifact" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    flag = TensorType("flag", "bool", (2,))
    with monkeypatch.context() as patch:
        patch.setattr(triton_export, "load_served", lambda *_: ServedModel("m", "1", None, (flag,), (), frozenset()))
        with pytest.raises(InputError, match="'flag' is bool"):
            export_triton(artifacts / "by1.so", tmp_path / "triton")
    with pytest.raises(InputError, match="cannot be written"):
        export_triton(artifacts / "by1.so", tmp_path / "file")


@pytest.mark.parametrize("batch", [0, 4])
def test_model_joins_as_configured_and_refuses_requests_alone(artifacts, tmp_path, monkeypatch, rows, batch):
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", Backend())
    copy_artifact(artifacts / "by1.so", tmp_path / "1" / ARTIFACT)
    model = TritonPythonModel()
    configured = {"max_batch_size": batch, "parameters": {"threads": {"string_value": "1"}}}
    model.initialize(
        {
            "model_repository": str(tmp_path),
            "model_version": "1",
            "model_name": "small",
            "model_config": json.dumps(configured),
        }
    )
    inputs = [rows(1), rows(5), rows(4) if not batch else rows(3)]
    answers = model.execute([[Backend.Tensor("x", x)] for x in inputs])
    assert "allowed are" in answers[1].error if not batch else "from 1 to 4" in answers[1].error
    for k in (0, 2):
        (tensor,) = answers[k].tensors
        assert tensor.name == "activations"
        np.testing.assert_array_equal(tensor.value, expected(inputs[k]))


def ask(address, path, x):
    document = {"inputs": [{"name": "x", "shape": x.shape, "datatype": "FP32", "data": x.reshape(-1).tolist()}]}
    with urllib.request.urlopen(
        f"{address}/v2/models/{path}/infer", json.dumps(document).encode(), timeout=60
    ) as answer:
        (output,) = json.load(answer)["outputs"]
    return np.array(output["data"], np.float32).reshape(output["shape"])


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["python", "cpp"])
def test_nvidias_server_gives_our_values(triton, repository, tmp_path, rows, backend, request):
    if backend == "cpp":
        request.getfixturevalue("backend_library")
    export_triton(repository, tmp_path / "plain", TritonOptions(threads=1, backend=backend))
    joined = TritonOptions(threads=1, instances=2, batch_delay=0.005, backend=backend)
    export_triton(repository / "small.so", tmp_path / "joined", joined)
    address = triton(tmp_path / "plain")
    np.testing.assert_array_equal(ask(address, "versioned/versions/1", rows(4)), expected(rows(4)))
    np.testing.assert_array_equal(ask(address, "versioned", rows(1)), expected(rows(1), 2))
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(address, "small", rows(3))
    assert "allowed are" in json.load(refused.value)["error"]
    address = triton(tmp_path / "joined")
    results = {}

    def client(n):
        results[n] = ask(address, "small", rows(n))

    threads = [threading.Thread(target=client, args=(n,)) for n in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, value in results.items():
        np.testing.assert_array_equal(value, expected(rows(n)))
    assert len(results) == 4
