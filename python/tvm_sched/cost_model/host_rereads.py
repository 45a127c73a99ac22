"""Direct host access of products and convolutions on GPUs: their tiles read an operand more than once over the bus."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.problem import OpGraph

from .features import FAMILIES, KernelWork

WIDTH = 1.75
"""Time of a product's reads of host memory, over that of a copy of as many bytes: its accesses are narrower. Fitted to the
three products by cuBLASLt of the H100's record; the three by TVM check it (docs/results/gpu_direct_reads.md)."""
LIBRARY_TILE, GENERATED_TILE = 64, 32
"""Rows and columns of the result that a block computes. cuBLASLt's have 32 to 256 (``benchmarks/data/h100_launches.json``),
those of cuDNN's convolutions and of TVM's schedule 32. With one size for each a larger product never costs less."""


def crossing_bytes(graph: OpGraph, work: KernelWork) -> npt.NDArray[np.int64]:
    """Return for each operator the bytes of a copy that takes as long as its kernel's direct reads of host memory on a GPU.

    A block of a product reads the rows of the first operand and the columns of the second that its tile needs, and what lies
    in host memory is cached for one multiprocessor only (on the H100, 64 blocks that read 4 MiB each took 64 times as long
    as one pass). Other kernels read each byte once. For attention this is a lower bound.

    Parameters
    ----------
    graph : OpGraph
        As a machine holds it (`tvm_sched_runtime.problem.graph_on`).
    work : KernelWork
        What `tvm_sched.cost_model.features.describe` says of its operators.
    """
    index = graph.index
    total = np.array([sum(read) for read in index.host_bytes], dtype=np.int64)
    first, second = readings(work)
    products = np.isin(work.family, [FAMILIES.index("matmul"), FAMILIES.index("conv2d")]) & (work.k > 1)
    for o in np.flatnonzero(products & (total > 0)).tolist():
        operands = [index.tensor_id[name] for name in graph.operators[o].inputs[:2]]
        times: dict[int, float] = {}
        for t, count in zip(operands, (first[o], second[o]), strict=False):
            times[t] = times.get(t, 0.0) + WIDTH * count  # a tensor may be both operands
        read = zip(index.host_inputs[o], index.host_bytes[o], strict=True)
        total[o] = round(sum(size * times.get(t, 1.0) for t, size in read))
    return total


def readings(work: KernelWork) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return how often the blocks of a product read each byte of its first and of its second operand."""
    large = (work.library > 0) & (work.family == FAMILIES.index("matmul"))
    tile = np.where(large, LIBRARY_TILE, GENERATED_TILE)
    return np.ceil(work.n / tile), np.ceil(work.m / tile)
