"""Constants of all sizes keep type and value."""

from __future__ import annotations

import numpy as np
import pytest

from .single_node import run_both


@pytest.mark.parametrize("count", [3, 3000])
@pytest.mark.parametrize("dtype", ["int64", "float64"])
def test_constants_keep_their_type(dtype: str, count: int) -> None:
    """Above a KiB they come another way, on which TVM made int32 of int64 and float32 of float64."""
    constant = (np.arange(count) * 3 + 2**40 if dtype == "int64" else 1 / (np.arange(count) + 3.0)).astype(dtype)
    mine, right, _ = run_both("Add", [np.ones((2, 1), dtype), constant], [0])
    assert mine[0].dtype == dtype
    np.testing.assert_array_equal(mine[0], right[0])
