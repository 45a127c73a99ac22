"""`Checkpoint`: the weights of a Hugging Face folder by name, and under the names that `decoder` gives them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem.decoder_config import DecoderConfig

Floats = npt.NDArray[np.float32]
Read = Callable[[], Floats]
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


class Checkpoint:
    """The weights of a folder: all ``*.safetensors``, or else ``pytorch_model*.bin`` read without running code from it.

    Raises
    ------
    InputError
        There are none, or a file cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._reads: dict[str, Read] = {}
        files = sorted(folder.glob("*.safetensors"))
        pickled = sorted(folder.glob("pytorch_model*.bin"))
        if not files and not pickled:
            raise InputError(f"{folder}: holds no weights (model.safetensors or pytorch_model.bin)")
        for file in files:
            self._reads |= _safetensors(file)
        for file in [] if files else pickled:
            self._reads |= _pickled(file)

    def __contains__(self, name: str) -> bool:
        return self._find(name) is not None

    def __getitem__(self, name: str) -> Floats:
        read = self._find(name)
        if read is None:
            raise InputError(f"{self.folder}: the weights {name!r} are not in its files")
        return read()

    def _find(self, name: str) -> Read | None:
        """Also under the name without its first part: a file of the model without its head leaves it out."""
        return self._reads.get(name) or self._reads.get(name.partition(".")[2])


def _safetensors(file: Path) -> dict[str, Read]:
    try:
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            if size > file.stat().st_size:
                raise ValueError("its header is cut off")
            header: Mapping[str, Any] = json.loads(opened.read(size))
        data = np.memmap(file, np.uint8, "r", offset=8 + size)
        return {name: _reader(file, name, about, data) for name, about in header.items() if name != "__metadata__"}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file}: not a safetensors file that can be read ({error})") from None


def _reader(file: Path, name: str, about: Mapping[str, Any], data: npt.NDArray[np.uint8]) -> Read:
    first, end = about["data_offsets"]
    shape = tuple(about["shape"])
    kind = about["dtype"]
    if kind in _DTYPES and not 0 <= first <= end == first + math.prod(shape) * int(_DTYPES[kind][2]) <= data.size:
        raise ValueError(f"{name!r} lies outside of the file")

    def read() -> Floats:
        if kind not in _DTYPES:
            raise InputError(f"{file}: {name!r} is {kind}; {', '.join(_DTYPES)} are allowed")
        values = data[first:end].view(_DTYPES[kind]).reshape(shape)
        return widen(values) if kind == "BF16" else values.astype(np.float32)

    return read


def _pickled(file: Path) -> dict[str, Read]:
    try:
        import torch
    except ImportError:
        raise InputError(
            f"{file}: to read it needs PyTorch (pip install torch); safetensors files need nothing"
        ) from None
    try:
        values = torch.load(file, map_location="cpu", weights_only=True)
        tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    except Exception as error:  # unpickling raises many classes
        raise InputError(f"{file}: no weights can be read from it ({str(error).splitlines()[0][:200]})") from None
    return {name: partial(_floats, value) for name, value in tensors.items()}


def _floats(tensor: Any) -> Floats:
    result: Floats = tensor.float().numpy()
    return result


def widen(halves: npt.NDArray[np.uint16]) -> Floats:
    """Return bfloat16 numbers, given by their bits, as float32."""
    return (halves.astype(np.uint32) << 16).view(np.float32)


Layer = dict[str, Floats]
"""Weights of a layer by their names in `decoder`; matrices are (outputs, inputs)."""


