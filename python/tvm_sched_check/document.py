"""Read a problem file: operators, tensors, devices, routes, and times in integers (``docs/formats/problem.md``)."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Collection
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

VERSION = 1
"""The version of every format that is read here."""
HOST = -1
MALFORMED = LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError
"""What a file that is not as its format says makes Python raise."""


class Refused(Exception):
    """A file is wrong, or uses something that this checker does not cover; the message is one short line."""

    def __init__(self, message: str) -> None:
        super().__init__(message if len(message) < 400 else f"{message[:300]} ... {message[-60:]}")


class Route(NamedTuple):
    """The channels that a copy occupies from start to end, the bandwidth in bytes a second, the latency in seconds."""

    channels: tuple[str, ...]
    bandwidth: float
    latency: float

    def ns(self, size: int) -> int:
        """Return the duration of a copy: computed in double precision and rounded up, as the model defines."""
        return max(math.ceil(self.latency * 1e9 + size * 1e9 / self.bandwidth), 0)


def read(path: str | Path, format: str) -> tuple[dict[str, Any], str]:
    """Read a JSON document of a format; return it with its digest. Raise `Refused` if it is of another format."""
    try:
        content = Path(path).read_bytes()
        document = json.loads(content, object_pairs_hook=_object, parse_constant=_constant)
    except (OSError, ValueError, RecursionError) as error:
        raise Refused(f"{path}: cannot be read as JSON ({error})") from None
    version = document.get("version") if isinstance(document, dict) else None
    if type(version) is not int or document.get("format") != format or version != VERSION:
        raise Refused(f"{path}: is not of format {format!r} and version {VERSION}, which is read here")
    return document, hashlib.sha256(content).hexdigest()[:16]


def _object(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dict of a JSON object; refuse a key that occurs twice, since readers differ in which value they take."""
    if len(members := dict(fields)) < len(fields):
        raise ValueError(f"an object has the key {Counter(key for key, _ in fields).most_common(1)[0][0]!r} twice")
    return members


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def without(document: dict[str, Any], resident: Collection[str]) -> dict[str, Any]:
    """Return a problem's document whose operators do not read these parameters (``docs/proofs/resident_parameters.md``)."""

    def reduced(value: Any) -> Any:
        """Take the names out of all lists of inputs: those of the graph, and of alternatives."""
        if isinstance(value, list):
            return [reduced(each) for each in value]
        if not isinstance(value, dict):
            return value
        return {k: [n for n in v if n not in resident] if k == "inputs" else reduced(v) for k, v in value.items()}

    parts = [part for part in ("graph", "variants") if part in document]
    changed: dict[str, Any] = {part: reduced(document[part]) for part in parts}
    return {**document, **changed} if resident else document


def flag(value: Any) -> bool:
    """Return a value of a file if it is true or false; raise `Refused` otherwise."""
    if type(value) is not bool:
        raise Refused(f"found {value!r} where true or false is allowed")
    return value


def count(value: Any) -> int:
    """Return a value of a file if it is an integer from 0; raise `Refused` otherwise."""
    if type(value) is not int or value < 0:
        raise Refused(f"found {value!r} where an integer from 0 is allowed")
    return value


AT_ONCE = object()
"""Key of a problem's document, which no JSON has: bounds are proved of it (``docs/proofs/joined.md``)."""


