"""Random machines: shared buses, duplex or not, links, switches, devices that share host memory."""

from __future__ import annotations

from itertools import combinations, pairwise
from random import Random
from typing import Literal

import msgspec

from tvm_sched_runtime.problem import Bus, Device, Link, Storage, Switch, Topology

Style = Literal["bus", "shared", "mixed", "storage", "disk"]

STYLES: tuple[Style, ...] = ("bus", "bus", "shared", "mixed")
"""Styles from which `random_topology` draws."""

ROOM = 2**40
"""Memory of a device where memory shall not matter: 1 TiB."""


def random_topology(
    seed: int | Random, devices: int = 3, style: Style | None = None, memory: int = ROOM, all_joined: bool = True
) -> Topology:
    """Return a random topology in which bytes can get from every device to every other.

    Parameters
    ----------
    style : {"bus", "shared", "mixed", "storage", "disk"}, optional
        Devices on PCIe buses, devices that share host memory, or some of each; drawn where not given. Or with storage in
        front of host memory: devices that share it, or devices on buses.
    memory : int
        Bytes of each device.
    all_joined : bool
        Each pair of devices has a route. Otherwise devices that share host memory may be joined in a chain only, so
        that a tensor may need two copies.

    Examples
    --------
    >>> from tvm_sched_bench.testing import random_topology
    >>> [device.name for device in random_topology(seed=1, devices=2).devices]
    ['d0', 'd1']
    """
    random = seed if isinstance(seed, Random) else Random(seed)
    chosen = random.choice(STYLES) if style is None else style
    buses = _buses(random, devices, chosen)
    members = [
        Device(
            f"d{d}",
            memory,
            memory_bandwidth=random.uniform(1e9, 1e10),
            peak_flops={"float32": random.uniform(1e11, 1e12)},
            launch_overhead=random.choice([0.0, 1e-8]),
            bus=random.choice(buses).name if buses and (chosen in ("bus", "disk") or random.random() < 0.5) else "",
        )
        for d in range(devices)
    ]
    links, switches = _joints(random, members, all_joined)
    used = {device.bus for device in members}
    return Topology(
        "random",
        tuple(members),
        tuple(bus for bus in buses if bus.name in used or random.random() < 0.5),
        links,
        switches,
        peer_access=random.random() < 0.6,
        storage=Storage("disk", *_speed(random)) if chosen in ("storage", "disk") else msgspec.UNSET,
    )


def _speed(random: Random) -> tuple[float, float]:
    """Bandwidth and latency such that a copy of a few hundred bytes takes some hundred nanoseconds."""
    return random.choice([0.3e9, 1e9, 1e9, 3e9, random.uniform(1e8, 1e10)]), random.choice([0.0, 0.0, 1e-8, 2.5e-7])


def _buses(random: Random, devices: int, style: Style) -> list[Bus]:
    if style in ("shared", "storage"):
        return []
    return [Bus(f"bus{b}", *_speed(random), duplex=random.random() < 0.6) for b in range(random.randint(1, devices))]


def _joints(random: Random, devices: list[Device], all_joined: bool) -> tuple[tuple[Link, ...], tuple[Switch, ...]]:
    """Return random links and switches, and the links without which devices that share host memory would be cut off."""
    names = [device.name for device in devices]
    switches = []
    joined: set[tuple[str, str]] = set()
    if random.random() < 0.3:
        members = random.sample(names, random.randint(1, len(names)))
        switches.append(Switch("switch0", tuple(members), *_speed(random)))
        joined.update(combinations(sorted(members), 2))
    rate = random.choice([0.0, 0.3, 0.8])
    sharing = [device.name for device in devices if device.shares_host_memory]
    needed = set(combinations(sharing, 2)) if all_joined else set(pairwise(sharing))
    links = []
    for pair in combinations(names, 2):
        if random.random() < rate or (pair in needed and tuple(sorted(pair)) not in joined):
            ends = pair if random.random() < 0.5 else pair[::-1]
            links.append(Link(ends, *_speed(random), duplex=random.random() < 0.7, ways=random.randint(1, 2)))
    return tuple(links), tuple(switches)
