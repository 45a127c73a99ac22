"""The machine: devices, the PCIe buses they share, the links and switches between them, and the routes of copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from ..checks import require_name, require_not_negative, require_positive, require_unique
from ..errors import TopologyError

HOST = -1
"""Index of host memory among the devices."""


STREAM_OVERHEAD, WAIT_OVERHEAD = 1.6e-6, 0.18e-6
"""Seconds for the fields of these names of a `Device`, measured on an H100 with CUDA graphs (driver 580, CUDA 13.0). A
further stream added 1.4 to 1.9 us to runs of GoogLeNet, BERT and DeepFM (``docs/results/opara_h100.md``). A kernel started
0.96 us after a kernel of another stream, and 0.78 us after one of its own (``docs/results/concurrent_kernels.md``)."""
KINDS = ("cuda", "cpu")
"""Kinds of devices."""
STREAM_FIELDS = ("stream_overhead", "wait_overhead")
"""Fields of a `Device` with the costs of streams."""
MOST_MEMORY = (1 << 63) - 1
"""Largest memory of a device, in bytes."""
MOST_NUMBER = 1023
"""Largest number of a GPU in its machine."""
MOST_THREADS = 65536
"""Most threads of a CPU device."""


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A device that runs operators one at a time.

    Examples
    --------
    >>> gpu = Device("gpu0", memory=16 * 10**9, memory_bandwidth=9e11, peak_flops={"float32": 1.5e13}, bus="pcie")
    >>> gpu.kind, gpu.shares_host_memory
    ('cuda', False)
    """

    name: str
    """Unique among the devices."""
    memory: int
    """Bytes that operators and parameters may take."""
    memory_bandwidth: float
    """Bytes a second of the device's own memory."""
    peak_flops: dict[str, float]
    """Floating-point operations a second by dtype. ``"float32"`` is required and is the rate of dtypes that are not listed.
    ``"tf32"`` (products with ``precision="tf32"``) is half of ``"bfloat16"`` if it is not listed."""
    kind: str = "cuda"
    """``"cuda"`` or ``"cpu"``: which backend runs it."""
    launch_overhead: float = 0.0
    """Seconds that each kernel takes besides its work."""
    bus: str = ""
    """Name of the PCIe bus that joins it to host memory. Empty: its memory is host memory, so that inputs and
    parameters need no loading (CPU devices)."""
    model: str = ""
    arch: str = ""
    """Product name; compute capability such as ``"sm_70"``. For people and for compilers."""
    stream_overhead: float = 0.0
    """Seconds that each stream but the first adds to a run in which streams of the device overlap."""
    wait_overhead: float = 0.0
    """Further seconds of a kernel that waits for a kernel of another stream. Presets and detected GPUs have
    `STREAM_OVERHEAD` and `WAIT_OVERHEAD`; with 0 streams are free, as in the papers."""
    threads: int | msgspec.UnsetType = msgspec.UNSET
    """Threads of a CPU device that compute a kernel together. Cost models guess it from the rate if it is not set."""
    free_memory: int | msgspec.UnsetType = msgspec.UNSET
    """Bytes of ``memory`` that nobody used when the machine was described."""
    number: int | msgspec.UnsetType = msgspec.UNSET
    """Number of a GPU as nvidia-smi counts, by PCI address, if it is not the position among the topology's GPUs."""

    def __post_init__(self) -> None:
        where = f"device {self.name!r}"
        require_name("a device", self.name, TopologyError)
        require_positive(f"{where}: memory", self.memory, TopologyError)
        if self.memory > MOST_MEMORY:
            raise TopologyError(f"{where}: memory is {self.memory} bytes; at most {MOST_MEMORY} are allowed")
        if self.kind not in KINDS:
            raise TopologyError(f"{where}: kind is {self.kind!r}; allowed are {' and '.join(map(repr, KINDS))}")
        require_positive(f"{where}: memory_bandwidth", self.memory_bandwidth, TopologyError)
        for field in ("launch_overhead", *STREAM_FIELDS):
            require_not_negative(f"{where}: {field}", getattr(self, field), TopologyError)
        if "float32" not in self.peak_flops:
            raise TopologyError(f"{where}: peak_flops lists {sorted(self.peak_flops)}; 'float32' must be among them")
        for dtype, rate in self.peak_flops.items():
            require_positive(f"{where}: peak_flops.{dtype}", rate, TopologyError)
        for field, most in (("free_memory", MOST_MEMORY), ("number", MOST_NUMBER)):
            value = getattr(self, field)
            if value is not msgspec.UNSET and not 0 <= value <= most:
                raise TopologyError(f"{where}: {field} is {value}; 0 to {most} are allowed")
        if self.threads is not msgspec.UNSET:
            if self.kind != "cpu":
                raise TopologyError(
                    f"{where}: threads is {self.threads}, but only devices of the kind 'cpu' have threads"
                )
            if not 1 <= self.threads <= MOST_THREADS:
                raise TopologyError(f"{where}: threads is {self.threads}; 1 to {MOST_THREADS} are allowed")

    @property
    def shares_host_memory(self) -> bool:
        """Whether its memory is host memory, so that inputs and parameters need no loading."""
        return not self.bus


