"""`read_config`: a `DecoderConfig` from the ``config.json`` of Hugging Face's transformers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..errors import InputError
from ..files import UNREADABLE, read_bytes, why_unreadable
from .decoder_config import DecoderConfig, RopeScaling

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
"""`DecoderConfig.activation` of each activation that transformers names."""

_ROPE_NUMBERS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
"""Numbers that each known ``rope_type`` needs."""

_DEFAULTS: dict[str, dict[str, Any]] = {
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "mixtral": {"num_key_value_heads": 8, "rope_theta": 1e6},
    "qwen2": {"num_key_value_heads": 32, "sliding_window": 4096},
    "qwen3": {"num_key_value_heads": 32, "sliding_window": 4096, "head_dim": 128},
    "qwen2_moe": {"num_key_value_heads": 16, "sliding_window": 4096},
    "qwen3_moe": {"num_key_value_heads": 4, "sliding_window": 4096},
    "gemma": {"num_key_value_heads": 16},
    "gemma2": {
        "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "gemma3_text": {"num_key_value_heads": 4, "query_pre_attn_scalar": 256},
    "gpt_neox": {"attention_bias": True},
}
"""What transformers takes where a file lacks a field; a field that is null there switches something off instead."""

PLAIN_FAMILIES = ("gpt2", "llama", "mistral")
"""Families whose graph depends on sizes alone."""


def read_config(
    path: str | os.PathLike[str],
    name: str | None = None,
    families: Sequence[str] = PLAIN_FAMILIES,
    *,
    exact: bool = False,
) -> DecoderConfig:
    """Read a ``config.json``; where a field is missing, its value is the default of transformers.

    Parameters
    ----------
    path
        The file.
    name : str, optional
        Name of the model; default: the folder of a ``config.json``, or the stem of another file.
    families : sequence of str
        Values of ``model_type`` that the caller accepts, of `FAMILIES`.
    exact : bool
        Whether fields that change numbers but no size (such as the activation or the scaling of rotary embedding) must be
        known, too. Otherwise they are ignored where they are not.

    Raises
    ------
    InputError
        The file is missing or not JSON, the family of models is another one, or a field is missing, wrong or not known.
    """
    where = Path(path)
    try:
        raw = msgspec.json.decode(read_bytes(where), type=dict[str, Any])
    except UNREADABLE as error:
        raise InputError(f"{where}: not a config.json of a language model ({why_unreadable(error)})") from None
    family = raw.get("model_type", "")
    if family not in families:
        raise InputError(f"{where}: model_type is {family!r}; allowed are {', '.join(families)}")
    stem = where.resolve().parent.name if where.name == "config.json" else where.stem
    try:
        fields = _READERS[family](_Config(raw, exact))
        return msgspec.convert({"name": name or stem, "family": family, **fields}, DecoderConfig)
    except (TypeError, AttributeError, ZeroDivisionError) as error:
        raise InputError(f"{where}: a field has a value that does not fit ({error})") from None
    except ValueError as error:  # `InputError`, and what msgspec says of a wrong type
        raise InputError(f"{where}: {error}") from None


def is_config(path: Path) -> bool:
    """Return whether a file is a ``config.json`` of a model rather than a document of tvm_sched."""
    try:
        return path.suffix.lower() == ".json" and bool(msgspec.json.decode(path.read_bytes(), type=_Head).model_type)
    except (OSError, *UNREADABLE):
        return False


class _Head(msgspec.Struct):
    model_type: str = ""


class _Config:
    """Fields of a file, with the defaults of the family where they are missing."""

    def __init__(self, raw: dict[str, Any], exact: bool) -> None:
        self.raw, self.exact = _DEFAULTS.get(raw["model_type"], {}) | raw, exact

    def get(self, name: str, default: Any = None) -> Any:
        value = self.raw.get(name)
        return default if value is None else value

    def size(self, *names: str) -> int:
        for name in names:
            if isinstance(value := self.raw.get(name), int) and value > 0:
                return value
        raise InputError(f"{names[0]} is {self.raw.get(names[0])!r}; a whole number from 1 is needed")

    def context(self) -> int:
        return self.size("max_position_embeddings") if self.exact else self.get("max_position_embeddings", 0)

    def activation(self, *names: str, default: str) -> str:
        found = next((self.raw[name] for name in names if self.raw.get(name)), default)
        if found not in ACTIVATIONS and self.exact:
            raise InputError(f"the activation is {found!r}; allowed are {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS.get(found, found)

    def rope(self, kind: str | None = None) -> tuple[float, RopeScaling]:
        """Base and scaling of the rotary embedding, in the forms that transformers 4 and 5 write."""
        found = self.get("rope_parameters", {})
        if kind is not None and kind in found:
            found = found[kind]
        scaling = dict(self.get("rope_scaling", {})) | {k: v for k, v in found.items() if not isinstance(v, dict)}
        theta = float(scaling.get("rope_theta", self.get("rope_theta", 10000.0)))
        rope_type = str(scaling.get("rope_type", scaling.get("type", "default")))
        missing = [number for number in _ROPE_NUMBERS.get(rope_type, ()) if number not in scaling]
        if rope_type in _ROPE_NUMBERS and not missing:
            return theta, msgspec.convert({**scaling, "rope_type": rope_type}, RopeScaling)
        if not self.exact:
            return theta, RopeScaling()
        if missing:
            raise InputError(f"the scaling of the rotary embedding by {rope_type!r} lacks {', '.join(missing)}")
        raise InputError(f"the rotary embedding is scaled by {rope_type!r}; allowed are {', '.join(_ROPE_NUMBERS)}")

    def refuse(self, field: str, allowed: Any, default: Any) -> None:
        """Raise if a field that changes what is computed has another value than the one that is known here."""
        if self.exact and (value := self.get(field, default)) != allowed:
            raise InputError(f"{field} is {value!r}; only {allowed!r} is known here")

    def windows(self, window: int, has_one: Callable[[int], bool] = lambda layer: True) -> list[int]:
        """Windows of the layers: by ``layer_types``, or else by the family's rule for which layers have one."""
        count = self.size("num_hidden_layers")
        kinds = self.get("layer_types")
        if kinds is None:
            kinds = ["sliding_attention" if has_one(layer) else "full_attention" for layer in range(count)]
        if len(kinds) != count:
            raise InputError(f"layer_types has {len(kinds)} entries, and the model has {count} layers")
        return [window if kind == "sliding_attention" else 0 for kind in kinds]

    def mixture(self, experts: Sequence[str], inner: str) -> dict[str, Any]:
        return {
            "experts": self.size(*experts),
            "chosen": self.size("num_experts_per_tok"),
            "expert_inner": self.size(inner),
        }


