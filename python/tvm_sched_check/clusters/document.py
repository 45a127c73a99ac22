"""A cluster and services, from the texts whose digests allocations name (``docs/formats/cluster.md``)."""

from __future__ import annotations

import hashlib
import json
import math
from itertools import pairwise
from typing import Any, NamedTuple

from ..document import Refused, count


def digest(text: str) -> str:
    """First 16 hexadecimal digits of the SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def nanoseconds(seconds: float) -> int:
    """Rounded up, but for floating-point error: by definition; from here on all times are integers."""
    if not 0 <= seconds < math.inf:
        raise Refused(f"{seconds!r} s: a finite time from 0 is allowed")
    return math.ceil(seconds * 1e9 - 1e-3)


def whole(value: float) -> int:
    """Bytes, or bytes a second, in whole numbers."""
    if not 0 <= value < math.inf:
        raise Refused(f"found {value!r} where a finite number from 0 is allowed")
    return math.floor(value)


class Gpu(NamedTuple):
    """Kind and switch by position; nanoseconds and bytes a second of its way to the switch."""

    kind: int
    switch: int
    delay: int
    bandwidth: int


class Link(NamedTuple):
    """Positions of both switches, fibres, nanoseconds, bytes a second."""

    ends: tuple[int, int]
    fibres: int
    delay: int
    bandwidth: int


class Cluster:
    """Kinds of GPUs, GPUs by name, switches, links by name."""

    def __init__(self, text: str) -> None:
        self.kinds, switches, racks, links = json.loads(text)
        self.digest, self.kind_names = digest(text), [kind["name"] for kind in self.kinds]
        self.switch_ns = [nanoseconds(switch["delay"]) for switch in switches]
        position = {switch["name"]: s for s, switch in enumerate(switches)}
        self.gpus: dict[str, Gpu] = {}
        for rack in racks:
            for server in rack["servers"]:
                kind = self.kind_names.index(server["kind"])
                delay = nanoseconds(rack["delay"]) + nanoseconds(self.kinds[kind]["transfer_delay"])
                gpu = Gpu(kind, position[rack["switch"]], delay, whole(rack["bandwidth"]))
                for name in (f"{server['name']}-gpu{i}" for i in range(count(server["gpus"]))):
                    if name in self.gpus:
                        raise Refused(f"GPU {name!r} occurs twice in the cluster")
                    self.gpus[name] = gpu
        self.links: dict[str, Link] = {}
        for link in links:
            a, b = link["switches"]
            name, ends = f"{a}-{b}", (position[a], position[b])
            if name in self.links:
                raise Refused(f"link {name!r} occurs twice in the cluster")
            self.links[name] = Link(ends, count(link["fibres"]), nanoseconds(link["delay"]), whole(link["bandwidth"]))


class Edge(NamedTuple):
    """Positions of two operators, and what the one hands to the other."""

    source: int
    target: int
    bytes: int


class Service:
    """Operators with their times by kind, in nanoseconds; edges; what is required."""

    def __init__(self, text: str, cluster: Cluster) -> None:
        operators, throughput, latency, edges = json.loads(text)
        self.digest, self.operators = digest(text), [operator["name"] for operator in operators]
        if len(set(self.operators)) < len(operators):
            raise Refused("an operator's name occurs twice in a service")
        position = {name: o for o, name in enumerate(self.operators)}
        self.memory = [count(operator["memory"]) for operator in operators]
        self.ns = [[_operator_ns(operator, kind) for kind in cluster.kinds] for operator in operators]
        self.edges = [Edge(position[e["source"]], position[e["target"]], count(e["bytes"])) for e in edges]
        self.cycle_limit, self.latency_limit = math.floor(1e9 / throughput), math.floor(latency * 1e9)

    def chain(self) -> list[int]:
        """Bytes from each operator to the next one."""
        between = [
            [e.bytes for e in self.edges if (e.source, e.target) == ends] for ends in pairwise(range(len(self.ns)))
        ]
        if not all(between):
            raise Refused("an operator hands nothing to the next one: bounds of such services are not covered here")
        return [max(each) for each in between]


def _operator_ns(operator: dict[str, Any], kind: dict[str, Any]) -> int:
    known = operator["latency"].get(kind["name"])
    return nanoseconds(
        operator["flops"] / kind["flops"] + operator["memory"] / kind["memory_bandwidth"] if known is None else known
    )
