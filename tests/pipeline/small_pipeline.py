"""A small model in three stages on three CPU devices, with a tensor that skips a stage and an output of an early one."""

import numpy as np
import pytest

from onnx_text import onnx_model

SIZE = 8


def layers_model(seed=0):
    """``p = relu(x a)``, ``q = relu(p b)``, ``y = relu(q c) + p``; returns ``y`` and ``p``."""
    rng = np.random.default_rng(seed)
    weights = {name: rng.standard_normal((SIZE, SIZE)).astype(np.float32) for name in "abc"}
    text = f"""(float[2, {SIZE}] x) => (float[2, {SIZE}] y, float[2, {SIZE}] p) {{
        p_ = MatMul(x, a)  p = Relu(p_)  q_ = MatMul(p, b)  q = Relu(q_)
        r_ = MatMul(q, c)  r = Relu(r_)  y = Add(r, p) }}"""
    return onnx_model(text, weights)


def batches(count, seed=1):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((2, SIZE)).astype(np.float32) for _ in range(count)]


def compile_layers(topology="cpu3", **options):
    """The model compiled in stages; on three CPU devices a layer each."""
    pytest.importorskip("tvm", exc_type=ImportError)
    from tvm_sched.relax import compile_pipeline

    options.setdefault("cost_model", "roofline")  # measured latencies of so small layers may join two in a stage
    return compile_pipeline(layers_model(), topology, 3, "equal-split", **options)
