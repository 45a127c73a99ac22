"""Inputs from files that are not what their names say."""

import numpy as np
import pytest

from tvm_sched.errors import InputError
from tvm_sched.runtime.values import read_inputs


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
