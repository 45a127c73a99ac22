"""Small networks of every family, in PyTorch: what an emulated GPU computes is compared with what PyTorch does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tvm_sched_bench.testing.branched import Branches, ConvBnRelu


class Residual(nn.Module):
    """ResNet's bottleneck with grouped convolutions (ResNeXt)."""

    def __init__(self, inputs: int, inner: int, outputs: int, stride: int, groups: int = 4) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(inputs, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, inner, 3, stride, 1, groups=groups, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Any) -> Any:
        return functional.relu(self.path(x) + self.shortcut(x))


class Inverted(nn.Module):
    """MobileNet-v3's block: depthwise convolution, squeeze and excitation, hard swish."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.expand = nn.Conv2d(channels, inner, 1)
        self.depth = nn.Conv2d(inner, inner, 5, 1, 2, groups=inner)
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(inner, 8, 1), nn.ReLU(), nn.Conv2d(8, inner, 1), nn.Hardsigmoid()
        )
        self.project = nn.Conv2d(inner, channels, 1)

    def forward(self, x: Any) -> Any:
        y = functional.hardswish(self.depth(functional.hardswish(self.expand(x))))
        return x + self.project(y * self.squeeze(y))


class Dense(nn.Module):
    """DenseNet's block and transition."""

    def __init__(self, channels: int, growth: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(channels + k * growth), nn.ReLU(), nn.Conv2d(channels + k * growth, growth, 3, 1, 1)
            )
            for k in range(layers)
        )
        self.transition = nn.Conv2d(channels + layers * growth, 12, 1)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return functional.avg_pool2d(self.transition(x), 2)


class Shuffle(nn.Module):
    """ShuffleNet's unit: grouped convolutions and a shuffle of channels."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.first = nn.Conv2d(channels, channels, 1, groups=groups)
        self.depth = nn.Conv2d(channels, channels, 3, 1, 1, groups=channels)
        self.last = nn.Conv2d(channels, channels, 1, groups=groups)

    def forward(self, x: Any) -> Any:
        y = functional.relu(self.first(x))
        n, c, h, w = y.shape
        y = y.reshape(n, self.groups, c // self.groups, h, w).transpose(1, 2).reshape(n, c, h, w)
        return functional.relu(x + self.last(self.depth(y)))


class UNet(nn.Module):
    """Down, up by a transposed convolution and by interpolation, and across."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.down = nn.Conv2d(8, 16, 3, 2, 1)
        self.middle = nn.Sequential(nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 16, 3, padding=2, dilation=2))
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.last = nn.Conv2d(24, 4, 3, padding=1)

    def forward(self, x: Any) -> Any:
        a = functional.leaky_relu(self.first(x))
        b = self.middle(self.down(a))
        nearest = functional.interpolate(b[:, :8], scale_factor=2.0, mode="nearest")
        return self.last(torch.cat([a, self.up(b), nearest], 1))


