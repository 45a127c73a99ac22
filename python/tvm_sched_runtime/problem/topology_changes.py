"""Variants of a machine: another number of GPUs, other links, other bandwidths, a disk."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from ..errors import InputError
from .quantity import parse_quantity
from .topology import Bus, Device, Link, Storage, Switch, Topology

_COPIED = 0.79
"""Share of PCIe's bandwidth after line coding that copies from pinned memory get, as in the presets."""
_PCIE = {"pcie3": 15.76e9, "pcie4": 31.5e9, "pcie5": 63.0e9, "pcie6": 121.0e9}
"""Bytes a second of 16 lanes in one direction, after line coding."""
_NVLINK = {"nvlink2": 150e9, "nvlink3": 300e9, "nvlink4": 450e9, "nvlink5": 900e9}
"""Bytes a second of a GPU's NVLinks in one direction: V100, A100, H100, B200."""
_REACHED = 0.96
"""Share of it that copies reach, as in the presets."""
_LINK_LATENCY = 5e-6
LINKS = (*_PCIE, *_NVLINK, "nvlink")
"""Values of `with_link`; ``"nvlink"`` is ``"nvlink3"``."""


def with_devices(base: Topology, count: int) -> Topology:
    """Return a machine with another number of devices.

    It has the first ``count`` devices. If the base has fewer, further copies of its devices follow, each copy with buses
    and links of its own; a switch joins the copies, too.

    Raises
    ------
    InputError
        ``count`` is below 1.
    """
    if count < 1:
        raise InputError(f"gpus={count}: a number from 1 is allowed")
    copies = [_Copy(base, n) for n in range(-(-count // len(base.devices)))]
    whole = msgspec.structs.replace(
        base,
        devices=tuple(device for copy in copies for device in copy.devices()),
        buses=tuple(bus for copy in copies for bus in copy.buses()),
        links=tuple(link for copy in copies for link in copy.links()),
        switches=tuple(
            msgspec.structs.replace(switch, devices=tuple(copy.of(name) for copy in copies for name in switch.devices))
            for switch in base.switches
        ),
    )
    return part_of(whole, [device.name for device in whole.devices[:count]])


def part_of(base: Topology, names: Collection[str]) -> Topology:
    """Return the machine with these devices alone, in their order; buses, links and switches that join none of them go."""
    devices = tuple(device for device in base.devices if device.name in set(names))
    kept, buses = {device.name for device in devices}, {device.bus for device in devices}
    switches = [
        msgspec.structs.replace(switch, devices=tuple(name for name in switch.devices if name in kept))
        for switch in base.switches
    ]
    return msgspec.structs.replace(
        base,
        devices=devices,
        buses=tuple(bus for bus in base.buses if bus.name in buses),
        links=tuple(link for link in base.links if kept.issuperset(link.devices)),
        switches=tuple(switch for switch in switches if len(switch.devices) > 1),
    )


@dataclass(frozen=True)
class _Copy:
    """The parts of a machine with the names that its n-th copy has; copy 0 keeps the names."""

    base: Topology
    number: int

    def of(self, name: str) -> str:
        return f"{name}.{self.number + 1}" if self.number else name

    def devices(self) -> list[Device]:
        return [
            msgspec.structs.replace(device, name=self.of(device.name), bus=device.bus and self.of(device.bus))
            for device in self.base.devices
        ]

    def buses(self) -> list[Bus]:
        return [msgspec.structs.replace(bus, name=self.of(bus.name)) for bus in self.base.buses]

    def links(self) -> list[Link]:
        return [
            msgspec.structs.replace(link, devices=(self.of(link.devices[0]), self.of(link.devices[1])))
            for link in self.base.links
        ]


def with_link(base: Topology, kind: str) -> Topology:
    """Return a machine with other connections between its devices.

    ``"pcie3"`` to ``"pcie6"``: each bus has 16 lanes of that generation, and there are no links beside the buses.
    ``"nvlink2"`` to ``"nvlink5"``: a switch joins all devices with that generation's bandwidth; buses stay as they are.

    Raises
    ------
    InputError
        The kind is unknown.
    """
    if kind in _PCIE:
        rate = _PCIE[kind] * _COPIED
        buses = tuple(msgspec.structs.replace(bus, bandwidth=rate) for bus in base.buses)
        return msgspec.structs.replace(base, buses=buses, links=(), switches=())
    if kind not in LINKS:
        raise InputError(f"link={kind}: {', '.join(LINKS)} are allowed")
    rate = _NVLINK["nvlink3" if kind == "nvlink" else kind] * _REACHED
    names = tuple(device.name for device in base.devices)
    switches = (Switch("nvlink", names, rate, _LINK_LATENCY),) if len(names) > 1 else ()
    return msgspec.structs.replace(base, links=(), switches=switches)


def with_disk(base: Topology, bandwidth: str) -> Topology:
    """Return a machine on whose disk of that bandwidth, such as ``"3.5GB/s"``, parameters lie when a run begins.

    Latency and queue depth are those of the machine's storage if it has some. ``"none"``: parameters lie in host memory.
    """
    if bandwidth == "none":
        return base.without_storage
    known = base.storage or Storage("disk", 1.0)
    rate = parse_quantity(bandwidth, "bandwidth", f"disk={bandwidth}")
    return msgspec.structs.replace(base, storage=msgspec.structs.replace(known, bandwidth=rate))


def with_bandwidth(base: Topology, factor: float) -> Topology:
    """Return a machine whose buses, links and switches are ``factor`` times as fast; latencies stay."""
    return msgspec.structs.replace(
        base,
        **{
            name: tuple(
                msgspec.structs.replace(part, bandwidth=part.bandwidth * factor) for part in getattr(base, name)
            )
            for name in ("buses", "links", "switches")
        },
    )
