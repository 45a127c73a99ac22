"""The problems on which HIOS is simulated (Kundu and Shu, Section V-A): random layered graphs on equal devices."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from random import Random

import msgspec
import numpy as np

from tvm_sched_runtime.errors import FormatError
from tvm_sched_runtime.files import UNREADABLE, why_unreadable
from tvm_sched_runtime.problem import (
    Concurrency,
    Costs,
    Demand,
    Device,
    KernelResources,
    Operator,
    OpGraph,
    Problem,
    Switch,
    Tensor,
    Topology,
)

SERIAL_SHARE = 0.5
"""Part of the time of a stage that does not overlap, in the authors' program; the paper does not print it."""


class LayeredGraph(msgspec.Struct, frozen=True):
    """A graph as HIOS's simulation has it, in milliseconds."""

    time: tuple[float, ...]
    utilisation: tuple[float, ...]
    """Time of each operator alone on a device, and the part of the device that it uses then."""
    edges: tuple[tuple[int, int, float], ...]
    """From, to, and the time of the transfer when the two are on different devices."""

    def problem(self, devices: int, concurrency: bool = True, name: str = "hios") -> Problem:
        """Return the scheduling problem on equal devices, joined all to all without contention.

        Each edge is a tensor of its own, since transfers of one operator's output differ in these instances; a byte takes a
        nanosecond. ``concurrency=False`` leaves operators by themselves: the inter-device half alone.
        """
        tensors = tuple(Tensor(f"t{e}", round(ms * 1e6)) for e, (_, _, ms) in enumerate(self.edges))
        reads: list[list[str]] = [[] for _ in self.time]
        writes: list[list[str]] = [[] for _ in self.time]
        for tensor, (source, target, _) in zip(tensors, self.edges, strict=True):
            writes[source].append(tensor.name)
            reads[target].append(tensor.name)
        operators = tuple(Operator(f"v{o}", "random", tuple(reads[o]), tuple(writes[o])) for o in range(len(self.time)))
        names = tuple(f"gpu{d}" for d in range(devices))
        places = tuple(Device(n, 1 << 40, 1e12, {"float32": 1e13}) for n in names)
        switch = Switch("nvlink", names, 1e9, contention=False)
        topology = Topology(f"{devices} equal devices", places, switches=(switch,) if devices > 1 else ())
        times = np.repeat(np.rint(np.array(self.time) * 1e6).astype(np.int64)[:, None], devices, axis=1)
        used = np.repeat(np.array(self.utilisation)[:, None, None], devices, axis=1)
        together = Concurrency(used, SERIAL_SHARE) if concurrency else None
        return Problem(OpGraph(name, operators, tensors), topology, Costs(times, source="hios", concurrency=together))


def random_layered(
    seed: int, operators: int = 200, layers: int = 14, edges: int = 400, communication: float = 0.8
) -> LayeredGraph:
    """Return a graph after Section V-A: operators of 0.1 to 4 ms, transfers ``communication`` times that, at least 0.1 ms.

    Each operator of a layer but the first reads one of the layer before; the other edges go from any layer to a later one.
    Utilisations are from 0.6 to 1, as in the authors' program.

    Raises
    ------
    ValueError
        Fewer operators than layers, or edges than such a graph needs or can have.
    """
    random = Random(f"{seed} {operators} {layers} {edges} {communication}")
    if not 1 <= layers <= operators:
        raise ValueError(f"{operators} operators cannot have {layers} layers")
    cuts = sorted(random.sample(range(1, operators), layers - 1))
    bounds = [0, *cuts, operators]
    rows = [list(range(a, b)) for a, b in pairwise(bounds)]
    chosen = {(random.choice(rows[i - 1]), o) for i in range(1, layers) for o in rows[i]}
    most = sum(len(a) * (operators - a[-1] - 1) for a in rows)
    if not len(chosen) <= edges <= most:
        raise ValueError(f"{operators} operators in these layers can have {len(chosen)} to {most} edges, not {edges}")
    layer = {o: i for i, row in enumerate(rows) for o in row}
    while len(chosen) < edges:
        a, b = sorted(random.sample(range(operators), 2))
        if layer[a] < layer[b]:
            chosen.add((a, b))
    time = tuple(random.randint(1000, 40000) / 10000 for _ in range(operators))
    used = tuple(random.randint(6000, 10000) / 10000 for _ in range(operators))
    return LayeredGraph(time, used, tuple((a, b, max(0.1, communication * time[a])) for a, b in sorted(chosen)))


def convolutions(size: int, count: int = 2) -> OpGraph:
    """Return the operators of HIOS's Figures 1 and 2: equal 5x5 convolutions of 48 channels, on ``size`` by ``size`` images.

    The paper does not say how many channels they make: 48, too. Launches are those that cuDNN's float32 convolutions of
    batch 1 have on an H100 (``benchmarks/data/h100_concurrency.json``): blocks of 64 threads for 16 pixels and 64 channels.
    """
    channels, window = 48, 5
    image, weights = 4 * channels * size**2, 4 * channels**2 * window**2
    launch = KernelResources(-(-(size**2) // 16), 64, 92, 6528)
    flops = 2 * channels**2 * window**2 * size**2
    shapes = {"activation": (1, channels, size, size), "parameter": (channels, channels, window, window)}
    tensors, operators = [], []
    for n in range(count):
        tensors += [
            Tensor(f"x{n}", image, "input", shapes["activation"]),
            Tensor(f"w{n}", weights, "parameter", shapes["parameter"]),
            Tensor(f"y{n}", image, "activation", shapes["activation"]),
        ]  # fmt: skip
        demand = Demand((launch,), memory_bound=False, source="library")
        operators.append(Operator(f"conv{n}", "conv2d", (f"x{n}", f"w{n}"), (f"y{n}",), flops, demand=demand))
    outputs = tuple(f"y{n}" for n in range(count))
    return OpGraph(f"{count} convolutions of {size}x{size}", tuple(operators), tuple(tensors), outputs)


class _Node(msgspec.Struct):
    id: int
    t: float
    util: float


class _Edge(msgspec.Struct):
    src: int
    dst: int
    t: float


class _File(msgspec.Struct):
    nodes: list[_Node]
    edges: list[_Edge]


def load_layered(path: str | os.PathLike[str]) -> LayeredGraph:
    """Read an instance that the authors' generator made: JSON with ``nodes`` (id, t, util) and ``edges`` (src, dst, t).

    Raises
    ------
    FormatError
        The file is no such document; the message says where.
    """
    try:
        file = msgspec.json.decode(Path(path).read_bytes(), type=_File)
    except UNREADABLE as error:
        raise FormatError(f"{os.fspath(path)} is not an instance of HIOS: {why_unreadable(error)}") from None
    position = {node.id: o for o, node in enumerate(file.nodes)}
    unknown: Iterable[int] = (end for edge in file.edges for end in (edge.src, edge.dst) if end not in position)
    for end in unknown:
        raise FormatError(f"{os.fspath(path)} has an edge of node {end}, which it does not list")
    return LayeredGraph(
        tuple(node.t for node in file.nodes),
        tuple(node.util for node in file.nodes),
        tuple((position[edge.src], position[edge.dst], edge.t) for edge in file.edges),
    )
