"""Puts a transformers model on devices as tvm-sched planned: `place(model)`, then use the model as before.

A module's inputs are copied to its device before it runs; copies between GPUs have a stream of their own, and what computes
with them waits for it alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tvm_sched_plans.runtimes._copies_script import copied

ENVIRONMENT: dict[str, str] = {}
"""Variables under which CUDA counts the GPUs as the plan does; it reads them when it starts, so import this before."""
MODULES: dict[str, str] = {}
"""Device of each module, by its name in the model."""


def place(model: torch.nn.Module, devices: Mapping[str, str] | None = None) -> torch.nn.Module:
    """Move the modules, and let each fetch its inputs.

    ``devices`` maps the plan's devices to others, e.g. ``{"cuda:0": "cpu", "cuda:1": "cpu"}`` to try it without GPUs.
    """
    chosen = {name: torch.device((devices or {}).get(device, device)) for name, device in MODULES.items()}
    for name, device in chosen.items():
        module = model.get_submodule(name)
        module.to(device)
        module.register_forward_pre_hook(_fetch(device), with_kwargs=True)
    return model


def _fetch(device: torch.device) -> Any:
    def hook(module: torch.nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return _moved(args, device), _moved(kwargs, device)

    return hook


def _moved(value: Any, device: torch.device) -> Any:
    """Tensors in lists, tuples and dictionaries on a device; a cache has tensors of its own there, and remains."""
    if isinstance(value, torch.Tensor):
        return value if value.device == device else copied(value, device)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_moved(each, device) for each in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(each, device) for each in value)
    if type(value) is dict:
        return {key: _moved(each, device) for key, each in value.items()}
    return value
