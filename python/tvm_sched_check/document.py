"""The problem of a file: operators, tensors, devices, routes and integer times (``docs/formats/problem.md``)."""

from __future__ import annotations

import hashlib
import json
import math
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

HOST = -1


class Refused(Exception):
    """A file is wrong, or says what this checker does not cover; the message is one line."""


class Route(NamedTuple):
    """The channels that a copy occupies from start to end, bytes a second, seconds."""

    channels: tuple[str, ...]
    bandwidth: float
    latency: float

    def ns(self, size: int) -> int:
        """Duration of a copy: in double precision, rounded up, by definition; from here on all times are integers."""
        return math.ceil(self.latency * 1e9 + size * 1e9 / self.bandwidth)


def read(path: str | Path, format: str, versions: tuple[int, ...]) -> tuple[dict[str, Any], str]:
    """A document of a format, and its digest."""
    try:
        content = Path(path).read_bytes()
        document = json.loads(content)
    except OSError as error:
        raise Refused(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise Refused(f"{path}: is not JSON ({error})") from None
    if not isinstance(document, dict) or document.get("format") != format:
        raise Refused(f"{path}: is not of format {format!r}")
    if document.get("version") not in versions:
        raise Refused(f"{path}: is of version {document.get('version')!r}; this checker reads {format} {versions}")
    return document, hashlib.sha256(content).hexdigest()[:16]


class Problem:
    """Operators and tensors by position; times by operator and device, None where an operator cannot run.

    A group of a problem with variants is computed in the way that ``choice`` names.
    """

    def __init__(self, document: dict[str, Any], digest: str, choice: dict[str, str]) -> None:
        self.digest = digest
        graph, costs = document["graph"], document["costs"]
        if costs.get("concurrency") is not None:
            raise Refused(
                "the costs say how long operators take together (costs.concurrency), which is not covered here"
            )
        tensors = list(graph["tensors"])
        rows = list(zip(graph["operators"], costs["operator_ns"], costs["direct_ns"], strict=True))
        for group, way, ways in _chosen(document.get("variants"), choice):
            place = next(i for i, row in enumerate(rows) if row[0]["name"] in group["operators"])
            rows = [row for row in rows if row[0]["name"] not in group["operators"]]
            rows[place:place] = ways
            tensors += way.get("tensors", [])
        operators = [row[0] for row in rows]
        named = {n for o in operators for n in (*o.get("inputs", []), *o.get("outputs", []))}
        tensors = [t for t in tensors if t["name"] in named or t.get("kind", "activation") != "activation"]
        self.devices = document["topology"]["devices"]
        self.routes = _routes(document["topology"])
        self.operator_names, self.o = _numbered([o["name"] for o in operators], "operator")
        self.tensor_names, self.t = _numbered([t["name"] for t in tensors], "tensor")
        self.device_names, self.d = _numbered([d["name"] for d in self.devices], "device")
        self.size = [_count(t["size"], f"the size of tensor {t['name']!r}") for t in tensors]
        self.kind = [t.get("kind", "activation") for t in tensors]
        self.inputs = [list(dict.fromkeys(self.t[n] for n in o.get("inputs", []))) for o in operators]
        self.outputs = [[self.t[n] for n in o.get("outputs", [])] for o in operators]
        self.results = {self.t[n] for n in graph.get("outputs", [])}
        self.producer = [-1] * len(tensors)
        for o, made in enumerate(self.outputs):
            for t in made:
                if self.producer[t] >= 0 or self.kind[t] != "activation":
                    raise Refused(f"tensor {self.tensor_names[t]!r} is made twice, or is no activation")
                self.producer[t] = o
        self.shares = [not d.get("bus") for d in self.devices]
        self.normal = [[None if ns is None else max(1, _count(ns, "a latency")) for ns in row[1]] for row in rows]
        self.direct = [[None if ns is None else max(1, _count(ns, "a latency")) for ns in row[2]] for row in rows]
        self.host_inputs = [[t for t in read if self.is_host(t)] for read in self.inputs]
        self.host_read = [self._host_reads(o, operators[o].get("read_bytes") or {}) for o in range(len(operators))]
        self.before = [sorted({self.producer[t] for t in read if not self.is_host(t)}) for read in self.inputs]
        self.after: list[list[int]] = [[] for _ in operators]
        for o, before in enumerate(self.before):
            for p in before:
                self.after[p].append(o)
        self._check()

    def is_host(self, t: int) -> bool:
        """Whether a tensor lies in host memory at the start."""
        return self.kind[t] != "activation"

    def route(self, source: int, target: int) -> Route | None:
        """How bytes get from a device, or `HOST`, to another one."""
        return self.routes.get((source, target))

    def copy_ns(self, t: int, source: int, target: int) -> int | None:
        """Duration of a load (from `HOST`) or copy; None where nothing joins the two."""
        route = self.route(source, target)
        return None if route is None else route.ns(self.size[t])

    def _host_reads(self, o: int, parts: dict[str, int]) -> list[int | None]:
        """By device: for how long a direct read of an operator occupies the bus."""
        amounts = [parts.get(self.tensor_names[t], self.size[t]) for t in self.host_inputs[o]]
        if any(_count(a, "read_bytes") > self.size[t] for a, t in zip(amounts, self.host_inputs[o], strict=True)):
            raise Refused(f"operator {self.operator_names[o]!r} reads more bytes of a tensor than it has")
        routes = [self.route(HOST, d) for d in range(len(self.devices))]
        return [None if route is None else route.ns(sum(amounts)) for route in routes]

    def _check(self) -> None:
        if any(self.kind[t] == "activation" and self.producer[t] < 0 for t in range(len(self.size))):
            raise Refused("an activation is made by no operator")
        for o, name in enumerate(self.operator_names):
            if not len(self.normal[o]) == len(self.direct[o]) == len(self.devices):
                raise Refused(f"operator {name!r} does not have one latency for each device")
            if not any(self.times(o, d) for d in range(len(self.devices))):
                raise Refused(f"operator {name!r} can run on no device")
            for direct, read in zip(self.direct[o], self.host_read[o], strict=True):
                if direct is not None and (read is None or not self.host_inputs[o] or direct < read):
                    raise Refused(f"operator {name!r} has direct host access where it has nothing to read, or too fast")
        try:
            self.order = list(TopologicalSorter(dict(enumerate(self.before))).static_order())
        except CycleError:
            raise Refused("the graph has a cycle") from None

    def times(self, o: int, d: int) -> list[int]:
        """Times of an operator on a device, in the modes in which it runs there."""
        return [ns for ns in (self.normal[o][d], self.direct[o][d]) if ns is not None]


def _count(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise Refused(f"{what} is {value!r}; an integer from 0 is allowed")
    return value


def _numbered(names: list[str], what: str) -> tuple[list[str], dict[str, int]]:
    if len(set(names)) < len(names):
        raise Refused(f"the name of some {what} stands twice")
    return names, {name: i for i, name in enumerate(names)}


def _chosen(variants: dict[str, Any] | None, choice: dict[str, str]) -> list[tuple[Any, Any, list[Any]]]:
    """Of each group that is not computed as in the graph: group, way, and the rows (operator, times) of the way."""
    found, used, row = [], set(), 0
    for group in variants["groups"] if variants else ():
        for way in group["alternatives"]:
            rows = range(row, row := row + len(way["operators"]))
            if choice.get(group["name"]) == way["name"]:
                used.add(group["name"])
                costs = [(variants["costs"]["operator_ns"][r], variants["costs"]["direct_ns"][r]) for r in rows]
                found.append((group, way, [(o, *c) for o, c in zip(way["operators"], costs, strict=True)]))
        if choice.get(group["name"]) == group.get("graph_way", "fused"):
            used.add(group["name"])
    if unknown := set(choice) - used:
        raise Refused(f"the choice names group {min(unknown)!r} or a way of it that is not there")
    return found


def _routes(topology: dict[str, Any]) -> dict[tuple[int, int], Route]:
    """Routes by (source, target): a link; without one, a switch; without one, the buses (docs/formats/topology.md)."""
    number = {device["name"]: d for d, device in enumerate(topology["devices"])}
    buses = {bus["name"]: bus for bus in topology.get("buses", [])}
    down: dict[int, Route] = {}
    up: dict[int, Route] = {}
    for name, d in number.items():
        if bus := buses.get(topology["devices"][d].get("bus", "")):
            ends = ("bus down", "bus up") if bus.get("duplex", True) else ("bus", "bus")
            down[d], up[d] = (
                Route((f"{end} {bus['name']}",), _positive(bus["bandwidth"]), bus.get("latency", 0.0)) for end in ends
            )
        elif topology["devices"][d].get("bus", ""):
            raise Refused(f"device {name!r} is on a bus that is not there")
    routes = {(HOST, d): route for d, route in down.items()}
    for a in number.values():
        for b in number.values():
            if a != b and (a in up or b in down):
                routes[a, b] = _through_host(up.get(a), down.get(b), topology.get("peer_access", True))
    for switch in topology.get("switches", []):
        for a in switch["devices"]:
            for b in (b for b in switch["devices"] if b != a):
                ports = (
                    (f"out {switch['name']} {a}", f"in {switch['name']} {b}") if switch.get("contention", True) else ()
                )
                route = Route(ports, _positive(switch["bandwidth"]), switch.get("latency", 0.0))
                routes[number[a], number[b]] = route
    for link in topology.get("links", []):
        a, b = link["devices"]
        for source, target in ((a, b), (b, a)):
            channel = f"link {source} > {target}" if link.get("duplex", True) else f"link {a} - {b}"
            route = Route((channel,), _positive(link["bandwidth"]), link.get("latency", 0.0))
            routes[number[source], number[target]] = route
    return routes


def _through_host(up: Route | None, down: Route | None, peer_access: bool) -> Route:
    if up is None or down is None:  # one of the two shares host memory
        return up or down  # type: ignore[return-value]
    channels = tuple(dict.fromkeys((*up.channels, *down.channels)))
    if peer_access:
        return Route(channels, min(up.bandwidth, down.bandwidth), max(up.latency, down.latency))
    return Route(channels, 1 / (1 / up.bandwidth + 1 / down.bandwidth), up.latency + down.latency)


def _positive(value: float) -> float:
    if not 0 < value < math.inf:
        raise Refused(f"a bandwidth is {value!r}; it is above 0 and finite")
    return value
