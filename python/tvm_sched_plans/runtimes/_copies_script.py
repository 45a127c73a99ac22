"""Copies of tensors between devices, and the order of GPUs, for the scripts of plans; it becomes part of them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

import torch

_STREAMS: dict[tuple[torch.device, torch.device], tuple[Any, Any]] = {}
"""Streams of the copies from a GPU to another, on both."""


def copied(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a tensor to another device; only the readers of the copy wait for it."""
    if tensor.device.type != "cuda" or device.type != "cuda":
        return tensor.to(device, non_blocking=tensor.device.type == "cpu" and tensor.is_pinned())
    pair = tensor.device, device
    if pair not in _STREAMS:
        _STREAMS[pair] = torch.cuda.Stream(tensor.device), torch.cuda.Stream(device)
    sending, receiving = _STREAMS[pair]
    sending.wait_stream(torch.cuda.current_stream(tensor.device))
    # PyTorch copies on the sender's current stream, and lets the receiver's current one wait: neither may compute.
    with torch.cuda.stream(receiving), torch.cuda.stream(sending):
        copy = tensor.to(device, non_blocking=True)
    tensor.record_stream(sending)
    reader = torch.cuda.current_stream(device)
    reader.wait_stream(receiving)
    copy.record_stream(reader)
    return copy


def count_as_planned(environment: Mapping[str, str]) -> None:
    """Let CUDA count the GPUs as the plan does, which it can be told only before it starts."""
    if all(os.environ.get(name) == value for name, value in environment.items()):
        return
    os.environ.update(environment)
    if torch.cuda.is_initialized():
        wanted = " ".join(f"{name}={value}" for name, value in environment.items())
        text = f"CUDA has started, and counts unequal GPUs in another order than the plan: set {wanted} before"
        warnings.warn(text, stacklevel=2)
