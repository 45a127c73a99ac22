"""`Architecture`: what a decoder-only language model computes, read from the ``config.json`` of its Hugging Face folder."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.files import UNREADABLE, read_bytes, why_unreadable

Floats = npt.NDArray[np.float32]

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
"""Kernel of each activation that transformers names."""


@dataclass(frozen=True)
class Layer:
    """What differs from layer to layer."""

    window: int = 0
    """Positions that a token sees, its own included; 0: all before it."""
    theta: float = 10000.0
    """Base of the rotary embedding."""
    experts: bool = False
    """Whether the feed-forward network is a mixture of experts."""


@dataclass(frozen=True)
class Architecture:
    """A decoder-only language model.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tvm_sched_language import read_architecture
    >>> architecture = read_architecture(Path("gpt2"))
    >>> architecture.family, architecture.hidden, len(architecture.layers)
    ('gpt2', 64, 2)
    """

    family: str
    """``model_type`` of the configuration."""
    hidden: int
    heads: int
    key_heads: int
    width: int
    inner: int
    vocab: int
    """Width of the residual stream, heads of queries and of keys, width of a head, width inside of the feed-forward
    network, size of the vocabulary."""
    positions: int
    """Most tokens of a sequence."""
    layers: tuple[Layer, ...]
    norm: str = "rms"
    epsilon: float = 1e-6
    activation: str = "silu"
    """A value of `ACTIVATIONS`."""
    gated: bool = True
    """Whether the feed-forward network has a gate."""
    rotated: int = 0
    """Numbers of a head that the rotary embedding rotates; 0: positions are learned, in a table whose first
    ``table_offset`` rows belong to no position."""
    table_offset: int = 0
    rope: dict[str, Any] | None = None
    """Scaling of the rotary embedding (``rope_type`` and its numbers)."""
    scale: float = 1.0
    """Factor of the scores of attention."""
    attention_cap: float = 0.0
    logit_cap: float = 0.0
    """Bounds by ``cap * tanh(x / cap)``; 0: none."""
    embedding_scale: float = 1.0
    parallel: bool = False
    """Attention and feed-forward network both read the layer's input."""
    one_norm: bool = False
    """Both read it after the same normalisation."""
    post_norms: bool = False
    """A normalisation behind attention and behind the feed-forward network, too."""
    head_norms: bool = False
    """Queries and keys are normalised for each head."""
    norm_offset: float = 0.0
    """Added to the weights of normalisations."""
    experts: int = 0
    chosen: int = 0
    expert_inner: int = 0
    shared_inner: int = 0
    """Of a mixture: number of experts, experts for a token, their width inside, that of the shared expert (0: none)."""
    normalize_experts: bool = True
    """Whether the weights of the chosen experts are made to sum to 1."""
    tied: bool = False
    """Whether the last product uses the embedding's table."""

    def angles(self, theta: float, count: int) -> Floats:
        """Return cosines, then sines, of the rotary embedding: (positions, rotated), in float32 as transformers has them."""
        exponents = np.arange(0, self.rotated, 2, dtype=np.int64).astype(np.float32) / np.float32(self.rotated)
        rates = (np.float32(1.0) / (np.float32(theta) ** exponents)).astype(np.float32)
        rates = _scaled(rates, self.rope or {})
        turns = np.arange(count, dtype=np.float32)[:, None] * rates[None, :]
        return np.concatenate([np.cos(turns), np.sin(turns)], axis=1).astype(np.float32)


def _scaled(rates: Floats, rope: dict[str, Any]) -> Floats:
    """Scale the rates of rotation as ``rope_type`` says (Llama 3's scaling: transformers' ``llama3``)."""
    kind = rope.get("rope_type", "default")
    if kind == "linear":
        return (rates / np.float32(rope["factor"])).astype(np.float32)
    if kind == "llama3":
        low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
        factor, before = float(rope["factor"]), float(rope["original_max_position_embeddings"])
        lengths = 2 * math.pi / rates
        slow = np.where(lengths > before / low, rates / np.float32(factor), rates)
        smooth = (before / lengths - low) / (high - low)
        between = (1 - smooth) * slow / factor + smooth * slow
        medium = (lengths >= before / high) & (lengths <= before / low)
        return np.where(medium, between, slow).astype(np.float32)
    return rates


