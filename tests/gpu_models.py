"""Small Relax models for tests of GPUs: branches that several devices share, and pictures."""

import numpy as np
from tvm import relax

op = relax.op


def constant(*shape, seed=0):
    return relax.const(np.random.default_rng(seed).standard_normal(shape).astype("float32") / 8)


def model(function, *shapes, dtype="float32"):
    """A Relax module of a function that emits with a builder."""
    inputs = [relax.Var(f"x{k}", relax.TensorType(shape, dtype)) for k, shape in enumerate(shapes)]
    builder = relax.BlockBuilder()
    with builder.function("main", inputs):
        with builder.dataflow():
            result = builder.emit_output(function(builder.emit, *inputs))
        builder.emit_func_output(result)
    return builder.get()


def branches(emit, x):
    """Branches of products, softmax and layer norm that meet."""
    parts = []
    for k in range(4):
        y = emit(op.matmul(x, constant(64, 96, seed=k)))
        y = emit(op.nn.gelu(y) if k % 2 else op.nn.softmax(y))
        parts.append(emit(op.matmul(y, constant(96, 64, seed=10 + k))))
    total = parts[0]
    for part in parts[1:]:
        total = emit(op.add(total, part))
    return op.nn.layer_norm(total, constant(64, seed=20), constant(64, seed=21), axes=[-1])


def image(emit, x):
    """Convolutions of (1, 3, 16, 16) with bias and without, pooling, a classifier."""
    y = emit(op.nn.conv2d(x, constant(16, 3, 3, 3), padding=1))
    y = emit(op.nn.relu(emit(op.add(y, constant(1, 16, 1, 1, seed=2)))))
    z = emit(op.nn.conv2d(y, constant(16, 4, 3, 3, seed=3), groups=4, strides=2, padding=1))
    z = emit(op.nn.max_pool2d(emit(op.nn.relu(z)), (2, 2), strides=(2, 2)))
    flat = emit(op.reshape(z, (1, 16 * 4 * 4)))
    return op.add(op.matmul(flat, constant(16 * 4 * 4, 10, seed=4)), constant(10, seed=5))
