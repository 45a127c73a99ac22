"""Make seeded random networks, which `tvm-sched profile kernels` measures to train cost models.

They consist of layers of real networks, in sizes that real networks do not have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op
from tvm.relax.op import add, concat, matmul, mean, permute_dims, reshape, split, where
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

from ..ir.tensor_types import known_shape


def random_networks(count: int = 24, seed: int = 0, first: int = 0) -> dict[str, tvm.IRModule]:
    """Make ``count`` random networks from number ``first`` on, by name: convolutional, transformer, element-wise."""
    kinds = {"convolutional": _convolutional, "transformer": _transformer, "elementwise": _elementwise}
    order = ("convolutional", "transformer", "convolutional", "transformer", "elementwise")
    result = {}
    for n in range(first, first + count):
        kind = order[n % len(order)]
        result[f"{kind}{n}"] = kinds[kind](Network(np.random.default_rng([seed, n])))
    return result


class Network:
    """The builder of one network."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.builder = relax.BlockBuilder()

    def pick(self, *choices: Any) -> Any:
        """Return one of the choices."""
        return choices[int(self.rng.integers(len(choices)))]

    def emit(self, expr: relax.Expr) -> relax.Var:
        """Emit an expression."""
        return self.builder.emit(expr)

    def weights(self, *shape: int, scale: float = 0.05) -> relax.Constant:
        """Make a constant of normal random numbers."""
        return relax.const((self.rng.standard_normal(shape) * scale).astype(np.float32))

    def module(self, shape: tuple[int, ...], body: Callable[[relax.Var], relax.Expr]) -> tvm.IRModule:
        """Make a module whose ``main`` takes one tensor."""
        data = relax.Var("data", relax.TensorType(shape, "float32"))
        with self.builder.function("main", [data]):
            with self.builder.dataflow():
                result = self.builder.emit_output(body(data))
            self.builder.emit_func_output(result)
        return self.builder.get()


def _convolutional(net: Network) -> tvm.IRModule:
    def body(x: relax.Var) -> relax.Expr:
        x = convolve(net, x, net.pick(16, 32, 48, 64, 96), net.pick(3, 5, 7), stride=2)
        for _ in range(net.pick(3, 4)):
            if known_shape(x)[2] > 6:
                pool = net.pick(max_pool2d, max_pool2d, avg_pool2d)
                x = net.emit(pool(x, pool_size=(net.pick(2, 3),) * 2, strides=(2, 2), padding=(0, 0, 0, 0)))
            for _ in range(net.pick(2, 3)):
                x = net.pick(_plain, _residual, _branches, _separable, _separable, _dense)(net, x)
        x = net.emit(mean(x, axis=[2, 3]))
        x = net.emit(matmul(x, net.weights(known_shape(x)[1], net.pick(10, 100, 1000))))
        return net.emit(softmax(net.emit(add(x, net.weights(known_shape(x)[1])))))

    return net.module((1, 3, *(net.pick(96, 128, 160, 192, 224, 256, 299),) * 2), body)