class Attention(nn.Module):
    """Attention with heads that share keys and values, as Llama's, or each its own, as BERT's."""

    def __init__(self, width: int, heads: int, shared: int = 1, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.shared, self.causal = heads, shared, causal
        self.size = width // heads
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.key, self.value = (nn.Linear(width, width // shared) for _ in range(2))

    def forward(self, x: Any, rotate: Callable[[Any], Any] = lambda x: x) -> Any:
        n, length, width = x.shape
        q, k, v = (f(x).reshape(n, length, -1, self.size).transpose(1, 2) for f in (self.query, self.key, self.value))
        k, v = (rotate(k).repeat_interleave(self.shared, 1), v.repeat_interleave(self.shared, 1))
        y = functional.scaled_dot_product_attention(rotate(q), k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(n, length, width))


class Encoder(nn.Module):
    """BERT's layer after its embeddings."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, width), nn.Embedding(24, width)
        self.attention = Attention(width, heads)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.pool = nn.Linear(width, width)

    def forward(self, ids: Any) -> Any:
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        x = self.first(x + self.attention(x))
        x = self.second(x + self.down(functional.gelu(self.up(x))))
        return torch.tanh(self.pool(x[:, 0]))


class Vision(nn.Module):
    """A vision transformer's patches and one layer."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, 17, width))
        self.norm, self.attention = nn.LayerNorm(width), Attention(width, 3)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Any) -> Any:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        x = x + self.attention(self.norm(x))
        x = x + self.down(functional.gelu(self.up(self.norm(x)), approximate="tanh"))
        return torch.softmax(self.head(x[:, 0]), -1)


class Decoder(nn.Module):
    """Llama's layer: RMS norm, rotary positions, grouped heads, SwiGLU."""

    def __init__(self, width: int = 64, length: int = 12) -> None:
        super().__init__()
        self.words = nn.Embedding(60, width)
        self.attention = Attention(width, 4, shared=2, causal=True)
        self.weights = nn.ParameterList(nn.Parameter(1 + 0.1 * torch.randn(width)) for _ in range(2))
        self.gate, self.up, self.down = nn.Linear(width, 96), nn.Linear(width, 96), nn.Linear(96, width)
        angles = torch.arange(length)[:, None] * 10000 ** (-torch.arange(0, 8) / 8)
        self.register_buffer("cosine", torch.cat([angles, angles], 1).cos())
        self.register_buffer("sine", torch.cat([angles, angles], 1).sin())

    def norm(self, x: Any, weight: Any) -> Any:
        full = x.float()
        return weight * (full * torch.rsqrt(full.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)

    def rotate(self, x: Any) -> Any:
        left, right = x.chunk(2, -1)
        return x * self.cosine + torch.cat([-right, left], -1) * self.sine

    def forward(self, ids: Any) -> Any:
        x = self.words(ids)
        x = x + self.attention(self.norm(x, self.weights[0]), self.rotate)
        y = self.norm(x, self.weights[1])
        x = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return x @ self.words.weight.T


class Unrolled(nn.Module):
    """A recurrent cell step after step: each step's products, gates and state are operators."""

    def __init__(self, cell: type[nn.Module], inputs: int = 12, width: int = 24) -> None:
        super().__init__()
        self.cell, self.head, self.width = cell(inputs, width), nn.Linear(width, 5), width

    def forward(self, x: Any) -> Any:
        state = x.new_zeros(x.shape[1], self.width)
        memory = x.new_zeros(x.shape[1], self.width)
        for step in range(x.shape[0]):
            if isinstance(self.cell, nn.LSTMCell):
                state, memory = self.cell(x[step], (state, memory))
            else:
                state = self.cell(x[step], state)
        return self.head(state)


class Temporal(nn.Module):
    """WaveNet's gated convolutions over time."""

    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.ModuleList(nn.Conv1d(8, 8, 2, dilation=2**k) for k in range(3))
        self.gates = nn.ModuleList(nn.Conv1d(8, 8, 2, dilation=2**k) for k in range(3))

    def forward(self, x: Any) -> Any:
        for k, (f, g) in enumerate(zip(self.filters, self.gates, strict=True)):
            padded = functional.pad(x, (2**k, 0))
            x = x + torch.tanh(f(padded)) * torch.sigmoid(g(padded))
        return x


def _inception() -> nn.Module:
    paths = (
        nn.Sequential(ConvBnRelu(3, 8, 1)),
        nn.Sequential(ConvBnRelu(3, 6, 1), ConvBnRelu(6, 8, (1, 7)), ConvBnRelu(8, 8, (7, 1))),
        nn.Sequential(nn.AvgPool2d(3, 1, 1), ConvBnRelu(3, 4, 1)),
        nn.Sequential(nn.MaxPool2d(3, 1, 1), ConvBnRelu(3, 4, 1)),
    )
    return nn.Sequential(Branches(*paths), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(96, 6))


def _vgg() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 24, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(24 * 16, 128), nn.ReLU(), nn.Linear(128, 10), nn.LogSoftmax(-1),
    )  # fmt: skip


@dataclass(frozen=True)
class Network:
    """A module and the shape of its input: token ids below `vocabulary`, else numbers."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    vocabulary: int = 0


NETWORKS = {
    "vgg": Network(_vgg, (1, 3, 16, 16)),
    "resnext": Network(lambda: nn.Sequential(Residual(3, 8, 16, 1), Residual(16, 16, 32, 2)), (1, 3, 12, 12)),
    "inception": Network(_inception, (1, 3, 10, 10)),
    "mobilenet": Network(lambda: nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), Inverted(8, 24)), (1, 3, 16, 16)),
    "densenet": Network(lambda: Dense(8, 4, 3), (2, 8, 8, 8)),
    "shufflenet": Network(lambda: Shuffle(12, 3), (1, 12, 8, 8)),
    "unet": Network(UNet, (1, 3, 12, 12)),
    "wavenet": Network(Temporal, (1, 8, 24)),
    "bert": Network(Encoder, (1, 10), 50),
    "vit": Network(Vision, (1, 3, 16, 16)),
    "llama": Network(Decoder, (1, 12), 60),
    "lstm": Network(lambda: Unrolled(nn.LSTMCell), (4, 2, 12)),
    "gru": Network(lambda: Unrolled(nn.GRUCell), (4, 2, 12)),
}
TYPES = {"float32": (torch.float32, 2e-5), "float16": (torch.float16, 1e-2), "bfloat16": (torch.bfloat16, 6e-2)}
"""Element types, and how far a result may be from PyTorch's in float32, over the largest magnitude."""


@dataclass(frozen=True)
class Case:
    """An exported network, an input, and PyTorch's answer: that of the same rounded weights in float32."""

    model: Any
    x: torch.Tensor
    expected: torch.Tensor
    tolerance: float

    def difference(self, found: torch.Tensor) -> float:
        """Largest difference over the largest magnitude; infinite where a value is not finite."""
        assert found.shape == self.expected.shape
        if not bool(torch.isfinite(found).all()):
            return float("inf")
        return float((found.float() - self.expected).abs().max() / self.expected.abs().max())


def case(name: str, dtype: str, seed: int = 0) -> Case:
    """A network of `NETWORKS` with random weights in an element type of `TYPES`."""
    network, (kind, tolerance) = NETWORKS[name], TYPES[dtype]
    torch.manual_seed(seed)
    module = network.make().eval().to(kind)
    x = torch.randint(network.vocabulary, network.shape) if network.vocabulary else torch.randn(network.shape).to(kind)
    with torch.no_grad():
        model = torch.export.export(module, (x,))
        # A copy, since the exported model has the module's own parameters.
        expected = copy.deepcopy(module).float()(x if network.vocabulary else x.float())
    return Case(model, x, expected, tolerance)
