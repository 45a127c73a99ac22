"""`DecoderConfig`: what a transformer of tokens computes, its sizes, and presets of published models."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import msgspec

from ..errors import InputError


class Layer(NamedTuple):
    """What differs from layer to layer."""

    window: int
    """Tokens that a token attends to at most, itself included; 0: all before it."""
    theta: float
    """Base of the rotary embedding."""
    experts: bool
    """Whether the feed-forward network is a mixture of experts."""


class RopeScaling(msgspec.Struct, frozen=True):
    """Scaling of the rotary embedding: ``rope_type`` of transformers, and the numbers of ``linear`` and ``llama3``."""

    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_max_position_embeddings: float = 1.0


class DecoderConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A decoder-only transformer without its weights.

    `decoder_config_file.read_config` reads it from a file. Schedules of configurations take sizes alone, plans for other
    runtimes windows and experts, too, and `tvm_sched_language` computes all of it.

    Raises
    ------
    InputError
        A size below 1; heads that do not divide; an odd width of heads with rotary embedding.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import DecoderConfig
    >>> DecoderConfig(layers=2, hidden=64, heads=4, vocab=1000, intermediate=256).head_width
    16
    """

    name: str = "decoder"
    family: str = "llama"
    """``model_type`` of Hugging Face's transformers."""
    layers: int
    hidden: int
    heads: int
    vocab: int
    """Number of blocks, width of the residual stream, query heads, size of the vocabulary."""
    intermediate: int
    """Width inside of the feed-forward network."""
    kv_heads: int = 0
    """Heads of keys and values; 0 is as many as query heads. It divides ``heads``."""
    head_dim: int = 0
    """Width of a head; 0 is ``hidden / heads``."""
    context: int = 0
    """Most tokens of a sequence; 0: not known."""
    causal: bool = True
    """Whether a token attends to those before it alone, and tokens are generated one by one; else it is an encoder."""
    windows: tuple[int, ...] = ()
    """`Layer.window` of each layer, beginning again after the last; empty: 0."""
    positions: int = 0
    """Rows of the learned table of positions; 0 is rotary embedding instead."""
    table_offset: int = 0
    """Rows before these, which belong to no position."""
    rotary_part: float = 1.0
    """Share of a head that the rotary embedding rotates."""
    rope_theta: float = 10000.0
    window_theta: float = 0.0
    """Base of the rotary embedding, and that of layers with a window; 0: the same."""
    rope: RopeScaling = RopeScaling()
    norm: Literal["layer", "rms"] = "rms"
    norm_eps: float = 1e-5
    norm_offset: float = 0.0
    """Added to the weights of normalisations."""
    post_norms: bool = False
    """A normalisation behind attention and behind the feed-forward network, too."""
    head_norms: bool = False
    """Queries and keys are normalised for each head."""
    parallel: bool = False
    """Attention and feed-forward network both read the block's input."""
    one_norm: bool = False
    """Both read it after the same normalisation."""
    activation: str = "silu"
    """A value of `decoder_config_file.ACTIVATIONS`."""
    gated: bool = True
    """Feed-forward network with a gate (``down(silu(gate(x)) * up(x))``) instead of ``down(gelu(up(x)))``."""
    bias: bool = False
    """Whether linear layers have a bias."""
    qkv_bias: bool = False
    """Whether queries, keys and values have a bias even if the other layers have none."""
    joint_qkv: bool = False
    """Queries, keys and values by one product, as in GPT-2, instead of three."""
    tied: bool = False
    """Whether the last layer uses the table of the embedding."""
    embedding_scale: float = 1.0
    score_scale: float = 0.0
    """Factors of the embedding and of the scores of attention; 0: ``head_width ** -0.5``."""
    attention_cap: float = 0.0
    logit_cap: float = 0.0
    """Bounds of scores and logits by ``cap * tanh(x / cap)``; 0: none."""
    experts: int = 0
    chosen: int = 0
    expert_inner: int = 0
    shared_inner: int = 0
    """Of a mixture: number of experts, experts for a token, their width inside, that of the shared expert (0: none)."""
    normalize_experts: bool = True
    """Whether the weights of the chosen experts are made to sum to 1."""
    dense_layers: tuple[int, ...] = ()
    """Layers of a mixture without experts."""

    def __post_init__(self) -> None:
        for field in ("layers", "hidden", "heads", "vocab", "intermediate"):
            if getattr(self, field) < 1:
                raise InputError(f"decoder {self.name!r}: {field} is {getattr(self, field)}; it must be 1 or more")
        for field in ("kv_heads", "head_dim", "positions"):
            if getattr(self, field) < 0:
                raise InputError(f"decoder {self.name!r}: {field} is {getattr(self, field)}; it must be 0 or more")
        if not self.head_dim and self.hidden % self.heads:
            raise InputError(
                f"decoder {self.name!r}: {self.heads} heads do not divide a hidden size of {self.hidden}; give head_dim"
            )
        if self.heads % self.key_heads:
            raise InputError(f"decoder {self.name!r}: {self.key_heads} kv_heads do not divide {self.heads} heads")
        if self.rotated % 2:
            raise InputError(
                f"decoder {self.name!r}: rotary embedding rotates {self.rotated} of {self.head_width} numbers of a "
                "head (head_dim); it must be an even number"
            )
        if not self.experts >= self.chosen >= min(self.experts, 1):
            raise InputError(
                f"decoder {self.name!r}: {self.chosen} of {self.experts} experts are chosen for a token; 1 to all of them "
                "are allowed"
            )

    @property
    def key_heads(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def head_width(self) -> int:
        """Width of a head."""
        return self.head_dim or self.hidden // self.heads

    @property
    def rotated(self) -> int:
        """Numbers of a head that the rotary embedding rotates; 0: positions are learned."""
        return 0 if self.positions else int(self.head_width * self.rotary_part)

    @property
    def score_factor(self) -> float:
        """Factor of the scores of attention."""
        return self.score_scale or self.head_width**-0.5

    def layer(self, number: int) -> Layer:
        """Return what belongs to one layer alone."""
        window = self.windows[number % len(self.windows)] if self.windows else 0
        theta = self.window_theta if window and self.window_theta else self.rope_theta
        return Layer(window, theta, self.experts > 0 and number not in self.dense_layers)


def _gpt2(name: str, layers: int, hidden: int, heads: int) -> DecoderConfig:
    return DecoderConfig(
        name=name, family="gpt2", layers=layers, hidden=hidden, heads=heads, vocab=50257, intermediate=4 * hidden,
        context=1024, positions=1024, norm="layer", activation="gelu_tanh", gated=False, bias=True, joint_qkv=True,
        tied=True,
    )  # fmt: skip


def _open_llama(name: str, layers: int, hidden: int, intermediate: int) -> DecoderConfig:
    return DecoderConfig(
        name=name, layers=layers, hidden=hidden, heads=32, vocab=32000, intermediate=intermediate, norm_eps=1e-6
    )


def _llama(
    name: str, layers: int, hidden: int, heads: int, kv_heads: int, intermediate: int, **more: Any
) -> DecoderConfig:
    return DecoderConfig(
        name=name, layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, intermediate=intermediate,
        **{"vocab": 32000, **more},
    )  # fmt: skip


_LLAMA_3 = {"vocab": 128256, "rope_theta": 500000.0}


PRESETS = MappingProxyType(
    {
        config.name: config
        for config in (
            _gpt2("gpt2-large", layers=36, hidden=1280, heads=20),
            _gpt2("gpt2-xl", layers=48, hidden=1600, heads=25),
            _open_llama("openllama-3b", layers=26, hidden=3200, intermediate=8640),
            _open_llama("openllama-7b", layers=32, hidden=4096, intermediate=11008),
            _llama("llama-2-7b", 32, 4096, 32, 32, 11008),
            _llama("llama-2-13b", 40, 5120, 40, 40, 13824),
            _llama("llama-2-70b", 80, 8192, 64, 8, 28672),
            _llama("llama-3-8b", 32, 4096, 32, 8, 14336, **_LLAMA_3),
            _llama("llama-3-70b", 80, 8192, 64, 8, 28672, **_LLAMA_3),
            _llama("mistral-7b", 32, 4096, 32, 8, 14336),
        )
    }
)
"""Published models by name, from their ``config.json`` on Hugging Face: openai-community, openlm-research, meta-llama,
mistralai."""
