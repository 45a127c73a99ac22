"""Reads the files of RAMPA's public simulator (github.com/a-ikoma/RAMPA_simmulation): graphs, models, request sequences.

They are rows of comma-separated fields, the first of which names the row. Every number must be one: a row that does not
hold what it should is refused with its line and field.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tvm_sched_runtime.errors import FormatError, InputError
from tvm_sched_runtime.files import read_bytes

from ..problem.cluster import Cluster, GpuKind, Link, Rack, Server, Switch
from ..problem.service import Service, ServiceOperator, ServiceRequest

SERVER_GPUS = 8
"""GPUs of a server, which the format does not tell: RAMPA, Section V-A."""

T = TypeVar("T", int, float)


@dataclass(frozen=True)
class _Row:
    """A row: fields are counted from 1, the row's name being the first."""

    where: str
    line: int
    fields: tuple[str, ...]

    def wrong(self, field: int, expected: str) -> FormatError:
        content = repr(self.fields[field - 1]) if field <= len(self.fields) else "nothing"
        return FormatError(f"{self.where}: line {self.line}, field {field}: found {content}, expected {expected}")

    def number(self, field: int, kind: Callable[[str], T], what: str) -> T:
        try:
            return kind(self.fields[field - 1])
        except (IndexError, ValueError):
            raise self.wrong(field, what) from None

    def numbers(self, first: int, kind: Callable[[str], T], what: str) -> list[T]:
        return [self.number(field, kind, what) for field in range(first, len(self.fields) + 1)]


def read_graph(path: str | os.PathLike[str]) -> Cluster:
    """Return a cluster of a graph file: rows ``link_sw``, ``link_resource``, ``bw``, ``Csw`` and ``gpu``.

    Delays are milliseconds, ``bw`` bits a second; ``gpu`` rows name the number of racks, GPUs a rack, transfer delay,
    GFLOP/s, GB, GB/s, and the switch of each rack.

    Raises
    ------
    FormatError
        A row that is missing, unknown or malformed; the message names line and field.
    """
    where = os.fspath(path)
    rows = _rows(where)
    single = {name: _single(rows, name, where) for name in ("link_sw", "link_resource", "bw", "Csw")}
    between = single["link_sw"].number(2, float, "milliseconds between switches") / 1e3
    inside = single["link_resource"].number(2, float, "milliseconds between a switch and a GPU") / 1e3
    bandwidth = single["bw"].number(2, float, "bits a second") / 8
    gpu_rows = [row for row in rows if row.fields[0] == "gpu"]
    if not gpu_rows:
        raise FormatError(f"{where}: there is no row 'gpu'")
    switches = _switches(single["Csw"])
    kinds = tuple(_kind(row, k) for k, row in enumerate(gpu_rows))
    racks = [
        rack
        for row, kind in zip(gpu_rows, kinds, strict=True)
        for rack in _racks(row, kind, switches, bandwidth, inside)
    ]
    name = Path(where).stem
    return Cluster(name, kinds, switches, tuple(racks), _links(single["Csw"], switches, bandwidth, between), where)


def read_models(folder: str | os.PathLike[str]) -> tuple[Service, ...]:
    """Return the services of the model files in a folder, in the order of their ID; other files are ignored.

    Raises
    ------
    FormatError
        As `read_model`, and where there are no model files (``model*.txt``).
    """
    files = sorted(Path(folder).glob("model*.txt"))
    if not files:
        raise FormatError(f"{os.fspath(folder)} holds no model files (model*.txt)")
    return tuple(sorted(map(read_model, files), key=lambda service: (len(service.name), service.name)))


def read_model(path: str | os.PathLike[str]) -> Service:
    """Return a service of a model file: rows ``ID``, ``OPE``, ``FLOPs``, ``MEM``, ``OUT``, ``TIME`` and ``THROUGH``.

    FLOPs are in units of 10^9, memory in GB, outputs in MB, the time in milliseconds, the throughput is inputs a second.
    Errors are those of `read_graph`.
    """
    where = os.fspath(path)
    rows = _rows(where)
    row = {name: _single(rows, name, where) for name in ("ID", "OPE", "FLOPs", "MEM", "OUT", "TIME", "THROUGH")}
    count = row["OPE"].number(2, int, "a number of operators")
    columns = {}
    for name, what in (("FLOPs", "GFLOP"), ("MEM", "GB"), ("OUT", "MB")):
        columns[name] = row[name].numbers(2, float, f"{what} of an operator")
        if len(columns[name]) != count:
            short = min(len(columns[name]), count)
            raise row[name].wrong(short + 2, f"{count} numbers, as row OPE says; {len(columns[name])} stand there")
    operators = tuple(
        ServiceOperator(f"op{i}", flops * 1e9, round(memory * 1e9), round(output * 1e6))
        for i, (flops, memory, output) in enumerate(zip(*columns.values(), strict=True))
    )
    throughput = row["THROUGH"].number(2, float, "inputs a second")
    latency = row["TIME"].number(2, float, "milliseconds") / 1e3
    try:
        return Service(f"service{row['ID'].number(2, int, 'a number')}", operators, throughput, latency, source=where)
    except InputError as error:
        raise FormatError(f"{where}: {error}") from None


