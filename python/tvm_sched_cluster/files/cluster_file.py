"""Cluster files: TOML, ``docs/formats/cluster.md``."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from tvm_sched_runtime.errors import FormatError, InputError
from tvm_sched_runtime.files import write_atomically
from tvm_sched_runtime.problem.quantity import format_fields, format_quantity
from tvm_sched_runtime.toml_files import Table, format_toml, neighbours, parse_toml

from ..problem.cluster import MOST_GPUS, Cluster, GpuKind, Link, Rack, Server, Switch
from .record_reader import Quantity, RecordReader

FORMAT, VERSION = "tvm_sched.cluster", 1


class _Kind(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    flops: Quantity
    memory: Quantity
    memory_bandwidth: Quantity
    transfer_delay: Quantity = 0.0
    model: str = ""


class _Switches(msgspec.Struct, forbid_unknown_fields=True):
    names: list[str]
    delay: Quantity = 0.0


class _Links(msgspec.Struct, forbid_unknown_fields=True):
    pairs: list[tuple[str, str]]
    bandwidth: Quantity
    delay: Quantity = 0.0
    fibres: int = 1


class _Servers(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    gpus: int
    count: int = 1


class _Racks(msgspec.Struct, forbid_unknown_fields=True):
    """Equal racks; ``switches`` names the switch of each."""

    names: list[str]
    switches: list[str]
    servers: list[_Servers]
    bandwidth: Quantity
    delay: Quantity = 0.0


class _ClusterBody(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    kinds: list[_Kind]
    switches: list[_Switches]
    racks: list[_Racks]
    links: list[_Links] = []
    source: str = ""


def parse_cluster(text: bytes | str, where: str = "cluster") -> Cluster:
    """Read and check the text of a cluster file; nothing is returned unless all of it is right.

    Examples
    --------
    >>> from tvm_sched_cluster import format_cluster, parse_cluster
    >>> parse_cluster(format_cluster(cluster)).digest == cluster.digest
    True
    """
    body = parse_toml(text, FORMAT, VERSION, _ClusterBody, where)
    reader = _Reader(where)
    return reader.named(
        lambda: Cluster(
            name=body.name,
            kinds=tuple(reader.kind(kind, f"$.kinds[{i}]") for i, kind in enumerate(body.kinds)),
            switches=tuple(
                s for i, group in enumerate(body.switches) for s in reader.switches(group, f"$.switches[{i}]")
            ),
            links=tuple(k for i, group in enumerate(body.links) for k in reader.links(group, f"$.links[{i}]")),
            racks=tuple(r for i, group in enumerate(body.racks) for r in reader.racks(group, f"$.racks[{i}]")),
            source=body.source,
        ),
    )


class _Reader(RecordReader):
    """Makes the parts of a cluster."""

    def kind(self, kind: _Kind, place: str) -> GpuKind:
        return GpuKind(
            kind.name,
            self.number(kind.flops, "rate", f"{place}.flops"),
            self.whole(kind.memory, f"{place}.memory"),
            self.number(kind.memory_bandwidth, "bandwidth", f"{place}.memory_bandwidth"),
            self.number(kind.transfer_delay, "time", f"{place}.transfer_delay"),
            kind.model,
        )

    def switches(self, group: _Switches, place: str) -> list[Switch]:
        delay = self.number(group.delay, "time", f"{place}.delay")
        return [Switch(name, delay) for name in group.names]

    def links(self, group: _Links, place: str) -> list[Link]:
        bandwidth = self.number(group.bandwidth, "bandwidth", f"{place}.bandwidth")
        delay = self.number(group.delay, "time", f"{place}.delay")
        return [Link(pair, bandwidth, delay, group.fibres) for pair in group.pairs]

    def racks(self, group: _Racks, place: str) -> list[Rack]:
        if len(group.names) != len(group.switches):
            mismatch = f"{len(group.switches)} switches for {len(group.names)} racks; give one for each"
            raise FormatError(f"{self.where}: {mismatch} - at `{place}.switches`")
        bandwidth = self.number(group.bandwidth, "bandwidth", f"{place}.bandwidth")
        delay = self.number(group.delay, "time", f"{place}.delay")
        for i, servers in enumerate(group.servers):
            self.count(servers.count, MOST_GPUS, f"{place}.servers[{i}].count")
            self.count(servers.gpus, MOST_GPUS, f"{place}.servers[{i}].gpus")
        kinds = [(servers.kind, servers.gpus) for servers in group.servers for _ in range(servers.count)]
        return [
            Rack(
                name,
                switch,
                tuple(Server(f"{name}-server{i}", kind, gpus) for i, (kind, gpus) in enumerate(kinds)),
                bandwidth,
                delay,
            )
            for name, switch in zip(group.names, group.switches, strict=True)
        ]


def write_cluster(path: str | os.PathLike[str], cluster: Cluster) -> None:
    """Write a cluster file that `parse_cluster` reads back as the very same cluster.

    Examples
    --------
    >>> from tvm_sched_cluster import load_cluster, write_cluster
    >>> write_cluster("two.toml", cluster)
    >>> load_cluster("two.toml").digest == cluster.digest
    True
    """
    write_atomically(path, format_cluster(cluster).encode())


def format_cluster(cluster: Cluster) -> str:
    """Return the text of a cluster file.

    Raises
    ------
    InputError
        Servers that are not named as a file names them: ``<rack>-server<i>``.

    Examples
    --------
    >>> from tvm_sched_cluster import format_cluster
    >>> format_cluster(cluster).splitlines()[2]
    'name = "two racks"'
    """
    tables = [Table("", {"format": FORMAT, "version": VERSION, "name": cluster.name, "source": cluster.source})]
    tables += [Table("kinds", format_fields(kind, _UNITS)) for kind in cluster.kinds]
    tables += [
        Table("switches", {"names": [s.name for s in group], "delay": format_quantity(group[0].delay, "time")})
        for group in neighbours(cluster.switches, lambda switch: switch.delay)
    ]
    tables += [
        Table(
            "links", {"pairs": [list(link.switches) for link in group], **format_fields(group[0], _UNITS, "switches")}
        )
        for group in neighbours(cluster.links, lambda link: (link.bandwidth, link.delay, link.fibres))
    ]
    for racks in neighbours(cluster.racks, _rack_shape):
        first = racks[0]
        fields = {
            "names": [rack.name for rack in racks],
            "switches": [rack.switch for rack in racks],
            "servers": [
                {"kind": group[0].kind, "gpus": group[0].gpus, "count": len(group)}
                for group in neighbours(first.servers, lambda server: (server.kind, server.gpus))
            ],
            **format_fields(first, _UNITS, "name", "switch", "servers"),
        }
        tables.append(Table("racks", fields))
    return format_toml(tables)


_UNITS = {
    "flops": "rate",
    "memory": "bytes",
    "memory_bandwidth": "bandwidth",
    "transfer_delay": "time",
    "bandwidth": "bandwidth",
    "delay": "time",
}


def _rack_shape(rack: Rack) -> Any:
    for i, server in enumerate(rack.servers):
        if server.name != f"{rack.name}-server{i}":
            raise InputError(
                f"server {server.name!r} cannot be written; its place in the file names it {rack.name}-server{i}"
            )
    return [(server.kind, server.gpus) for server in rack.servers], rack.bandwidth, rack.delay
