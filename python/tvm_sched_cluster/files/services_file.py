"""Service files: TOML, ``docs/formats/cluster.md``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tvm_sched_runtime.files import write_atomically
from tvm_sched_runtime.toml_files import Table, format_toml, parse_toml

from ..problem.service import MOST_OPERATORS, Edge, Service, ServiceOperator, by_name
from .record_reader import Quantity, RecordReader

FORMAT, VERSION = "tvm_sched.services", 1


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
    model_file: str = ""
    input_shapes: dict[str, list[int]] = {}


class _ServicesBody(msgspec.Struct, forbid_unknown_fields=True):
    services: list[_Service]
    source: str = ""


def parse_services(text: bytes | str, where: str = "services") -> tuple[Service, ...]:
    """Read and check the text of a services file.

    Examples
    --------
    >>> from tvm_sched_cluster import format_services, parse_services
    >>> text = format_services([chat])
    >>> parse_services(text) == (chat,)
    True
    >>> parse_services(text.replace("throughput", "speed"))
    Traceback (most recent call last):
        ...
    tvm_sched_runtime.errors.FormatError: services: Object contains unknown field `speed` - at ...
    """
    body = parse_toml(text, FORMAT, VERSION, _ServicesBody, where)
    reader = _Reader(where)

    def make() -> tuple[Service, ...]:
        services = [reader.service(one, f"$.services[{i}]", body.source) for i, one in enumerate(body.services)]
        return tuple(by_name(services).values())

    return reader.named(make)


class _Reader(RecordReader):
    """Makes the parts of services."""

    def operators(self, group: _Operators, place: str) -> list[ServiceOperator]:
        self.count(group.count, MOST_OPERATORS, f"{place}.count")
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
            one.model_file,
            {name: tuple(shape) for name, shape in one.input_shapes.items()},
        )


def write_services(path: str | os.PathLike[str], services: Sequence[Service]) -> None:
    """Write a services file, which `load_services` reads back as the very same services.

    Files of models are named by their place beside it where they can be.

    Examples
    --------
    >>> from tvm_sched_cluster import load_services, write_services
    >>> write_services("chat.toml", [chat])
    >>> load_services("chat.toml") == (chat,)
    True
    """
    folder = Path(path).absolute().parent
    write_atomically(
        path, format_services([_with_relative_model_file(service, folder) for service in services]).encode()
    )


def format_services(services: Sequence[Service]) -> str:
    """Return the text of a services file; all services have one source.

    Examples
    --------
    >>> from tvm_sched_cluster import format_services, parse_services
    >>> parse_services(format_services([chat])) == (chat,)
    True
    """
    source = services[0].source if services else ""
    tables = [Table("", {"format": FORMAT, "version": VERSION, "source": source})]
    for service in services:
        tables.append(Table("services", _service_fields(service)))
        tables += [Table("services.operators", _nonempty_fields(operator)) for operator in service.operators]
        tables += [Table("services.edges", _nonempty_fields(edge)) for edge in service.edges or ()]
    return format_toml(tables)


def _with_relative_model_file(service: Service, folder: Path) -> Service:
    if not service.model_file:
        return service
    return msgspec.structs.replace(service, model_file=os.path.relpath(Path(service.model_file).absolute(), folder))


def _service_fields(service: Service) -> dict[str, Any]:
    """Return a service's own fields. Operators, and edges if there are any, have tables of their own."""
    fields = _nonempty_fields(service)
    for name in ("operators", "edges", "source"):
        fields.pop(name, None)
    return {**fields, "edges": []} if service.edges == () else fields


def _nonempty_fields(record: msgspec.Struct) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(record).items() if value not in (None, "", {})}
