"""A model of the launches of cuBLASLt and cuDNN for a product or convolution; their actual choice needs a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

from tvm_sched_runtime.problem import KernelResources


class _Tile(NamedTuple):
    """A block's part of the result, and the block's threads, registers per thread and bytes of shared memory."""

    rows: int
    columns: int
    threads: int
    registers: int
    shared_memory: int


_LARGE = (_Tile(256, 128, 256, 254, 67584), _Tile(128, 64, 128, 224, 18816))
_SMALL = _Tile(32, 32, 64, 80, 6528)
_CONVOLUTION = _Tile(32, 32, 64, 92, 6528)
_ENOUGH = 128  # blocks, about the number of a GPU's multiprocessors
_LEAST_DEPTH = 128  # fewest terms of a part of a split sum


def library_launch(document: Mapping[str, Any]) -> KernelResources:
    """Estimate the launch that computes the product of a kernel that `Claimer` described.

    A convolution is, for each group, the product of its filters and the patches of its input. A product uses the largest
    tile with enough blocks for a GPU, else the smallest tile, and then splits its sums if there are too few blocks. Tiles
    and their resources were measured with torch 2.11, cuBLAS and cuDNN of CUDA 13.0 on an H100 in float32
    (``benchmarks/data/h100_launches.json``). The measured numbers of blocks are within a factor of 2.4 of this model.
    """
    batch, rows, columns, depth = _product(document)
    tile, parts = _tile(document), 1
    if document["kind"] != "conv2d":
        few = -(-_ENOUGH // (batch * _tiles(tile, rows, columns)))
        parts = max(1, min(few, depth // _LEAST_DEPTH))
    blocks = batch * _tiles(tile, rows, columns) * parts
    return KernelResources(blocks, tile.threads, tile.registers, tile.shared_memory)


def _tile(document: Mapping[str, Any]) -> _Tile:
    if document["kind"] == "conv2d":
        return _CONVOLUTION
    batch, rows, columns, _ = _product(document)
    return next((tile for tile in _LARGE if batch * _tiles(tile, rows, columns) >= _ENOUGH), _SMALL)


def _tiles(tile: _Tile, rows: int, columns: int) -> int:
    return -(-rows // tile.rows) * -(-columns // tile.columns)


def _product(document: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Return the number, rows, columns and depth of the products."""
    if document["kind"] == "conv2d":
        images, channels, *extents = document["output"]
        groups = document["groups"]
        return groups, images * prod(extents), channels // groups, prod(document["weights"][1:])
    return document["batch"], document["m"], document["n"], document["k"]
