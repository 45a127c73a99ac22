"""Contention of kernels on a GPU, fitted to measured pairs: the extra time of operators that run together."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import msgspec
import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.problem import Concurrency, Costs, Device, KernelResources, OpGraph, Topology, multiprocessors_of
from tvm_sched_runtime.schedule.thread_blocks import PRODUCT_EFFICIENCY

from .occupancy_model import launches_of, occupancy

NAME = "contention"
_GRID = {
    "serial_share": tuple(n / 20 for n in range(21)),
    "excess": (0.0, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24),
    "crowding": tuple(n / 20 for n in range(21)),
}
Array = npt.NDArray[np.float64]


class Contention(msgspec.Struct, frozen=True):
    """Contention of kernels on one device. All numbers are at least 0, so that further operators never shorten a stage."""

    serial_share: float
    excess: float
    """As in `Concurrency`, with one excess for all resources."""
    crowding: float
    """Fraction of the slowdown `crowded` that operators suffer beside operators that fill the device."""
    interval: tuple[float, float] = (1.0, 1.0)
    """Factors on the prediction between which 90 % of the fitted pairs lie."""

    def pairs(self, seconds: Array, used: Array, crowded: Array) -> Array:
        """Return the times of pairs that start together, by the rule for stages of ``docs/model.md``.

        Parameters
        ----------
        seconds : array, shape (pairs, 2)
            Time of each kernel alone.
        used : array, shape (pairs, 2, resources)
            Fraction of each resource that the kernel uses; the places for blocks come first.
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
"""Fitted by ``benchmarks/concurrent_kernels.py`` to half of the kernel pairs measured on an H100; the other half tests it
in ``docs/results/concurrent_kernels.md``."""


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

    The arrays are those of `Contention.pairs`; ``measured`` is the seconds of each pair together, ``error`` is
    `squared_error` or `median_error`.
    """
    crowding = _GRID["crowding"] if crowded.any() else (0.0,)
    grid = product(_GRID["serial_share"], _GRID["excess"], crowding)
    candidates = [Contention(*values) for values in grid]
    best = min(candidates, key=lambda each: error(np.log(each.pairs(seconds, used, crowded) / measured)))
    low, high = np.quantile(measured / best.pairs(seconds, used, crowded), (0.05, 0.95))
    return msgspec.structs.replace(best, interval=(min(float(low), 1.0), max(float(high), 1.0)))


def crowded(device: Device, kernel: KernelResources, arithmetic: float) -> float:
    """Return the relative slowdown of a kernel whose blocks crowd on as few multiprocessors as can hold them.

    Alone, a kernel's blocks are spread over all multiprocessors. If they wait for a kernel that fills the device, the
    multiprocessors that become free first take as many blocks as fit. All blocks of a multiprocessor then share its
    arithmetic. 0 if the device is unknown.
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

    Kernels that run together are slower than their fractions of the device suggest, and may be slower than one after
    another. The contention of one GPU stands for all GPUs: it consists of ratios, not of times.
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
    return base.replace(source=NAME, concurrency=together)
