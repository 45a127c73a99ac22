"""Describe a machine as a topology: its devices, with measured or specified bandwidths."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ..errors import InputError
from ..problem import STREAM_OVERHEAD, WAIT_OVERHEAD, Bus, Device, Link, Switch, Topology, load_topology
from ..progress import Progress
from .copies import Bandwidths, gpu_count, import_cupy, measure_bandwidths
from .device_properties import known_gpu
from .recording import SWITCH, Gpu, Recording, pci_address

_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Bytes a second of one PCIe lane, by generation, after line coding."""
_COPIED = 0.79  # fraction of it that copies from pinned memory reach, as in the presets
_BUS_LATENCY, _PEER_LATENCY, _LAUNCH = 10e-6, 5e-6, 5e-6  # assumed, as in the presets
_NVLINK = {1: 20e9, 2: 25e9, 3: 25e9, 4: 25e9, 5: 50e9}
"""Bytes a second of one NVLink in one direction, by its version."""
_SHARED = 1.5
"""GPUs below one root port share a bus, unless copies to all at once are this many times as fast as the fastest alone."""
_SPECIFIED = "from the specification"


def measure(recording: Recording, progress: Progress | None = None) -> Recording:
    """Add bandwidths measured on this machine, which must be the recorded one, to a recording.

    Raises
    ------
    InputError
        cupy is missing or sees no GPU, or a copy fails.
    """
    if not recording.gpus:
        raise InputError("there is no GPU to measure on")
    cupy = import_cupy()
    seen = {pci_address(cupy.cuda.Device(n).pci_bus_id): n for n in range(gpu_count(cupy))}
    ports = {seen[gpu.address]: (gpu.address, gpu.path[0]) for gpu in recording.gpus if gpu.address in seen}
    if not ports:
        raise InputError(
            f"cupy sees none of {', '.join(gpu.address for gpu in recording.gpus)}; see CUDA_VISIBLE_DEVICES"
        )
    return msgspec.structs.replace(recording, bandwidths=measure_bandwidths(cupy, ports, progress))


def to_topology(recording: Recording, name: str = "this-machine") -> Topology:
    """Return the topology of a recorded machine, see `describe`."""
    return describe(recording, name)[0]


class DetectedTopology(msgspec.Struct, frozen=True):
    """A detected topology, the source of the bandwidth of each of its parts, and the recording of the machine."""

    topology: Topology
    bandwidths: dict[str, str]
    recording: Recording


def describe(recording: Recording, name: str = "this-machine") -> tuple[Topology, dict[str, str]]:
    """Return the topology of a recorded machine, and for each bus, link, switch and storage the source of its bandwidth.

    GPUs below one root port share a bus, unless measured copies show that they do not. The bandwidth of a shared bus is the
    sum over simultaneous copies to all its GPUs; that of a link is its slower direction's, that of a switch its slowest
    pair's. Without GPUs, each NUMA node is a device.

    Raises
    ------
    InputError
        A GPU has an unknown name, and the recording has too little on it.
    """
    machine, comments = _of_gpus(recording, name) if recording.gpus else _of_cpus(recording, name)
    if recording.storage is None:
        return machine, comments
    disk = recording.storage.to_storage()
    reads = ", ".join(f"{each.bandwidth / 1e9:.3g} GB/s at depth {each.depth}" for each in recording.storage.depths)
    comments[disk.name] = f"measured as a cold start reads: {reads}"
    return msgspec.structs.replace(machine, storage=disk), comments


def _of_cpus(recording: Recording, name: str) -> tuple[Topology, dict[str, str]]:
    cpus = load_topology(f"cpu{max(len(recording.numa_cores), 1)}")
    return msgspec.structs.replace(cpus, name=name, source=f"{recording.processor}; {cpus.source}"), {}


def _of_gpus(recording: Recording, name: str) -> tuple[Topology, dict[str, str]]:
    names = {gpu.address: f"gpu{n}" for n, gpu in enumerate(recording.gpus)}
    comments: dict[str, str] = {}
    buses, bus_of = _buses(recording, comments)
    devices = tuple(_device(gpu, names[gpu.address], bus_of[gpu.address]) for gpu in recording.gpus)
    links, switches = _links(recording, names, comments), _switches(recording, names, comments)
    measured = "" if recording.bandwidths is None else "bandwidths of copies measured, other "
    machine = Topology(
        name, devices, tuple(buses), tuple(links), tuple(switches),
        peer_access=_peer_access(recording), host_memory=recording.memory,
        source=f"read from {recording.source or 'the machine'}; {measured}rates from specifications, latencies assumed",
    )  # fmt: skip
    return machine, comments


def _buses(recording: Recording, comments: dict[str, str]) -> tuple[list[Bus], dict[str, str]]:
    """Return the buses, and the bus of each GPU by its PCI address."""
    below: dict[str, list[Gpu]] = {}
    for gpu in recording.gpus:
        below.setdefault(gpu.path[0], []).append(gpu)
    buses: list[Bus] = []
    bus_of: dict[str, str] = {}
    for gpus in below.values():
        for together, bandwidth, comment in _shares(gpus, recording.bandwidths):
            name = f"pcie{len(buses)}"
            buses.append(Bus(name, bandwidth, _BUS_LATENCY))
            bus_of |= {gpu.address: name for gpu in together}
            comments[name] = comment
    return buses, bus_of


