"""The cost model `roofline`: the longer of an operator's arithmetic and its memory traffic, plus a launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.problem import FORBIDDEN, HOST, Costs, Device, OpGraph, Route, Topology, graph_on

from .device_properties import rate_of

_CLIP = 2.0**62
"""Nanoseconds that still fit into 64 bits; a `Problem` refuses far less."""


@dataclass(frozen=True)
class SlowKernel:
    """A kernel far from its roofline."""

    name: str
    """The kernel's function."""
    operator: str
    """The first operator of the model that it computes."""
    microseconds: float | None
    """Measured time, if the costs are measured."""
    reason: str


def roofline(graph: OpGraph, topology: Topology) -> Costs:
    """Return latencies by floating-point operations, bytes and the devices' specifications.

    With inputs and parameters in the device's memory an operator takes::

        launch_overhead + max(flops / peak_flops, bytes / memory_bandwidth)

    ``bytes`` counts each distinct input and each output once. ``peak_flops`` is the device's rate for the dtype of the first
    output, or for ``float32`` if that dtype is not listed. With direct host access the bytes of graph inputs and parameters
    go over the device's bus, in the time that ``docs/model.md`` calls ``host_read``::

        launch_overhead + max(flops / peak_flops, other bytes / memory_bandwidth, host_read)

    With storage the kernel waits while a page is read, so the two times add up: ``host_read + operator``. That gains
    nothing over a load unless the operator reads a part of a tensor only, so it is `FORBIDDEN` for other operators; and for
    all on a device with a bus, which cannot read pages of a file that are not in memory.

    Times are rounded up to nanoseconds, so this time is never below ``host_read``. Direct host access is `FORBIDDEN`
    for operators that read no input or parameter, and on devices that share host memory and do not need it.

    The model does not consider caches, occupancy or the quality of kernels. A lookup reads only the rows of its table that
    the graph states (``read_bytes``), otherwise the whole table.

    Returns
    -------
    Costs
        With ``source="roofline"``; takes O(operators x devices).

    Examples
    --------
    >>> from tvm_sched.cost_model import roofline
    >>> roofline(graph, topology).operator_ns.tolist()
    [[2000, 2000], [1000, 1000], [1000, 1000]]
    """
    index = graph.index
    size = np.array(index.size, dtype=np.float64)
    flops = np.array([operator.flops for operator in graph.operators], dtype=np.float64)
    host = np.array([sum(read) for read in index.host_bytes], dtype=np.float64)
    other = _bytes(size, index.inputs) - _bytes(size, index.host_inputs) + _bytes(size, index.outputs)
    moved = graph_on(graph, topology).index
    reads_host = np.array([bool(tensors) for tensors in moved.host_inputs], dtype=bool)
    crossing = np.array([sum(read) for read in moved.host_bytes], dtype=np.float64)
    in_part = crossing < _bytes(size, moved.host_inputs)
    dtype, dtypes = _dtypes(graph)
    shape = (len(graph.operators), len(topology.devices))
    operator_ns = np.empty(shape, dtype=np.int64)
    direct_ns = np.full(shape, FORBIDDEN, dtype=np.int64)
    for d, device in enumerate(topology.devices):
        compute = flops / _peak(device, dtypes)[dtype]
        operator_ns[:, d] = _up(device.launch_overhead + np.maximum(compute, (host + other) / device.memory_bandwidth))
        bus = topology.route(HOST, d)
        if bus is not None:
            least = _host_read_ns(crossing, bus)
            on_device = np.maximum(compute, other / device.memory_bandwidth)
            direct = np.maximum(_up(device.launch_overhead + on_device), _up(device.launch_overhead + least / 1e9))
            if topology.storage:
                direct = operator_ns[:, d] + least
            reads_directly = reads_host & (in_part & topology.maps_storage if topology.storage else True)
            direct_ns[:, d] = np.where(reads_directly, np.maximum(direct, least), FORBIDDEN)
    return Costs(operator_ns, direct_ns, source="roofline")


def memory_ns(graph: OpGraph, topology: Topology, devices: Mapping[str, str]) -> int:
    """Return how long a run takes at least if the bandwidth of the devices' memory is all that limits its operators.

    That is the longest path through the graph, or the sum of a device's operators if it is longer.

    Parameters
    ----------
    graph, topology
    devices : mapping of str to str
        By operator, the device that computes it. ``bytes`` are those of `roofline`.
    """
    index, rate = graph.index, {device.name: device.memory_bandwidth for device in topology.devices}
    size = np.array(index.size, dtype=np.float64)
    host = np.array([sum(read) for read in index.host_bytes], dtype=np.float64)
    moved = host + _bytes(size, index.inputs) - _bytes(size, index.host_inputs) + _bytes(size, index.outputs)
    names = [devices[operator.name] for operator in graph.operators]
    took = moved / np.array([rate[name] for name in names])
    ends = np.zeros(len(names))
    for o in index.order:
        ends[o] = took[o] + max((ends[before] for before in index.predecessors[o]), default=0.0)
    sums = [took[[name == device for name in names]].sum() for device in rate]
    return round(1e9 * float(max([ends.max(initial=0.0), *sums])))


def _bytes(size: npt.NDArray[np.float64], tensors: list[tuple[int, ...]]) -> npt.NDArray[np.float64]:
    """Return the bytes of each operator's tensors."""
    count = [len(row) for row in tensors]
    owner = np.repeat(np.arange(len(tensors)), count)
    flat = np.fromiter((t for row in tensors for t in row), dtype=np.int64, count=sum(count))
    return np.bincount(owner, weights=size[flat], minlength=len(tensors)).astype(np.float64)


def _dtypes(graph: OpGraph) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return each operator's dtype, that of its first output, as a position in a list of names."""
    position: dict[str, int] = {"": 0}
    tensors = graph.tensors
    names = [tensors[outputs[0]].dtype if outputs else "" for outputs in graph.index.outputs]
    column = [position.setdefault(name, len(position)) for name in names]
    return np.array(column, dtype=np.int64), list(position)


def _peak(device: Device, dtypes: list[str]) -> npt.NDArray[np.float64]:
    return np.array([rate_of(device.peak_flops, dtype) for dtype in dtypes])


def _up(seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Round up to nanoseconds; up to a thousandth of one counts as an error of floating-point arithmetic."""
    return np.ceil(np.minimum(seconds, _CLIP / 1e9) * 1e9 - 1e-3).astype(np.int64)


def _host_read_ns(size: npt.NDArray[np.float64], bus: Route) -> npt.NDArray[np.int64]:
    """Compute `Route.nanoseconds`, with the same floating-point operations, for many sizes at once."""
    return (-(-np.minimum(bus.latency * 1e9 + size * 1e9 / bus.bandwidth, _CLIP) // 1)).astype(np.int64)
