"""Layers in the sizes of real networks: their kernels calibrate the cost model when a processor is first met.

Each layer stands by itself and ends in a mean, so that the compiler makes the same kernels as within a network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.op import add, mean, sigmoid
from tvm.relax.op import multiply as times
from tvm.relax.op.nn import gelu, relu, silu

from tvm_frontends.kernels.recurrent import Cell, Weights, emit_direction, make_activation

from ..ir.tensor_types import known_shape
from .random_networks import Attention, Network, attend, convolve, normalise, project, random_networks

Layer = tuple[tuple[int, ...], Callable[[Network, relax.Var], relax.Expr]]
"""The shape of a layer's input, and the function that emits the layer."""
Shapes = Sequence[tuple[int, ...]]

_ACTIVATIONS: tuple[Callable[[Network, relax.Var], relax.Expr], ...] = (
    lambda net, x: relu(x),
    lambda net, x: silu(x),
    lambda net, x: x,
    lambda net, x: add(x, net.weights(*known_shape(x))),
    lambda net, x: gelu(x),
    lambda net, x: times(x, net.emit(sigmoid(x))),
)

# Side of the image, input and output channels, size of the window; 0 output channels: one filter for each channel.
_CONVOLUTIONS: dict[str, Shapes] = {
    "small images": (
        (14, 256, 256, 3), (14, 112, 672, 1), (14, 672, 0, 5), (14, 672, 112, 1), (14, 512, 128, 1), (14, 96, 24, 3),
        (7, 256, 512, 3), (7, 192, 1152, 1), (7, 1152, 0, 3), (7, 1152, 192, 1), (7, 512, 1024, 1), (1, 96, 24, 1),
    ),
    "large images": (
        (224, 3, 32, 3), (112, 32, 16, 1), (112, 32, 0, 3), (56, 64, 64, 3), (56, 64, 256, 1), (56, 24, 144, 1),
        (56, 144, 0, 3), (56, 144, 24, 1), (28, 128, 128, 3), (28, 256, 64, 1), (28, 192, 0, 5), (28, 32, 192, 1),
    ),
}  # fmt: skip
_PRODUCTS: Shapes = (
    (128, 512, 512), (128, 512, 2048), (128, 2048, 512), (196, 192, 576), (197, 768, 192), (1024, 144, 288), (49, 448, 1344),
    (20, 512, 2048), (100, 256, 1024), (1, 512, 1000), (1, 1024, 4096), (8, 256, 1024), (128, 512, 8000), (32, 128, 512),
)  # fmt: skip
"""Rows, input columns and output columns."""
_RECURRENT: Shapes = ((20, 256, 256), (100, 128, 128), (1, 128, 128))
"""Steps, inputs, and the size of the state."""
_ATTENTION = (
    Attention(8, 64, 128, "layer", "gelu", "none", False, False, 1),
    Attention(4, 32, 512, "root mean square", "silu", "added", False, True, 1),
    Attention(3, 64, 197, "root mean square in parts", "relu", "chosen", False, True, 1),
    Attention(4, 64, 1, "root mean square in parts", "silu", "none", False, False, 1),
)


def typical_layers() -> Iterator[tuple[str, tvm.IRModule]]:
    """Make the networks of layers by name, those with the most frequent kernels first."""
    sets: dict[str, list[Layer]] = {
        "small images": [_convolution(sizes, act) for sizes, act in _with_activation(_CONVOLUTIONS["small images"])],
        "products": [_product(sizes, act) for sizes, act in _with_activation(_PRODUCTS)],
        "large images": [_convolution(sizes, act) for sizes, act in _with_activation(_CONVOLUTIONS["large images"])],
        "attention": [_attention(form) for form in _ATTENTION],
        "recurrent": [_recurrent(sizes) for sizes in _RECURRENT],
    }
    for name, layers in sets.items():
        yield name, _network(layers)
    yield from random_networks(10).items()


def _with_activation(sizes: Shapes) -> Iterator[tuple[tuple[int, ...], Any]]:
    return zip(sizes, cycle(_ACTIVATIONS), strict=False)


def _network(layers: Sequence[Layer]) -> tvm.IRModule:
    """Make a module with an input and a result for each layer."""
    net = Network(np.random.default_rng(0))
    inputs = [relax.Var(f"x{k}", relax.TensorType(shape, "float32")) for k, (shape, _) in enumerate(layers)]
    with net.builder.function("main", inputs):
        with net.builder.dataflow():
            results = [emit(net, x) for x, (_, emit) in zip(inputs, layers, strict=True)]
            result = net.builder.emit_output(relax.Tuple([net.emit(each) for each in results]))
        net.builder.emit_func_output(result)
    return net.builder.get()


def _convolution(sizes: tuple[int, ...], act: Any) -> Layer:
    side, channels, out, size = sizes

    def emit(net: Network, x: relax.Var) -> relax.Expr:
        y = convolve(net, x, out or channels, size, groups=1 if out else channels, act=False)
        return mean(net.emit(act(net, y)), axis=[2, 3])

    return (1, channels, side, side), emit


def _product(sizes: tuple[int, ...], act: Any) -> Layer:
    rows, read, columns = sizes
    return (1, rows, read), lambda net, x: mean(net.emit(act(net, project(net, x, columns))), axis=[1])


def _attention(form: Attention) -> Layer:
    def emit(net: Network, x: relax.Var) -> relax.Expr:
        return mean(normalise(net, form, net.emit(add(attend(net, form, x, None), x))), axis=[1])

    return (1, form.tokens, form.width), emit


def _recurrent(sizes: tuple[int, ...]) -> Layer:
    steps, read, hidden = sizes

    def emit(net: Network, x: relax.Var) -> relax.Expr:
        cell = Cell("lstm", steps, 1, hidden, tuple(map(make_activation, ("Sigmoid", "Tanh", "Tanh"))))
        weights = Weights(net.weights(4 * hidden, read), net.weights(4 * hidden, hidden), net.weights(4 * hidden))
        return mean(emit_direction(net.builder, cell, weights, x)[0], axis=[0])

    return (steps, 1, read), emit
