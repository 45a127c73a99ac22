"""Seeded random networks: what `tvm-sched profile kernels` measures, so that a cost model learns more than a few models.

They are made of the layers that real networks are made of, in sizes that real networks do not have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.op import add, concat, matmul, mean, permute_dims, reshape
from tvm.relax.op import multiply as times
from tvm.relax.op.nn import (
    avg_pool2d,
    batch_norm,
    conv2d,
    gelu,
    gelu_tanh,
    layer_norm,
    max_pool2d,
    relu,
    rms_norm,
    silu,
    softmax,
)


def random_networks(count: int = 24, seed: int = 0) -> dict[str, tvm.IRModule]:
    """Random networks by name, two convolutional ones for each transformer."""
    result = {}
    for n in range(count):
        rng = np.random.default_rng([seed, n])
        kind, make = ("transformer", _transformer) if n % 3 == 2 else ("convolutional", _convolutional)
        result[f"{kind}{n}"] = make(_Network(rng))
    return result


class _Network:
    """A function that grows."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.builder = relax.BlockBuilder()

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def emit(self, expr: relax.Expr) -> relax.Var:
        return self.builder.emit(expr)

    def weights(self, *shape: int) -> relax.Constant:
        return relax.const((self.rng.standard_normal(shape) * 0.05).astype(np.float32))

    def module(self, shape: tuple[int, ...], body: Callable[[relax.Var], relax.Expr]) -> tvm.IRModule:
        data = relax.Var("data", relax.TensorType(shape, "float32"))
        with self.builder.function("main", [data]):
            with self.builder.dataflow():
                result = self.builder.emit_output(body(data))
            self.builder.emit_func_output(result)
        return self.builder.get()


def _shape(value: relax.Expr) -> list[int]:
    return [int(size) for size in value.ty.shape.values]


def _convolutional(net: _Network) -> tvm.IRModule:
    def body(x: relax.Var) -> relax.Expr:
        x = _convolve(net, x, net.pick(16, 32, 48, 64, 96), net.pick(3, 5, 7), stride=2)
        for _ in range(net.pick(3, 4)):
            if _shape(x)[2] > 6:
                pool = net.pick(max_pool2d, max_pool2d, avg_pool2d)
                x = net.emit(pool(x, pool_size=(net.pick(2, 3),) * 2, strides=(2, 2), padding=(0, 0, 0, 0)))
            for _ in range(net.pick(2, 3)):
                x = net.pick(_plain, _residual, _branches, _separable, _separable, _dense)(net, x)
        x = net.emit(mean(x, axis=[2, 3]))
        x = net.emit(matmul(x, net.weights(_shape(x)[1], net.pick(10, 100, 1000))))
        return net.emit(softmax(net.emit(add(x, net.weights(_shape(x)[1])))))

    return net.module((1, 3, *(net.pick(96, 128, 160, 192, 224, 256, 299),) * 2), body)


