# ruff: noqa: D102 (forward needs no docstring)
"""The networks of `gpu_hour.py` as PyTorch modules with numbers by name, batch normalisation folded into convolutions."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from .weights import numbers, tokens, weight


@dataclass(frozen=True)
class Network:
    """A module and its input: ``vocabulary`` 0 for numbers, else token ids below it."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    vocabulary: int = 0
    types: tuple[str, ...] = ("float32",)


class Branches(nn.Module):
    """Four branches of two products, with GELU and softmax, that meet in a layer norm."""

    def __init__(self, width: int = 64, inner: int = 96) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(width, inner) for _ in range(4))
        self.down = nn.ModuleList(nn.Linear(inner, width) for _ in range(4))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Any) -> Any:
        total = x
        for k, (up, down) in enumerate(zip(self.up, self.down, strict=True)):
            y = up(x)
            total = total + down(nn.functional.gelu(y) if k % 2 else y.softmax(-1))
        return self.norm(total)


class Picture(nn.Module):
    """Convolutions, also grouped and depthwise, pooling, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.grouped = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, 2, 1, groups=4)
        self.depthwise, self.last = nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Linear(16 * 4 * 4, 10)

    def forward(self, x: Any) -> Any:
        y = self.grouped(torch.relu(self.first(x)))
        z = nn.functional.max_pool2d(torch.relu(y), 2) + nn.functional.max_pool2d(self.depthwise(y), 2)
        return self.last(z.flatten(1))


class Layer(nn.Module):
    """A transformer's layer: layer norms, attention of several heads, GELU."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = (parts[:, :, k].transpose(1, 2) for k in range(3))
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


class Result(nn.Module):
    """The first result of a decoder of transformers, without a cache."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Any) -> Any:
        return self.model(input_ids=ids, use_cache=False).last_hidden_state


class Encoder(nn.Module):
    """BERT's layers without the embedding of words."""

    def __init__(self) -> None:
        super().__init__()
        import transformers

        config = transformers.BertConfig(attn_implementation="sdpa", vocab_size=16)
        self.model = transformers.BertModel(config, add_pooling_layer=False)

    def forward(self, x: Any) -> Any:
        return self.model.encoder(x).last_hidden_state


def _gpt2() -> nn.Module:
    import transformers

    return Result(transformers.GPT2Model(transformers.GPT2Config(attn_implementation="sdpa")))


def _llama() -> nn.Module:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=1024, hidden_size=4096, intermediate_size=11008, num_hidden_layers=2, num_attention_heads=32,
        num_key_value_heads=8, attn_implementation="sdpa",
    )  # fmt: skip
    return Result(transformers.LlamaModel(config))


def torchvision() -> Any:
    """Import torchvision; beside a PyTorch for CPUs its detection operators are missing, which are not needed here."""
    if torch.version.cuda is None and not _KEPT:
        _KEPT.append(torch.library.Library("torchvision", "FRAGMENT"))
        for name in ("nms", "qnms"):
            _KEPT[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision as found

    return found


_KEPT: list[Any] = []


def vision(name: str, size: int = 224, types: tuple[str, ...] = ("float32", "float16"), **options: Any) -> Network:
    """Return a network of torchvision for one picture."""

    def make() -> nn.Module:
        found: nn.Module = getattr(torchvision().models, name)(weights=None, **options)
        return found

    return Network(make, (1, 3, size, size), types=types)


_PLAIN = {"init_weights": False, "aux_logits": False}
SMALL = {
    "branches": Network(Branches, (32, 64)),
    "picture": Network(Picture, (1, 3, 16, 16)),
    "layer": Network(lambda: Layer(64, 4), (2, 24, 64), types=("float32", "float16", "bfloat16")),
}
"""Of a few kilobytes, for random schedules, compute-sanitizer and the rehearsal."""
LARGE = {
    "squeezenet1_1": vision("squeezenet1_1", types=("float32",)),
    "resnet50": vision("resnet50"),
    "googlenet": vision("googlenet", **_PLAIN),
    "inception_v3": vision("inception_v3", 299, **_PLAIN),
    "mobilenet_v3_large": vision("mobilenet_v3_large"),
    "vit_b_16": vision("vit_b_16"),
    "bert-base-128": Network(Encoder, (1, 128, 768), types=("float32", "float16")),
    "gpt2-512": Network(_gpt2, (1, 512), 50257, ("float32", "float16")),
    "llama-2-layers-512": Network(_llama, (1, 512), 1024, ("float16",)),
    "convnext_tiny": vision("convnext_tiny", types=("float32",)),
    "efficientnet_b0": vision("efficientnet_b0", types=("float32",)),
}


def _nasnet() -> nn.Module:
    """NASNet-A, from its file: the package around it needs more than the machine with the GPU has."""
    file = Path(__file__).resolve().parents[2] / "python" / "tvm_sched_bench" / "testing" / "branched.py"
    spec = importlib.util.spec_from_file_location("branched", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is missing")
    branched = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(branched)
    found: nn.Module = branched.nasnet_large()
    return found


NETWORKS = {**SMALL, **LARGE, "nasnet_large": Network(_nasnet, (1, 3, 331, 331))}
BRANCHED = ("squeezenet1_1", "resnet50", "googlenet", "inception_v3")
"""Networks whose kernels several streams may run side by side."""


def by_worth() -> list[tuple[str, str]]:
    """Return networks and their types in the order in which they are measured."""
    return [(name, dtype) for dtype in ("float32", "float16") for name in LARGE if dtype in LARGE[name].types]


def build(name: str, dtype: str) -> tuple[nn.Module, np.ndarray[Any, Any]]:
    """Make a network in evaluation mode, in float32 with numbers rounded to ``dtype``, and its input."""
    network = NETWORKS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = network.make().eval()
    with torch.no_grad():
        for key, tensor in {**dict(module.named_parameters()), **dict(module.named_buffers())}.items():
            if tensor.dtype == torch.float32 and not key.endswith("inv_freq"):
                tensor.copy_(torch.from_numpy(weight(key, tuple(tensor.shape), "float32")))
    if any(isinstance(part, nn.BatchNorm2d) for part in module.modules()):
        from torch.fx.experimental.optimization import fuse

        module = fuse(module)
    if dtype != "float32":  # a reference of the same rounded numbers
        module = module.to(getattr(torch, dtype)).float()
    if network.vocabulary:
        return module, tokens(name, network.shape, network.vocabulary)
    return module, numbers(name, network.shape, 1.0, dtype)


def to_torch(value: np.ndarray[Any, Any]) -> Any:
    """Convert an array, also of bfloat16, to a tensor."""
    if value.dtype.name == "bfloat16":
        return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(value)


def to_numpy(value: Any) -> np.ndarray[Any, Any]:
    """Convert a tensor, also of bfloat16, to an array on the host."""
    value = value.detach().cpu()
    if value.dtype == torch.bfloat16:
        import ml_dtypes

        return value.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    found: np.ndarray[Any, Any] = value.numpy()
    return found


def tensors(module: nn.Module, dtype: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return a module's parameters and buffers in an element type by name."""
    kind = getattr(torch, dtype)
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: to_numpy(value.to(kind) if value.dtype == torch.float32 else value) for name, value in state.items()}
