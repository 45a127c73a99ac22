"""A decoder-only transformer in `tvm.relax.frontend.nn`: its parameters are placeholders that hold no memory."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from tvm import te, tirx
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op

from tvm_sched_runtime.problem.decoder_config import DecoderConfig

_MASKED = -3.4e38
"""Score of a token that comes later: its softmax is 0."""


class Attention(nn.Module):
    """Causal self-attention over ``past`` cached tokens and the new ones.

    Takes and returns shape (batch, tokens, hidden). Also returns the new tokens' keys and values, of shape (batch, key
    heads, tokens, head width). The cache is a pair of parameters.
    """

    def __init__(self, config: DecoderConfig, batch: int, past: int) -> None:
        self.config = config
        width, keys = config.head_width, config.key_heads
        queries = config.heads * width
        if config.joint_qkv:
            self.qkv = nn.Linear(config.hidden, queries + 2 * keys * width, bias=config.bias)
        else:
            self.query = nn.Linear(config.hidden, queries, bias=config.bias)
            self.key = nn.Linear(config.hidden, keys * width, bias=config.bias)
            self.value = nn.Linear(config.hidden, keys * width, bias=config.bias)
        self.output = nn.Linear(queries, config.hidden, bias=config.bias)
        self.past = past
        if past:
            self.cached_keys = nn.Parameter((batch, keys, past, width))
            self.cached_values = nn.Parameter((batch, keys, past, width))

    def forward(self, x: nn.Tensor) -> tuple[nn.Tensor, nn.Tensor, nn.Tensor]:
        """Mixed values, and the new keys and values."""
        config = self.config
        batch, tokens, _ = x.shape
        queries, keys, values = (
            self._heads(part, count, rotate)
            for part, count, rotate in zip(
                self._project(x), (config.heads, config.key_heads, config.key_heads), (True, True, False), strict=True
            )
        )
        all_keys, all_values = keys, values
        if self.past:
            all_keys = op.concat([self.cached_keys, keys], dim=2)
            all_values = op.concat([self.cached_values, values], dim=2)
        mixed = self._attend(queries, all_keys, all_values)
        mixed = op.reshape(op.permute_dims(mixed, [0, 2, 1, 3]), [batch, tokens, config.heads * config.head_width])
        return self.output(mixed), keys, values

    def _project(self, x: nn.Tensor) -> tuple[nn.Tensor, ...]:
        if not self.config.joint_qkv:
            return self.query(x), self.key(x), self.value(x)
        queries, keys = self.config.heads * self.config.head_width, self.config.key_heads * self.config.head_width
        return tuple(op.split(self.qkv(x), [queries, queries + keys], axis=-1))

    def _heads(self, x: nn.Tensor, heads: int, rotate: bool) -> nn.Tensor:
        """(batch, tokens, heads * width) as (batch, heads, tokens, width), rotated by position if requested."""
        batch, tokens, _ = x.shape
        x = op.reshape(x, [batch, tokens, heads, self.config.head_width])
        if rotate and not self.config.positions:
            x = op.tensor_expr_op(self._rotary, "rotary_embedding", [x])
        return op.permute_dims(x, [0, 2, 1, 3])

    def _rotary(self, x: te.Tensor) -> te.Tensor:
        """Rotate the pairs (i, i + width / 2) by position * theta ** (-2 i / width)."""
        half = self.config.head_width // 2
        rate = -2 * math.log(self.config.rope_theta) / self.config.head_width

        def element(b: Any, s: Any, h: Any, d: Any) -> Any:
            turn = (d % half).astype("float32") * tirx.const(rate, "float32")
            angle = (s + self.past).astype("float32") * tirx.exp(turn)
            other = tirx.if_then_else(
                d < half, -x[b, s, h, (d + half) % (2 * half)], x[b, s, h, (d + half) % (2 * half)]
            )
            cos, sin = tirx.cos(angle).astype(x.dtype), tirx.sin(angle).astype(x.dtype)
            return x[b, s, h, d] * cos + other * sin

        return te.compute(x.shape, element, name="rotary")

    def _attend(self, queries: nn.Tensor, keys: nn.Tensor, values: nn.Tensor) -> nn.Tensor:
        """Softmax of masked scores, times values; query heads that share keys are an axis of their own."""
        batch, heads, tokens, width = queries.shape
        shared = heads // self.config.key_heads
        if shared > 1:
            queries = op.reshape(queries, [batch, heads // shared, shared, tokens, width])
            keys, values = op.unsqueeze(keys, 2), op.unsqueeze(values, 2)
        rank = len(keys.shape)
        scores = op.matmul(queries, op.permute_dims(keys, [*range(rank - 2), rank - 1, rank - 2]))
        weights = op.softmax(op.tensor_expr_op(self._mask, "scale_and_mask", [scores]), axis=-1)
        return op.reshape(op.matmul(weights, values), [batch, heads, tokens, width])

    def _mask(self, scores: te.Tensor) -> te.Tensor:
        scale = tirx.const(self.config.head_width**-0.5, scores.dtype)
        masked = tirx.const(_MASKED if scores.dtype == "float32" else -6e4, scores.dtype)
        return te.compute(
            scores.shape,
            lambda *i: tirx.Select(i[-1] <= i[-2] + self.past, scores(*i) * scale, masked),
            name="masked",
        )


class FeedForward(nn.Module):
    """The feed-forward network of a block; takes and returns shape (batch, tokens, hidden)."""

    def __init__(self, config: DecoderConfig) -> None:
        if config.gated:
            self.gate = nn.Linear(config.hidden, config.intermediate, bias=config.bias)
        self.up = nn.Linear(config.hidden, config.intermediate, bias=config.bias)
        self.down = nn.Linear(config.intermediate, config.hidden, bias=config.bias)
        self.gated = config.gated

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """One value for each of ``x``."""
        if self.gated:
            return self.down(op.silu(self.gate(x)) * self.up(x))
        return self.down(op.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    """Attention and feed-forward network, each after a normalisation and with a residual connection."""

    def __init__(self, config: DecoderConfig, batch: int, past: int) -> None:
        self.attention_norm = _norm(config)
        self.attention = Attention(config, batch, past)
        self.feed_forward_norm = _norm(config)
        self.feed_forward = FeedForward(config)

    def forward(self, x: nn.Tensor) -> tuple[nn.Tensor, nn.Tensor, nn.Tensor]:
        """The block's result, and the new keys and values."""
        mixed, keys, values = self.attention(self.attention_norm(x))
        x = x + mixed
        return x + self.feed_forward(self.feed_forward_norm(x)), keys, values


