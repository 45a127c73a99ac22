"""Read a cluster and its services from the texts whose digests allocations name (``docs/formats/cluster.md``)."""

from __future__ import annotations

import hashlib
import json
import math
from itertools import pairwise
from typing import Any, NamedTuple

from ..document import Refused, count


def digest(text: str) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def nanoseconds(seconds: float) -> int:
    """Return a time in nanoseconds, rounded up; an excess of less than 0.001 ns counts as floating-point error."""
    if not 0 <= seconds < math.inf:
        raise Refused(f"{seconds!r} s: a finite time from 0 is allowed")
    return math.ceil(seconds * 1e9 - 1e-3)


def whole(value: float) -> int:
    """Return bytes, or bytes a second, rounded down to an integer."""
    if not 0 <= value < math.inf:
        raise Refused(f"found {value!r} where a finite number from 0 is allowed")
    return math.floor(value)


class Gpu(NamedTuple):
    """A GPU: positions of its kind and its switch; delay (ns) and bandwidth (bytes a second) of its link to the switch."""

    kind: int
    switch: int
    delay: int
    bandwidth: int


class Link(NamedTuple):
    """A link: positions of both switches, number of fibres, delay (ns), bandwidth of a fibre (bytes a second)."""

    ends: tuple[int, int]
    fibres: int
    delay: int
    bandwidth: int


class Cluster:
    """A cluster: kinds of GPUs, GPUs by name, delays of switches, links by name."""

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
    """An edge: positions of two operators, and the bytes that the first hands to the second."""

    source: int
    target: int
    bytes: int


class Service:
    """A service: operators with their times (ns) by kind of GPU, edges, and the largest cycle and latency (ns)."""

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
        """Return the bytes from each operator to the next one; raise `Refused` if two neighbours have no edge."""
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
