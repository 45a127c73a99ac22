"""External parameters: safetensors files, single tensors, the environment variable."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from runtime_plans import PlanBuilder, add_and_double
from safetensors.numpy import load_file, save_file

from tvm_sched_runtime.errors import ExecutionError, InputError
from tvm_sched_runtime.runtime import write_parameters
from tvm_sched_runtime.runtime.parameters import verify_parameters

ONES = np.ones(4, "float32")
X = np.arange(4, dtype="float32")
DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
DTYPES += ["float16", "float32", "float64"]


def test_missing_parameters_say_what_to_call():
    module = add_and_double().module()
    assert module.parameters() == [{"name": "w", "shape": [4], "dtype": "float32", "embedded": False, "loaded": False}]
    with pytest.raises(ExecutionError, match=r'no values: "w". Call load_parameters\(path\)'):
        module.run(X)
    module.set_parameter("w", 3 * ONES)
    np.testing.assert_array_equal(module.run(X)[0], 2 * (X + 3))
    module.set_parameter("w", 5 * ONES)
    np.testing.assert_array_equal(module.run(X)[0], 2 * (X + 5))
    with pytest.raises(InputError, match='parameter "w" is float64'):
        module.set_parameter("w", np.ones(4))


def test_environment_variable(tmp_path, monkeypatch):
    module = add_and_double().module()
    save_file({"w": 2 * ONES}, tmp_path / "p.safetensors")
    monkeypatch.setenv("TVM_SCHED_PARAMETERS", str(tmp_path / "p.safetensors"))
    np.testing.assert_array_equal(module.run(X)[0], 2 * (X + 2))


@pytest.mark.parametrize("writer", [save_file, lambda data, path: write_parameters(path, data)])
def test_every_dtype(tmp_path, writer):
    builder = PlanBuilder()
    values = {}
    for dtype in DTYPES:
        for shape in ([16], [3, 5], []):
            name = f"{dtype}{shape}"
            values[name] = np.random.default_rng(1).integers(0, 2, shape or None) * np.ones(shape)
            values[name] = np.asarray(values[name]).astype(dtype)
            builder.copy(builder.parameter(name, shape, dtype), builder.output(shape, dtype))
    writer(values, tmp_path / "p.safetensors")
    module = builder.module()
    assert module.load_parameters(tmp_path / "p.safetensors") == len(values)
    for name, result in zip(values, module.run(), strict=True):
        np.testing.assert_array_equal(result, values[name])
        assert result.dtype == values[name].dtype


def test_order_and_alignment(tmp_path):
    """Multiples of 256 bytes first, then of 64; each in the order that was given, others by name."""
    sizes = {"e": 256, "d": 512, "c": 256, "b": 64, "a": 192, "odd": 3, "z": 128, "x": 1024}
    write_parameters(
        tmp_path / "p.safetensors", {k: np.zeros(n, "uint8") for k, n in sizes.items()}, ["d", "odd", "x", "z"]
    )
    data = (tmp_path / "p.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    offsets = {name: 8 + length + entry["data_offsets"][0] for name, entry in header.items() if name != "__metadata__"}
    assert sorted(offsets, key=offsets.__getitem__) == ["d", "x", "c", "e", "z", "a", "b", "odd"]
    assert [offsets[name] % 256 for name in ("d", "x", "c", "e")] == [0] * 4
    assert [offsets[name] % 64 for name in ("z", "a", "b")] == [0] * 3


def test_bfloat16(tmp_path):
    values = np.linspace(-3, 3, 32).astype(ml_dtypes.bfloat16)
    write_parameters(tmp_path / "p.safetensors", {"w": values})
    builder = PlanBuilder()
    builder.copy(builder.parameter("w", [32], "bfloat16"), builder.output([32], "bfloat16"))
    module = builder.module()
    module.load_parameters(tmp_path / "p.safetensors")
    np.testing.assert_array_equal(module.run()[0], values)


def test_written_file_is_read_by_safetensors_too(tmp_path):
    values = {"a": np.arange(5, dtype="int64"), "b": np.ones((4, 16), "float32"), "c": np.float64(3).reshape(())}
    write_parameters(tmp_path / "p.safetensors", values)
    read = load_file(tmp_path / "p.safetensors")
    assert read.keys() == values.keys()
    for name, value in values.items():
        np.testing.assert_array_equal(read[name], value)


def test_wrong_files(tmp_path):
    module = add_and_double().module()
    path = tmp_path / "p.safetensors"
    with pytest.raises(InputError, match="No such file"):
        module.load_parameters(path)
    save_file({"v": ONES}, path)
    with pytest.raises(InputError, match='parameters of the module are not in it: "w"'):
        module.load_parameters(path)
    save_file({"w": np.ones(4)}, path)
    with pytest.raises(InputError, match=r'parameter "w" is float64\[4\], expected float32\[4\]'):
        module.load_parameters(path)
    save_file({"w": ONES}, path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"p.safetensors: header.w"):
        module.load_parameters(path)
    assert not module.parameters()[0]["loaded"]


def test_a_wrong_shape(tmp_path):
    module = add_and_double().module()
    path = tmp_path / "p.safetensors"
    save_file({"w": np.ones((2, 2), "float32")}, path)
    with pytest.raises(InputError, match=r'parameter "w" is float32\[2, 2\], expected float32\[4\]'):
        module.load_parameters(path)
    with pytest.raises(InputError, match=r'parameter "w" is float32\[5\], expected float32\[4\]'):
        module.set_parameter("w", np.ones(5, "float32"))
    module.set_parameter("w", ONES)
    np.testing.assert_array_equal(module.run(ONES)[0], 4 * ONES)


def test_dtypes_without_a_name_are_refused(tmp_path):
    with pytest.raises(ValueError, match="parameter 'w' is complex64"):
        write_parameters(tmp_path / "p.safetensors", {"w": np.ones(2, "complex64")})
    assert not list(tmp_path.iterdir())


def test_each_changed_byte_is_found(tmp_path):
    file = tmp_path / "p.safetensors"
    write_parameters(file, {"w": 2 * ONES, "b": np.arange(3, dtype="int8")})
    assert verify_parameters(file)
    whole = file.read_bytes()
    key = range(whole.index(b'{"__metadata__'), whole.index(b'"tvm_sched.crc32c":"') + 20)
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :])
        if place in key and not verified_or_refused(file):
            continue  # a file whose checksum has another name has none
        with pytest.raises(InputError, match=r"p.safetensors: was altered after it was written"):
            verify_parameters(file)


def verified_or_refused(file):
    try:
        return verify_parameters(file)
    except InputError:
        return True


@pytest.mark.parametrize("writer", [lambda path: save_file({"w": 2 * ONES}, path), lambda path: path.write_bytes(b"")])
def test_a_file_without_a_checksum_cannot_be_verified(tmp_path, writer):
    writer(tmp_path / "p.safetensors")
    assert not verify_parameters(tmp_path / "p.safetensors")
    with pytest.raises(InputError, match="cannot be read"):
        verify_parameters(tmp_path / "none.safetensors")
