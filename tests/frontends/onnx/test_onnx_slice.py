"""Slice against ONNX Runtime, with bounds outside of the tensor and steps backwards."""

from __future__ import annotations

import numpy as np
import pytest

from .single_node import run_both


@pytest.mark.parametrize(
    ("start", "end", "axis", "step"),
    [(-1, 0, 0, 1), (1, 9, -1, 2), (3, -9, 2, -1), (-6, -6, 1, -1), (-7, -6, 2, -2), (7, 0, 0, -2), (0, 3, 1, 1)],
)
def test_like_onnx_runtime(start: int, end: int, axis: int, step: int) -> None:
    x = np.arange(60, dtype="float32").reshape(5, 3, 4)
    constants = [np.array([number], "int64") for number in (start, end, axis, step)]
    mine, right, _ = run_both("Slice", [x, *constants], [0])
    np.testing.assert_array_equal(mine[0], right[0])