_Fields = dict[str, Any]
"""Fields of a `DecoderConfig`."""


def _llama(config: _Config, **more: Any) -> _Fields:
    """Llama and what differs from it in a few numbers."""
    biased = config.get("attention_bias", False)
    if biased and not config.exact:
        raise InputError(
            "attention_bias is true; the graphs that are made from a configuration have no such biases for this family"
        )
    theta, rope = config.rope()
    return {
        "layers": config.size("num_hidden_layers"),
        "hidden": config.size("hidden_size"),
        "heads": config.size("num_attention_heads"),
        "kv_heads": config.get("num_key_value_heads", 0),
        "head_dim": config.get("head_dim", 0),
        "intermediate": config.size("intermediate_size"),
        "vocab": config.size("vocab_size"),
        "context": config.context(),
        "norm_eps": config.get("rms_norm_eps", 1e-6),
        "activation": config.activation("hidden_act", "hidden_activation", default="silu"),
        "rope_theta": theta,
        "rope": rope,
        "qkv_bias": biased,
        "tied": config.get("tie_word_embeddings", False),
        **more,
    }


def _gpt2(config: _Config) -> _Fields:
    config.refuse("scale_attn_weights", True, True)
    config.refuse("scale_attn_by_inverse_layer_idx", False, False)
    hidden, positions = config.size("n_embd"), config.get("n_positions", 1024)
    return {
        "layers": config.size("n_layer"), "hidden": hidden, "heads": config.size("n_head"),
        "intermediate": config.get("n_inner") or 4 * hidden, "vocab": config.size("vocab_size"), "context": positions,
        "positions": positions, "norm": "layer", "norm_eps": config.get("layer_norm_epsilon", 1e-5),
        "activation": config.activation("activation_function", default="gelu_new"), "gated": False, "bias": True,
        "joint_qkv": True, "tied": config.get("tie_word_embeddings", True),
    }  # fmt: skip


def _mistral(config: _Config, **more: Any) -> _Fields:
    return _llama(config, windows=config.windows(config.get("sliding_window", 0)), **more)


def _mixtral(config: _Config) -> _Fields:
    mixture = config.mixture(["num_local_experts"], "intermediate_size")
    return _mistral(config, norm_eps=config.get("rms_norm_eps", 1e-5), **mixture)


def _qwen2(config: _Config, **more: Any) -> _Fields:
    window = config.get("sliding_window", 0) if config.get("use_sliding_window", False) else 0
    first = config.get("max_window_layers", 28)
    return _llama(config, **{"windows": config.windows(window, lambda layer: layer >= first), "qkv_bias": True, **more})


def _qwen3(config: _Config, **more: Any) -> _Fields:
    bias = config.get("attention_bias", False)
    return _qwen2(config, head_norms=True, qkv_bias=bias, **more)


