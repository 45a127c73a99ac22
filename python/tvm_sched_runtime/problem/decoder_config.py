"""Configurations of decoder-only transformers: presets of published models, and Hugging Face's ``config.json``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from ..errors import InputError
from ..files import UNREADABLE, read_bytes, why_unreadable

FAMILIES = ("gpt2", "llama", "mistral")
"""Known values of ``model_type`` in a ``config.json``."""


class DecoderConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A decoder-only transformer with pre-normalisation.

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
    positions: int = 0
    """Rows of the learned table of positions; 0 is rotary embedding instead."""
    norm: Literal["layer", "rms"] = "rms"
    gated: bool = True
    """Feed-forward network with a gate (``down(silu(gate(x)) * up(x))``) instead of ``down(gelu(up(x)))``."""
    bias: bool = False
    """Whether linear layers have a bias."""
    joint_qkv: bool = False
    """Queries, keys and values by one product, as in GPT-2, instead of three."""
    tied: bool = False
    """Whether the last layer uses the table of the embedding."""
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5

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
        if not self.positions and self.head_width % 2:
            raise InputError(
                f"decoder {self.name!r}: rotary embedding needs an even head_dim, this one is {self.head_width}"
            )

    @property
    def key_heads(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def head_width(self) -> int:
        """Width of a head."""
        return self.head_dim or self.hidden // self.heads


def _gpt2(name: str, layers: int, hidden: int, heads: int, vocab: int = 50257, positions: int = 1024) -> DecoderConfig:
    return DecoderConfig(
        name=name, layers=layers, hidden=hidden, heads=heads, vocab=vocab, intermediate=4 * hidden, positions=positions,
        norm="layer", gated=False, bias=True, joint_qkv=True, tied=True,
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


class _HuggingFace(msgspec.Struct):
    """The fields of ``config.json`` that determine the graph, under both families' names."""

    model_type: str = ""
    vocab_size: int = 0
    n_layer: int = 0
    n_embd: int = 0
    n_head: int = 0
    n_inner: int | None = None
    n_positions: int = 1024
    num_hidden_layers: int = 0
    hidden_size: int = 0
    num_attention_heads: int = 0
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int = 0
    tie_word_embeddings: bool | None = None
    attention_bias: bool = False
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6


def read_config(
    path: str | os.PathLike[str], name: str | None = None, families: Sequence[str] = FAMILIES
) -> DecoderConfig:
    """Read a ``config.json`` of Hugging Face's transformers.

    Parameters
    ----------
    path
        The file. Fields that change no shape (dropout, scaling of rotary embedding, a sliding window) are ignored.
    name : str, optional
        Name of the model; default: the folder of a ``config.json``, or the stem of another file.
    families : sequence of str
        Values of ``model_type`` that the caller accepts. Values beyond `FAMILIES` are read as Llama's.

    Raises
    ------
    InputError
        The file is missing or not JSON, the family of models is another one, or a size is missing or wrong.
    """
    where = os.fspath(path)
    try:
        config = msgspec.json.decode(read_bytes(where), type=_HuggingFace)
    except UNREADABLE as error:
        raise InputError(f"{where}: not a config.json of a language model ({why_unreadable(error)})") from None
    if config.model_type not in families:
        raise InputError(f"{where}: model_type is {config.model_type!r}; allowed are {', '.join(families)}")
    stem = Path(where).resolve().parent.name if Path(where).name == "config.json" else Path(where).stem
    try:
        return _from_hugging_face(config, name or stem)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _from_hugging_face(raw: _HuggingFace, name: str) -> DecoderConfig:
    tied: dict[str, Any] = {} if raw.tie_word_embeddings is None else {"tied": raw.tie_word_embeddings}
    head_dim = raw.head_dim or 0
    if raw.model_type.startswith("gemma"):  # what transformers takes where the file does not say
        tied, head_dim = {"tied": True, **tied}, head_dim or 256
    if raw.model_type == "gpt2":
        config = _gpt2(name, raw.n_layer, raw.n_embd, raw.n_head, raw.vocab_size, raw.n_positions)
        return msgspec.structs.replace(config, intermediate=raw.n_inner or 4 * raw.n_embd, **tied)
    if raw.attention_bias:
        raise InputError("attention_bias is true; models of this family are known without it only")
    return DecoderConfig(
        name=name,
        layers=raw.num_hidden_layers,
        hidden=raw.hidden_size,
        heads=raw.num_attention_heads,
        vocab=raw.vocab_size,
        intermediate=raw.intermediate_size,
        kv_heads=raw.num_key_value_heads or 0,
        head_dim=head_dim,
        rope_theta=raw.rope_theta,
        norm_eps=raw.rms_norm_eps,
        **tied,
    )


def is_config(path: Path) -> bool:
    """Return whether a file is a ``config.json`` of a model rather than a document of tvm_sched."""
    try:
        return path.suffix.lower() == ".json" and bool(msgspec.json.decode(path.read_bytes(), type=_Head).model_type)
    except (OSError, *UNREADABLE):
        return False


class _Head(msgspec.Struct):
    model_type: str = ""