def _shares(gpus: list[Gpu], measured: Bandwidths | None) -> list[tuple[list[Gpu], float, str]]:
    """Group the GPUs below one root port by the bus that they share, with its bandwidth and the bandwidth's source."""
    alone = {} if measured is None else {g.address: measured.from_host.get(g.address, 0.0) for g in gpus}
    if measured is None or not all(alone.values()):
        return [(gpus, min(map(_pcie, gpus)), _SPECIFIED)]
    source = f"measured: {_gigabytes(alone.values())} from pinned host memory"
    if len(gpus) == 1:
        return [(gpus, _rounded(*alone.values()), source)]
    at_once = [measured.at_once.get(gpu.address, alone[gpu.address]) for gpu in gpus]
    source += f", each alone; {_gigabytes(at_once)} at once"
    if sum(at_once) > _SHARED * max(alone.values()):
        return [([gpu], _rounded(rate), source) for gpu, rate in zip(gpus, at_once, strict=True)]
    return [(gpus, _rounded(sum(at_once)), source)]


def _gigabytes(rates: Iterable[float]) -> str:
    return f"{', '.join(f'{rate / 1e9:.3g}' for rate in rates)} GB/s"


def _rounded(rate: float) -> float:
    """Round a measured bandwidth to three digits; further digits would not repeat in another measurement."""
    return float(f"{rate:.3g}")


def _measured_peers(recording: Recording) -> dict[tuple[str, str], float]:
    """Return the bytes a second from one PCI address to another; 0 if copies do not go directly."""
    peers = recording.bandwidths.peers if recording.bandwidths else ()
    return {(peer.source, peer.target): peer.bandwidth for peer in peers}


def _peer_access(recording: Recording) -> bool:
    """Return whether all GPUs that no link or switch joins reach each other over their buses, as far as is known."""
    joined = {gpu.address: {link.to for link in gpu.links} for gpu in recording.gpus}
    over_buses = (
        rate
        for (source, target), rate in _measured_peers(recording).items()
        if target not in joined.get(source, ()) and SWITCH not in joined.get(source, set()) & joined.get(target, set())
    )
    return all(over_buses)


def _pcie(gpu: Gpu) -> float:
    if gpu.generation not in _LANE or gpu.width < 1:
        raise InputError(
            f"GPU {gpu.address}: PCIe generation {gpu.generation} and width {gpu.width} give no bandwidth; "
            "write the topology by hand (docs/formats/topology.md)"
        )
    return round(_LANE[gpu.generation] * gpu.width * _COPIED, -8)


def _device(gpu: Gpu, name: str, bus: str) -> Device:
    chip = known_gpu(gpu.name)
    if chip is not None:
        rates, bandwidth = dict(chip.rates), chip.bandwidth
    elif gpu.cores and gpu.clock_mhz and gpu.memory_clock_mhz and gpu.memory_bits:
        rates = {"float32": 2.0 * gpu.cores * gpu.clock_mhz * 1e6}
        bandwidth = 2 * gpu.memory_clock_mhz * 1e6 * gpu.memory_bits / 8
    else:
        raise InputError(
            f"GPU {gpu.address} is {gpu.name!r}, which is not among the known ones, and too little is recorded of it: "
            "install nvidia-ml-py (extra cuda), or write the topology by hand (docs/formats/topology.md)"
        )
    memory = gpu.memory or 1 << 30
    arch = f"sm_{gpu.capability.replace('.', '')}" if gpu.capability else ""
    streams = STREAM_OVERHEAD, WAIT_OVERHEAD
    return Device(name, memory, bandwidth, rates, "cuda", _LAUNCH, bus, gpu.name, arch, *streams)


def _links(recording: Recording, names: dict[str, str], comments: dict[str, str]) -> list[Link]:
    """Return the links between pairs of GPUs; both ends report a pair, and the first report counts."""
    peers = _measured_peers(recording)
    links: dict[tuple[str, ...], Link] = {}
    for gpu in recording.gpus:
        for link in gpu.links:
            if link.to in names and link.to != gpu.address:
                ends = names[gpu.address], names[link.to]
                rates = [peers.get((gpu.address, link.to), 0.0), peers.get((link.to, gpu.address), 0.0)]
                speed, comment = _between(rates, _NVLINK.get(link.version, _NVLINK[3]) * link.count)
                if (
                    links.setdefault(tuple(sorted(ends)), Link(ends, speed, _PEER_LATENCY, ways=link.count)).devices
                    == ends
                ):
                    comments["-".join(ends)] = comment
    return list(links.values())


def _switches(recording: Recording, names: dict[str, str], comments: dict[str, str]) -> list[Switch]:
    """Return one switch for all GPUs that have links to switches: NVSwitches of a board act together."""
    ports = {
        gpu.address: sum(_NVLINK.get(link.version, _NVLINK[3]) * link.count for link in gpu.links if link.to == SWITCH)
        for gpu in recording.gpus
    }
    joined = {address: speed for address, speed in ports.items() if speed}
    if len(joined) < 2:
        return []
    peers = _measured_peers(recording)
    rates = [peers.get((a, b), 0.0) for a in joined for b in joined if a != b]
    speed, comments["nvswitch"] = _between(rates, min(joined.values()))
    return [Switch("nvswitch", tuple(names[address] for address in joined), speed, _PEER_LATENCY)]


def _between(rates: list[float], specified: float) -> tuple[float, str]:
    """Return the bandwidth between GPUs and its source: that of the slowest pair if all were measured, else specified."""
    if all(rates):
        return _rounded(min(rates)), f"measured: {_gigabytes((min(rates), max(rates)))} at least and at most"
    return specified, _SPECIFIED
