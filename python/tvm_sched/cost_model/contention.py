"""Contention of kernels on a GPU, fitted to measured pairs: the extra time of operators that run together."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import msgspec
import numpy as np
import numpy.typing as npt

from ..problem import Concurrency, Costs, Device, KernelResources, OpGraph, Topology, multiprocessors_of
from ..schedule.thread_blocks import PRODUCT_EFFICIENCY
from .occupancy_model import launches_of, occupancy

NAME = "contention"
_GRID = {
    "serial_share": tuple(n / 20 for n in range(21)),
    "excess": (0.0, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24),
    "crowding": tuple(n / 20 for n in range(21)),
}
Array = npt.NDArray[np.float64]


class Contention(msgspec.Struct, frozen=True):
    """Contention of kernels on one device; each number is 0 or more, so that more operators never take less time."""

    serial_share: float
    excess: float
    """As for `Concurrency`; one excess for all resources."""
    crowding: float
    """Part of `crowded` that comes about beside operators that fill the device."""
    interval: tuple[float, float] = (1.0, 1.0)
    """Between these times the prediction lie 90 % of the pairs that it was fitted to."""

    def pairs(self, seconds: Array, used: Array, crowded: Array) -> Array:
        """Return the times of pairs that start together, by the rule for stages of ``docs/model.md``.

        Parameters
        ----------
        seconds : array, shape (pairs, 2)
            Of each alone.
        used : array, shape (pairs, 2, resources)
            Parts of the resources, the places for blocks first.
        crowded : array, shape (pairs, 2)
            See `crowded`.
        """
        needed = (seconds[:, :, None] * used).sum(axis=1).max(axis=1)
        formula = self.serial_share * seconds.sum(axis=1)
        formula += (1 - self.serial_share) * np.maximum(needed, seconds.max(axis=1))
        lost = self.excess * np.maximum(used.sum(axis=1) - 1, 0).sum(axis=1) * seconds.min(axis=1)
        beside = used[:, ::-1, 0]
        return np.asarray(formula + lost + self.crowding * (seconds * crowded * beside**2).sum(axis=1))


H100 = Contention(0.65, 0.03, 0.3, (0.74, 1.4))
"""Fitted to half of the pairs of kernels that an H100 ran together, by ``benchmarks/concurrent_kernels.py``; the other half
is in ``docs/results/concurrent_kernels.md``."""


def squared_error(off: Array) -> float:
    """Return the mean square of logarithmic errors, in which large slowdowns count most."""
    return float(np.square(off).mean())


def median_error(off: Array) -> float:
    """Return the median of logarithmic errors, which few outliers hardly change; the mean breaks ties."""
    return round(float(np.median(np.abs(off))), 4) + 1e-5 * float(np.abs(off).mean())


def fit_contention(
    seconds: Array, used: Array, crowded: Array, measured: Array, error: Callable[[Array], float] = squared_error
) -> Contention:
    """Return the contention on a grid of parameters that has the least error on measured pairs.

    Arrays as for `Contention.pairs`; ``measured`` is seconds of each pair together, ``error`` one of `squared_error` and
    `median_error`.
    """
    crowding = _GRID["crowding"] if crowded.any() else (0.0,)
    grid = product(_GRID["serial_share"], _GRID["excess"], crowding)
    candidates = [Contention(*values) for values in grid]
    best = min(candidates, key=lambda each: error(np.log(each.pairs(seconds, used, crowded) / measured)))
    low, high = np.quantile(measured / best.pairs(seconds, used, crowded), (0.05, 0.95))
    return msgspec.structs.replace(best, interval=(min(float(low), 1.0), max(float(high), 1.0)))


def crowded(device: Device, kernel: KernelResources, arithmetic: float) -> float:
    """Return the relative slowdown of a kernel whose blocks crowd on as few multiprocessors as can hold them.

    Blocks that wait for a kernel that fills the device go to the multiprocessors that get free first, as many as fit
    there; alone they are spread. What is slower then is arithmetic: that of a multiprocessor is shared by all its blocks.
    0 where the device is not known.
    """
    known = multiprocessors_of(device)
    if known is None:
        return 0.0
    processor, count = known
    resident = processor.resident(kernel)
    on_one = min(resident, kernel.blocks)
    of_block = arithmetic * count / min(kernel.blocks, resident * count)
    return max(0.0, on_one * of_block - 1)


def contention(graph: OpGraph, topology: Topology, fitted: Contention = H100) -> Costs:
    """Return the latencies of `occupancy`, with the contention that was measured on an H100.

    Kernels that run together are slower than by their parts of the device alone, and may be slower than one after another.
    It is the contention of one GPU, taken for all: ratios, not times, are carried over.
    """
    base = occupancy(graph, topology)
    assert base.concurrency is not None
    used = base.concurrency.utilisation
    crowding = np.zeros(base.operator_ns.shape)
    for d, device in enumerate(topology.devices):
        if device.kind == "cuda":
            for o, (operator, each) in enumerate(zip(graph.operators, launches_of(graph), strict=True)):
                reached = 1.0 if operator.demand and operator.demand.memory_bound else PRODUCT_EFFICIENCY
                arithmetic = min(1.0, float(used[o, d, 1]) / reached)
                crowding[o, d] = fitted.crowding * max(crowded(device, kernel, arithmetic) for kernel in each)
    together = Concurrency(
        used, fitted.serial_share, excess=(fitted.excess,) * used.shape[2], crowding=crowding, interval=fitted.interval
    )
    return Costs(base.operator_ns, base.direct_ns, NAME, together)
