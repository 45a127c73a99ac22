"""Describe a machine as a topology: its devices, with measured or specified bandwidths."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import STREAM_OVERHEAD, WAIT_OVERHEAD, Bus, Device, Link, Switch, Topology, cpu_topology

from ..progress import Progress
from .copies import gpu_count, import_cupy, measure_bandwidths
from .gpu_records import PEER_STATES, SWITCH, Gpu, NvLink, gibibytes, pci_address
from .gpu_specifications import GpuSpecification, specification_of
from .recording import Recording

_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Bytes a second of one PCIe lane, by generation, after line coding."""
_COPIED = 0.79  # fraction of it that copies from pinned memory reach, as in the presets
_BUS_LATENCY, _PEER_LATENCY, _LAUNCH = 10e-6, 5e-6, 5e-6  # assumed, as in the presets
_NVLINK = {
    "6.0": 20e9,
    "7.0": 25e9,
    "7.2": 25e9,
    "7.5": 25e9,
    "8.0": 25e9,
    "8.6": 14.0625e9,
    "9.0": 25e9,
    "10.0": 50e9,
    "10.3": 50e9,
}
"""Bytes a second of one NVLink in one direction, by the GPU's compute capability."""
_NVLINK_VERSION = {1: 20e9, 2: 25e9}
"""The same by the version of NVLink, where all GPUs of a version have one rate; later ones differ."""
_LEAST_NVLINK = 14.0625e9
_ASSUMED_LANES = 4
"""PCIe lanes of a GPU that does not tell them, as on a riser; modules with NVLink to a switch have 16."""
_ASSUMED_MEMORY = 1 << 30
"""Memory of a GPU that does not tell it and is not known."""
_SHARED_MEMORY = 0.75
"""Part of the host's memory that is left to a GPU without memory of its own."""
_ON_CHIP = 0.25
"""Part of its memory's bandwidth that copies from the host reach there: they read and write that memory. Assumed."""
_IN_USE = 1 << 30
"""More bytes of a GPU's memory than this in use are worth a warning."""
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
    warnings: list[str]
    """What is not known of the machine and how it is taken, and what limits it."""
    comments: dict[str, str]
    """Comments of the topology's file, see `tvm_sched_runtime.problem.format_topology`."""


def describe(recording: Recording, name: str = "this-machine") -> tuple[Topology, dict[str, str]]:
    """Return the topology of a recorded machine, and for each bus, link, switch and storage the source of its bandwidth.

    See `detected`.
    """
    found = detected(recording, name)
    return found.topology, found.bandwidths


def detected(recording: Recording, name: str = "this-machine") -> DetectedTopology:
    """Return the topology of a recorded machine, with the sources of its figures and all that is not known of it.

    GPUs below one root port share a bus, unless measured copies show that they do not. The bandwidth of a shared bus is the
    sum over simultaneous copies to all its GPUs; that of a link is its slower direction's, that of a switch its slowest
    pair's. Without GPUs, each NUMA node is a device. What is not known is taken cautiously: few lanes, no peer access, a
    shared bus.

    Raises
    ------
    InputError
        A GPU has an unknown name, and the recording has too little on it; or no GPU of the machine can be used.
    """
    if recording.left_out and not recording.gpus:
        raise InputError(f"no GPU can be used: {'; '.join(recording.left_out)}")
    work = _OfGpus(recording, name) if recording.gpus else _OfCpus(recording, name)
    machine, sources = work.machine(), dict(work.sources)
    if recording.storage is not None:
        disk = recording.storage.to_storage()
        reads = ", ".join(f"{each.bandwidth / 1e9:.3g} GB/s at depth {each.depth}" for each in recording.storage.depths)
        sources[disk.name] = f"measured as a cold start reads: {reads}"
        machine = msgspec.structs.replace(machine, storage=disk)
    warnings = [*recording.notes, *(f"{each}; it is left out" for each in recording.left_out), *work.warnings]
    comments = {
        key: "; ".join([*filter(None, [sources.get(key)]), *work.open.get(key, [])]) for key in {**sources, **work.open}
    }
    general = [*recording.notes, *(f"{each}; it is left out" for each in recording.left_out), *work.general]
    return DetectedTopology(machine, sources, recording, warnings, {**comments, "": "\n".join(general)})


