"""The machine as a runtime uses it: places for units with their available memory, and the routes between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import msgspec
import numpy as np

from tvm_sched import cost_model
from tvm_sched.cost_model.recording import record
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import HOST, Bus, Costs, Device, Link, OpGraph, Route, Topology, Uncertainty

from .unit_model import CACHE

HOST_BANDWIDTH = 80e9
"""Bytes a second of host memory where the topology has no CPU device: two or three channels of DDR4 or DDR5, assumed."""
HOST_FLOPS = 1e12
"""float32 operations a second of all cores there, assumed."""
DISK_BANDWIDTH = 3e9
"""Bytes a second from a disk (NVMe), assumed."""
_NEAR = 1e18
"""Bytes a second where nothing has to be moved."""


@dataclass(frozen=True)
class Place:
    """A place for units: a device or group of devices, the host, or offloaded memory."""

    name: str
    members: tuple[str, ...]
    """Devices of the topology that work there together."""
    device: Device
    """All members as one device, with the memory that the plan may use."""
    total: int
    """Their memory in all, bytes."""
    first: bool = False
    """It has the first units, and no others can."""
    load: float | None = None
    """Bytes a second at which weights are brought to the only member in each pass (offload); None: they remain."""
    most_units: int | None = None
    """How many units it may have."""
    all_reduce: Route | None = None
    """The slowest route of the ring of members if they share each operator (tensor parallelism)."""
    links: Route | None = None
    """The slowest route between any two such members if all routes are links, which are faster than a bus."""

    def all_reduce_seconds(self, size: int) -> float:
        """Return the time in which members add up results of ``size`` bytes: by a ring, or over links in one step.

        In one step each member reads the results of all others; a small result waits for fewer latencies then.
        """
        if self.all_reduce is None:
            return 0.0
        others = len(self.members) - 1
        ring = 2 * others * (size / len(self.members) / self.all_reduce.bandwidth + self.all_reduce.latency)
        return ring if self.links is None else min(ring, others * size / self.links.bandwidth + 2 * self.links.latency)


@dataclass(frozen=True)
class Machine:
    """Places of a topology."""

    topology: Topology
    """The topology that the user gave."""
    places: tuple[Place, ...]
    staged: bool = False
    """Whether activations go from GPU to GPU through host memory, because the runtime has no direct copies."""
    in_order: bool = False
    """Whether the runtime runs one operator at a time over all places. Otherwise independent operators overlap."""

    def route(self, a: int, b: int) -> Route:
        """Return the route of activations between two places; raise `InputError` if nothing joins them."""
        source, target = (_host_route(self.topology, self.places[p]) for p in (a, b))
        if self.staged and source is not None and target is not None:
            speed = 1 / (1 / source.bandwidth + 1 / target.bandwidth)
            return Route((), speed, source.latency + target.latency)
        return _route(self.topology, self.places[a], self.places[b])

    @cached_property
    def planned(self) -> Topology:
        """The places as devices of a topology, each joined to each by a link of its own, and to the host by a bus."""
        buses, devices, links = [], [], []
        for p, place in enumerate(self.places):
            bus = ""
            host = _host_route(self.topology, place)
            if host is not None:
                bus = f"bus of {place.name}"
                buses.append(Bus(bus, host.bandwidth, host.latency))
            devices.append(msgspec.structs.replace(place.device, name=place.name, bus=bus))
            for q in range(p):
                route = self.route(q, p)
                links.append(Link((self.places[q].name, place.name), route.bandwidth, route.latency))
        return Topology(self.topology.name, tuple(devices), tuple(buses), tuple(links))

    def with_places(self, places: Sequence[Place]) -> Machine:
        """Return the same machine with other places."""
        return replace(self, places=tuple(places))

    def latencies(self, graph: OpGraph, costs: str, free: Iterable[int] = ()) -> Costs:
        """Return the latency of each operator at each place by a cost model; that of ``free`` operators is 0.

        A group of devices shares each operator evenly. After attention and feed-forward networks (``*.output``, ``*.down``
        and ``embed``) an all-reduce adds up the results. Offloaded weights are copied to the device before the operator.
        """
        # A cost model may look at the graph's dtypes and the devices' products: both are the true ones.
        priced = cost_model.costs(graph, self.planned, costs)
        more = np.zeros_like(priced.operator_ns)
        sizes = {tensor.name: tensor.size for tensor in graph.tensors}
        parameters = {t.name for t in graph.tensors if t.kind == "parameter" and not t.name.startswith(CACHE)}
        for p, place in enumerate(self.places):
            for o, operator in enumerate(graph.operators):
                if place.load is not None:
                    weights = sum(sizes[name] for name in operator.inputs if name in parameters)
                    more[o, p] += int(np.ceil(weights / place.load * 1e9))
                if place.all_reduce is not None and operator.name.endswith(_REDUCED):
                    seconds = place.all_reduce_seconds(sum(sizes[name] for name in operator.outputs))
                    more[o, p] += int(np.ceil(seconds * 1e9))
        times, known = priced.operator_ns + more, priced.uncertainty
        times[list(free)] = 0
        if known is not None:
            low, high = known.low_ns + more, known.high_ns + more
            low[list(free)], high[list(free)] = 1, 1
            known = Uncertainty(low, high, known.shared, known.far)
        return Costs(times, source=priced.source, uncertainty=known)


_REDUCED = (".output", ".down", "embed", "head")


def gpus(topology: Topology) -> tuple[Device, ...]:
    """Return the devices other than CPUs."""
    return tuple(device for device in topology.devices if device.kind != "cpu")


def within_free(topology: Topology) -> Topology:
    """Return the topology whose GPUs have the memory that is free: as it says, or else as this machine's driver says now.

    Raises
    ------
    InputError
        The topology does not say what is free, and its GPUs are not this machine's.
    """
    mine = gpus(topology)
    free = {device.name: device.free_memory for device in mine if device.free_memory is not msgspec.UNSET}
    if not free:
        here = record().gpus
        alike = len(here) == len(mine) and all(
            abs(gpu.memory - device.memory) <= device.memory / 10 for gpu, device in zip(here, mine, strict=True)
        )
        if not alike or any(gpu.free < 0 for gpu in here):
            raise InputError(
                f"topology {topology.name!r} does not say what memory of its GPUs is free (`free_memory`), and "
                f"{'the driver of this machine does not either' if alike else 'its GPUs are not those of this machine'}: "
                "`tvm-sched topology detect -o FILE` writes it"
            )
        free = {device.name: gpu.free for gpu, device in zip(here, mine, strict=True)}
    devices = tuple(
        msgspec.structs.replace(device, memory=max(min(free.get(device.name, device.memory), device.memory), 1),
                                free_memory=msgspec.UNSET)
        for device in topology.devices
    )  # fmt: skip
    return msgspec.structs.replace(topology, devices=devices)


def device_place(device: Device, memory: float) -> Place:
    """Return a device of the topology as a place with that much usable memory."""
    return Place(
        device.name, (device.name,), msgspec.structs.replace(device, memory=max(int(memory), 1)), device.memory
    )


def host_place(topology: Topology, name: str = "cpu", first: bool = False) -> Place:
    """Return all cores of the host: the topology's CPU devices, or an assumed host."""
    cpus = [device for device in topology.devices if device.kind == "cpu"]
    memory = topology.host_memory or max((device.memory for device in cpus), default=_ENOUGH)
    if cpus:
        flops = {"float32": sum(device.peak_flops["float32"] for device in cpus)}
        bandwidth, overhead = max(d.memory_bandwidth for d in cpus), max(d.launch_overhead for d in cpus)
        device = Device(name, memory, bandwidth, flops, "cpu", launch_overhead=overhead)
    else:
        device = Device(name, memory, HOST_BANDWIDTH, {"float32": HOST_FLOPS}, "cpu")
    return Place(name, tuple(d.name for d in cpus), device, memory, first)