def read_requests(path: str | os.PathLike[str]) -> list[ServiceRequest]:
    """Return the requests of a sequence file: rows of time, ``allocate``, ID of the service, lifetime.

    Raises
    ------
    FormatError
        A malformed row; the message names line and field.
    """
    where = os.fspath(path)
    requests: list[ServiceRequest] = []
    for row in _split(where):
        time = row.number(1, float, "a time")
        if len(row.fields) < 2 or row.fields[1] != "allocate":
            raise row.wrong(2, "'allocate'")
        service = row.number(3, int, "the ID of a service")
        lifetime = row.number(4, float, "a lifetime")
        if len(row.fields) > 4:
            raise row.wrong(5, "no more fields")
        requests.append(ServiceRequest(f"r{len(requests)}", f"service{service}", time, lifetime))
    return requests


_ROWS = (
    "link_sw",
    "link_resource",
    "bw",
    "Csw",
    "gpu",
    "name",
    "ID",
    "OPE",
    "FLOPs",
    "MEM",
    "OUT",
    "TIME",
    "THROUGH",
    "STAGE",
)


def _split(where: str) -> list[_Row]:
    try:
        text = read_bytes(where).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(f"{where}: not a text file ({error})") from None
    lines = enumerate(text.splitlines(), start=1)
    return [_Row(where, n, tuple(f.strip() for f in line.split(","))) for n, line in lines if line.strip()]


def _rows(where: str) -> list[_Row]:
    rows = _split(where)
    for row in rows:
        if row.fields[0] not in _ROWS:
            raise row.wrong(1, f"the name of a row: {', '.join(_ROWS)}")
    return rows


def _single(rows: Sequence[_Row], name: str, where: str) -> _Row:
    matching = [row for row in rows if row.fields[0] == name]
    if not matching:
        raise FormatError(f"{where}: there is no row {name!r}")
    if len(matching) > 1:
        raise matching[1].wrong(1, f"one row {name!r} alone")
    return matching[0]


def _switches(row: _Row) -> tuple[Switch, ...]:
    delay = row.number(3, float, "the milliseconds of a switch") / 1e3
    return tuple(Switch(f"sw{i}", delay) for i in range(row.number(2, int, "a number of switches")))


def _links(row: _Row, switches: Sequence[Switch], bandwidth: float, delay: float) -> tuple[Link, ...]:
    links: dict[tuple[str, ...], Link] = {}
    for field in range(4, len(row.fields) + 1):
        match = re.fullmatch(r"(\d+)-(\d+)-(\d+)", row.fields[field - 1])
        if match is None or not all(int(match[i]) < len(switches) for i in (1, 2)) or match[1] == match[2]:
            raise row.wrong(field, f"two switches below {len(switches)} and a number of fibres, such as 0-1-4")
        ends = switches[int(match[1])].name, switches[int(match[2])].name
        if tuple(sorted(ends)) in links:
            raise row.wrong(field, "a pair of switches that stands there once")
        if int(match[3]) < 1:
            raise row.wrong(field, "a number of fibres from 1")
        links[tuple(sorted(ends))] = Link(ends, bandwidth, delay, int(match[3]))
    return tuple(links.values())


def _kind(row: _Row, position: int) -> GpuKind:
    transfer = row.number(4, float, "the milliseconds of a GPU's transfers") / 1e3
    flops = row.number(5, float, "GFLOP/s") * 1e9
    memory = round(row.number(6, float, "GB of memory") * 1e9)
    bandwidth = row.number(7, float, "GB/s of memory bandwidth") * 1e9
    count = row.number(2, int, "a number of racks")
    if len(row.fields) != 7 + count:
        raise row.wrong(
            min(len(row.fields) + 1, 8 + count), f"7 fields and a switch for each of {count} racks, {7 + count} in all"
        )
    return GpuKind(f"gpu{position}", flops, memory, bandwidth, transfer)


def _racks(row: _Row, kind: GpuKind, switches: Sequence[Switch], bandwidth: float, delay: float) -> list[Rack]:
    gpus = row.number(3, int, "GPUs of a rack")
    racks = []
    for field in range(8, len(row.fields) + 1):
        at = row.number(field, int, "a switch")
        if not 0 <= at < len(switches):
            raise row.wrong(field, f"a switch from 0 to {len(switches) - 1}")
        sizes = [SERVER_GPUS] * (gpus // SERVER_GPUS) + [gpus % SERVER_GPUS] * (gpus % SERVER_GPUS > 0)
        servers = tuple(Server(f"rack{at}-server{i}", kind.name, size) for i, size in enumerate(sizes))
        racks.append(Rack(f"rack{at}", switches[at].name, servers, bandwidth, delay))
    return racks
