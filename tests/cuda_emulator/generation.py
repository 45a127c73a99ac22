"""A small Llama that generates: its caches of keys and values are inputs, and what they become are results."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Layer(nn.Module):
    """RMS norm, rotary positions, heads that share keys, SwiGLU; keys and values go into caches of a fixed length."""

    def __init__(self, width: int, heads: int, shared: int, inner: int) -> None:
        super().__init__()
        self.heads, self.shared, self.size = heads, shared, width // heads
        self.query, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(width, width // shared, bias=False) for _ in range(2))
        self.weights = nn.ParameterList(nn.Parameter(1 + 0.1 * torch.randn(width)) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    @staticmethod
    def norm(x: Any, weight: Any) -> Any:
        full = x.float()
        return weight * (full * torch.rsqrt(full.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)

    @staticmethod
    def rotate(x: Any, cosine: Any, sine: Any) -> Any:
        left, right = x.chunk(2, -1)
        return x * cosine + torch.cat([-right, left], -1) * sine

    def forward(self, x: Any, places: Any, mask: Any, turns: Any, keys: Any, values: Any) -> Any:
        n, length, width = x.shape
        y = self.norm(x, self.weights[0])
        q, k, v = (f(y).reshape(n, length, -1, self.size).transpose(1, 2) for f in (self.query, self.key, self.value))
        q, k = self.rotate(q, *turns), self.rotate(k, *turns)
        rows = places[None, None, :, None].expand(k.shape)
        keys, values = keys.scatter(2, rows, k), values.scatter(2, rows, v)
        all_keys, all_values = (t.repeat_interleave(self.shared, 1) for t in (keys, values))
        y = functional.scaled_dot_product_attention(q, all_keys, all_values, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(n, length, width))
        y = self.norm(x, self.weights[1])
        return x + self.down(functional.silu(self.gate(y)) * self.up(y)), keys, values


class Generator(nn.Module):
    """Logits of the last token, and the caches: ``(ids, position, keys0, values0, keys1, ...)``."""

    def __init__(self, room: int, layers: int = 2, width: int = 64, heads: int = 4, shared: int = 2) -> None:
        super().__init__()
        self.room, self.shape = room, (1, heads // shared, room, width // heads)
        self.words = nn.Embedding(60, width)
        self.layers = nn.ModuleList(Layer(width, heads, shared, 96) for _ in range(layers))
        size = width // heads
        angles = torch.arange(room)[:, None] * 10000 ** (-torch.arange(0, size // 2) / (size // 2))
        self.register_buffer("cosine", torch.cat([angles, angles], 1).cos())
        self.register_buffer("sine", torch.cat([angles, angles], 1).sin())

    def forward(self, ids: Any, position: Any, *caches: Any) -> Any:
        places = position + torch.arange(ids.shape[1])
        mask = torch.arange(self.room)[None, :] <= places[:, None]
        turns = self.cosine[places], self.sine[places]
        x, after = self.words(ids), []
        for k, layer in enumerate(self.layers):
            x, *both = layer(x, places, mask, turns, *caches[2 * k : 2 * k + 2])
            after += both
        return x[:, -1] @ self.words.weight.T, *after

    def empty(self, dtype: torch.dtype) -> list[torch.Tensor]:
        """Caches before the first token."""
        return [torch.zeros(self.shape, dtype=dtype) for _ in range(2 * len(self.layers))]
