"""Cluster and service files (TOML, ``docs/formats/cluster.md``) and the presets of the paper RAMPA."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..errors import FormatError, InputError
from ..files import check_envelope, convert, read_bytes, write_atomically
from ..problem.quantity import format_quantity, parse_quantity
from .cluster import Cluster, GpuKind, Link, Rack, Server, Switch
from .service import Edge, Service, ServiceOperator, by_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CLUSTER, SERVICES, VERSION = "tvm_sched.cluster", "tvm_sched.services", 1
DEMANDS: dict[str, dict[str, float]] = {
    "same": {"high-throughput": 1 / 3, "low-delay": 1 / 3, "huge-model": 1 / 3},
    "high-throughput": {"high-throughput": 0.8, "low-delay": 0.1, "huge-model": 0.1},
    "low-delay": {"high-throughput": 0.1, "low-delay": 0.8, "huge-model": 0.1},
    "huge-model": {"high-throughput": 0.1, "low-delay": 0.1, "huge-model": 0.8},
}
"""Probabilities of the categories of services: RAMPA, Table IV."""

_PRESETS = Path(__file__).parent / "presets"
_SERVICES = "rampa-services"
Quantity = float | str
T = TypeVar("T")


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


class _Operators(msgspec.Struct, forbid_unknown_fields=True):
    """An operator, or ``count`` equal ones: the name and 0, 1, 2, ..."""

    name: str
    flops: Quantity
    memory: Quantity
    output: Quantity = 0
    count: int = 1
    latency: dict[str, Quantity] = {}


class _Edge(msgspec.Struct, forbid_unknown_fields=True):
    source: str
    target: str
    bytes: Quantity


class _Service(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    operators: list[_Operators]
    throughput: float
    latency: Quantity
    edges: list[_Edge] | None = None
    category: str = ""
    model: str = ""


class _ServicesBody(msgspec.Struct, forbid_unknown_fields=True):
    services: list[_Service]
    source: str = ""


def preset_names() -> tuple[str, ...]:
    """Names of the clusters that come with the package."""
    return tuple(sorted(path.stem for path in _PRESETS.glob("*.toml") if path.stem != _SERVICES))


def load_cluster(name_or_path: str | os.PathLike[str]) -> Cluster:
    """The cluster of a preset (``"rampa-base"``), of a TOML file, or of a graph file of RAMPA's simulator (``.txt``).

    Raises
    ------
    FormatError
        Neither a preset nor a file, or a file that is not what ``docs/formats/cluster.md`` says.
    TopologyError
        A file whose cluster breaks a rule.
    """
    text = os.fspath(name_or_path)
    if text in preset_names():
        return _preset(text)
    if not Path(text).is_file():
        close = difflib.get_close_matches(text, preset_names(), cutoff=0.5)
        hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else "."
        raise FormatError(
            f"cluster {text!r} is neither a preset nor a file{hint} Presets are {', '.join(preset_names())}"
        )
    if text.endswith(".txt"):
        from .simulator_format import read_graph

        return read_graph(text)
    return parse_cluster(read_bytes(text), text)


@lru_cache
def _preset(name: str) -> Cluster:
    path = _PRESETS / f"{name}.toml"
    return parse_cluster(read_bytes(path), os.fspath(path))


def load_services(name_or_path: str | os.PathLike[str] = _SERVICES) -> tuple[Service, ...]:
    """The services of a TOML file, of a folder of the simulator's models, or the paper's six (``"rampa-services"``).

    Raises
    ------
    FormatError, InputError
        As `load_cluster`.
    """
    text = os.fspath(name_or_path)
    if text == _SERVICES:
        text = os.fspath(_PRESETS / f"{_SERVICES}.toml")
    if Path(text).is_dir():
        from .simulator_format import read_models

        return read_models(text)
    return parse_services(read_bytes(text), text)


def demand_of_services(case: str, services: Sequence[Service]) -> dict[str, float]:
    """Probability of each service in a case of Table IV: its category's, shared equally within it.

    Raises
    ------
    InputError
        There is no such case, or no service of a category.
    """
    if case not in DEMANDS:
        raise InputError(f"there is no demand {case!r}; there are {', '.join(DEMANDS)}")
    demand: dict[str, float] = {}
    for category, probability in DEMANDS[case].items():
        members = [service.name for service in services if service.category == category]
        if not members:
            raise InputError(f"demand {case!r} asks for services of category {category!r}, of which there is none")
        demand |= {name: probability / len(members) for name in members}
    return demand


def _parse(text: bytes | str, format: str, kind: type[T], where: str) -> T:
    try:
        data = tomllib.loads(text.decode() if isinstance(text, bytes) else text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{where}: not a TOML document ({error})") from None
    check_envelope(data, format, VERSION, where)
    return convert(data, kind, where)


def _named(where: str, make: Callable[[], T]) -> T:
    """What ``make`` gives; an error of the data says the file first."""
    try:
        return make()
    except FormatError:
        raise
    except InputError as error:
        raise type(error)(f"{where}: {error}") from None


def parse_cluster(text: bytes | str, where: str = "cluster") -> Cluster:
    """Read and check the text of a cluster file; nothing is returned unless all of it is right."""
    body = _parse(text, CLUSTER, _ClusterBody, where)
    reader = _Reader(where)
    return _named(
        where,
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


def parse_services(text: bytes | str, where: str = "services") -> tuple[Service, ...]:
    """Read and check the text of a services file."""
    body = _parse(text, SERVICES, _ServicesBody, where)
    reader = _Reader(where)

    def make() -> tuple[Service, ...]:
        made = [reader.service(one, f"$.services[{i}]", body.source) for i, one in enumerate(body.services)]
        return tuple(by_name(made).values())

    return _named(where, make)


class _Reader:
    """Makes the parts of clusters and services of the records of a file; errors name the file and the place in it."""

    def __init__(self, where: str) -> None:
        self.where = where

    def number(self, value: Quantity, kind: str, place: str) -> float:
        return float(parse_quantity(value, kind, f"{self.where}: `{place}`"))

    def whole(self, value: Quantity, place: str) -> int:
        """Bytes: a whole number."""
        number = parse_quantity(value, "bytes", f"{self.where}: `{place}`")
        if number != int(number):
            raise FormatError(f"{self.where}: {value!r} is no whole number of bytes - at `{place}`")
        return int(number)

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
            found = f"{len(group.switches)} switches for {len(group.names)} racks; give one for each"
            raise FormatError(f"{self.where}: {found} - at `{place}.switches`")
        bandwidth = self.number(group.bandwidth, "bandwidth", f"{place}.bandwidth")
        delay = self.number(group.delay, "time", f"{place}.delay")
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

    def operators(self, group: _Operators, place: str) -> list[ServiceOperator]:
        names = [group.name] if group.count == 1 else [f"{group.name}{i}" for i in range(group.count)]
        flops = self.number(group.flops, "work", f"{place}.flops")
        memory, output = self.whole(group.memory, f"{place}.memory"), self.whole(group.output, f"{place}.output")
        latency = {k: self.number(v, "time", f"{place}.latency.{k}") for k, v in group.latency.items()}
        return [ServiceOperator(name, flops, memory, output, latency) for name in names]

    def service(self, one: _Service, place: str, source: str) -> Service:
        edges = None
        if one.edges is not None:
            edges = tuple(
                Edge(edge.source, edge.target, self.whole(edge.bytes, f"{place}.edges[{i}].bytes"))
                for i, edge in enumerate(one.edges)
            )
        return Service(
            one.name,
            tuple(o for i, group in enumerate(one.operators) for o in self.operators(group, f"{place}.operators[{i}]")),
            one.throughput,
            self.number(one.latency, "time", f"{place}.latency"),
            edges,
            one.category,
            one.model,
            source,
        )


def write_cluster(path: str | os.PathLike[str], cluster: Cluster) -> None:
    """Write a cluster file that `load_cluster` reads back as the very same cluster."""
    write_atomically(path, format_cluster(cluster).encode())


def format_cluster(cluster: Cluster) -> str:
    """The text of a cluster file.

    Raises
    ------
    InputError
        Servers that are not named as a file names them: ``<rack>-server<i>``.
    """
    from ..problem.topology_file import toml_value

    tables: list[tuple[str, dict[str, Any]]] = [
        ("", {"format": CLUSTER, "version": VERSION, "name": cluster.name, "source": cluster.source})
    ]
    tables += [("kinds", _quantities(kind)) for kind in cluster.kinds]
    tables += [
        ("switches", {"names": [s.name for s in group], "delay": format_quantity(group[0].delay, "time")})
        for group in _runs(cluster.switches, lambda switch: switch.delay)
    ]
    tables += [
        ("links", {"pairs": [list(link.switches) for link in group], **_quantities(group[0], "switches")})
        for group in _runs(cluster.links, lambda link: (link.bandwidth, link.delay, link.fibres))
    ]
    for racks in _runs(cluster.racks, _rack_shape):
        first = racks[0]
        tables.append(
            (
                "racks",
                {
                    "names": [rack.name for rack in racks],
                    "switches": [rack.switch for rack in racks],
                    "servers": [
                        {"kind": group[0].kind, "gpus": group[0].gpus, "count": len(group)}
                        for group in _runs(first.servers, lambda server: (server.kind, server.gpus))
                    ],
                    **_quantities(first, "name", "switch", "servers"),
                },
            )
        )
    return "\n".join(
        (f"[[{title}]]\n" if title else "") + "".join(f"{key} = {toml_value(value)}\n" for key, value in table.items())
        for title, table in tables
    )


_UNITS = {
    "flops": "rate",
    "memory": "bytes",
    "memory_bandwidth": "bandwidth",
    "transfer_delay": "time",
    "bandwidth": "bandwidth",
    "delay": "time",
}


def _quantities(record: msgspec.Struct, *without: str) -> dict[str, Any]:
    fields = {name: getattr(record, name) for name in record.__struct_fields__ if name not in without}
    return {name: format_quantity(value, _UNITS[name]) if name in _UNITS else value for name, value in fields.items()}


def _rack_shape(rack: Rack) -> Any:
    for i, server in enumerate(rack.servers):
        if server.name != f"{rack.name}-server{i}":
            raise InputError(
                f"server {server.name!r} cannot be written; its place in the file names it {rack.name}-server{i}"
            )
    return [(server.kind, server.gpus) for server in rack.servers], rack.bandwidth, rack.delay


def _runs(records: Sequence[T], key: Callable[[T], Any]) -> list[list[T]]:
    """Runs of neighbours with equal keys."""
    groups: list[list[T]] = []
    for record in records:
        if groups and key(groups[-1][-1]) == key(record):
            groups[-1].append(record)
        else:
            groups.append([record])
    return groups