def _convolve(
    net: _Network, x: relax.Var, out: int, size: int, stride: int = 1, groups: int = 1, act: bool = True
) -> Any:
    channels = _shape(x)[1]
    weight = net.weights(out, channels // groups, size, size)
    x = net.emit(conv2d(x, weight, strides=stride, padding=size // 2, groups=groups))
    x = net.emit(add(x, net.weights(1, out, 1, 1)))
    return net.emit(relu(x)) if act else x


def _width(net: _Network, x: relax.Var) -> int:
    side = _shape(x)[2]
    return int(net.pick(32, 64, 96, 128) if side > 40 else net.pick(64, 96, 128, 192, 256, 320, 512))


def _plain(net: _Network, x: relax.Var) -> relax.Var:
    return _convolve(net, x, _width(net, x), net.pick(1, 3, 3, 5))


def _residual(net: _Network, x: relax.Var) -> relax.Var:
    channels = _shape(x)[1]
    y = _convolve(net, x, max(channels // net.pick(1, 2, 4), 8), net.pick(1, 3))
    y = _convolve(net, y, channels, 3, act=False)
    return net.emit(relu(net.emit(add(y, x))))


def _branches(net: _Network, x: relax.Var) -> relax.Var:
    parts = [_convolve(net, x, net.pick(16, 32, 64, 96), 1)]
    for size in (3, net.pick(3, 5)):
        parts.append(_convolve(net, _convolve(net, x, net.pick(16, 32, 64, 96), 1), net.pick(32, 64, 128), size))
    return net.emit(concat(parts, axis=1))


def _separable(net: _Network, x: relax.Var) -> relax.Var:
    channels = _shape(x)[1]
    y = _convolve(net, x, channels, net.pick(3, 5), groups=channels, act=net.pick(True, False))
    groups = net.pick(1, 2, 4, 8)
    y = _convolve(net, y, _width(net, x), 1, groups=groups if channels % groups == 0 else 1)
    if groups > 1 and channels % groups == 0:
        n, c, h, w = _shape(y)
        y = net.emit(reshape(y, (n, groups, c // groups, h, w)))
        y = net.emit(reshape(net.emit(permute_dims(y, [0, 2, 1, 3, 4])), (n, c, h, w)))
    return y


def _dense(net: _Network, x: relax.Var) -> relax.Var:
    channels = _shape(x)[1]
    positive = relax.const(np.abs(net.rng.standard_normal(channels)).astype(np.float32) + 0.5)
    normal = batch_norm(x, net.weights(channels), net.weights(channels), net.weights(channels), positive, axis=1)
    y = net.emit(relu(net.emit(relax.TupleGetItem(net.emit(normal), 0))))
    y = _convolve(net, y, net.pick(24, 32, 48), 3)
    return net.emit(concat([x, y], axis=1))


def _transformer(net: _Network) -> tvm.IRModule:
    heads, head, tokens = net.pick(2, 4, 8, 12), net.pick(16, 32, 64), net.pick(8, 16, 32, 64, 128, 197)
    width, gated, approximate, masked = heads * head, *(net.pick(True, False) for _ in range(3))

    def project(x: relax.Var, n: int) -> relax.Var:
        return net.emit(add(net.emit(matmul(x, net.weights(_shape(x)[-1], n))), net.weights(n)))

    def split(x: relax.Var, axes: list[int]) -> relax.Var:
        return net.emit(permute_dims(net.emit(reshape(x, (1, tokens, heads, head))), axes))

    def norm(x: relax.Var) -> relax.Var:
        if gated:
            return net.emit(rms_norm(x, net.weights(width), axes=[-1]))
        return net.emit(layer_norm(x, net.weights(width), net.weights(width), axes=[-1]))

    def expand(x: relax.Var) -> relax.Var:
        hidden = net.pick(2, 3, 4) * width
        if gated:
            return net.emit(times(net.emit(silu(project(x, hidden))), project(x, hidden)))
        x = project(x, hidden)
        return net.emit(gelu_tanh(x) if approximate else gelu(x))

    def layer(x: relax.Var) -> relax.Var:
        q, k, v = (project(x, width) for _ in range(3))
        scores = net.emit(matmul(split(q, [0, 2, 1, 3]), split(k, [0, 2, 3, 1])))
        if masked:
            scores = net.emit(add(scores, net.weights(1, 1, tokens, tokens)))
        scores = net.emit(softmax(net.emit(times(scores, relax.const(np.float32(head**-0.5))))))
        mixed = net.emit(permute_dims(net.emit(matmul(scores, split(v, [0, 2, 1, 3]))), [0, 2, 1, 3]))
        x = norm(net.emit(add(project(net.emit(reshape(mixed, (1, tokens, width))), width), x)))
        return norm(net.emit(add(project(expand(x), width), x)))

    def body(x: relax.Var) -> relax.Expr:
        for _ in range(2):
            x = layer(x)
        return x

    return net.module((1, tokens, width), body)