def _check_speed(where: str, joint: Bus | Storage | Link | Switch) -> None:
    require_positive(f"{where}: bandwidth", joint.bandwidth, TopologyError)
    require_not_negative(f"{where}: latency", joint.latency, TopologyError)


class Bus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A path between host memory and one or more devices that carries one copy at a time (each way, when duplex).

    ``bandwidth`` is bytes a second of one direction, ``latency`` seconds that each copy takes besides its bytes.

    Examples
    --------
    >>> Bus("pcie", bandwidth=16e9, latency=1e-6).duplex
    True
    """

    name: str
    bandwidth: float
    latency: float = 0.0
    duplex: bool = True

    def __post_init__(self) -> None:
        require_name("a bus", self.name, TopologyError)
        _check_speed(f"bus {self.name!r}", self)


class Storage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A disk in front of host memory, with the model's file: parameters lie on it when a cold run begins.

    It carries one read at a time. ``bandwidth`` is bytes a second of reads in order at ``queue_depth``; ``latency`` is
    seconds that each read takes besides its bytes.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import Storage
    >>> Storage("ssd", bandwidth=3e9, queue_depth=8)
    Storage(name='ssd', bandwidth=3000000000.0, latency=0.0, queue_depth=8)
    """

    name: str
    bandwidth: float
    latency: float = 0.0
    queue_depth: int = 1
    """Requests that are kept outstanding to reach the bandwidth; the runtime reads ahead with as many."""

    def __post_init__(self) -> None:
        where = f"storage {self.name!r}"
        require_name("a storage", self.name, TopologyError)
        _check_speed(where, self)
        require_positive(f"{where}: queue_depth", self.queue_depth, TopologyError)


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A direct link between two devices; all NVLinks of a pair are one link with the sum of their bandwidths.

    ``bandwidth`` is bytes a second of one direction; ``ways`` says how many NVLinks it stands for (for people).

    Examples
    --------
    >>> Link(("gpu0", "gpu1"), bandwidth=40e9, latency=1e-6).devices
    ('gpu0', 'gpu1')
    """

    devices: tuple[str, str]
    bandwidth: float
    latency: float = 0.0
    duplex: bool = True
    ways: int = 1

    def __post_init__(self) -> None:
        where = f"link {self.devices[0]!r}-{self.devices[1]!r}"
        if self.devices[0] == self.devices[1]:
            raise TopologyError(f"{where} joins a device to itself")
        _check_speed(where, self)
        require_positive(f"{where}: ways", self.ways, TopologyError)


class Switch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A switch (NVSwitch) between all of its devices; each device has one port that sends and one that receives.

    ``bandwidth`` is bytes a second of one port in one direction. Without ``contention`` any number of copies travel in
    parallel, each at the full bandwidth. No machine does that, but papers assume it (HIOS, Section III), and reproducing
    their figures needs the same assumption.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import Switch
    >>> Switch("nvswitch", devices=("gpu0", "gpu1"), bandwidth=300e9).contention
    True
    """

    name: str
    devices: tuple[str, ...]
    bandwidth: float
    latency: float = 0.0
    contention: bool = True

    def __post_init__(self) -> None:
        require_name("a switch", self.name, TopologyError)
        _check_speed(f"switch {self.name!r}", self)


