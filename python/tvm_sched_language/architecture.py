"""The `DecoderConfig` of a Hugging Face folder, every field of it known, and the numbers of its rotary embedding."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.problem.decoder_config import DecoderConfig, RopeScaling
from tvm_sched_runtime.problem.decoder_config_file import FAMILIES, read_config

__all__ = ["FAMILIES", "angles", "read_architecture"]

Floats = npt.NDArray[np.float32]


def read_architecture(folder: Path) -> DecoderConfig:
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
    return read_config(folder / "config.json", families=FAMILIES, exact=True)


def angles(config: DecoderConfig, theta: float, count: int) -> Floats:
    """Return cosines, then sines, of the rotary embedding: (positions, rotated), in float32 as transformers has them."""
    exponents = np.arange(0, config.rotated, 2, dtype=np.int64).astype(np.float32) / np.float32(config.rotated)
    rates = (np.float32(1.0) / (np.float32(theta) ** exponents)).astype(np.float32)
    turns = np.arange(count, dtype=np.float32)[:, None] * _scaled(rates, config.rope)[None, :]
    return np.concatenate([np.cos(turns), np.sin(turns)], axis=1).astype(np.float32)


def _scaled(rates: Floats, rope: RopeScaling) -> Floats:
    """Scale the rates of rotation as ``rope_type`` says (Llama 3's scaling: transformers' ``llama3``)."""
    if rope.rope_type == "linear":
        return (rates / np.float32(rope.factor)).astype(np.float32)
    if rope.rope_type == "llama3":
        low, high = rope.low_freq_factor, rope.high_freq_factor
        factor, before = rope.factor, rope.original_max_position_embeddings
        lengths = 2 * math.pi / rates
        slow = np.where(lengths > before / low, rates / np.float32(factor), rates)
        smooth = (before / lengths - low) / (high - low)
        between = (1 - smooth) * slow / factor + smooth * slow
        medium = (lengths >= before / high) & (lengths <= before / low)
        return np.where(medium, between, slow).astype(np.float32)
    return rates
