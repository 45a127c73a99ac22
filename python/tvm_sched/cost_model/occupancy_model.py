"""How operators that run together share a device: occupancy, arithmetic and bandwidth (``docs/model.md``)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.errors import CostsError
from tvm_sched_runtime.problem import (
    FORBIDDEN,
    Concurrency,
    Costs,
    Device,
    KernelResources,
    OpGraph,
    Topology,
    multiprocessors_of,
)

from .roofline_model import roofline

NAME = "occupancy"
BY_LAUNCHES = (NAME, "contention")
"""Cost models that need the resources that kernels take on a GPU."""
_LEAST = 1e-6
"""Lower limit of the fraction of a resource that an operator uses."""


def occupancy_share(device: Device, kernel: KernelResources) -> float:
    """Return the part of the device's places for blocks that a kernel takes, from 0 to 1; 1 if the device is unknown.

    Raises
    ------
    CostsError
        A block of the kernel fits on no multiprocessor of the device.
    """
    known = multiprocessors_of(device)
    if known is None:
        return 1.0
    processor, count = known
    resident = processor.resident(kernel)
    if resident == 0:
        raise CostsError(f"a block of {kernel} does not fit on a multiprocessor of {device.name!r}: {processor}")
    return min(1.0, kernel.blocks / (resident * count))


def estimated_resources(graph: OpGraph) -> dict[str, KernelResources]:
    """Estimate the resources of uncompiled kernels: a thread for every 4 bytes of output, in blocks of 256."""
    index = graph.index
    resources = {}
    for o, operator in enumerate(graph.operators):
        elements = sum(index.size[t] for t in index.outputs[o]) // 4
        resources[operator.name] = KernelResources(max(1, -(-elements // 256)), 256)
    return resources


def occupancy(graph: OpGraph, topology: Topology, kernels: Mapping[str, KernelResources] | None = None) -> Costs:
    """Return the roofline's latencies, and how long operators take together, by their use of three resources.

    An operator that takes ``t`` alone uses these fractions of a device:

    - *occupancy*: the part of the places for blocks that it takes (`occupancy_share`), all of it on a CPU;
    - *arithmetic*: ``flops / peak_flops / t``;
    - *bandwidth*: ``bytes / memory_bandwidth / t``.

    Operators together take as long as the longest of them, or as the busiest resource (`Concurrency` with
    ``serial_share=0``). So launch overheads and small kernels overlap, but kernels that fill the device do not. Opara leaves
    such an analytic model for future work.

    Parameters
    ----------
    kernels : mapping of str to KernelResources, optional
        Resources by operator. Default: those of the operator's `Demand` (of several launches the one with most
        places), or `estimated_resources` if it has none.

    Returns
    -------
    Costs
        With ``source="occupancy"``.

    Examples
    --------
    >>> from tvm_sched.cost_model import occupancy
    >>> occupancy(graph, topology).concurrency.utilisation.shape
    (3, 2, 3)
    """
    base = roofline(graph, topology)
    launches = launches_of(graph, kernels)
    taken = np.ones(base.operator_ns.shape)
    for d, device in enumerate(topology.devices):
        if device.kind == "cuda":
            taken[:, d] = [max(occupancy_share(device, kernel) for kernel in each) for each in launches]
    used = utilisation(graph, topology, base.operator_ns, taken)
    return base.replace(source=NAME, concurrency=Concurrency(used))


def launches_of(
    graph: OpGraph, kernels: Mapping[str, KernelResources] | None = None
) -> list[tuple[KernelResources, ...]]:
    """Return the kernel launches of each operator: from ``kernels``, from its demand, or estimated."""
    if kernels is None:
        guess = estimated_resources(graph)
        return [
            operator.demand.launches if operator.demand else (guess[operator.name],) for operator in graph.operators
        ]
    missing = [operator.name for operator in graph.operators if operator.name not in kernels]
    if missing:
        raise CostsError(f"kernels has no {missing[0]!r}; it has one for each operator")
    return [(kernels[operator.name],) for operator in graph.operators]


def utilisation(
    graph: OpGraph, topology: Topology, operator_ns: npt.NDArray[np.int64], occupancy: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return the part of each resource that operators use while they run alone for ``operator_ns``.

    Parameters
    ----------
    operator_ns : array of int64, shape (operators, devices)
    occupancy : array of float, shape (operators, devices)
        Fractions of the places for blocks, or of the threads.

    Returns
    -------
    array of float, shape (operators, devices, 3)
        Occupancy, arithmetic and bandwidth, above 0 and at most 1.
    """
    size = np.array(graph.index.size, dtype=np.float64)
    moved = np.array([size[[*a, *b]].sum() for a, b in zip(graph.index.inputs, graph.index.outputs, strict=True)])
    flops = np.array([operator.flops for operator in graph.operators], dtype=np.float64)
    used = np.ones((len(flops), len(topology.devices), 3))
    used[:, :, 0] = occupancy
    for d, device in enumerate(topology.devices):
        seconds = np.where(operator_ns[:, d] == FORBIDDEN, np.inf, operator_ns[:, d]) / 1e9
        used[:, d, 1] = flops / device.peak_flops["float32"] / seconds
        used[:, d, 2] = moved / device.memory_bandwidth / seconds
    return used.clip(_LEAST, 1.0)