@dataclass(frozen=True)
class Route:
    """The route of a copy: the channels that it occupies from start to end, its bandwidth and its latency.

    Examples
    --------
    >>> topology.route(0, 1)
    Route(channels=(2,), bandwidth=40000000000.0, latency=0.0)
    >>> topology.route(0, 1).nanoseconds(4000)
    100
    """

    channels: tuple[int, ...]
    bandwidth: float
    latency: float

    def nanoseconds(self, size: int) -> int:
        """Return the time of a copy of ``size`` bytes, rounded up."""
        return max(-int(-(self.latency * 1e9 + size * 1e9 / self.bandwidth) // 1), 0)

    def nanoseconds_of(self, sizes: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return `nanoseconds` of many sizes, at most 146 years, so that sums remain 64-bit integers."""
        exact = np.ceil(self.latency * 1e9 + np.asarray(sizes, dtype=np.float64) * 1e9 / self.bandwidth)
        return np.clip(exact, 0.0, 2.0**62).astype(np.int64)


def _on_from(disk: Route, down: Route, turns: bool) -> Route:
    """Return the route from storage to a device on a bus; the storage's channel is the first, if loads take turns on it."""
    channels = disk.channels + down.channels if turns else down.channels
    return Route(channels, min(disk.bandwidth, down.bandwidth), disk.latency + down.latency)


class Topology(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """Devices and their connections.

    A **channel** carries one copy at a time: a bus downwards, a bus upwards, a link in one direction, or a switch port that
    sends or receives. A copy occupies all channels of its route; a switch without contention has none. The route between
    two devices is their link. Without a link it is a switch that joins them. Without either it goes through their buses,
    upwards from the source and downwards to the target: directly if ``peer_access`` is true, otherwise in two steps
    through host memory, which takes twice as long on equal buses.

    Raises
    ------
    TopologyError
        A name twice, a bandwidth that is not positive, a device or bus that is not there, no device at all.

    Examples
    --------
    >>> gpus = (gpu, Device("gpu1", 10**9, 1e12, {"float32": 1e12}, bus="pcie"))
    >>> machine = Topology("pair", gpus, buses=(Bus("pcie", bandwidth=16e9),))
    >>> machine.device_id["gpu1"], machine.route(0, 1).bandwidth
    (1, 16000000000.0)
    """

    name: str
    devices: tuple[Device, ...]
    buses: tuple[Bus, ...] = ()
    links: tuple[Link, ...] = ()
    switches: tuple[Switch, ...] = ()
    peer_access: bool = True
    host_memory: int = 0
    source: str = ""
    """Where the numbers come from."""
    storage: Storage | msgspec.UnsetType = msgspec.UNSET
    """Where parameters lie when a run begins; without it they lie in host memory. With it either all devices share host
    memory, or all are on buses."""

    def __post_init__(self) -> None:
        require_name("a topology", self.name, TopologyError)
        if not self.devices:
            raise TopologyError(f"topology {self.name!r} has no devices; at least one is needed")
        require_unique("device", [device.name for device in self.devices], TopologyError)
        require_unique("bus", [bus.name for bus in self.buses], TopologyError)
        require_unique("switch", [switch.name for switch in self.switches], TopologyError)
        known, buses = {device.name for device in self.devices}, {bus.name for bus in self.buses}
        for device in self.devices:
            if device.bus and device.bus not in buses:
                raise TopologyError(f"device {device.name!r} is on bus {device.bus!r}; the buses are {sorted(buses)}")
        on_bus = [device.name for device in self.devices if device.bus]
        if self.storage and on_bus and len(on_bus) < len(self.devices):
            sharing = next(device.name for device in self.devices if not device.bus)
            raise TopologyError(
                f"topology {self.name!r} has storage, device {on_bus[0]!r} is on a bus, and device {sharing!r} shares host "
                "memory; storage is allowed where all devices are of one of these kinds: leave the others out"
            )
        joined: list[tuple[str, tuple[str, ...]]]
        joined = [(f"link {link.devices[0]!r}-{link.devices[1]!r}", link.devices) for link in self.links]
        joined += [(f"switch {switch.name!r}", switch.devices) for switch in self.switches]
        for where, names in joined:
            for name in names:
                if name not in known:
                    raise TopologyError(f"{where} names device {name!r}; the devices are {sorted(known)}")
        require_unique("link", ["-".join(sorted(link.devices)) for link in self.links], TopologyError)
        for switch in self.switches:
            require_unique(f"device of switch {switch.name!r}", switch.devices, TopologyError)
        counts = Counter(self._channel_names())
        if twice := next((name for name, count in counts.items() if count > 1), None):
            raise TopologyError(
                f"topology {self.name!r}: two connections have a channel {twice!r}; give one of them another name"
            )

    @cached_property
    def device_id(self) -> dict[str, int]:
        """Position of each device by its name."""
        return {device.name: d for d, device in enumerate(self.devices)}

    @cached_property
    def channels(self) -> tuple[str, ...]:
        """Names of the channels; `Route.channels` are positions in it."""
        return tuple(self._channel_id)

    @cached_property
    def _channel_id(self) -> dict[str, int]:
        return {name: c for c, name in enumerate(self._channel_names())}

    def _channel_names(self) -> list[str]:
        names: list[str] = []
        for bus in self.buses:
            names += [f"{bus.name} down", f"{bus.name} up"] if bus.duplex else [bus.name]
        for link in self.links:
            a, b = link.devices
            names += [f"{a} > {b}", f"{b} > {a}"] if link.duplex else [f"{a} - {b}"]
        for switch in self.switches:
            for device in switch.devices if switch.contention else ():
                names += [f"{switch.name}: {device} out", f"{switch.name}: {device} in"]
        if self.storage:
            names.append(f"storage {self.storage.name}")
        return names

    @cached_property
    def _routes(self) -> dict[tuple[int, int], Route]:
        """Routes by (source, target); later rules win, so they are written from the slowest kind to the fastest."""
        routes: dict[tuple[int, int], Route] = {}
        buses = {bus.name: bus for bus in self.buses}
        down: dict[int, Route] = {}
        up: dict[int, Route] = {}
        for d, device in enumerate(self.devices):
            if device.bus:
                bus = buses[device.bus]
                names = (f"{bus.name} down", f"{bus.name} up") if bus.duplex else (bus.name, bus.name)
                down[d] = Route((self._channel_id[names[0]],), bus.bandwidth, bus.latency)
                up[d] = Route((self._channel_id[names[1]],), bus.bandwidth, bus.latency)
                routes[HOST, d], routes[d, HOST] = down[d], up[d]
            if self.storage:
                channel = self._channel_id[f"storage {self.storage.name}"]
                disk = Route((channel,), self.storage.bandwidth, self.storage.latency)
                routes[HOST, d] = _on_from(disk, down[d], self.shares_storage) if d in down else disk
        for a in range(len(self.devices)):
            for b in range(len(self.devices)):
                if a != b and (a in up or b in down):
                    routes[a, b] = self._through_host(up.get(a), down.get(b))
        for switch in self.switches:
            for source in switch.devices:
                for target in switch.devices:
                    if source != target:
                        ports = [f"{source} out", f"{target} in"] if switch.contention else []
                        channels = tuple(self._channel_id[f"{switch.name}: {port}"] for port in ports)
                        ends = self.device_id[source], self.device_id[target]
                        routes[ends] = Route(channels, switch.bandwidth, switch.latency)
        for link in self.links:
            first, second = link.devices
            for source, target in ((first, second), (second, first)):
                channel = self._channel_id[f"{source} > {target}" if link.duplex else f"{first} - {second}"]
                ends = self.device_id[source], self.device_id[target]
                routes[ends] = Route((channel,), link.bandwidth, link.latency)
        return routes

    def _through_host(self, up: Route | None, down: Route | None) -> Route:
        if up is None or down is None:  # one end is host memory itself
            return up or down  # type: ignore[return-value]
        channels = tuple(dict.fromkeys((*up.channels, *down.channels)))
        if self.peer_access:
            return Route(channels, min(up.bandwidth, down.bandwidth), max(up.latency, down.latency))
        return Route(channels, 1 / (1 / up.bandwidth + 1 / down.bandwidth), up.latency + down.latency)

    @cached_property
    def maps_storage(self) -> bool:
        """Whether kernels use parameters in the memory into which they are read: there is storage, and no bus."""
        return bool(self.storage) and self.devices[0].shares_host_memory

    @cached_property
    def shares_storage(self) -> bool:
        """Whether loads take turns on the storage: there is one, and it is slower than all buses together."""
        if not self.storage:
            return False
        used = {device.bus for device in self.devices}
        buses = sum(bus.bandwidth for bus in self.buses if bus.name in used)
        return self.maps_storage or self.storage.bandwidth < buses

    @cached_property
    def without_storage(self) -> Topology:
        """The machine with all parameters in host memory when a run begins."""
        return msgspec.structs.replace(self, storage=msgspec.UNSET) if self.storage else self

    @cached_property
    def most_joined(self) -> int:
        """The largest number of parameters that may be joined: the nanoseconds that the latency of any load has.

        So a load of them takes no less time than loads of each without latency, which are rounded up one by one.
        """
        loads = (route.latency for (source, _), route in self._routes.items() if source == HOST)
        return int(min(loads, default=0.0) * 1e9)

    def with_devices(self, devices: tuple[Device, ...]) -> Topology:
        """Return the machine with other properties of the same devices, joined by the same routes."""
        changed = msgspec.structs.replace(self, devices=devices)
        changed.__dict__.update(_routes=self._routes, _host_routes=self._host_routes, set_latencies=self.set_latencies)
        return changed

    @cached_property
    def loading_at_once(self) -> Topology:
        """The machine on which loads and copies of host tensors take no latency, and are rounded down; for bounds.

        `set_latencies` has the latencies of loads. It exists in memory alone.
        """
        changed = msgspec.structs.replace(self)
        at_once = {ends: replace(route, latency=-1e-9) for ends, route in self._routes.items()}
        loads = {ends: route for ends, route in at_once.items() if ends[0] == HOST}
        latencies = {d: int(route.latency * 1e9) for (source, d), route in self._routes.items() if source == HOST}
        changed.__dict__.update(_routes=self._routes | loads, _host_routes=at_once, set_latencies=latencies)
        return changed

    @cached_property
    def set_latencies(self) -> Mapping[int, int]:
        """By device, the whole nanoseconds of latency of a load, in `loading_at_once`; otherwise empty."""
        return {}

    def reads_host_in_place(self, d: int) -> bool:
        """Return whether device ``d`` has all inputs and parameters in its memory when a run begins."""
        return self.devices[d].shares_host_memory and not self.storage

    def route(self, source: int, target: int) -> Route | None:
        """Return the route from device (or `HOST`) ``source`` to ``target``; None if nothing joins them.

        A device that shares host memory reads host tensors in place: it has no route from `HOST` and needs none. With
        storage, `HOST` stands for the storage as a source. Its route to a device on a bus occupies the storage and the bus,
        because bytes go on while others are read, or the bus alone, if the storage feeds all buses at once. To a device that
        shares host memory, graph inputs need none.
        """
        return self._routes.get((source, target))

    def host_route(self, source: int, target: int) -> Route | None:
        """Return `route` for a graph input or parameter: it differs in `loading_at_once`."""
        return self._host_routes.get((source, target))

    @cached_property
    def _host_routes(self) -> dict[tuple[int, int], Route]:
        return self._routes
