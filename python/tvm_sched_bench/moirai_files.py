"""Sample graphs of Moirai (device placement for distributed inference) as problems: JSON of ``tasks`` and ``edges``."""

from __future__ import annotations

import os
from itertools import combinations

import msgspec
import numpy as np

from tvm_sched_runtime.errors import FormatError
from tvm_sched_runtime.files import UNREADABLE, read_bytes, why_unreadable
from tvm_sched_runtime.problem import Costs, Device, Link, Operator, OpGraph, Problem, Tensor, Topology

_ROUNDING = 5e-5
"""Milliseconds by which the times of an edge may differ from one size for all pairs: the files have five digits."""


class _Task(msgspec.Struct):
    id: int
    ms: list[float]
    bytes: int


class _Edge(msgspec.Struct):
    source: int
    target: int
    ms: list[list[float]]


class _File(msgspec.Struct):
    name: str
    device_bytes: list[int]
    tasks: list[_Task]
    edges: list[_Edge]


def read_moirai(path: str | os.PathLike[str]) -> Problem:
    """Read a sample graph on its unequal devices, each pair joined by a link; times are the file's.

    In the files a copy takes longer in one direction than in the other (up to 15 %); links have the slower one's time in
    both, so that a schedule here takes no longer there. Tasks of no time take a nanosecond. All tasks together fit into
    each device, or the file is refused: their memory is left out.

    Raises
    ------
    FormatError
        The file is no such document, or the times of copies are not sizes over bandwidths.
    """
    where = os.fspath(path)
    try:
        sample = msgspec.json.decode(read_bytes(path), type=_File)
    except UNREADABLE as error:
        raise FormatError(f"{where}: not a sample graph of Moirai ({why_unreadable(error)})") from None
    count = len(sample.device_bytes)
    if sum(task.bytes for task in sample.tasks) > min(sample.device_bytes):
        raise FormatError(f"{where}: the tasks do not fit into each device; limits of memory are not covered")
    if any(np.shape(edge.ms) != (count, count) for edge in sample.edges) or any(
        len(t.ms) != count for t in sample.tasks
    ):
        raise FormatError(f"{where}: times are not given for each of {count} devices, and each pair of them")
    copies = np.array([edge.ms for edge in sample.edges])
    slower = np.maximum(copies, copies.transpose(0, 2, 1))
    sizes = {
        edge.source: max(1, round(slower[e, 0, 1] * 1e6)) for e, edge in enumerate(sample.edges)
    }  # bytes that take a nanosecond each between the first two devices
    factor = slower.sum(axis=0) / slower[:, 0, 1].sum()
    if np.abs(slower - slower[:, :1, 1:2] * factor).max() > _ROUNDING * factor.max():
        raise FormatError(f"{where}: the times of copies are not sizes over bandwidths of pairs of devices")
    names = [f"device{d}" for d in range(count)]
    devices = tuple(Device(name, 1 << 40, 1e12, {"float32": 1e13}) for name in names)
    links = tuple(Link((names[a], names[b]), 1e9 / float(factor[a, b])) for a, b in combinations(range(count), 2))
    position = {task.id: f"t{task.id}" for task in sample.tasks}
    reads: dict[int, list[str]] = {task.id: [] for task in sample.tasks}
    for edge in sample.edges:
        reads[edge.target].append(position[edge.source])
    operators = tuple(
        Operator(f"v{task.id}", "task", tuple(reads[task.id]), (position[task.id],)) for task in sample.tasks
    )
    tensors = tuple(Tensor(position[task.id], sizes.get(task.id, 1)) for task in sample.tasks)
    times = np.maximum(np.rint(np.array([task.ms for task in sample.tasks]) * 1e6).astype(np.int64), 1)
    topology = Topology(f"{sample.name}, {count} devices", devices, links=links)
    return Problem(OpGraph(sample.name, operators, tensors), topology, Costs(times, source="moirai"))