def _qwen_mixture(config: _Config, *experts: str) -> _Fields:
    dense, step = config.get("mlp_only_layers", []), config.get("decoder_sparse_step", 1)
    layers = range(config.size("num_hidden_layers"))
    return {
        **config.mixture(experts, "moe_intermediate_size"),
        "normalize_experts": config.get("norm_topk_prob", False),
        "dense_layers": [layer for layer in layers if layer in dense or (layer + 1) % step],
    }


def _qwen2_moe(config: _Config) -> _Fields:
    mixture = _qwen_mixture(config, "num_experts", "num_local_experts")
    return _qwen2(config, shared_inner=config.size("shared_expert_intermediate_size"), **mixture)


def _qwen3_moe(config: _Config) -> _Fields:
    return _qwen3(config, **_qwen_mixture(config, "num_local_experts", "num_experts"))


def _gemma(config: _Config, **more: Any) -> _Fields:
    config.refuse("use_bidirectional_attention", False, False)
    activation = config.activation("hidden_activation", "hidden_act", default="gelu_pytorch_tanh")
    width = config.get("head_dim", 256)
    return _llama(
        config, head_dim=width, score_scale=config.get("query_pre_attn_scalar", width) ** -0.5,
        # The first Gemma names "gelu" and computes its approximation.
        activation="gelu_tanh" if activation == "gelu" else activation,
        embedding_scale=config.size("hidden_size") ** 0.5, norm_offset=1.0, tied=config.get("tie_word_embeddings", True),
        attention_cap=config.get("attn_logit_softcapping", 0.0), logit_cap=config.get("final_logit_softcapping", 0.0),
        **more,
    )  # fmt: skip


def _gemma2(config: _Config) -> _Fields:
    return _gemma(
        config, post_norms=True,
        windows=config.windows(config.get("sliding_window", 4096), lambda layer: layer % 2 == 0),
    )  # fmt: skip


def _gemma3(config: _Config) -> _Fields:
    pattern = config.get("sliding_window_pattern", 6)
    (full, rope), (local, _) = config.rope("full_attention"), config.rope("sliding_attention")
    if "rope_parameters" not in config.raw:  # as transformers 4 wrote it
        full, local = config.get("rope_theta", 1e6), config.get("rope_local_base_freq", 1e4)
    if rope.rope_type != "default" and config.exact:
        raise InputError(f"the rotary embedding is scaled by {rope.rope_type!r}, which is not known here")
    base = _gemma(
        config, post_norms=True, head_norms=True,
        windows=config.windows(config.get("sliding_window", 4096), lambda layer: (layer + 1) % pattern != 0),
    )  # fmt: skip
    return {**base, "rope_theta": full, "window_theta": local, "rope": RopeScaling()}


def _phi(config: _Config, **more: Any) -> _Fields:
    """Phi and GPT-NeoX, which differ in defaults."""
    config.refuse("qk_layernorm", False, False)
    fields = {
        "norm": "layer", "gated": False, "parallel": True, "one_norm": True, "bias": True,
        "norm_eps": config.get("layer_norm_eps", 1e-5), "rotary_part": _rotary_part(config, 0.5),
        "activation": config.activation("hidden_act", default="gelu_new"),
    }  # fmt: skip
    return _llama(config, **{**fields, **more})


def _phi3(config: _Config) -> _Fields:
    rotary_part = _rotary_part(config, 1.0)
    return _mistral(config, norm_eps=config.get("rms_norm_eps", 1e-5), rotary_part=rotary_part, joint_qkv=True)


def _gpt_neox(config: _Config) -> _Fields:
    theta = config.rope()[0]
    return _phi(
        config, parallel=config.get("use_parallel_residual", True), one_norm=False, joint_qkv=True,
        activation=config.activation("hidden_act", default="gelu"),
        rotary_part=_rotary_part(config, config.get("rotary_pct", 0.25)),
        rope_theta=theta if "rope_parameters" in config.raw else config.get("rotary_emb_base", theta),
    )  # fmt: skip


def _opt(config: _Config) -> _Fields:
    config.refuse("do_layer_norm_before", True, True)
    config.refuse("_remove_final_layer_norm", False, False)
    config.refuse("enable_bias", True, True)
    hidden, positions = config.size("hidden_size"), config.size("max_position_embeddings")
    config.refuse("word_embed_proj_dim", hidden, hidden)
    return {
        "layers": config.size("num_hidden_layers"), "hidden": hidden, "heads": config.size("num_attention_heads"),
        "intermediate": config.size("ffn_dim"), "vocab": config.size("vocab_size"), "context": positions,
        "positions": positions, "table_offset": 2, "norm": "layer", "gated": False, "bias": True,
        "activation": config.activation("activation_function", default="relu"),
        "tied": config.get("tie_word_embeddings", True),
    }  # fmt: skip


def _rotary_part(config: _Config, default: float) -> float:
    found = config.get("rope_parameters", {})
    part: float = found.get("partial_rotary_factor", config.get("partial_rotary_factor", default))
    return part


_READERS: dict[str, Callable[[_Config], _Fields]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
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
