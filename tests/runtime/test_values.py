"""Inputs from files that are not what their names say."""

import numpy as np
import pytest

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.runtime.values import choose_inputs, read_inputs


def test_an_array_without_a_name_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(3))
    (tmp_path / "x.npy").rename(tmp_path / "x.npz")
    with pytest.raises(InputError, match=r"holds one array without a name; give NAME=.*x\.npz"):
        read_inputs([str(tmp_path / "x.npz")])
    assert read_inputs([f"x={tmp_path / 'x.npz'}"])["x"].shape == (3,)


def test_a_damaged_archive_is_refused(tmp_path):
    file = tmp_path / "x.npz"
    np.savez_compressed(file, x=np.arange(10_000))
    content = bytearray(file.read_bytes())
    begin = 30 + content[26] + 256 * content[27] + content[28] + 256 * content[29]  # behind the header of the member
    content[begin] = 0xFF  # a kind of block that there is not
    file.write_bytes(content)
    with pytest.raises(InputError, match="cannot be read as NumPy arrays"):
        read_inputs([str(file)])


def test_a_compression_that_nobody_knows_is_refused(tmp_path):
    file = tmp_path / "x.npz"
    np.savez(file, x=np.arange(10))
    content = bytearray(file.read_bytes())
    content[8] = content[content.index(b"PK\x01\x02") + 10] = 77  # the method, in both of its places
    file.write_bytes(content)
    with pytest.raises(InputError, match="cannot be read as NumPy arrays"):
        read_inputs([str(file)])


def test_half_an_archive_is_no_array(tmp_path):
    file = tmp_path / "x.npy"
    file.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(InputError, match="cannot be read as a NumPy array"):
        read_inputs([f"x={file}"])


def test_names_and_files_with_an_equals_sign(tmp_path):
    for name in ("x", "a=b"):
        for folder in ("plain", "x=1"):
            (tmp_path / folder).mkdir(exist_ok=True)
            np.save(tmp_path / folder / "v.npy", np.zeros(3))
            assert list(read_inputs([f"{name}={tmp_path / folder / 'v.npy'}"])) == [name]


def test_random_inputs_of_open_sizes_agree():
    def inputs(*shapes):
        return [{"name": name, "shape": shape, "dtype": "float32"} for name, shape in zip("xy", shapes, strict=True)]

    template = {
        "symbols": [{"name": "n"}, {"name": "m"}],
        "arguments": inputs(["n", 4], [["+", ["-", "n", 5], 5], "m"]),
    }
    plans = [{"arguments": inputs([2, 4], [2, 7])}, {"arguments": inputs([3, 4], [3, 8])}]

    def shapes(given=(), **sizes):
        return [value.shape for value in choose_inputs(plans, dict(given), 0, template, sizes)]

    assert shapes() == [(2, 4), (2, 7)]
    assert shapes(n=3) == [(3, 4), (3, 8)]  # a plan has it
    assert shapes(n=4) == [(4, 4), (4, 7)]
    assert shapes(n=0, m=0) == [(0, 4), (0, 0)]
    assert shapes(y=(3, 5)) == [(2, 4), (3, 5)]  # the module refuses it: y's first size is computed
    assert shapes({"x": np.zeros((6, 4), "float32")}, m=1) == [(6, 4), (6, 1)]
    with pytest.raises(InputError, match="--shape k: the artifact has no such open dimension; it has n, m"):
        shapes(k=3)
    with pytest.raises(InputError, match=r"takes no inputs x: \[9, 4\]; allowed are"):
        choose_inputs(plans, {}, 0, None, {"x": (9, 4)})