class _OfCpus:
    """The topology of a machine without GPUs."""

    def __init__(self, recording: Recording, name: str) -> None:
        self.recording, self.name = recording, name
        self.sources: dict[str, str] = {}
        self.open: dict[str, list[str]] = {}
        self.general: list[str] = []
        self.warnings: list[str] = []

    def machine(self) -> Topology:
        recording = self.recording
        cpus = cpu_topology(max(len(recording.numa_cores), 1), sum(recording.numa_cores), recording.memory)
        return msgspec.structs.replace(cpus, name=self.name, source=f"{recording.processor}; {cpus.source}")


class _OfGpus(_OfCpus):
    """The topology of a machine with GPUs, what is open in the recording, and how it is taken."""

    def __init__(self, recording: Recording, name: str) -> None:
        super().__init__(recording, name)
        self.names = _names(recording.gpus)
        self.pairs = {frozenset((pair.first, pair.second)): pair for pair in recording.pairs}
        self.peers = _measured_peers(recording)

    def warn(self, part: str, text: str) -> None:
        """Note what is not known of a part of the topology and how it is taken; an empty part is the whole machine."""
        (self.open.setdefault(part, []) if part else self.general).append(text)
        self.warnings.append(f"{part}: {text}" if part else text)

    def machine(self) -> Topology:
        recording = self.recording
        for gpu in recording.gpus:
            if gpu.unanswered:
                self.warn(self.names[gpu.address], f"not known of this GPU: {', '.join(gpu.unanswered)}")
        buses, bus_of = self._buses()
        devices = tuple(self._device(gpu, bus_of[gpu.address]) for gpu in recording.gpus)
        links, switches = self._links(), self._switches()
        measured = "" if recording.bandwidths is None else "bandwidths of copies measured, other "
        return Topology(
            self.name, devices, tuple(buses), tuple(links), tuple(switches),
            peer_access=self._peer_access(links, switches), host_memory=recording.memory,
            source=f"read from {recording.source or 'the machine'}; {measured}rates from specifications, latencies assumed",
        )  # fmt: skip

    def _buses(self) -> tuple[list[Bus], dict[str, str]]:
        """Return the buses, and the bus of each GPU by its PCI address."""
        buses: list[Bus] = []
        bus_of: dict[str, str] = {}
        for gpus in self._below_ports():
            for together, bandwidth, comment in self._shares(gpus):
                name = f"pcie{len(buses)}"
                buses.append(Bus(name, bandwidth, _BUS_LATENCY))
                bus_of |= {gpu.address: name for gpu in together}
                self.sources[name] = comment
        return buses, bus_of

    def _below_ports(self) -> list[list[Gpu]]:
        """Group the GPUs by root port. Those whose port nothing tells are taken to be below one."""
        groups: dict[str, list[Gpu]] = {}
        port: dict[str, str] = {}
        lost = [gpu for gpu in self.recording.gpus if not self._is_placed(gpu)]
        for gpu in self.recording.gpus:
            near = next((a for a in port if self._level(a, gpu.address) in ("PIX", "PXB")), None)
            port[gpu.address] = lost[0].address if gpu in lost else port[near] if near else gpu.path[0]
            groups.setdefault(port[gpu.address], []).append(gpu)
        if len(lost) > 1:
            self.warn(
                "", f"which of {self._listed(lost)} share a PCIe bus is not known: all of them are taken to share one"
            )
        return list(groups.values())

    def _is_placed(self, gpu: Gpu) -> bool:
        others = [other.address for other in self.recording.gpus if other is not gpu]
        return len(gpu.path) > 1 or not others or all(self._level(gpu.address, other) for other in others)

    def _level(self, first: str, second: str) -> str:
        pair = self.pairs.get(frozenset((first, second)))
        return "" if pair is None else pair.level

    def _listed(self, gpus: Sequence[Gpu]) -> str:
        return ", ".join(self.names[gpu.address] for gpu in gpus)

    def _shares(self, gpus: list[Gpu]) -> list[tuple[list[Gpu], float, str]]:
        """Group the GPUs below one root port by the bus that they share, with its bandwidth and the bandwidth's source."""
        measured = self.recording.bandwidths
        alone = {} if measured is None else {g.address: measured.from_host.get(g.address, 0.0) for g in gpus}
        if measured is None or not all(alone.values()):
            return [(gpus, min(map(self._pcie, gpus)), _SPECIFIED)]
        source = f"measured: {_gigabytes(alone.values())} from pinned host memory"
        if len(gpus) == 1:
            return [(gpus, _rounded(*alone.values()), source)]
        at_once = [measured.at_once.get(gpu.address, alone[gpu.address]) for gpu in gpus]
        source += f", each alone; {_gigabytes(at_once)} at once"
        if sum(at_once) > _SHARED * max(alone.values()):
            return [([gpu], _rounded(rate), source) for gpu, rate in zip(gpus, at_once, strict=True)]
        return [(gpus, _rounded(sum(at_once)), source)]

    def _pcie(self, gpu: Gpu) -> float:
        """Return the bandwidth of copies over a GPU's PCIe lanes, of few lanes if it does not tell them."""
        name, known = self.names[gpu.address], specification_of(gpu.name)
        if known is not None and not known.memory:
            self.warn(name, "it uses the host's memory: a quarter of the memory's bandwidth is assumed for copies")
            return round(known.bandwidth * _ON_CHIP, -8)
        generation, width = gpu.generation, gpu.width
        if generation not in _LANE:
            generation = known.generation if known else 3
        if width < 1:
            most = known.width if known else 16
            width = most if any(link.to == SWITCH for link in gpu.links) else min(_ASSUMED_LANES, most)
        if (generation, width) != (gpu.generation, gpu.width):
            self.warn(name, f"its PCIe link is not known in full: {width} lanes of generation {generation} are assumed")
        if width < gpu.most_width:
            self.warn(name, f"{width} of its {gpu.most_width} PCIe lanes are in use, which limits copies from the host")
        return round(_LANE[generation] * width * _COPIED, -8)

    def _device(self, gpu: Gpu, bus: str) -> Device:
        name, known = self.names[gpu.address], specification_of(gpu.name)
        clocks = gpu.memory_clock_mhz * gpu.memory_bits
        bandwidth = 2 * gpu.memory_clock_mhz * 1e6 * gpu.memory_bits / 8
        if known is not None:
            # Cards of one name differ in their memory: the driver's figure counts if it is lower.
            rates, bandwidth = known.rates, min(bandwidth, known.bandwidth) if clocks else known.bandwidth
        elif gpu.cores and gpu.clock_mhz and clocks:
            rates = {"float32": 2.0 * gpu.cores * gpu.clock_mhz * 1e6}
            self.warn(
                name, f"{gpu.name or 'the GPU'} is not a known name: its rates are computed from cores and clocks"
            )
        else:
            raise InputError(
                f"GPU {gpu.address} is {gpu.name!r}, which is not among the known ones, and too little is recorded of it "
                f"({', '.join(gpu.unanswered) or 'neither cores and clocks nor the width of its memory'}): install "
                "nvidia-ml-py (extra cuda), leave it out by CUDA_VISIBLE_DEVICES, or write the topology by hand "
                "(docs/formats/topology.md)"
            )
        capability = gpu.capability or (known.capability if known else "")
        numbers = [each.number for each in self.recording.gpus]
        return Device(
            name, self._memory(gpu, known), bandwidth * gpu.memory_share, {t: rate * gpu.share for t, rate in rates.items()},
            "cuda", _LAUNCH, bus, gpu.name, f"sm_{capability.replace('.', '')}" if capability else "",
            STREAM_OVERHEAD, WAIT_OVERHEAD, free_memory=gpu.free >> 28 << 28 if gpu.free >= 0 else msgspec.UNSET,
            number=gpu.number if gpu.number >= 0 and numbers != [*range(len(numbers))] else msgspec.UNSET,
        )  # fmt: skip

    def _memory(self, gpu: Gpu, known: GpuSpecification | None) -> int:
        name = self.names[gpu.address]
        used = gpu.memory - gpu.free if gpu.free >= 0 else 0
        if used > _IN_USE:
            self.warn(
                name, f"{gibibytes(used)} of its {gibibytes(gpu.memory)} are in use; `plan --free` plans with the rest"
            )
        if gpu.memory:
            return gpu.memory
        if known is not None and not known.memory:
            size = int(self.recording.memory * _SHARED_MEMORY) or _ASSUMED_MEMORY
            self.warn(name, f"it uses the host's memory, of which {gibibytes(size)} are left to it")
            return size
        size = known.memory if known else _ASSUMED_MEMORY
        self.warn(name, f"its memory is not known: {gibibytes(size)} are assumed")
        return size

    def _links(self) -> list[Link]:
        """Return the links between pairs of GPUs, of two reports the lower one."""
        reports: dict[frozenset[str], list[tuple[Gpu, NvLink]]] = {}
        for gpu in self.recording.gpus:
            for link in gpu.links:
                if link.to in self.names and link.to != gpu.address:
                    reports.setdefault(frozenset((gpu.address, link.to)), []).append((gpu, link))
                elif link.to != SWITCH:
                    self.warn(
                        self.names[gpu.address],
                        f"{link.count} of its NVLinks lead to no GPU of the topology ({link.to})",
                    )
        links = []
        for pair, told in reports.items():
            first, link = told[0]
            ends = self.names[first.address], self.names[link.to]
            if self._refused(*pair):
                self.warn(
                    "", f"{' and '.join(ends)} have NVLinks, but do not reach each other's memory: no link is assumed"
                )
                continue
            # A pair may have links of several versions, each with a report of its own.
            of = [[(gpu, each) for gpu, each in told if gpu.address == end] for end in pair]
            speed = min(sum(self._nvlink(*each) * each[1].count for each in reports) for reports in of if reports)
            ways = min(sum(each.count for _, each in reports) for reports in of if reports)
            rates = [self.peers.get((first.address, link.to), 0.0), self.peers.get((link.to, first.address), 0.0)]
            speed, source = _between(rates, speed)
            links.append(Link(ends, speed, _PEER_LATENCY, ways=ways))
            self.sources["-".join(ends)] = source
        return links

    def _switches(self) -> list[Switch]:
        """Return one switch for all GPUs that have links to switches: NVSwitches of a board act together."""
        ports = {
            gpu.address: sum(self._nvlink(gpu, link) * link.count for link in gpu.links if link.to == SWITCH)
            for gpu in self.recording.gpus
        }
        joined = {address: speed for address, speed in ports.items() if speed}
        pairs = [(a, b) for a in joined for b in joined if a != b]
        if len(joined) < 2:
            return []
        if any(self._refused(a, b) for a, b in pairs):
            self.warn(
                "", "GPUs on the NVSwitch do not reach each other's memory (fabric manager?): no switch is assumed"
            )
            return []
        speed, self.sources["nvswitch"] = _between([self.peers.get(pair, 0.0) for pair in pairs], min(joined.values()))
        return [Switch("nvswitch", tuple(self.names[address] for address in joined), speed, _PEER_LATENCY)]

    def _nvlink(self, gpu: Gpu, link: NvLink) -> float:
        """Return the bytes a second of one of a GPU's NVLinks."""
        known = specification_of(gpu.name)
        capability = gpu.capability or (known.capability if known else "")
        rate = _NVLINK.get(capability, _NVLINK_VERSION.get(link.version, 0.0))
        if not rate and not gpu.link_rate:
            self.warn(
                self.names[gpu.address],
                f"the rate of its NVLinks is not known: {_LEAST_NVLINK / 1e9:g} GB/s are assumed",
            )
            return _LEAST_NVLINK
        return min(each for each in (rate, gpu.link_rate) if each)

    def _refused(self, first: str, second: str) -> bool:
        """Return whether two GPUs are known not to reach each other's memory."""
        if (first, second) in self.peers:
            return False  # measured; a link over which no copy went keeps its specification
        pair = self.pairs.get(frozenset((first, second)))
        return pair is not None and pair.peer not in ("", "OK")

    def _peer_access(self, links: Sequence[Link], switches: Sequence[Switch]) -> bool:
        """Return whether all GPUs that no link or switch joins are known to reach each other over their buses."""
        gpus = self.recording.gpus
        if any("/mig" in gpu.address for gpu in gpus):
            self.warn(
                "", "devices are MIG instances, of which a process uses one; a plan over several needs a process each"
            )
        joined = {frozenset(link.devices) for link in links}
        joined |= {frozenset((a, b)) for switch in switches for a in switch.devices for b in switch.devices}
        reasons: dict[str, list[str]] = {}
        for n, first in enumerate(gpus):
            for second in gpus[n + 1 :]:
                names = self.names[first.address], self.names[second.address]
                reason = "" if frozenset(names) in joined else self._why_staged(first, second)
                if reason:
                    reasons.setdefault(reason, []).append("-".join(names))
        for reason, pairs in reasons.items():
            more = f" and {len(pairs) - 4} further pairs" if len(pairs) > 4 else ""
            self.warn(
                "",
                f"copies between GPUs go through host memory (peer_access = false): {', '.join(pairs[:4])}{more} {reason}",
            )
        return not reasons

    def _why_staged(self, first: Gpu, second: Gpu) -> str:
        """Return why copies between two GPUs are taken to go through host memory; empty if they go directly."""
        rates = [self.peers.get(way) for way in ((first.address, second.address), (second.address, first.address))]
        if any(rate is not None for rate in rates):
            return "" if all(rate != 0 for rate in rates) else "were measured to have no peer access"
        pair = self.pairs.get(frozenset((first.address, second.address)))
        if pair is None or not pair.peer:
            return "may have peer access or not, which is not known"
        if pair.peer != "OK":
            return f"have no peer access ({PEER_STATES.get(pair.peer, pair.peer)})"
        if pair.level == "SYS" or (not pair.level and first.numa != second.numa and min(first.numa, second.numa) >= 0):
            return "are on different NUMA nodes, whose connection limits direct copies; measure it"
        return ""


def _names(gpus: Sequence[Gpu]) -> dict[str, str]:
    return {gpu.address: f"gpu{n}" for n, gpu in enumerate(gpus)}


def _gigabytes(rates: Iterable[float]) -> str:
    return f"{', '.join(f'{rate / 1e9:.3g}' for rate in rates)} GB/s"


def _rounded(rate: float) -> float:
    """Round a measured bandwidth to three digits; further digits would not repeat in another measurement."""
    return float(f"{rate:.3g}")


def _measured_peers(recording: Recording) -> dict[tuple[str, str], float]:
    """Return the bytes a second from one PCI address to another; 0 if copies do not go directly."""
    peers = recording.bandwidths.peers if recording.bandwidths else ()
    return {(peer.source, peer.target): peer.bandwidth for peer in peers}


def _between(rates: list[float], specified: float) -> tuple[float, str]:
    """Return the bandwidth between GPUs and its source: that of the slowest pair if all were measured, else specified."""
    if all(rates):
        return _rounded(min(rates)), f"measured: {_gigabytes((min(rates), max(rates)))} at least and at most"
    return specified, _SPECIFIED