def read_architecture(folder: Path) -> Architecture:
    """Read ``config.json`` of a folder.

    Raises
    ------
    InputError
        No such file, no JSON, a family of models or a variant that is not known here; the message says which are.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tvm_sched_language import read_architecture
    >>> read_architecture(Path("gpt2")).positions
    32
    """
    path = folder / "config.json"
    try:
        raw = msgspec.json.decode(read_bytes(str(path)), type=dict[str, Any])
    except UNREADABLE as error:
        raise InputError(f"{path}: not a config.json of a language model ({why_unreadable(error)})") from None
    family = raw.get("model_type")
    if family not in _READERS:
        raise InputError(
            f"{path}: model_type is {family!r}, of which no text can be generated here; allowed are {', '.join(_READERS)}"
        )
    try:
        return _READERS[family](_Config(path, raw))
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise InputError(f"{path}: a field has a value that does not fit ({error})") from None


class _Config:
    """Fields of a configuration, with the defaults of the family where they are missing."""

    def __init__(self, path: Path, raw: dict[str, Any]) -> None:
        self.path, self.raw = path, raw

    def get(self, name: str, default: Any = None) -> Any:
        value = self.raw.get(name)
        return default if value is None else value

    def size(self, *names: str) -> int:
        for name in names:
            if isinstance(value := self.raw.get(name), int) and value > 0:
                return value
        raise InputError(f"{self.path}: {names[0]} is {self.raw.get(names[0])!r}; a whole number from 1 is needed")

    def activation(self, *names: str, default: str) -> str:
        found = next((self.raw[name] for name in names if self.raw.get(name)), default)
        if found not in ACTIVATIONS:
            raise InputError(f"{self.path}: the activation is {found!r}; allowed are {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[found]

    def rope(self, kind: str | None = None) -> tuple[float, dict[str, Any]]:
        """Base and scaling of the rotary embedding, in the forms that transformers 4 and 5 write."""
        found = self.get("rope_parameters", {})
        if kind is not None and kind in found:
            found = found[kind]
        scaling = dict(self.get("rope_scaling", {})) | {k: v for k, v in found.items() if not isinstance(v, dict)}
        scaling.setdefault("rope_type", scaling.get("type", "default"))
        if scaling["rope_type"] not in ("default", "linear", "llama3"):
            raise InputError(
                f"{self.path}: the rotary embedding is scaled by {scaling['rope_type']!r}; allowed are "
                "default, linear, llama3"
            )
        return float(scaling.get("rope_theta", self.get("rope_theta", 10000.0))), scaling

    def refuse(self, field: str, allowed: Any, default: Any) -> None:
        """Raise if a field that changes what is computed has another value than the one that is known here."""
        if (value := self.get(field, default)) != allowed:
            raise InputError(f"{self.path}: {field} is {value!r}; only {allowed!r} is known here")


def _windows(config: _Config, count: int, on: bool = True) -> list[int]:
    window = config.get("sliding_window", 0) if on else 0
    kinds = config.get("layer_types") or ["sliding_attention" if window else "full_attention"] * count
    return [int(window) if kind == "sliding_attention" else 0 for kind in kinds]


def _llama_like(config: _Config, **more: Any) -> Architecture:
    """Llama and what differs from it in a few numbers."""
    hidden, heads, count = (config.size(n) for n in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    width = config.get("head_dim") or hidden // heads
    theta, rope = config.rope()
    windows = more.pop("windows", [0] * count)
    sparse = more.pop("sparse", [False] * count)
    fields: dict[str, Any] = {
        "family": config.raw["model_type"],
        "hidden": hidden,
        "heads": heads,
        "key_heads": config.get("num_key_value_heads", heads),
        "width": width,
        "inner": config.size("intermediate_size"),
        "vocab": config.size("vocab_size"),
        "positions": config.size("max_position_embeddings"),
        "layers": tuple(Layer(window, theta, experts) for window, experts in zip(windows, sparse, strict=True)),
        "epsilon": config.get("rms_norm_eps", 1e-6),
        "activation": config.activation("hidden_act", "hidden_activation", default="silu"),
        "rotated": width,
        "rope": rope,
        "scale": width**-0.5,
        "tied": config.get("tie_word_embeddings", False),
    }
    return Architecture(**{**fields, **more})


def _gpt2(config: _Config) -> Architecture:
    config.refuse("scale_attn_weights", True, True)
    config.refuse("scale_attn_by_inverse_layer_idx", False, False)
    hidden, heads = config.size("n_embd"), config.size("n_head")
    return Architecture(
        family="gpt2", hidden=hidden, heads=heads, key_heads=heads, width=hidden // heads,
        inner=config.get("n_inner") or 4 * hidden, vocab=config.size("vocab_size"), positions=config.size("n_positions"),
        layers=(Layer(),) * config.size("n_layer"), norm="layer", epsilon=config.get("layer_norm_epsilon", 1e-5),
        activation=config.activation("activation_function", default="gelu_new"), gated=False,
        scale=(hidden // heads) ** -0.5, tied=config.get("tie_word_embeddings", True),
    )  # fmt: skip


def _mistral(config: _Config) -> Architecture:
    count = config.size("num_hidden_layers")
    return _llama_like(config, windows=_windows(config, count))


def _qwen(config: _Config, **more: Any) -> Architecture:
    count = config.size("num_hidden_layers")
    windows = _windows(config, count, config.get("use_sliding_window", False))
    if "layer_types" not in config.raw:  # as transformers 4 wrote it
        first = config.get("max_window_layers", 28)
        windows = [window if layer >= first else 0 for layer, window in enumerate(windows)]
    return _llama_like(config, windows=windows, **more)


def _qwen3(config: _Config) -> Architecture:
    return _qwen(config, head_norms=True, width=config.get("head_dim", 128), rotated=config.get("head_dim", 128),
                 scale=config.get("head_dim", 128) ** -0.5)  # fmt: skip


def _sparse(config: _Config) -> list[bool]:
    dense, step = config.get("mlp_only_layers", []), config.get("decoder_sparse_step", 1)
    return [k not in dense and (k + 1) % step == 0 for k in range(config.size("num_hidden_layers"))]


def _qwen2_moe(config: _Config) -> Architecture:
    return _qwen(
        config, sparse=_sparse(config), experts=config.size("num_experts", "num_local_experts"),
        chosen=config.size("num_experts_per_tok"), expert_inner=config.size("moe_intermediate_size"),
        shared_inner=config.size("shared_expert_intermediate_size"), normalize_experts=config.get("norm_topk_prob", False),
    )  # fmt: skip


def _qwen3_moe(config: _Config) -> Architecture:
    width = config.get("head_dim", 128)
    return _qwen(
        config, sparse=_sparse(config), experts=config.size("num_local_experts", "num_experts"),
        chosen=config.size("num_experts_per_tok"), expert_inner=config.size("moe_intermediate_size"),
        normalize_experts=config.get("norm_topk_prob", False), head_norms=True, width=width, rotated=width,
        scale=width**-0.5,
    )  # fmt: skip


def _mixtral(config: _Config) -> Architecture:
    count = config.size("num_hidden_layers")
    return _llama_like(
        config, windows=_windows(config, count), sparse=[True] * count, experts=config.size("num_local_experts"),
        chosen=config.size("num_experts_per_tok"), expert_inner=config.size("intermediate_size"),
        epsilon=config.get("rms_norm_eps", 1e-5),
    )  # fmt: skip


def _gemma(config: _Config, **more: Any) -> Architecture:
    config.refuse("use_bidirectional_attention", False, False)
    activation = config.activation("hidden_activation", "hidden_act", default="gelu_pytorch_tanh")
    width = config.get("head_dim", 256)
    scale = config.get("query_pre_attn_scalar", width) ** -0.5
    fields = {
        # The first Gemma names "gelu" and computes its approximation.
        "activation": "gelu_tanh" if activation == "gelu" else activation,
        "embedding_scale": float(np.float32(config.size("hidden_size") ** 0.5)),
        "norm_offset": 1.0,
        "tied": config.get("tie_word_embeddings", True),
        "width": width,
        "rotated": width,
        "scale": scale,
    }
    return _llama_like(config, **{**fields, **more})


def _gemma2(config: _Config) -> Architecture:
    count = config.size("num_hidden_layers")
    window = config.get("sliding_window", 4096)
    kinds = config.get("layer_types") or ["sliding_attention", "full_attention"] * (count // 2 + 1)
    return _gemma(
        config, post_norms=True, attention_cap=config.get("attn_logit_softcapping", 0.0),
        logit_cap=config.get("final_logit_softcapping", 0.0),
        windows=[window if kind == "sliding_attention" else 0 for kind in kinds[:count]],
    )  # fmt: skip


def _gemma3(config: _Config) -> Architecture:
    count = config.size("num_hidden_layers")
    window, pattern = config.get("sliding_window", 4096), config.get("sliding_window_pattern", 6)
    kinds = config.get("layer_types") or [
        "full_attention" if (k + 1) % pattern == 0 else "sliding_attention" for k in range(count)
    ]
    (full, rope), (local, _) = config.rope("full_attention"), config.rope("sliding_attention")
    if "rope_parameters" not in config.raw:  # as transformers 4 wrote it
        full, local = config.get("rope_theta", 1e6), config.get("rope_local_base_freq", 1e4)
    if rope["rope_type"] != "default":
        raise InputError(
            f"{config.path}: the rotary embedding is scaled by {rope['rope_type']!r}, which is not known here"
        )
    base = _gemma(config, post_norms=True, head_norms=True)
    layers = tuple(
        Layer(window if kind == "sliding_attention" else 0, local if kind == "sliding_attention" else full)
        for kind in kinds
    )
    return replace(base, layers=layers, rope={})


def _phi(config: _Config) -> Architecture:
    config.refuse("qk_layernorm", False, False)
    base = _llama_like(config, norm="layer", gated=False, parallel=True, one_norm=True,
                       epsilon=config.get("layer_norm_eps", 1e-5),
                       activation=config.activation("hidden_act", default="gelu_new"))  # fmt: skip
    return replace(base, rotated=_partly(config, base.width, 0.5))


def _phi3(config: _Config) -> Architecture:
    count = config.size("num_hidden_layers")
    base = _llama_like(config, windows=_windows(config, count), epsilon=config.get("rms_norm_eps", 1e-5))
    return replace(base, rotated=_partly(config, base.width, 1.0))


def _opt(config: _Config) -> Architecture:
    config.refuse("do_layer_norm_before", True, True)
    config.refuse("_remove_final_layer_norm", False, False)
    config.refuse("enable_bias", True, True)
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    config.refuse("word_embed_proj_dim", hidden, hidden)
    return Architecture(
        family="opt", hidden=hidden, heads=heads, key_heads=heads, width=hidden // heads, inner=config.size("ffn_dim"),
        vocab=config.size("vocab_size"), positions=config.size("max_position_embeddings"),
        layers=(Layer(),) * config.size("num_hidden_layers"), norm="layer", epsilon=1e-5,
        activation=config.activation("activation_function", default="relu"), gated=False, table_offset=2,
        scale=(hidden // heads) ** -0.5, tied=config.get("tie_word_embeddings", True),
    )  # fmt: skip


def _gpt_neox(config: _Config) -> Architecture:
    base = _llama_like(config, norm="layer", gated=False, parallel=config.get("use_parallel_residual", True),
                       epsilon=config.get("layer_norm_eps", 1e-5),
                       activation=config.activation("hidden_act", default="gelu"))  # fmt: skip
    theta, _ = config.rope()
    theta = theta if "rope_parameters" in config.raw else config.get("rotary_emb_base", theta)
    layers = tuple(Layer(theta=theta) for _ in base.layers)
    return replace(base, layers=layers, rotated=_partly(config, base.width, config.get("rotary_pct", 0.25)))


def _partly(config: _Config, width: int, default: float) -> int:
    part = config.get("rope_parameters", {}).get("partial_rotary_factor", config.get("partial_rotary_factor", default))
    return int(width * part)


_READERS = {
    "gpt2": _gpt2,
    "llama": _llama_like,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen,
    "qwen3": _qwen3,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "phi": _phi,
    "phi3": _phi3,
    "opt": _opt,
    "gpt_neox": _gpt_neox,
}

FAMILIES = tuple(_READERS)
"""Values of ``model_type`` that are understood."""