class Problem:
    """Operators and tensors by position; times by operator and device, None where an operator cannot run."""

    def __init__(self, document: dict[str, Any]) -> None:
        graph, costs, self.devices = document["graph"], document["costs"], document["topology"]["devices"]
        self.concurrency = costs.get("concurrency")
        operators, tensors = graph["operators"], graph["tensors"]
        self.routes = routes_of(document["topology"])
        self.operator_names, self.o = _numbered(operators)
        self.tensor_names, self.t = _numbered(tensors)
        self.device_names, self.d = _numbered(self.devices)
        self.memory = [count(d["memory"]) for d in self.devices]
        self.storage = document["topology"].get("storage")  # of parameters
        # Without buses, graph inputs are in place then.
        self.mapped = bool(self.storage) and not any(d.get("bus") for d in self.devices)
        turns = _takes_turns(document["topology"])
        self.bus = [self.storage["name"] if turns else d.get("bus") for d in self.devices]
        self.shares = [not bus for bus in self.bus]
        self.size = [count(t["size"]) for t in tensors]
        self.kind = [t.get("kind", "activation") for t in tensors]
        in_place = {t["name"] for t in tensors if self.mapped and t.get("kind") == "input"}
        read = [[n for n in o.get("inputs", []) if n not in in_place] for o in operators]
        self.inputs = [list(dict.fromkeys(self.t[n] for n in names)) for names in read]
        self.outputs = [[self.t[n] for n in o.get("outputs", [])] for o in operators]
        self.results = {self.t[n] for n in graph.get("outputs", [])}
        producers = [(t, o) for o, outputs in enumerate(self.outputs) for t in outputs]
        if sorted(t for t, _ in producers) != [t for t in range(len(tensors)) if not self.is_host(t)]:
            raise Refused("some activation is not made by exactly one operator, or an operator makes a host tensor")
        self.maker = dict(producers)  # of each activation
        self.normal, self.direct, self.host_read_ns = times_of(costs)
        self.host_routes, self.read_routes = self.routes, self.routes  # of copies of host tensors, and of direct reads
        self.set_latencies, self.set_latency = (
            [0] * len(self.devices),
            0,
        )  # of loads: by device, and the least that counts
        if document.get(AT_ONCE):  # type: ignore[call-overload]
            self.host_routes = {ends: r._replace(latency=-1e-9) for ends, r in self.routes.items()}
            loads = {ends: route for ends, route in self.host_routes.items() if ends[0] == HOST}
            for _, d in loads:
                self.set_latencies[d] = int(self.routes[HOST, d].latency * 1e9)
            self.routes, shared = self.routes | loads, "variants" in document
            self.read_routes = self.routes if shared else self.read_routes
            if not shared or all(
                ns is None for row in self.direct for ns in row
            ):  # else operators may share a direct read
                self.set_latency = min((self.set_latencies[d] for _, d in loads), default=0)
        self.host_inputs = [[t for t in read if self.is_host(t)] for read in self.inputs]
        parts = [o.get("read_bytes") or {} for o in operators]  # of tensors that are read directly in part
        self.host_bytes = [
            {t: count(parts[o].get(self.tensor_names[t], self.size[t])) for t in host}
            for o, host in enumerate(self.host_inputs)
        ]
        # Neighbours, and the largest tensor that is handed over.
        self.before, self.after = ([dict[int, int]() for _ in operators] for _ in range(2))
        for o, t in ((o, t) for o, read in enumerate(self.inputs) for t in read if t in self.maker):
            p = self.maker[t]
            self.before[o][p] = self.after[p][o] = max(self.size[t], self.before[o].get(p, 0))
        try:
            self.order = list(TopologicalSorter(dict(enumerate(self.before))).static_order())
        except CycleError:
            raise Refused("the graph has a cycle") from None

    def is_host(self, t: int) -> bool:
        """Return whether a tensor lies in host memory, or in storage, at the start."""
        return self.kind[t] != "activation"

    def in_place(self, t: int, d: int) -> bool:
        """Return whether a tensor of `is_host` is on a device at the start."""
        return self.shares[d] or (self.mapped and self.kind[t] == "input")

    def times(self, o: int, d: int) -> list[int]:
        """Return the times of an operator on a device, in the modes in which it can run there."""
        return [ns for ns in (self.normal[o][d], self.direct[o][d]) if ns is not None]

    def host_read(self, o: int, d: int) -> int:
        """Return for how many nanoseconds the direct read of an operator occupies the bus of its device."""
        several = self.host_read_ns[o][d] if self.host_inputs[o] else None
        return max(self.read_routes[HOST, d].ns(sum(self.host_bytes[o].values())), several or 0)

    def bus_read(self, o: int, d: int) -> int:
        """Return `host_read` without the latency, where `set_latency` counts."""
        return max(self.host_read(o, d) - (self.set_latencies[d] if self.set_latency else 0), 0)

    def taken(self, o: int, t: int) -> float:
        """Return the bytes of a host tensor that an operator reads directly; infinite if it cannot read directly."""
        return math.inf if self.direct[o].count(None) == len(self.direct[o]) else self.host_bytes[o][t]


def times_of(costs: dict[str, Any]) -> list[list[list[int | None]]]:
    """Return the rows of normal and direct times, and of bus times: None where each byte crosses the bus once."""
    once = [[None] * len(row) for row in costs["direct_ns"]]
    matrices = costs["operator_ns"], costs["direct_ns"], costs.get("host_read_ns") or once
    return [[[None if ns is None else max(1, count(ns)) for ns in row] for row in rows] for rows in matrices]


