"""The six networks of Opara's evaluation as torch modules, at the paper's sizes, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from tvm_sched_bench.testing.branched import Branches, _row, inception_v3, nasnet_large


def _inception(inputs: int, sizes: tuple[int, int, int, int, int, int]) -> Branches:
    one, three_in, three, five_in, five, pooled = sizes
    return Branches(
        _row(inputs, (one,)),
        _row(inputs, (three_in,), (three, 3)),
        _row(inputs, (five_in,), (five, 3)),
        nn.Sequential(nn.MaxPool2d(3, 1, 1), _row(inputs, (pooled,))),
    )


def googlenet() -> nn.Module:
    """As torchvision's: batch normalisation, 3 x 3 in place of 5 x 5."""
    blocks = [
        (192, (64, 96, 128, 16, 32, 32)), (256, (128, 128, 192, 32, 96, 64)), None,
        (480, (192, 96, 208, 16, 48, 64)), (512, (160, 112, 224, 24, 64, 64)), (512, (128, 128, 256, 24, 64, 64)),
        (512, (112, 144, 288, 32, 64, 64)), (528, (256, 160, 320, 32, 128, 128)), None,
        (832, (256, 160, 320, 32, 128, 128)), (832, (384, 192, 384, 48, 128, 128)),
    ]  # fmt: skip
    layers: list[nn.Module] = [
        _row(3, (64, 7, 2)),
        nn.MaxPool2d(3, 2, 1),
        _row(64, (64,), (192, 3)),
        nn.MaxPool2d(3, 2, 1),
    ]
    layers += [nn.MaxPool2d(3, 2, 1) if block is None else _inception(*block) for block in blocks]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, 1000)).eval()


class DeepFM(nn.Module):
    """26 categories of 10,000 values and 13 numbers (Criteo), embeddings of 16, three layers of 400."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ModuleList([nn.Embedding(10_000, 1) for _ in range(26)])
        self.second = nn.ModuleList([nn.Embedding(10_000, 16) for _ in range(26)])
        self.dense = nn.Linear(13, 1)
        sizes = (26 * 16 + 13, 400, 400, 400)
        hidden = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
        self.deep = nn.Sequential(*hidden, nn.Linear(400, 1))

    def forward(self, categories: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Click probability; shapes (batch, 26) and (batch, 13)."""
        linear = sum((table(categories[:, k]) for k, table in enumerate(self.first)), self.dense(numbers))
        fields = torch.stack([table(categories[:, k]) for k, table in enumerate(self.second)], 1)
        summed, squares = fields.sum(1) ** 2, (fields**2).sum(1)
        pairs = 0.5 * (summed - squares).sum(1, keepdim=True)
        return torch.sigmoid(linear + pairs + self.deep(torch.cat([fields.flatten(1), numbers], 1)))


class _First(nn.Module):
    """The first result of a model of transformers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=tokens).last_hidden_state


def _bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    return _First(BertModel(BertConfig(attn_implementation="eager"), add_pooling_layer=False)).eval()


def _t5_encoder() -> nn.Module:
    from transformers import T5Config, T5EncoderModel

    return _First(T5EncoderModel(T5Config())).eval()


def _image(size: int) -> tuple[torch.Tensor, ...]:
    return (torch.rand(1, 3, size, size),)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "GoogLeNet": (googlenet, lambda: _image(224)),
    "Inception-v3": (inception_v3, lambda: _image(299)),
    "BERT-base": (_bert, lambda: (torch.randint(0, 1000, (1, 128)),)),
    "T5-small encoder": (_t5_encoder, lambda: (torch.randint(0, 1000, (1, 512)),)),
    "DeepFM": (DeepFM, lambda: (torch.randint(0, 10_000, (1, 26)), torch.rand(1, 13))),
    "NASNet-A large": (nasnet_large, lambda: _image(331)),
}
"""By name: the module, and inputs of batch 1. NASNet-A large has images of 331, T5 512 tokens, BERT 128."""


def exported(name: str, batch: int = 1) -> Any:
    """The module as a program of ``torch.export``, for inputs of a batch."""
    make, inputs = MODELS[name]
    torch.manual_seed(0)
    with torch.no_grad():
        return torch.export.export(
            make().eval(), tuple(value.repeat(batch, *[1] * (value.ndim - 1)) for value in inputs())
        )
