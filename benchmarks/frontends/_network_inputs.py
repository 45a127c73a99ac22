"""Inputs of the networks of `_torch_architectures`."""

from __future__ import annotations

import torch

LEFT_OUT = object()
"""For a field of `SMALL` that a configuration has and that must not be given."""


def words(*shape: int, high: int = 90) -> torch.Tensor:
    """Random token ids that are none of the special ones."""
    return torch.randint(3, high, shape)


def picture(size: int = 32, channels: int = 3) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(1, channels, size, size)}


def text(count: int = 16) -> dict[str, torch.Tensor]:
    """A sentence with padding at its end."""
    return {"input_ids": words(1, count), "attention_mask": (torch.arange(count) < count - 3).long()[None]}


def plain_text(count: int = 16) -> dict[str, torch.Tensor]:
    return {"input_ids": words(1, count)}


def pair(count: int = 12) -> dict[str, torch.Tensor]:
    return {**text(count), "decoder_input_ids": words(1, 7)}


def sound(count: int = 4000) -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(1, count)}
