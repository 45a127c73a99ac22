"""Branched convolutional networks with random weights, as torch modules: Inception-v3 and NASNet-A.

Their structure is what schedulers of parallel operators are measured on (IOS, HIOS, Opara). After Szegedy et al.,
*Rethinking the inception architecture for computer vision* (CVPR 2016), and Zoph et al., *Learning transferable
architectures for scalable image recognition* (CVPR 2018); auxiliary classifiers and dropout are left out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

Kernel = int | tuple[int, int]


class ConvBnRelu(nn.Sequential):
    """A convolution without bias, batch normalisation, ReLU; padded so that a stride of 1 keeps the size."""

    def __init__(self, inputs: int, outputs: int, kernel: Kernel = 1, stride: int = 1, valid: bool = False) -> None:
        sizes = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = (0, 0) if valid else (sizes[0] // 2, sizes[1] // 2)
        super().__init__(
            nn.Conv2d(inputs, outputs, sizes, stride, padding, bias=False), nn.BatchNorm2d(outputs, eps=1e-3), nn.ReLU()
        )


class Branches(nn.Module):
    """Branches that read one input, joined along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run all branches."""
        return torch.cat([branch(x) for branch in self.branches], 1)


def _row(inputs: int, *layers: tuple[Any, ...]) -> nn.Sequential:
    """Return convolutions one after another, each as (outputs, kernel, ...)."""
    parts = []
    for outputs, *options in layers:
        parts.append(ConvBnRelu(inputs, outputs, *options))
        inputs = outputs
    return nn.Sequential(*parts)


def _pooled(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), ConvBnRelu(inputs, outputs))


def _block_35(inputs: int, pooled: int) -> Branches:
    return Branches(
        _row(inputs, (64,)),
        _row(inputs, (48,), (64, 5)),
        _row(inputs, (64,), (96, 3), (96, 3)),
        _pooled(inputs, pooled),
    )


def _block_17(inner: int) -> Branches:
    wide, high = (1, 7), (7, 1)
    return Branches(
        _row(768, (192,)),
        _row(768, (inner,), (inner, wide), (192, high)),
        _row(768, (inner,), (inner, high), (inner, wide), (inner, high), (192, wide)),
        _pooled(768, 192),
    )


def _block_8(inputs: int) -> Branches:
    def split() -> Branches:
        return Branches(ConvBnRelu(384, 384, (1, 3)), ConvBnRelu(384, 384, (3, 1)))

    return Branches(
        _row(inputs, (320,)),
        nn.Sequential(_row(inputs, (384,)), split()),
        nn.Sequential(_row(inputs, (448,), (384, 3)), split()),
        _pooled(inputs, 192),
    )


def inception_v3(classes: int = 1000) -> nn.Module:
    """Inception-v3; inputs (batch, 3, size, size), size 75 or more, 299 by default."""
    return nn.Sequential(
        _row(3, (32, 3, 2, True), (32, 3, 1, True), (64, 3)),
        nn.MaxPool2d(3, 2),
        _row(64, (80,), (192, 3, 1, True)),
        nn.MaxPool2d(3, 2),
        _block_35(192, 32),
        _block_35(256, 64),
        _block_35(288, 64),
        Branches(_row(288, (384, 3, 2, True)), _row(288, (64,), (96, 3), (96, 3, 2, True)), nn.MaxPool2d(3, 2)),
        _block_17(128),
        _block_17(160),
        _block_17(160),
        _block_17(192),
        Branches(
            _row(768, (192,), (320, 3, 2, True)),
            _row(768, (192,), (192, (1, 7)), (192, (7, 1)), (192, 3, 2, True)),
            nn.MaxPool2d(3, 2),
        ),
        _block_8(1280),
        _block_8(2048),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2048, classes),
    ).eval()


class Separable(nn.Sequential):
    """Twice ReLU, a depthwise and a pointwise convolution and batch normalisation; the first has the stride."""

    def __init__(self, filters: int, kernel: int, stride: int = 1) -> None:
        parts: list[nn.Module] = []
        for step in (stride, 1):
            parts += [
                nn.ReLU(),
                nn.Conv2d(filters, filters, kernel, step, kernel // 2, groups=filters, bias=False),
                nn.Conv2d(filters, filters, 1, bias=False),
                nn.BatchNorm2d(filters, eps=1e-3),
            ]
        super().__init__(*parts)


class Squeeze(nn.Sequential):
    """ReLU, a pointwise convolution, with a stride if need be, and batch normalisation."""

    def __init__(self, inputs: int, filters: int, stride: int = 1) -> None:
        super().__init__(
            nn.ReLU(), nn.Conv2d(inputs, filters, 1, stride, bias=False), nn.BatchNorm2d(filters, eps=1e-3)
        )


class NormalCell(nn.Module):
    """Five sums of two branches each, from the last cell's result and the one before it."""

    def __init__(self, inputs: int, before: int, shrink: bool, filters: int) -> None:
        super().__init__()
        self.here, self.before = Squeeze(inputs, filters), Squeeze(before, filters, 2 if shrink else 1)
        self.separable = nn.ModuleList(Separable(filters, k) for k in (5, 3, 5, 3, 3))
        self.outputs = 6 * filters

    def forward(self, x: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """Run the cell."""
        h, p, s = self.here(x), self.before(before), self.separable
        pool = nn.functional.avg_pool2d
        sums = [
            s[0](h) + s[1](p),
            s[2](p) + s[3](p),
            pool(h, 3, 1, 1) + p,
            pool(p, 3, 1, 1) + pool(p, 3, 1, 1),
            s[4](h) + h,
        ]
        return torch.cat([p, *sums], 1)


class ReductionCell(nn.Module):
    """Sums of branches at half the size."""

    def __init__(self, inputs: int, before: int, shrink: bool, filters: int) -> None:
        super().__init__()
        self.here, self.before = Squeeze(inputs, filters), Squeeze(before, filters, 2 if shrink else 1)
        self.separable = nn.ModuleList(Separable(filters, k, s) for k, s in ((5, 2), (7, 2), (7, 2), (5, 2), (3, 1)))
        self.outputs = 4 * filters

    def forward(self, x: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """Run the cell."""
        h, p, s = self.here(x), self.before(before), self.separable
        largest, mean = nn.functional.max_pool2d(h, 3, 2, 1), nn.functional.avg_pool2d(h, 3, 2, 1)
        first = s[0](h) + s[1](p)
        second, third = largest + s[2](p), mean + s[3](p)
        fourth = second + nn.functional.avg_pool2d(first, 3, 1, 1)
        return torch.cat([second, third, fourth, s[4](first) + largest], 1)


class NasNet(nn.Module):
    """NASNet-A: two reducing stems, then normal cells with a reduction after each third.

    Where the result before the last cell's is of twice the size, it is shrunk by a strided convolution.
    """

    def __init__(self, stem: int, filters: int, cells: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, stem, 3, 2, 1, bias=False), nn.BatchNorm2d(stem, eps=1e-3))
        plan = [("reduction", filters // 4), ("reduction", filters // 2)]
        for third in range(3):
            plan += [("normal", filters << third)] * cells
            plan += [("reduction", filters << (third + 1))] * (third < 2)
        modules: list[nn.Module] = []
        width, before, halved = stem, stem, False
        for kind, count in plan:
            cell = (NormalCell if kind == "normal" else ReductionCell)(width, before, halved, count)
            modules.append(cell)
            width, before, halved = cell.outputs, width, kind == "reduction"
        self.cells = nn.ModuleList(modules)
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images to scores of classes."""
        here = before = self.stem(x)
        for cell in self.cells:
            here, before = cell(here, before), here
        return self.classifier(torch.relu(here).mean((2, 3)))


def nasnet_mobile(classes: int = 1000) -> nn.Module:
    """NASNet-A (4 @ 1056); inputs (batch, 3, size, size), size a multiple of 32, 224 by default."""
    return NasNet(32, 44, 4, classes).eval()


def nasnet_large(classes: int = 1000) -> nn.Module:
    """NASNet-A (6 @ 4032); inputs (batch, 3, size, size), size a multiple of 32."""
    return NasNet(96, 168, 6, classes).eval()


def exported(module: nn.Module, size: int, batch: int = 1) -> Any:
    """Return the module as a ``torch.export`` program for images of one size."""
    with torch.no_grad():
        return torch.export.export(module, (torch.zeros(batch, 3, size, size),))
