"""Connections between pairs of devices, as a matrix in the terms of ``nvidia-smi topo -m``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from tvm_sched_runtime.problem import HOST, Bus, Device, Storage, Topology
from tvm_sched_runtime.problem.topology import Link, Switch

from .units import format_rate

LEGEND = {
    "X": "the device itself",
    "RAM": "one memory: nothing needs to be copied",
    "NV#": "a direct link of # NVLinks",
    "NVS": "through a switch",
    "PIX": "through one bus that both share",
    "PHB": "through two buses, directly",
    "SYS": "through two buses and host memory",
    "BUS": "the bus to host memory",
    "-": "nothing joins them",
}
"""Meanings of `Connection.by`."""


@dataclass(frozen=True)
class Connection:
    """Connection from one memory to another."""

    by: str
    """Kind of connection: a key of `LEGEND`, with the number of NVLinks in place of ``#``."""
    bandwidth: float | None = None
    """Bytes a second; None without a route."""
    channels: tuple[str, ...] = ()
    """Channels that a copy occupies."""

    def __str__(self) -> str:
        return self.by if self.bandwidth is None else f"{self.by} {format_rate(self.bandwidth)}"


def connection(topology: Topology, source: int, target: int) -> Connection:
    """Return the connection from device (or `HOST`) ``source`` to ``target``."""
    if source == target:
        return Connection("X")
    topology = topology if topology.maps_storage else topology.without_storage
    route = topology.route(source, target)
    if HOST in (source, target):
        device = topology.devices[target if source == HOST else source]
        if device.shares_host_memory:  # with storage the route from there is that of the file
            return Connection("RAM")
    if route is None:
        return Connection("-")
    channels = tuple(topology.channels[c] for c in route.channels)
    return Connection(_word(topology, source, target), route.bandwidth, channels)


def legend(cells: Sequence[Sequence[Connection]]) -> dict[str, str]:
    """Return the part of `LEGEND` that a matrix uses."""
    words = {cell.by for row in cells for cell in row}
    numbered = any(word[2:].isdigit() for word in words)
    return {word: text for word, text in LEGEND.items() if word in words or (word == "NV#" and numbered)}


def matrix(topology: Topology) -> tuple[list[str], list[list[Connection]]]:
    """Return the names of the memories (host last), and the connection from each (row) to each (column)."""
    ends = [*range(len(topology.devices)), HOST]
    names = [*(device.name for device in topology.devices), "host"]
    return names, [[connection(topology, a, b) for b in ends] for a in ends]


def _word(topology: Topology, source: int, target: int) -> str:
    if HOST in (source, target):
        return "BUS"
    a, b = topology.devices[source], topology.devices[target]
    for link in topology.links:
        if set(link.devices) == {a.name, b.name}:
            return f"NV{link.ways}"
    if any(a.name in switch.devices and b.name in switch.devices for switch in topology.switches):
        return "NVS"
    if a.bus == b.bus:
        return "PIX"
    return "PHB" if topology.peer_access or not (a.bus and b.bus) else "SYS"


class TopologySummary(msgspec.Struct, frozen=True, kw_only=True):
    """A topology with its channels, and the connection of each pair of memories."""

    name: str
    devices: tuple[Device, ...]
    buses: tuple[Bus, ...]
    links: tuple[Link, ...]
    switches: tuple[Switch, ...]
    storage: Storage | msgspec.UnsetType = msgspec.UNSET
    peer_access: bool
    host_memory: int
    source: str
    channels: tuple[str, ...]
    matrix: dict[str, dict[str, Connection]]

    @classmethod
    def of(cls, topology: Topology) -> TopologySummary:
        """Summarise a topology."""
        names, cells = matrix(topology)
        joined = {name: dict(zip(names, row, strict=True)) for name, row in zip(names, cells, strict=True)}
        own = {name: getattr(topology, name) for name in cls.__struct_fields__ if name != "matrix"}
        return cls(**own, matrix=joined)


def part_counts(topology: Topology) -> dict[str, int]:
    """Count the devices, buses, links and switches of a topology."""
    return {part: len(getattr(topology, part)) for part in ("devices", "buses", "links", "switches")}


class TopologyCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of a topology's parts."""

    name: str
    devices: int
    buses: int
    links: int
    switches: int
    source: str


class Presets(msgspec.Struct, frozen=True):
    """The package's topologies, and families of them."""

    presets: list[TopologyCounts]
    families: list[str]

    @classmethod
    def of(cls, topologies: Iterable[Topology]) -> Presets:
        """Count the parts of the presets."""
        return cls([TopologyCounts(name=m.name, source=m.source, **part_counts(m)) for m in topologies], ["cpuN"])


class CheckedTopology(msgspec.Struct, frozen=True):
    """A topology file without faults."""

    file: str
    name: str
    right: bool
    devices: int
    buses: int
    links: int
    switches: int
