"""`compile` with the cache, and `cache`."""

import json
import warnings

import numpy as np
import pytest

import tvm_sched.relax
from tvm_sched.blob_cache import kernel_cache
from tvm_sched.relax.compiled_results import compilation_key


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("TVM_SCHED_NO_CACHE")
    monkeypatch.setenv("TVM_SCHED_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def compilations(monkeypatch):
    """The models that were really compiled."""
    done, compile_model = [], tvm_sched.relax.compile

    def counted(model, *arguments, **options):
        done.append(model)
        return compile_model(model, *arguments, **options)

    monkeypatch.setattr(tvm_sched.relax, "compile", counted)
    return done


def test_the_second_compilation_is_taken_from_the_cache(run, model_file, compilations, tmp_path):
    common = ("compile", model_file, "-t", "cpu2", "--time-limit", 1, "--parameters", "external", "--json")
    first = run(*common, "-o", tmp_path / "a.so")
    second = run(*common, "-o", tmp_path / "b.so", "--report", tmp_path / "r.html")
    assert len(compilations) == 1
    assert "taken from the cache" in second.stderr
    assert second.json["plans"] == first.json["plans"]
    assert second.json["files"]["parameters"] == str(tmp_path / "b.safetensors")
    assert (tmp_path / "a.so").read_bytes() == (tmp_path / "b.so").read_bytes()
    assert (tmp_path / "r.html").exists()
    for name in "ab":
        run("run", tmp_path / f"{name}.so", "--repeat", 1, "--output", tmp_path / name)
    assert np.array_equal(np.load(tmp_path / "a" / "output_0.npy"), np.load(tmp_path / "b" / "output_0.npy"))


def test_other_options_and_models_are_compiled(run, model_file, compilations, tmp_path):
    output = ("-o", tmp_path / "m.so")
    run("compile", model_file, "-t", "cpu1", *output)
    run("compile", model_file, "-t", "cpu2", "-s", "heft", *output)
    run("compile", model_file, "-t", "cpu1", "--parameters", "external", *output)
    run("compile", model_file, "-t", "cpu1", "--no-cache", *output)
    assert len(compilations) == 4
    content = model_file.read_bytes()
    other = content.replace(b"two", b"TWO") if b"two" in content else content + b"\x32\x00"
    assert other != content
    before = compilation_key(model_file, {})
    model_file.write_bytes(other)
    assert compilation_key(model_file, {}) != before


def test_the_environment_switches_it_off(run, model_file, compilations, monkeypatch, tmp_path):
    monkeypatch.setenv("TVM_SCHED_NO_CACHE", "1")
    for _ in range(2):
        run("compile", model_file, "-t", "cpu1", "-o", tmp_path / "m.so")
    assert len(compilations) == 2
    assert not (tmp_path / "cache" / "compiled").exists()


def test_a_damaged_entry_is_compiled_anew(run, model_file, compilations, tmp_path):
    run("compile", model_file, "-t", "cpu1", "-o", tmp_path / "a.so")
    (entry,) = (tmp_path / "cache" / "compiled").iterdir()
    (entry / "artifact.so").write_bytes(b"nothing")
    for _ in range(2):
        run("compile", model_file, "-t", "cpu1", "-o", tmp_path / "b.so")
    assert len(compilations) == 2
    assert (tmp_path / "b.so").read_bytes()[:4] == b"\x7fELF"


def test_warnings_are_said_again(run, model_file, monkeypatch, tmp_path):
    from tvm_sched.cost_model import CostWarning

    compile_model = tvm_sched.relax.compile

    def warned(*arguments, **options):
        warnings.warn("times are guesses", CostWarning, stacklevel=1)
        return compile_model(*arguments, **options)

    monkeypatch.setattr(tvm_sched.relax, "compile", warned)
    for _ in range(2):
        assert "warning: times are guesses" in run(
            "compile", model_file, "-t", "cpu1", "-o", tmp_path / "m.so"
        ).stderr  # fmt: skip


def test_external_data_belong_to_the_model(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"...location weights.bin ...location data/more.bin")
    (tmp_path / "weights.bin").write_bytes(b"1")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "more.bin").write_bytes(b"1")
    keys = [compilation_key(tmp_path / "m.onnx", {})]
    for name in ("weights.bin", "data/more.bin"):
        (tmp_path / name).write_bytes(b"2")
        keys.append(compilation_key(tmp_path / "m.onnx", {}))
    (tmp_path / "another file").write_bytes(b"2")
    assert len(set(keys)) == 3
    assert compilation_key(tmp_path / "m.onnx", {}) == keys[-1]


def test_files_among_the_options_count_with_their_content(tmp_path, monkeypatch):
    (tmp_path / "m.onnx").write_bytes(b"model")
    costs = tmp_path / "costs.csv"
    costs.write_text("1")
    key = compilation_key(tmp_path / "m.onnx", {"cost_model": str(costs)})
    assert compilation_key(tmp_path / "m.onnx", {"cost_model": str(costs)}) == key
    costs.write_text("2")
    assert compilation_key(tmp_path / "m.onnx", {"cost_model": str(costs)}) != key
    plain = compilation_key(tmp_path / "m.onnx", {"constants": {"x": np.ones(2)}})
    assert compilation_key(tmp_path / "m.onnx", {"constants": {"x": np.zeros(2)}}) != plain
    monkeypatch.setenv("TVM_SCHED_NUM_THREADS", "3")
    assert compilation_key(tmp_path / "m.onnx", {"constants": {"x": np.ones(2)}}) != plain


def test_what_cannot_be_known_is_not_kept(tmp_path):
    for name in ("m.py", "m.onnx"):
        (tmp_path / name).write_bytes(b"model")
    assert compilation_key(tmp_path / "m.py", {}) is None
    assert compilation_key(tmp_path / "m.onnx", {"backend": "cuda"}) is None
    assert compilation_key(tmp_path / "none.onnx", {}) is None


def test_show_clear_and_path(run, model_file, tmp_path):
    empty = run("cache", "show", "--json").json
    assert (empty["compiled"], empty["compiled_bytes"]) == ([], 0)
    run("compile", model_file, "-t", "cpu1", "-o", tmp_path / "m.so")
    shown = run("cache", "show", "--json").json
    assert [row["model"] for row in shown["compiled"]] == [str(model_file)]
    assert 0 < shown["compiled_bytes"] <= shown["limit_bytes"]
    assert "1 compiled models" in run("cache", "show").stdout
    assert run("cache", "path", "--json").json == {"path": str(tmp_path / "cache")}
    database = tmp_path / "cache" / "measurements.sqlite"
    database.write_bytes(b"")
    kernel_cache().keep({"one": b"code", "two": b"more code"})  # besides those of the model, if it has some of ours
    kernels = run("cache", "show", "--json").json["kernels"]
    assert kernels == shown["kernels"] + 2
    removed = {"compiled_removed": 1, "kernels_removed": kernels, "measurements_removed": False}
    assert run("cache", "clear", "--json").json == removed
    assert json.loads(run("cache", "clear", "--measurements", "--json").stdout)["measurements_removed"]
    assert not database.exists()
    assert run("cache", "show", "--json").json["compiled"] == []