def _numbered(items: list[Any]) -> tuple[list[str], dict[str, int]]:
    names = [item["name"] for item in items]
    if len(set(names)) < len(names):
        raise Refused(f"a name occurs twice among {', '.join(names[:3])}, ...")
    return names, {name: i for i, name in enumerate(names)}


def routes_of(topology: dict[str, Any]) -> dict[tuple[int, int], Route]:
    """Return the routes by (source, target): a link, else a switch, else the buses (``docs/formats/topology.md``)."""
    known, switches = topology.get("buses", []), topology.get("switches", [])
    (_, number), (_, of_bus), _ = map(_numbered, (topology["devices"], known, switches))
    on = {d: known[of_bus[device["bus"]]] for d, device in enumerate(topology["devices"]) if device.get("bus")}
    down, up = (
        {d: _channel(bus, f"bus {bus['name']}", direction) for d, bus in on.items()} for direction in ("down", "up")
    )
    routes = {(HOST, d): route for d, route in down.items()}
    if "storage" in topology:
        if on and len(on) < len(number):
            raise Refused("a topology has storage, a device on a bus and one without; one of the last two is allowed")
        disk, turns = _route(topology["storage"], "storage"), _takes_turns(topology)
        routes = {(HOST, d): _on_from(disk, down[d], turns) if on else disk for d in number.values()}
    for a, b in ((a, b) for a in number.values() for b in number.values() if a != b):
        if a in up and b in down:
            routes[a, b] = _through_host(up[a], down[b], topology.get("peer_access", True))
        elif a in up or b in down:  # one of the two shares host memory
            routes[a, b] = up[a] if a in up else down[b]
    for switch in switches:
        for a, b in ((a, b) for a in switch["devices"] for b in switch["devices"] if a != b):
            ports = [f"out {switch['name']} {a}", f"in {switch['name']} {b}"] if switch.get("contention", True) else []
            routes[number[a], number[b]] = _route(switch, *ports)
    joined = set[frozenset[str]]()
    for link in topology.get("links", []):
        pair = frozenset(link["devices"])
        if len(pair) != 2 or pair in joined:
            raise Refused("a link joins a device to itself, or two links join the same devices")
        joined.add(pair)
        for a, b in (link["devices"], link["devices"][::-1]):
            routes[number[a], number[b]] = _channel(link, f"link {sorted(pair)}", f"to {b}")
    return routes


def _takes_turns(topology: dict[str, Any]) -> bool:
    """Return whether loads take turns on the storage: there is one, and it is slower than all buses together."""
    used = {device["bus"] for device in topology["devices"] if device.get("bus")}
    buses = sum(bus["bandwidth"] for bus in topology.get("buses", []) if bus["name"] in used)
    return "storage" in topology and (not used or topology["storage"]["bandwidth"] < buses)


def _on_from(disk: Route, down: Route, turns: bool) -> Route:
    """Return the route from storage over a bus: bytes go on while others are read."""
    channels = disk.channels + down.channels if turns else down.channels
    return Route(channels, min(disk.bandwidth, down.bandwidth), disk.latency + down.latency)


def _channel(joint: dict[str, Any], name: str, direction: str) -> Route:
    """Return a route of one channel; a duplex bus or link has a channel for each direction."""
    return _route(joint, f"{name} {direction}" if joint.get("duplex", True) else name)


def _route(joint: dict[str, Any], *channels: str) -> Route:
    bandwidth, latency = joint["bandwidth"], joint.get("latency", 0.0)
    if not (0 < bandwidth < math.inf and 0 <= latency < math.inf):
        raise Refused(f"bandwidth {bandwidth!r}, latency {latency!r}: finite numbers are allowed, above 0 and from 0")
    return Route(channels, bandwidth, latency)


def _through_host(up: Route, down: Route, peer_access: bool) -> Route:
    channels = tuple(dict.fromkeys((*up.channels, *down.channels)))
    if peer_access:
        return Route(channels, min(up.bandwidth, down.bandwidth), max(up.latency, down.latency))
    return Route(channels, 1 / (1 / up.bandwidth + 1 / down.bandwidth), up.latency + down.latency)
