"""Positions of extrema: the first of NaN, else the first extremum, and never one beyond the axis."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

import tvm_sched.relax

NAN, INF = np.nan, np.inf
CASES = [("argmax", axis, keep) for axis in (0, 1, -1) for keep in (False, True)]
CASES += [("argmin", axis, not keep) for _, axis, keep in CASES]


@pytest.mark.parametrize("kind", ["float32", "uint8", "float64", "float16", "int8", "int32", "int64"])
@pytest.mark.parametrize("topology", ["cpu1", pytest.param("v100-server", marks=pytest.mark.thorough)])
@pytest.mark.sampled(6)
def test_as_numpy(kind, topology):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 3, (9, 70)).astype(kind)
    limits = np.finfo(kind) if x.dtype.kind == "f" else np.iinfo(kind)
    low, high = (-INF, INF) if x.dtype.kind == "f" else (limits.min, limits.max)
    x[0], x[1], x[2, 5:] = low, high, low
    x[:, 3] = low
    if x.dtype.kind == "f":
        x[4, 7], x[4, 9], x[5], x[6, -1], x[6, 2] = NAN, NAN, NAN, NAN, INF
        x[:, 8] = rng.choice([NAN, INF, 1], 9)
    builder = relax.BlockBuilder()
    variable = relax.Var("x", relax.TensorType(x.shape, kind))
    with builder.function("main", [variable]):
        with builder.dataflow():
            made = [builder.emit(getattr(relax.op, name)(variable, axis, keep)) for name, axis, keep in CASES]
            made = builder.emit_output(relax.Tuple(made))
        builder.emit_func_output(made)
    for found, (name, axis, keep) in zip(
        tvm_sched.relax.compile(builder.get(), topology, "heft", cost_model="roofline").run(x), CASES, strict=True
    ):
        right = getattr(np, name)(x, axis=axis, keepdims=keep)
        assert (found.dtype, found.shape) == (right.dtype, right.shape)
        np.testing.assert_array_equal(found, right, err_msg=f"{name} {axis} {keep}")
