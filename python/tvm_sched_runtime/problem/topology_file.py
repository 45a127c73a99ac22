"""Topology files (TOML, ``docs/formats/topology.md``) and the presets of known machines."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from ..checks import path_text
from ..errors import FormatError, TopologyError
from ..files import read_bytes, write_atomically
from ..presets import neither_preset_nor_file, preset_files
from ..toml_files import Table, format_toml, neighbours, parse_toml
from .cpu_presets import MOST_CPU_DEVICES, cpu_count_of, cpu_topology
from .quantity import format_fields, format_quantity, parse_quantity
from .topology import STREAM_FIELDS, Bus, Device, Link, Storage, Switch, Topology

FORMAT, VERSION = "tvm_sched.topology", 1
MOST_DEVICES = 1024
"""Most devices of a group of equal ones."""
_PRESETS = preset_files(Path(__file__).parent / "presets")

Quantity = float | str
Names = str | list[str]


class DevicesEntry(msgspec.Struct, forbid_unknown_fields=True):
    """Equal devices: one ``name``, a ``name`` and ``count``, or ``names``; ``bus`` is one for all or one for each."""

    memory: Quantity
    memory_bandwidth: Quantity
    peak_flops: dict[str, Quantity]
    name: str = ""
    count: int = 0
    names: list[str] = []
    kind: str = "cuda"
    launch_overhead: Quantity = 0.0
    stream_overhead: Quantity = 0.0
    wait_overhead: Quantity = 0.0
    bus: Names = ""
    model: str = ""
    arch: str = ""
    threads: int | msgspec.UnsetType = msgspec.UNSET
    free_memory: Quantity | msgspec.UnsetType = msgspec.UNSET
    number: int | msgspec.UnsetType = msgspec.UNSET


class BusesEntry(msgspec.Struct, forbid_unknown_fields=True):
    """Equal buses: one ``name``, or ``names``."""

    bandwidth: Quantity
    name: str = ""
    names: list[str] = []
    latency: Quantity = 0.0
    duplex: bool = True


class LinksEntry(msgspec.Struct, forbid_unknown_fields=True):
    """Equal links: between all ``devices``, or between ``pairs`` of them."""

    devices: list[str] = []
    pairs: list[list[str]] = []
    bandwidth: Quantity | None = None
    bandwidth_per_way: Quantity | None = None
    ways: int = 1
    latency: Quantity = 0.0
    duplex: bool = True


class SwitchEntry(msgspec.Struct, forbid_unknown_fields=True):
    """A switch and the devices behind it."""

    name: str
    bandwidth: Quantity
    devices: list[str]
    latency: Quantity = 0.0
    contention: bool = True


class StorageEntry(msgspec.Struct, forbid_unknown_fields=True):
    """The storage that parameters are read from."""

    name: str
    bandwidth: Quantity
    latency: Quantity = 0.0
    queue_depth: int = 1


class TopologyBody(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of a topology's file."""

    name: str
    devices: list[DevicesEntry]
    source: str = ""
    host_memory: Quantity = 0
    peer_access: bool = True
    buses: list[BusesEntry] = []
    links: list[LinksEntry] = []
    switches: list[SwitchEntry] = []
    storage: StorageEntry | None = None


def preset_names() -> tuple[str, ...]:
    """Return the names of the presets that are files; ``cpuN`` for any N from 1 is a further family.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import preset_names
    >>> "v100-server" in preset_names()
    True
    """
    return tuple(_PRESETS)


def load_topology(name_or_path: str | os.PathLike[str]) -> Topology:
    """Load the topology of a preset (``"v100-server"``, ``"cpu2"``) or of a TOML file.

    Raises
    ------
    FormatError
        Neither a preset nor a file, or a file that is not what ``docs/formats/topology.md`` says.
    TopologyError
        A file whose topology breaks a rule: a bandwidth of zero, a name twice, a missing device.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import load_topology
    >>> server = load_topology("v100-server")
    >>> server.devices[0].model, len(server.devices)
    ('Tesla V100 DGXS 32GB', 4)
    """
    text = path_text("the topology", name_or_path)
    if isinstance(name_or_path, str):
        count = cpu_count_of(text)
        if count is not None:
            return cpu_topology(count)
        if text in _PRESETS:
            return _preset(text)
    if Path(text).is_file() or (text.endswith(".toml") and os.sep in text):
        return read_topology(text)
    raise neither_preset_nor_file(
        "topology",
        text,
        _PRESETS,
        f", cpuN for N (1 to {MOST_CPU_DEVICES}) logical devices on this machine's cores, and cpu for the use of its cores "
        "that is measured to be fastest",
        like="cpu1 cpu2 cpu4 cpu8",
    )


@lru_cache
def _preset(name: str) -> Topology:
    return read_topology(_PRESETS[name])