def convolve(
    net: Network, x: relax.Var, out: int, size: int, stride: int = 1, groups: int = 1, act: bool = True
) -> Any:
    """Emit a convolution whose weights keep the values' scale (He et al. 2015): values below 1e-38 are many times slower."""
    channels = known_shape(x)[1]
    scale = (2 / (channels // groups * size * size)) ** 0.5
    weight = net.weights(out, channels // groups, size, size, scale=scale)
    x = net.emit(conv2d(x, weight, strides=stride, padding=size // 2, groups=groups))
    x = net.emit(add(x, net.weights(1, out, 1, 1)))
    return net.emit(relu(x)) if act else x


def _width(net: Network, x: relax.Var) -> int:
    side = known_shape(x)[2]
    return int(net.pick(32, 64, 96, 128) if side > 40 else net.pick(64, 96, 128, 192, 256, 320, 512))


def _plain(net: Network, x: relax.Var) -> relax.Var:
    return convolve(net, x, _width(net, x), net.pick(1, 3, 3, 5))


def _residual(net: Network, x: relax.Var) -> relax.Var:
    channels = known_shape(x)[1]
    y = convolve(net, x, max(channels // net.pick(1, 2, 4), 8), net.pick(1, 3))
    y = convolve(net, y, channels, 3, act=False)
    return net.emit(relu(net.emit(add(y, x))))


def _branches(net: Network, x: relax.Var) -> relax.Var:
    parts = [convolve(net, x, net.pick(16, 32, 64, 96), 1)]
    for size in (3, net.pick(3, 5)):
        parts.append(convolve(net, convolve(net, x, net.pick(16, 32, 64, 96), 1), net.pick(32, 64, 128), size))
    return net.emit(concat(parts, axis=1))


def _separable(net: Network, x: relax.Var) -> relax.Var:
    channels = known_shape(x)[1]
    y = convolve(net, x, channels, net.pick(3, 5), groups=channels, act=net.pick(True, False))
    groups = net.pick(1, 2, 4, 8)
    y = convolve(net, y, _width(net, x), 1, groups=groups if channels % groups == 0 else 1)
    if groups > 1 and channels % groups == 0:
        n, c, h, w = known_shape(y)
        y = net.emit(reshape(y, (n, groups, c // groups, h, w)))
        y = net.emit(reshape(net.emit(permute_dims(y, [0, 2, 1, 3, 4])), (n, c, h, w)))
    return y


def _dense(net: Network, x: relax.Var) -> relax.Var:
    channels = known_shape(x)[1]
    positive = relax.const(np.abs(net.rng.standard_normal(channels)).astype(np.float32) + 0.5)
    normal = batch_norm(x, net.weights(channels), net.weights(channels), net.weights(channels), positive, axis=1)
    y = net.emit(relu(net.emit(relax.TupleGetItem(net.emit(normal), 0))))
    y = convolve(net, y, net.pick(24, 32, 48), 3)
    return net.emit(concat([x, y], axis=1))


@dataclass(frozen=True)
class Attention:
    """The sizes of a transformer, and its form, which differs among frameworks."""

    heads: int
    head: int
    tokens: int
    norm: str
    activation: str
    mask: str
    rotary: bool
    joined: bool
    layers: int

    @staticmethod
    def random(net: Network) -> Attention:
        """Choose sizes and form at random."""
        return Attention(
            heads=net.pick(2, 4, 8, 12), head=net.pick(16, 32, 64), tokens=net.pick(1, 4, 8, 16, 24, 32, 64, 128, 197),
            norm=net.pick("layer", "root mean square", "root mean square in parts"),
            activation=net.pick("gelu", "tanh", "tanh in parts", "silu", "sigmoid in parts", "relu"),
            mask=net.pick("none", "added", "chosen", "guarded"), rotary=net.pick(True, False),
            joined=net.pick(True, False), layers=net.pick(1, 2, 3, 6),
        )  # fmt: skip

    @property
    def width(self) -> int:
        """Numbers of a token: those of all heads."""
        return self.heads * self.head


def _transformer(net: Network) -> tvm.IRModule:
    form = Attention.random(net)

    def body(x: relax.Var) -> relax.Expr:
        turns = _turns(net, form, x) if form.rotary else None
        for _ in range(form.layers):
            x = normalise(net, form, net.emit(add(attend(net, form, x, turns), x)))
            hidden = _activate(net, form, x, net.pick(2, 3, 4) * form.width)
            x = normalise(net, form, net.emit(add(project(net, hidden, form.width), x)))
        return x

    return net.module((1, form.tokens, form.width), body)


def project(net: Network, x: relax.Var, n: int) -> relax.Var:
    """Emit a matrix product with a bias, which makes ``n`` columns."""
    return net.emit(add(net.emit(matmul(x, net.weights(known_shape(x)[-1], n))), net.weights(n)))


def normalise(net: Network, form: Attention, x: relax.Var) -> relax.Var:
    """Emit a norm of the transformer."""
    if form.norm == "layer":
        return net.emit(layer_norm(x, net.weights(form.width), net.weights(form.width), axes=[-1]))
    if form.norm == "root mean square":
        return net.emit(rms_norm(x, net.weights(form.width), axes=[-1]))
    square = net.emit(mean(net.emit(op.power(x, _number(2))), axis=[-1], keepdims=True))
    factor = net.emit(op.rsqrt(net.emit(add(square, _number(1e-6)))))
    return net.emit(times(net.weights(form.width), net.emit(times(x, factor))))


def _activate(net: Network, form: Attention, x: relax.Var, hidden: int) -> relax.Var:
    y = project(net, x, hidden)
    if form.activation == "silu":
        return net.emit(times(net.emit(silu(y)), project(net, x, hidden)))
    if form.activation == "sigmoid in parts":
        gate = net.emit(times(y, net.emit(op.sigmoid(y))))
        return net.emit(times(gate, project(net, x, hidden)))
    if form.activation == "tanh in parts":
        cube = net.emit(times(net.emit(op.power(y, _number(3))), _number(0.044715)))
        inner = net.emit(op.tanh(net.emit(times(net.emit(add(y, cube)), _number(0.79788)))))
        return net.emit(times(net.emit(times(y, _number(0.5))), net.emit(add(inner, _number(1)))))
    return net.emit({"gelu": gelu, "tanh": gelu_tanh, "relu": relu}[form.activation](y))


def attend(net: Network, form: Attention, x: relax.Var, turns: tuple[relax.Var, relax.Var] | None) -> relax.Var:
    """Emit self-attention; ``turns``: cosines and sines of a rotary embedding."""
    if form.joined:
        parts = net.emit(split(project(net, x, 3 * form.width), 3, axis=-1))
        q, k, v = (net.emit(relax.TupleGetItem(parts, i)) for i in range(3))
    else:
        q, k, v = (project(net, x, form.width) for _ in range(3))
    q, k, v = (_by_heads(net, form, each, [0, 2, 1, 3]) for each in (q, k, v))
    if turns:
        q, k = (_turn(net, form, each, *turns) for each in (q, k))
    scores = net.emit(matmul(q, net.emit(permute_dims(k, [0, 1, 3, 2]))))
    scores = net.emit(times(scores, _number(form.head**-0.5)))
    mixed = net.emit(matmul(_mask_and_softmax(net, form, scores), v))
    joined = net.emit(reshape(net.emit(permute_dims(mixed, [0, 2, 1, 3])), (1, form.tokens, form.width)))
    return project(net, joined, form.width)


def _by_heads(net: Network, form: Attention, x: relax.Var, axes: list[int]) -> relax.Var:
    return net.emit(permute_dims(net.emit(reshape(x, (1, form.tokens, form.heads, form.head))), axes))


def _mask_and_softmax(net: Network, form: Attention, scores: relax.Var) -> relax.Var:
    square = (1, 1, form.tokens, form.tokens)
    if form.mask == "added":
        scores = net.emit(add(scores, net.weights(*square)))
    elif form.mask in ("chosen", "guarded"):
        seen = relax.const(np.tril(np.ones(square, dtype=bool)))
        scores = net.emit(add(scores, net.emit(where(seen, _number(0), _number(-np.inf)))))
    weights = net.emit(softmax(scores))
    if form.mask != "guarded":
        return weights
    empty = net.emit(op.logical_not(net.emit(op.equal(scores, _number(-np.inf)))))
    some = net.emit(op.max(net.emit(op.astype(empty, "int8")), axis=[-1], keepdims=True))
    none = net.emit(op.logical_not(net.emit(op.astype(some, "bool"))))
    return net.emit(where(none, net.emit(op.full_like(weights, _number(0))), weights))


def _turns(net: Network, form: Attention, x: relax.Var) -> tuple[relax.Var, relax.Var]:
    """Emit cosines and sines of a rotary embedding; they depend on the input, so every run computes them."""
    angles = net.emit(reshape(_slice(net, x, 0, form.head), (1, 1, form.tokens, form.head)))
    return net.emit(op.cos(angles)), net.emit(op.sin(angles))


def _turn(net: Network, form: Attention, x: relax.Var, cosine: relax.Var, sine: relax.Var) -> relax.Var:
    half = form.head // 2
    swapped = net.emit(concat([net.emit(op.negative(_slice(net, x, half, form.head))), _slice(net, x, 0, half)], -1))
    return net.emit(add(net.emit(times(x, cosine)), net.emit(times(swapped, sine))))


def _slice(net: Network, x: relax.Var, begin: int, end: int) -> relax.Var:
    return net.emit(op.strided_slice(x, [len(known_shape(x)) - 1], [begin], [end]))


def _number(value: float) -> relax.Constant:
    return relax.const(np.float32(value))


def _elementwise(net: Network) -> tvm.IRModule:
    """Make chains of element-wise operations, which the compiler fuses; a softmax ends each chain."""
    rows, columns = net.pick(1, 7, 16, 49, 128, 196, 784), net.pick(48, 64, 192, 256, 512, 768, 1000, 3072)

    def body(x: relax.Var) -> relax.Expr:
        for _ in range(8):
            x = net.emit(softmax(_chain(net, net.pick(_laid_out, lambda _, y: y)(net, x))))
            x = net.emit(reshape(x, (1, rows, columns)))
        return x

    return net.module((1, rows, columns), body)


def _laid_out(net: Network, x: relax.Var) -> relax.Var:
    """Emit a random permutation of the axes."""
    _, rows, columns = known_shape(x)
    groups = net.pick(2, 4, 8)
    y = net.emit(reshape(x, (rows, groups, columns // groups)))
    return net.emit(permute_dims(y, net.pick([1, 0, 2], [1, 2, 0], [0, 2, 1])))


def _chain(net: Network, x: relax.Var) -> relax.Var:
    """Emit up to eight operations on the values of a softmax, scaled to about 1; at most one calls the C library."""
    costly = net.pick(None, op.exp, op.sigmoid, op.tanh, op.erf, op.sqrt, op.sin, op.log, silu, gelu, "power")
    position, count = net.pick(0, 1, 2, 3), net.pick(1, 2, 3, 4, 6, 8)
    x = y = net.emit(times(x, _number(known_shape(x)[-1])))
    for n in range(count):
        if n == min(position, count - 1) and costly is not None:
            y = net.emit(op.power(y, _number(net.pick(2, 3, 1.7))) if costly == "power" else costly(y))
        else:
            y = net.emit(net.pick(*_SIMPLE)(net, y, x))
    return y


_SIMPLE: tuple[Callable[[Network, relax.Var, relax.Var], relax.Expr], ...] = (
    lambda net, y, _: add(y, _number(0.5)),
    lambda net, y, _: times(y, _number(0.7)),
    lambda net, y, _: add(y, net.weights(known_shape(y)[-1])),
    lambda net, y, _: times(y, net.weights(known_shape(y)[-1])),
    lambda net, y, x: add(y, x),
    lambda net, y, x: times(y, x),
    lambda net, y, _: relu(y),
    lambda net, y, _: op.divide(y, _number(1.3)),
    lambda net, y, _: op.maximum(y, _number(0.01)),
    lambda net, y, x: where(net.emit(op.less(y, x)), y, x),
)
