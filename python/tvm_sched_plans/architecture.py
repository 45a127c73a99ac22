"""Architectures of language models: presets, and ``config.json`` files of Llama, Mistral, Qwen, Gemma, GPT-2, Mixtral."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.files import UNREADABLE, read_bytes, why_unreadable
from tvm_sched_runtime.problem.decoder_config import PRESETS, DecoderConfig, is_config, read_config

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "gpt2")
MIXTURES = ("mixtral", "qwen3_moe")
"""Supported values of ``model_type``: of models for all runtimes, and of mixtures of experts, planned for some runtimes."""


@dataclass(frozen=True)
class Mixture:
    """Experts of each feed-forward network; a token's are chosen by a router, a matrix with a row for each expert."""

    experts: int
    chosen: int
    """Experts that compute a token."""
    width: int
    """Width inside an expert."""

    def read(self, tokens: int) -> float:
        """Return how many experts are read in the mean, if each of so many tokens chooses any experts with equal chance."""
        return self.experts * (1 - (1 - self.chosen / self.experts) ** tokens)


@dataclass(frozen=True)
class ModuleNames:
    """Names of the parts of a model in transformers."""

    table: tuple[str, ...]
    layers: str
    norm: str
    head: str = "lm_head"

    def layer(self, number: int) -> str:
        """Return the name of a layer."""
        return f"{self.layers}.{number}"


_GPT2 = ModuleNames(("transformer.wte", "transformer.wpe", "transformer.drop"), "transformer.h", "transformer.ln_f")
_LLAMA = ModuleNames(("model.embed_tokens", "model.rotary_emb"), "model.layers", "model.norm")


@dataclass(frozen=True)
class Architecture:
    """A language model without its weights."""

    config: DecoderConfig
    family: str = "llama"
    """One of `FAMILIES` and `MIXTURES`."""
    positions: int = 0
    """Longest context that it was made for; 0: not known."""
    causal: bool = True
    """Whether a token attends to those before it alone, and tokens are generated one by one; else it is an encoder."""
    windows: tuple[int, ...] = ()
    """To how many tokens one attends at most in each layer (sliding windows), beginning again after the last; 0: to all.
    Empty: to all in each layer."""
    mixture: Mixture | None = None
    """Experts, in place of one feed-forward network."""

    @property
    def modules(self) -> ModuleNames:
        """Names of its parts in transformers."""
        return _GPT2 if self.family == "gpt2" else _LLAMA

    def window(self, layer: int) -> int:
        """Return to how many tokens one attends at most in a layer; 0: to all."""
        return self.windows[layer % len(self.windows)] if self.windows else 0

    @property
    def bias_of_queries(self) -> bool:
        """Whether queries, keys and values have a bias."""
        return self.config.bias or self.family == "qwen2"


class _Extra(msgspec.Struct):
    model_type: str = ""
    max_position_embeddings: int = 0
    n_positions: int = 0
    num_hidden_layers: int = 0
    sliding_window: int | None = None
    use_sliding_window: bool | None = None
    max_window_layers: int = 0
    layer_types: list[str] | None = None
    sliding_window_pattern: int = 6
    intermediate_size: int = 0
    moe_intermediate_size: int = 0
    num_experts: int = 0
    num_local_experts: int = 0
    num_experts_per_tok: int = 0
    decoder_sparse_step: int = 1
    mlp_only_layers: list[int] = []

    def mixture(self) -> Mixture | None:
        """Return the experts of a mixture."""
        if self.model_type not in MIXTURES:
            return None
        experts, chosen = self.num_experts or self.num_local_experts, self.num_experts_per_tok
        if not 1 <= chosen <= experts:
            raise InputError(
                f"num_experts_per_tok is {chosen} of {experts} experts (num_experts or num_local_experts); 1 to all of "
                "them are allowed"
            )
        if self.decoder_sparse_step != 1 or self.mlp_only_layers:
            raise InputError(
                f"decoder_sparse_step is {self.decoder_sparse_step}, mlp_only_layers is {self.mlp_only_layers}; mixtures "
                "are known with experts in all layers only"
            )
        field = "intermediate_size" if self.model_type == "mixtral" else "moe_intermediate_size"
        width = getattr(self, field)
        if width < 1:
            raise InputError(f"{field} is {width}; the width inside an expert is at least 1")
        return Mixture(experts, chosen, width)

    def windows(self) -> tuple[int, ...]:
        """Return the windows of the layers, by each family's own rule where the file has no list of them."""
        window = self.sliding_window or 0
        if self.layer_types is not None:
            return tuple(window if kind == "sliding_attention" else 0 for kind in self.layer_types)
        if not window or self.use_sliding_window is False:
            return ()
        if self.model_type == "gemma2":
            return (window, 0)
        if self.model_type == "gemma3_text":
            return (window,) * (self.sliding_window_pattern - 1) + (0,)
        if self.model_type.startswith("qwen") and self.use_sliding_window:
            return (0,) * self.max_window_layers + (window,) * max(self.num_hidden_layers - self.max_window_layers, 0)
        return (window,) if self.model_type in ("mistral", "mixtral") else ()


def read_architecture(source: str | os.PathLike[str]) -> Architecture | None:
    """Return the language model of a preset's name, a ``config.json`` or a folder with one; None for other files.

    Raises
    ------
    InputError
        A folder without ``config.json``, or the configuration of a model of another family.
    """
    text = os.fspath(source)
    path = Path(text)
    if path.is_dir():
        path = path / "config.json"
        if not path.is_file():
            raise InputError(f"{text}: a folder without config.json; a folder of Hugging Face has one")
    elif not path.is_file():
        config = PRESETS.get(text)
        return (
            None if config is None else Architecture(config, "gpt2" if config.joint_qkv else "llama", config.positions)
        )
    if path.name != "config.json" and not is_config(path):
        return None
    try:
        extra = msgspec.json.decode(read_bytes(path), type=_Extra)
    except UNREADABLE as error:
        raise InputError(f"{path}: not a config.json of a language model ({why_unreadable(error)})") from None
    config = read_config(path, families=(*FAMILIES, *MIXTURES))
    positions = extra.max_position_embeddings or extra.n_positions
    try:
        mixture = extra.mixture()
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return Architecture(config, extra.model_type, positions, windows=extra.windows(), mixture=mixture)