def read_topology(path: str | os.PathLike[str]) -> Topology:
    """Read and check a topology file; see `load_topology` for the errors.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import read_topology, write_topology
    >>> write_topology("pair.toml", topology)
    >>> read_topology("pair.toml").links
    (Link(devices=('gpu0', 'gpu1'), bandwidth=40000000000.0, latency=0.0, duplex=True, ways=1),)
    """
    return parse_topology(read_bytes(path), os.fspath(path))


def parse_topology(text: bytes | str, where: str = "topology") -> Topology:
    """Read and check the text of a topology file; any error refuses the whole file.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import format_topology, parse_topology
    >>> parse_topology(format_topology(topology)) == topology
    True
    """
    body = parse_toml(text, FORMAT, VERSION, TopologyBody, where)
    reader = _Reader(where)
    try:
        return Topology(
            name=body.name,
            devices=tuple(d for i, group in enumerate(body.devices) for d in reader.devices(group, f"$.devices[{i}]")),
            buses=tuple(b for i, group in enumerate(body.buses) for b in reader.buses(group, f"$.buses[{i}]")),
            links=tuple(k for i, group in enumerate(body.links) for k in reader.links(group, f"$.links[{i}]")),
            switches=tuple(reader.switch(switch, f"$.switches[{i}]") for i, switch in enumerate(body.switches)),
            peer_access=body.peer_access,
            host_memory=reader.whole(body.host_memory, "$.host_memory"),
            source=body.source,
            storage=reader.storage(body.storage, "$.storage") if body.storage else msgspec.UNSET,
        )
    except TopologyError as error:
        raise TopologyError(f"{where}: {error}") from None


class _Reader:
    """Reader of a file's records as parts of a `Topology`; errors name the file and the place in it."""

    def __init__(self, where: str) -> None:
        self.where = where

    def fail(self, place: str, message: str) -> FormatError:
        return FormatError(f"{self.where}: {message} - at `{place}`")

    def number(self, value: Quantity, kind: str, place: str, least: float | None = None) -> float:
        """Read a quantity in its base unit; with ``least`` None it must be above 0."""
        number = parse_quantity(value, kind, f"{self.where}: `{place}`")
        if not (number > 0 if least is None else number >= least) or number > sys.float_info.max:
            allowed = "above 0" if least is None else f"{least:g} or more"
            raise TopologyError(f"`{place}` is {value!r}; it must be {allowed} and finite")
        return float(number)

    def whole(self, value: Quantity, place: str, least: float | None = 0) -> int:
        """Read a whole number of bytes, exactly."""
        number = parse_quantity(value, "bytes", f"{self.where}: `{place}`")
        self.number(number, "bytes", place, least)
        if number != int(number):
            raise self.fail(place, f"{value!r} is not a whole number of bytes")
        return int(number)

    def names(self, name: str, names: list[str], count: int, place: str) -> list[str]:
        if bool(name) == bool(names) or (names and count) or count < 0:
            raise self.fail(place, "give one of `name`, `name` with a `count` above 0, or `names`")
        if count > MOST_DEVICES:
            raise self.fail(f"{place}.count", f"{count} is out of range; 1 to {MOST_DEVICES} are allowed")
        if count:
            return [f"{name}{i}" for i in range(count)]
        return names or [name]

    def devices(self, group: DevicesEntry, place: str) -> list[Device]:
        names = self.names(group.name, group.names, group.count, place)
        buses = [group.bus] * len(names) if isinstance(group.bus, str) else group.bus
        if len(buses) != len(names):
            raise self.fail(
                f"{place}.bus", f"{len(buses)} buses for {len(names)} devices; give one for all or one for each"
            )
        free = group.free_memory
        if free is not msgspec.UNSET:
            free = self.whole(free, f"{place}.free_memory")
        peak = {t: self.number(rate, "rate", f"{place}.peak_flops.{t}") for t, rate in group.peak_flops.items()}
        return [
            Device(
                name=name,
                memory=self.whole(group.memory, f"{place}.memory", None),
                memory_bandwidth=self.number(group.memory_bandwidth, "bandwidth", f"{place}.memory_bandwidth"),
                peak_flops=peak,
                kind=group.kind,
                launch_overhead=self.number(group.launch_overhead, "time", f"{place}.launch_overhead", 0),
                stream_overhead=self.number(group.stream_overhead, "time", f"{place}.stream_overhead", 0),
                wait_overhead=self.number(group.wait_overhead, "time", f"{place}.wait_overhead", 0),
                bus=bus,
                model=group.model,
                arch=group.arch,
                threads=group.threads,
                free_memory=free,
                number=group.number,
            )
            for name, bus in zip(names, buses, strict=True)
        ]

    def buses(self, group: BusesEntry, place: str) -> list[Bus]:
        bandwidth = self.number(group.bandwidth, "bandwidth", f"{place}.bandwidth")
        latency = self.number(group.latency, "time", f"{place}.latency", 0)
        names = self.names(group.name, group.names, 0, place)
        return [Bus(name, bandwidth, latency, group.duplex) for name in names]

    def storage(self, storage: StorageEntry, place: str) -> Storage:
        bandwidth = self.number(storage.bandwidth, "bandwidth", f"{place}.bandwidth")
        latency = self.number(storage.latency, "time", f"{place}.latency", 0)
        return Storage(storage.name, bandwidth, latency, storage.queue_depth)

    def links(self, group: LinksEntry, place: str) -> list[Link]:
        if bool(group.devices) == bool(group.pairs):
            raise self.fail(place, "give `devices` (two names) or `pairs` (a list of two names each)")
        if (group.bandwidth is None) == (group.bandwidth_per_way is None):
            raise self.fail(place, "give one of `bandwidth` (all `ways` together) and `bandwidth_per_way`")
        if group.ways < 1:
            raise TopologyError(f"`{place}.ways` is {group.ways}; it must be 1 or more")
        if group.bandwidth is not None:
            bandwidth = self.number(group.bandwidth, "bandwidth", f"{place}.bandwidth")
        else:
            each = self.number(group.bandwidth_per_way or 0.0, "bandwidth", f"{place}.bandwidth_per_way")
            bandwidth = each * group.ways
        latency = self.number(group.latency, "time", f"{place}.latency", 0)
        links = []
        for pair in group.pairs or [group.devices]:
            if len(pair) != 2:
                raise self.fail(place, f"a link joins two devices, found {pair}")
            links.append(Link((pair[0], pair[1]), bandwidth, latency, group.duplex, group.ways))
        return links

    def switch(self, switch: SwitchEntry, place: str) -> Switch:
        bandwidth = self.number(switch.bandwidth, "bandwidth", f"{place}.bandwidth")
        latency = self.number(switch.latency, "time", f"{place}.latency", 0)
        return Switch(switch.name, tuple(switch.devices), bandwidth, latency, switch.contention)