ASSUMED_HOST = (
    f"the topology has no CPU device, so its host is assumed to read {HOST_BANDWIDTH / 1e9:g} GB/s, to compute "
    f'{HOST_FLOPS / 1e12:g} TFLOP/s and to start kernels in no time: add a device of kind "cpu" to the topology to say'
)


def is_assumed_host(place: Place) -> bool:
    """Return whether the host is an assumed one, because the topology has no CPU device."""
    return place.device.kind == "cpu" and not place.members


_ENOUGH = 1 << 50
"""Host memory where the topology does not say how much there is."""


def offload_place(main: Device, name: str, memory: int, bandwidth: float, most_units: int | None = None) -> Place:
    """Return a place for offloaded weights, which are copied to the device ``main`` whenever it computes with them."""
    device = msgspec.structs.replace(main, memory=memory)
    return Place(name, (main.name,), device, memory, load=bandwidth, most_units=most_units)


def host_memory(topology: Topology) -> int:
    """Return the bytes of host memory; if the topology does not say, more than enough."""
    return host_place(topology).total


def group_place(topology: Topology, devices: Sequence[Device], memory: float) -> Place:
    """Return equal devices that share each operator (tensor parallelism) as a place, each with that much usable memory."""
    if len(devices) == 1:
        return device_place(devices[0], memory)
    first = devices[0]
    slowest = min(devices, key=lambda d: d.peak_flops["float32"])
    count = len(devices)
    one = msgspec.structs.replace(
        slowest,
        memory=max(int(memory * count), 1),
        memory_bandwidth=min(d.memory_bandwidth for d in devices) * count,
        peak_flops={name: rate * count for name, rate in slowest.peak_flops.items()},
    )
    names = [device.name for device in devices]
    hops = [_between(topology, a, b) for a, b in zip(names, [*names[1:], first.name], strict=True)]
    ring = Route((), min(hop.bandwidth for hop in hops), max(hop.latency for hop in hops))
    pairs = [_between(topology, a, b) for a, b in combinations(names, 2)]
    mesh = Route((), min(pair.bandwidth for pair in pairs), max(pair.latency for pair in pairs))
    bus = topology.without_storage.route(HOST, topology.device_id[first.name])
    links = mesh if bus is None or mesh.bandwidth > bus.bandwidth else None
    return Place("+".join(names), tuple(names), one, sum(d.memory for d in devices), all_reduce=ring, links=links)


def _route(topology: Topology, a: Place, b: Place) -> Route:
    if set(a.members) & set(b.members):
        return Route((), _NEAR, 0.0)
    if not a.members or not b.members:  # the host, if the topology has no CPU device
        host_routes = [_host_route(topology, place) for place in (a, b) if place.members]
        return next((route for route in host_routes if route is not None), Route((), _NEAR, 0.0))
    routes = [_between(topology, x, y) for x, y in zip(a.members, b.members, strict=False)]
    return Route((), min(route.bandwidth for route in routes), max(route.latency for route in routes))


def _between(topology: Topology, a: str, b: str) -> Route:
    source, target = topology.device_id[a], topology.device_id[b]
    route = topology.route(source, target)
    if route is None:
        if topology.devices[source].shares_host_memory and topology.devices[target].shares_host_memory:
            return Route((), _NEAR, 0.0)
        raise InputError(
            f"devices {a!r} and {b!r} of topology {topology.name!r} are not connected: give them a bus or a link"
        )
    return route


def _host_route(topology: Topology, place: Place) -> Route | None:
    """Return the route from host memory; None if the place shares host memory."""
    if not place.members or place.device.kind == "cpu":
        return None
    return topology.without_storage.route(HOST, topology.device_id[place.members[0]])
