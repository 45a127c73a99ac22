"""Random Relax modules and what they compute, in NumPy: odd graphs for the way from schedule to values."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
from tvm import relax

SHAPE = (4, 6)


def random_module(seed: int, operators: int) -> tuple[Any, list[np.ndarray], list[np.ndarray]]:
    """A module, inputs for it, and the outputs that NumPy computes from them.

    Several sources and sinks, tensors read many times, operators of two outputs, float, integer and boolean tensors,
    constants, outputs that are inputs.
    """
    random = Random(seed)
    values = np.random.default_rng(seed)
    builder = relax.BlockBuilder()
    inputs = [values.standard_normal(SHAPE).astype("float32") for _ in range(random.randint(1, 3))]
    variables = [relax.Var(f"x{i}", relax.TensorType(SHAPE, "float32")) for i in range(len(inputs))]
    known: list[tuple[Any, np.ndarray]] = list(zip(variables, inputs, strict=True))
    with builder.function("main", variables):
        with builder.dataflow():
            for _ in range(operators):
                known += _step(builder, random, values, known)
            picked = random.sample(known, min(len(known), random.randint(1, 4)))
            # What nothing reads would be removed as dead; return the last one, too, so that something runs.
            outputs = [known[-1], *picked]
            result = builder.emit_output(relax.Tuple([expr for expr, _ in outputs]))
        builder.emit_func_output(result)
    return builder.finalize(), inputs, [value for _, value in outputs]


def _step(
    builder: Any, random: Random, values: Any, known: list[tuple[Any, np.ndarray]]
) -> list[tuple[Any, np.ndarray]]:
    floats = [pair for pair in known if pair[1].dtype == np.float32]
    (a, x), (b, y) = random.choice(floats), random.choice(floats)
    kind = random.choice(["add", "multiply", "tanh", "matmul", "split", "integer", "boolean", "constant", "sum"])
    if kind == "add":
        return [(builder.emit(relax.op.add(a, b)), x + y)]
    if kind == "multiply":
        return [(builder.emit(relax.op.multiply(a, b)), x * y)]
    if kind == "tanh":
        return [(builder.emit(relax.op.tanh(a)), np.tanh(x))]
    if kind == "matmul":
        weight = values.standard_normal((SHAPE[1], SHAPE[1])).astype("float32") / 3
        return [(builder.emit(relax.op.matmul(a, relax.const(weight))), x @ weight)]
    if kind == "split":
        halves = builder.emit(relax.op.split(a, 2, axis=1))
        left, right = np.split(x, 2, axis=1)
        joined = builder.emit(relax.op.concat([builder.emit(halves[1]), builder.emit(halves[0])], axis=1))
        return [(joined, np.concatenate([right, left], axis=1))]
    if kind == "integer":
        found = builder.emit(relax.op.argmax(a, axis=1, keepdims=True))
        back = builder.emit(relax.op.astype(found, "float32"))
        index = x.argmax(axis=1, keepdims=True)
        return [(found, index), (builder.emit(relax.op.add(a, back)), x + index.astype("float32"))]
    if kind == "boolean":
        less = builder.emit(relax.op.less(a, b))
        return [(less, x < y), (builder.emit(relax.op.where(less, b, a)), np.where(x < y, y, x))]
    if kind == "constant":
        constant = values.standard_normal(SHAPE).astype("float32")
        return [(builder.emit(relax.op.subtract(a, relax.const(constant))), x - constant)]
    total = builder.emit(relax.op.sum(a, axis=0, keepdims=True))
    return [(builder.emit(relax.op.add(b, total)), y + x.sum(axis=0, keepdims=True))]
