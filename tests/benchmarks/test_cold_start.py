"""The benchmark of cold starts: what a page says of made-up starts, and which files are dropped."""

from pathlib import Path

import cold_start
import pytest
from cold_start import Model

from tvm_sched_runtime.problem import Storage, load_topology, write_topology


def stage(name, start_s, end_s, model="not counted"):
    return {"name": name, "start_s": start_s, "end_s": end_s, "bytes": 0, "model": model}


def answer(seconds, read):
    stages = [
        stage("process", 0.0, 0.1),
        stage("read parameters", 0.1, 0.1 + read, "counted"),
        stage("first run", 0.15, 0.3, "partly"),
    ]
    return {"seconds": seconds, "processor_s": seconds / 2, "stages": stages}


@pytest.fixture
def model(tmp_path):
    made = Model("m", tmp_path / "m.onnx", tmp_path / "m.npz", 10**6, tmp_path / "m.so")
    made.predicted_ns, made.bound_ns, made.reads_ns = 100_000_000, 90_000_000, 80_000_000
    made.starts = {
        ("ours", "cold"): [answer(0.4, 0.09), answer(0.3, 0.1), answer(0.5, 0.12)],
        ("ours", "warm"): [answer(0.2, 0.01)],
    }
    made.failed = {"openvino": "no such file"}
    return made


def test_stages_have_medians_and_predictions(model):
    assert cold_start.stage_rows(model) == [
        ["process", "not counted", "", "100.0", "100.0"],
        ["read parameters", "counted", "80.0", "100.0", "10.0"],
        ["first run", "partly", "100.0", "150.0", "150.0"],
    ]


def test_the_page_compares(model, tmp_path, monkeypatch):
    machine = load_topology("cpu1")
    import msgspec

    write_topology(tmp_path / "t.toml", msgspec.structs.replace(machine, storage=Storage("disk", 2e9, 5e-5, 4)))
    monkeypatch.setattr(cold_start, "drawings", lambda *_: None)
    text = cold_start.page([model], ["ours", "openvino"], 3, None, tmp_path / "t.toml").markdown
    assert "| m | 1 | 0.40 (0.20) | – |" in text
    assert "- m, OpenVINO: no such file" in text
    assert "2.00 GB/s, 50 us a read, queue depth 4" in text
    # From the first read at 0.1 s to the end of the first run at 0.3 s, predicted in 0.1 s.
    assert "| m | 90.0 | 100.0 | 200.0 | 2.00 | 80.0 | 100.0 |" in text


def test_each_engine_has_the_files_that_it_reads(model, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    for file in (model.onnx, model.onnx.with_suffix(".data"), cache / "blob", Path(f"{model.artifact}")):
        file.write_bytes(b"1")
    assert cold_start.files_of("onnxruntime", model, cache) == [model.onnx, model.onnx.with_suffix(".data")]
    assert cold_start.files_of("openvino, cache", model, cache)[-1] == cache / "blob"
    assert cold_start.files_of("torch", model, cache) == []
    assert cold_start.files_of("ours", model, cache) == [model.artifact, model.artifact.with_suffix(".safetensors")]


def test_pages_of_a_file_in_memory_are_counted(tmp_path):
    file = tmp_path / "data"
    file.write_bytes(bytes(3 * 4096 + 1))
    cold_start.warm(file)
    assert cold_start.resident_pages(file) == 4