class Decoder(nn.Module):
    """The whole decoder: token numbers of shape (batch, tokens) to logits of shape (batch, tokens, vocab).

    Parameters
    ----------
    config : DecoderConfig
    batch, past : int
        Number of sequences, and cached tokens of each.
    cache : bool
        Whether to return the new tokens' keys and values of each block after the logits.
    """

    def __init__(self, config: DecoderConfig, batch: int, past: int, cache: bool) -> None:
        self.embedding = nn.Embedding(config.vocab, config.hidden)
        if config.positions:
            self.positions = nn.Parameter((config.positions, config.hidden))
        self.blocks = nn.ModuleList([Block(config, batch, past) for _ in range(config.layers)])
        self.norm = _norm(config)
        if not config.tied:
            self.head = nn.Linear(config.hidden, config.vocab, bias=False)
        self.config, self.past, self.cache = config, past, cache

    def forward(self, input_ids: nn.Tensor) -> Any:
        """Logits, and the cache if requested."""
        x = self.embedding(input_ids)
        if self.config.positions:
            x = x + op.tensor_expr_op(partial(self._positions, input_ids.shape[1]), "positions", [self.positions])
        cache: list[nn.Tensor] = []
        for block in self.blocks:
            x, keys, values = block(x)
            cache += [keys, values]
        x = self.norm(x)
        logits = op.matmul(x, op.permute_dims(self.embedding.weight)) if self.config.tied else self.head(x)
        return (logits, *cache) if self.cache else logits

    def _positions(self, tokens: int, table: te.Tensor) -> te.Tensor:
        return te.compute((1, tokens, table.shape[1]), lambda _, s, h: table[s + self.past, h], name="positions")


def _norm(config: DecoderConfig) -> nn.Module:
    if config.norm == "layer":
        return nn.LayerNorm(config.hidden, eps=config.norm_eps)
    return nn.RMSNorm(config.hidden, axes=-1, epsilon=config.norm_eps, bias=False)
