"""Copies of tensors between devices, for the scripts of plans; it becomes part of them."""

from __future__ import annotations

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
