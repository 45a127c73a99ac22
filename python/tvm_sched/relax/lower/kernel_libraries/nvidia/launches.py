"""A model of the kernels that cuBLASLt and cuDNN launch for a product or convolution: their real choice needs a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

from .....problem import KernelResources


class _Tile(NamedTuple):
    """A block's part of the result, and what the block takes."""

    rows: int
    columns: int
    threads: int
    registers: int
    shared_memory: int


_LARGE = (_Tile(256, 128, 256, 254, 67584), _Tile(128, 64, 128, 224, 18816))
_SMALL = _Tile(32, 32, 64, 80, 6528)
_CONVOLUTION = _Tile(32, 32, 64, 92, 6528)
_ENOUGH = 128  # blocks: about a GPU's multiprocessors
_LEAST_DEPTH = 128  # of a part of a sum that is split


def library_launch(document: Mapping[str, Any]) -> KernelResources:
    """The launch of a kernel that `Claimer` described, of its parts the one that computes the product.

    A convolution is the product of its filters by the patches of its input, one for each group. The tile of a product is the
    largest of which there are enough for a GPU, else the smallest, and its sums are split where there are still too few
    blocks. Tiles and what they take are those that torch 2.11 with cuBLAS and cuDNN of CUDA 13.0 launched on an H100 in
    float32 (``benchmarks/data/h100_launches.json``), where the number of blocks is within a factor of 2.4 of this model's.
    """
    batch, rows, columns, depth = _product(document)
    if document["kind"] == "conv2d":
        tile, parts = _CONVOLUTION, 1
    else:
        tile = next((tile for tile in _LARGE if batch * _tiles(tile, rows, columns) >= _ENOUGH), _SMALL)
        few = -(-_ENOUGH // (batch * _tiles(tile, rows, columns)))
        parts = max(1, min(few, depth // _LEAST_DEPTH))
    blocks = batch * _tiles(tile, rows, columns) * parts
    return KernelResources(blocks, tile.threads, tile.registers, tile.shared_memory)


def _tiles(tile: _Tile, rows: int, columns: int) -> int:
    return -(-rows // tile.rows) * -(-columns // tile.columns)


def _product(document: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Number, rows, columns and depth of the products."""
    if document["kind"] == "conv2d":
        images, channels, *extents = document["output"]
        groups = document["groups"]
        return groups, images * prod(extents), channels // groups, prod(document["weights"][1:])
    return document["batch"], document["m"], document["n"], document["k"]