class Weights:
    """The weights of an architecture under the names that `decoder` gives them."""

    def __init__(self, architecture: DecoderConfig, checkpoint: Checkpoint) -> None:
        self.architecture, self.checkpoint = architecture, checkpoint
        self.names = _NAMES.get(architecture.family, _LLAMA)

    def table(self) -> Floats:
        """The table of the embedding, (vocab, hidden)."""
        return self.checkpoint[self.names["embedding"]]

    def head(self) -> Layer:
        """Weight and perhaps bias of the last product; with tied weights only the bias."""
        name = self.names["head"]
        found = {} if self.architecture.tied else {"weight": self.checkpoint[f"{name}.weight"]}
        return found | ({"bias": self.checkpoint[f"{name}.bias"]} if f"{name}.bias" in self.checkpoint else {})

    def learned_positions(self) -> Floats:
        """The table of learned positions."""
        return self.checkpoint[self.names["positions"]]

    def final_norm(self) -> Layer:
        """Weight and perhaps bias of the last normalisation."""
        return self._norm(self.names["norm"])

    def layer(self, number: int) -> Layer:
        """The weights of one layer."""
        a, prefix = self.architecture, f"{self.names['layers']}.{number}."
        found: Layer = {}
        for own, name in self.names.items():
            if own.endswith("_norm") and own != "norm":
                found |= {f"{own}.{part}": value for part, value in self._norm(prefix + name).items()}
        if a.head_norms:
            for own in ("query", "key"):
                weight = self.checkpoint[f"{prefix}self_attn.{own[0]}_norm.weight"]
                found[f"{own}_norm.weight"] = weight + np.float32(a.norm_offset)
        self._linear(found, "qkv", [prefix + name for name in self.names["qkv"].split()])
        self._linear(found, "output", [prefix + self.names["output"]])
        if a.family == "gpt_neox":
            found["qkv.weight"] = _by_kind(found["qkv.weight"], a)
            if "qkv.bias" in found:
                found["qkv.bias"] = _by_kind(found["qkv.bias"], a)
        if a.layer(number).experts:
            self._experts(found, prefix)
        else:
            self._linear(found, "up", [prefix + name for name in self.names["up"].split()])
            self._linear(found, "down", [prefix + self.names["down"]])
        return found

    def _norm(self, name: str) -> Layer:
        weight = self.checkpoint[f"{name}.weight"] + np.float32(self.architecture.norm_offset)
        return {"weight": weight} | (
            {"bias": self.checkpoint[f"{name}.bias"]} if f"{name}.bias" in self.checkpoint else {}
        )

    def _linear(self, found: Layer, own: str, names: list[str]) -> None:
        """Add a linear layer: several that read the same rows become one."""
        parts = [self.checkpoint[f"{name}.weight"] for name in names]
        if self.architecture.family == "gpt2":  # Conv1D: (inputs, outputs)
            parts = [part.T for part in parts]
        found[f"{own}.weight"] = np.concatenate(parts) if len(parts) > 1 else parts[0]
        if f"{names[0]}.bias" in self.checkpoint:
            found[f"{own}.bias"] = np.concatenate([self.checkpoint[f"{name}.bias"] for name in names])

    def _experts(self, found: Layer, prefix: str) -> None:
        mixtral = self.architecture.family == "mixtral"
        block = prefix + ("block_sparse_moe" if mixtral else "mlp")
        gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
        found["router.weight"] = self.checkpoint[f"{block}.gate.weight"]
        experts = [f"{block}.experts.{e}" for e in range(self.architecture.experts)]
        found["experts_up.weight"] = np.stack(
            [
                np.concatenate([self.checkpoint[f"{e}.{gate}.weight"], self.checkpoint[f"{e}.{up}.weight"]])
                for e in experts
            ]
        )
        found["experts_down.weight"] = np.stack([self.checkpoint[f"{e}.{down}.weight"] for e in experts])
        if self.architecture.shared_inner:
            shared = f"{block}.shared_expert"
            self._linear(found, "up", [f"{shared}.{gate}", f"{shared}.{up}"])
            self._linear(found, "down", [f"{shared}.{down}"])
            found["shared_gate.weight"] = self.checkpoint[f"{block}.shared_expert_gate.weight"]


def _by_kind(values: Floats, architecture: DecoderConfig) -> Floats:
    """From (heads, three, width, ...) to (three, heads, width, ...): all queries, then keys, then values."""
    parts = values.reshape(architecture.heads, 3, architecture.head_width, *values.shape[1:])
    return np.ascontiguousarray(parts.swapaxes(0, 1)).reshape(values.shape)


_LLAMA = {
    "embedding": "model.embed_tokens.weight",
    "head": "lm_head",
    "norm": "model.norm",
    "layers": "model.layers",
    "attention_norm": "input_layernorm",
    "inner_norm": "post_attention_layernorm",
    "qkv": "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
    "output": "self_attn.o_proj",
    "up": "mlp.gate_proj mlp.up_proj",
    "down": "mlp.down_proj",
}
_POST = _LLAMA | {
    "post_attention_norm": "post_attention_layernorm",
    "inner_norm": "pre_feedforward_layernorm",
    "post_inner_norm": "post_feedforward_layernorm",
}
_NAMES: dict[str, dict[str, str]] = {
    "gemma2": _POST,
    "gemma3_text": _POST,
    "phi3": _LLAMA | {"qkv": "self_attn.qkv_proj", "up": "mlp.gate_up_proj"},
    "phi": {
        "embedding": "model.embed_tokens.weight",
        "head": "lm_head",
        "norm": "model.final_layernorm",
        "layers": "model.layers",
        "attention_norm": "input_layernorm",
        "qkv": "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
        "output": "self_attn.dense",
        "up": "mlp.fc1",
        "down": "mlp.fc2",
    },
    "gpt2": {
        "embedding": "transformer.wte.weight",
        "positions": "transformer.wpe.weight",
        "head": "lm_head",
        "norm": "transformer.ln_f",
        "layers": "transformer.h",
        "attention_norm": "ln_1",
        "inner_norm": "ln_2",
        "qkv": "attn.c_attn",
        "output": "attn.c_proj",
        "up": "mlp.c_fc",
        "down": "mlp.c_proj",
    },
    "opt": {
        "embedding": "model.decoder.embed_tokens.weight",
        "positions": "model.decoder.embed_positions.weight",
        "head": "lm_head",
        "norm": "model.decoder.final_layer_norm",
        "layers": "model.decoder.layers",
        "attention_norm": "self_attn_layer_norm",
        "inner_norm": "final_layer_norm",
        "qkv": "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
        "output": "self_attn.out_proj",
        "up": "fc1",
        "down": "fc2",
    },
    "gpt_neox": {
        "embedding": "gpt_neox.embed_in.weight",
        "head": "embed_out",
        "norm": "gpt_neox.final_layer_norm",
        "layers": "gpt_neox.layers",
        "attention_norm": "input_layernorm",
        "inner_norm": "post_attention_layernorm",
        "qkv": "attention.query_key_value",
        "output": "attention.dense",
        "up": "mlp.dense_h_to_4h",
        "down": "mlp.dense_4h_to_h",
    },
}
