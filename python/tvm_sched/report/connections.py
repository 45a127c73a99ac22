"""How each pair of devices is joined, as a matrix in the words of ``nvidia-smi topo -m``."""

from __future__ import annotations

from dataclasses import dataclass

from ..problem import HOST, Topology
from .units import format_rate

LEGEND = {
    "X": "the device itself",
    "RAM": "one memory: nothing needs to be copied",
    "NV#": "a direct link of # ways (NVLinks)",
    "NVS": "through a switch",
    "PIX": "through one bus that both share",
    "PHB": "through two buses, directly",
    "SYS": "through two buses and host memory",
    "BUS": "the bus to host memory",
    "-": "nothing joins them",
}
"""What the short words of a `Connection` mean."""


@dataclass(frozen=True)
class Connection:
    """How bytes get from one memory to another.

    Parameters
    ----------
    word : str
        Key of `LEGEND`, with the ways of a link in place of ``#``.
    bandwidth : float or None
        Bytes a second; None where there is no route.
    channels : tuple of str
        What a copy occupies.
    """

    word: str
    bandwidth: float | None = None
    channels: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.word if self.bandwidth is None else f"{self.word} {format_rate(self.bandwidth)}"


def connection(topology: Topology, source: int, target: int) -> Connection:
    """How a copy gets from device (or `HOST`) ``source`` to ``target``."""
    if source == target:
        return Connection("X")
    route = topology.route(source, target)
    if HOST in (source, target):
        device = topology.devices[target if source == HOST else source]
        if device.shares_host_memory:
            return Connection("RAM")
    if route is None:
        return Connection("-")
    channels = tuple(topology.channels[c] for c in route.channels)
    return Connection(_word(topology, source, target), route.bandwidth, channels)


def matrix(topology: Topology) -> tuple[list[str], list[list[Connection]]]:
    """Names of the memories (host last) and how bytes get from each (row) to each (column)."""
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