def write_topology(path: str | os.PathLike[str], topology: Topology, comments: Mapping[str, str] | None = None) -> None:
    """Write a topology file that `read_topology` reads as an equal topology; see `format_topology`.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import read_topology, write_topology
    >>> write_topology("pair.toml", topology)
    >>> read_topology("pair.toml") == topology
    True
    """
    write_atomically(path, format_topology(topology, comments).encode())


def format_topology(topology: Topology, comments: Mapping[str, str] | None = None) -> str:
    """Return the text of a topology file; neighbours that differ only in name and bus share a table.

    Parameters
    ----------
    comments : mapping of str to str, optional
        Comments on the whole machine, by the empty text, and on storage, a bus, a device or a switch, by its name, and on a
        link, by its devices (``"gpu0-gpu1"``). Each has a line, or several in the comments on the machine.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import format_topology
    >>> format_topology(topology).splitlines()[2]
    'name = "pair"'
    """
    head: dict[str, Any] = {"format": FORMAT, "version": VERSION, "name": topology.name, "source": topology.source}
    head |= {"host_memory": format_quantity(topology.host_memory, "bytes"), "peer_access": topology.peer_access}
    if topology.storage:
        head["storage"] = _fields(topology.storage)

    def about(*names: str) -> tuple[str, ...]:
        return tuple(f"{name}: {comments[name]}" for name in names if comments and name in comments)

    machine = (comments or {}).get("", "").splitlines()
    tables = [Table("", head, (*machine, *(about(topology.storage.name) if topology.storage else ())))]
    for buses in _groups(topology.buses, "name"):
        names = [bus.name for bus in buses]
        tables.append(Table("buses", {"names": names, **_fields(buses[0], "name")}, about(*names)))
    for devices in _groups(topology.devices, "name", "bus"):
        joined = [device.bus for device in devices]
        bus = joined[0] if len(set(joined)) == 1 else joined
        fields = _fields(devices[0], "name", "bus")
        names = [device.name for device in devices]
        tables.append(Table("devices", {"names": names, "bus": bus, **fields}, about(*names)))
    for links in _groups(topology.links, "devices"):
        pairs = [list(link.devices) for link in links]
        fields = {"pairs": pairs, **_fields(links[0], "devices")}
        tables.append(Table("links", fields, about(*("-".join(pair) for pair in pairs))))
    for switch in topology.switches:
        fields = {"name": switch.name, "devices": list(switch.devices), **_fields(switch, "name", "devices")}
        tables.append(Table("switches", fields, about(switch.name)))
    return format_toml(tables)


_KINDS = {
    "memory": "bytes",
    "free_memory": "bytes",
    "memory_bandwidth": "bandwidth",
    "bandwidth": "bandwidth",
    "latency": "time",
}
_KINDS |= dict.fromkeys(("launch_overhead", *STREAM_FIELDS), "time")


def _fields(record: msgspec.Struct, *without: str) -> dict[str, Any]:
    fields = format_fields(record, _KINDS, *without)
    if "peak_flops" in fields:
        fields["peak_flops"] = {dtype: format_quantity(rate, "rate") for dtype, rate in fields["peak_flops"].items()}
    return fields


def _groups(records: tuple[Any, ...], *apart: str) -> list[list[Any]]:
    """Group neighbours that are equal except for the fields ``apart``."""
    return neighbours(records, lambda record: _fields(record, *apart))
