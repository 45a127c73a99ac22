"""Ask NVML for the GPUs of a machine. Every question may fail for every GPU; its answer then stays open in the record."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from .gpu_records import SWITCH, Gpu, NvLink, Pair, pci_address

_MOST_LINKS, _MOST_INSTANCES = 18, 16
_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""`nvmlGpuTopologyLevel_t`."""
_PEER = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS"}
"""`nvmlGpuP2PStatus_t`."""
_LOST = ("GpuIsLost", "ResetRequired")
_ABSENT = ("NotSupported", "InvalidArgument", "FunctionNotFound", "AttributeError")
"""Errors that say that the GPU has no such NVLink, or no MIG."""


class PciPlace(NamedTuple):
    """What the system tells of a PCI device without NVML."""

    path: tuple[str, ...]
    """PCI addresses from the root port to the device."""
    numa: int
    model: str
    """Product name; empty if unknown."""
    generation: int
    width: int
    """Generation and lanes of the slowest link on the path; 0 if unknown."""


class NvmlReading(NamedTuple):
    """What NVML tells of a machine; the source is empty if there is no driver."""

    gpus: Sequence[Gpu] = ()
    pairs: Sequence[Pair] = ()
    left_out: Sequence[str] = ()
    notes: Sequence[str] = ()
    source: str = ""


def read_nvml(nvml: Any, place: Callable[[str], PciPlace]) -> NvmlReading:
    """Read GPUs, MIG instances, NVLinks and peer access from ``pynvml`` or a module with its interface, or None.

    ``place`` returns what the system tells of a PCI address.
    """
    if nvml is None:
        return NvmlReading()
    reader = _Reader(nvml, place)
    if reader.ask("nvmlInit", missing=_FAILED) is _FAILED:
        return NvmlReading()
    try:
        return reader.read()
    finally:
        reader.ask("nvmlShutdown")


_FAILED = object()


class _Reader:
    def __init__(self, nvml: Any, place: Callable[[str], PciPlace]) -> None:
        self.nvml = nvml
        self.place = place
        self.failed: dict[str, tuple[str, str]] = {}
        """Questions without an answer: kind and text of the error."""

    def ask(self, name: str, *arguments: Any, missing: Any = None) -> Any:
        """Return the answer to a question; ``missing`` if there is none."""
        try:
            return getattr(self.nvml, name)(*arguments)
        except (self.nvml.NVMLError, AttributeError, TypeError, ValueError) as error:
            kind = type(error).__name__.removeprefix("NVMLError_")
            self.failed[name] = kind, str(error) or kind
            return missing

    def whole(self, name: str, *arguments: Any, most: int = 1 << 50) -> int:
        """Return a whole number from 1; 0 if there is no such answer."""
        return _whole(self.ask(name, *arguments), most)

    def read(self) -> NvmlReading:
        count = self.ask("nvmlDeviceGetCount")
        if count is None:
            return NvmlReading(notes=(f"NVML does not count the GPUs ({self.failed['nvmlDeviceGetCount'][1]})",))
        gpus: list[Gpu] = []
        handles: dict[str, Any] = {}
        left_out: list[str] = []
        for number in range(count):
            self.failed = {}
            handle = self.ask("nvmlDeviceGetHandleByIndex", number)
            mode = None if handle is None else self.ask("nvmlDeviceGetMigMode", handle)
            gpu = None if handle is None else self._gpu(number, handle)
            lost = [text for kind, text in self.failed.values() if kind in _LOST]
            if gpu is None or lost:
                reason = lost[0] if lost else self.failed["nvmlDeviceGetHandleByIndex"][1]
                left_out.append(f"GPU {number} does not answer ({reason})")
                continue
            if mode and mode[0] == 1:
                instances = self._instances(gpu, handle)
                gpus += instances
                if not instances:
                    left_out.append(
                        f"GPU {number} ({gpu.name}) has MIG on, and no instance of it is known, so that programs cannot use "
                        f"it: create instances (nvidia-smi mig -cgi), or turn MIG off (nvidia-smi -i {number} -mig 0)"
                    )
                continue
            gpus.append(gpu)
            handles[gpu.address] = handle
        return NvmlReading(gpus, self._pairs(handles), left_out, source="NVML and sysfs")

    def _gpu(self, number: int, handle: Any) -> Gpu:
        pci = self.ask("nvmlDeviceGetPciInfo", handle)
        address = pci_address(pci.busId) if pci is not None else f"gpu{number}"
        place = self.place(address)
        memory = self.ask("nvmlDeviceGetMemoryInfo", handle)
        total = 0 if memory is None else _whole(memory.total)
        free = -1 if memory is None else getattr(memory, "free", -1)
        most = self.whole("nvmlDeviceGetMaxPcieLinkWidth", handle, most=32)
        now = self.whole("nvmlDeviceGetCurrPcieLinkWidth", handle, most=32)
        # At rest a GPU lowers its generation, but not its lanes: the generation that GPU and slot can have counts.
        generation = self.whole("nvmlDeviceGetMaxPcieLinkGeneration", handle, most=6)
        generation = generation or self.whole("nvmlDeviceGetCurrPcieLinkGeneration", handle, most=6)
        capability = self.ask("nvmlDeviceGetCudaComputeCapability", handle, missing=())
        links = self._links(handle)
        gpu = Gpu(
            _text(self.ask("nvmlDeviceGetName", handle, missing="")) or place.model, address, place.path,
            total, _least(generation, place.generation), _least(now or most, place.width),
            ".".join(map(str, capability)), self.whole("nvmlDeviceGetNumGpuCores", handle),
            self.whole("nvmlDeviceGetMaxClockInfo", handle, getattr(self.nvml, "NVML_CLOCK_SM", 1)),
            self.whole("nvmlDeviceGetMaxClockInfo", handle, getattr(self.nvml, "NVML_CLOCK_MEM", 2)),
            self.whole("nvmlDeviceGetMemoryBusWidth", handle), place.numa, links, number,
            _text(self.ask("nvmlDeviceGetUUID", handle, missing="")), free if 0 <= free <= total else -1, most,
            self._link_rate(handle) if links else 0.0,
        )  # fmt: skip
        return msgspec.structs.replace(gpu, unanswered=self._unanswered(gpu))

    def _unanswered(self, gpu: Gpu) -> tuple[str, ...]:
        """Return which of the questions on which a topology depends have no answer, and why."""
        asked = {
            "nvmlDeviceGetName": ("name", not gpu.name),
            "nvmlDeviceGetPciInfo": ("PCI address", True),
            "nvmlDeviceGetMemoryInfo": ("memory", True),
            "nvmlDeviceGetMaxPcieLinkGeneration": ("PCIe generation", not gpu.generation),
            "nvmlDeviceGetCurrPcieLinkWidth": ("PCIe lanes in use", True),
            "nvmlDeviceGetNvLinkState": ("NVLinks", not self._is_absent("nvmlDeviceGetNvLinkState")),
            "nvmlDeviceGetMigMode": ("whether MIG is on", not self._is_absent("nvmlDeviceGetMigMode")),
            "nvmlDeviceGetNvLinkRemotePciInfo": ("ends of NVLinks", True),
        }  # fmt: skip
        return tuple(
            f"{what} ({self.failed[name][1]})"
            for name, (what, matters) in asked.items()
            if name in self.failed and matters
        )

    def _is_absent(self, name: str) -> bool:
        """Return whether a question failed because the GPU does not have what it asks for."""
        return self.failed.get(name, ("NotSupported", ""))[0] in _ABSENT

    def _links(self, handle: Any) -> tuple[NvLink, ...]:
        """Return the active NVLinks by neighbour; those with an unknown end are left out."""
        links: Counter[tuple[str, int]] = Counter()
        for n in range(_MOST_LINKS):
            if self.ask("nvmlDeviceGetNvLinkState", handle, n) != 1:
                continue
            kind = self.ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, n)
            remote = self.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, n)
            version = self.whole("nvmlDeviceGetNvLinkVersion", handle, n, most=64)
            if kind == getattr(self.nvml, "NVML_NVLINK_DEVICE_TYPESWITCH", 2):
                self.failed.pop("nvmlDeviceGetNvLinkRemotePciInfo", None)
                links[SWITCH, version] += 1
            elif remote is not None:
                links[pci_address(remote.busId), version] += 1
        return tuple(NvLink(to, version, count) for (to, version), count in sorted(links.items()))

    def _link_rate(self, handle: Any) -> float:
        """Return the bytes a second of one NVLink as NVML tells; 0 if it does not."""
        field = getattr(self.nvml, "NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON", None)
        values = [] if field is None else self.ask("nvmlDeviceGetFieldValues", handle, [field], missing=[])
        if len(values) != 1 or getattr(values[0], "nvmlReturn", 1) != 0:
            return 0.0
        return _whole(getattr(getattr(values[0], "value", None), "uiVal", 0), 1_000_000) * 1e6

    def _instances(self, whole: Gpu, handle: Any) -> list[Gpu]:
        """Return the MIG instances of a GPU, with their parts of its multiprocessors and memory."""
        instances: list[Gpu] = []
        for n in range(min(self.whole("nvmlDeviceGetMaxMigDeviceCount", handle), _MOST_INSTANCES)):
            instance = self.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, n)
            memory = None if instance is None else self.ask("nvmlDeviceGetMemoryInfo", instance)
            if memory is None:
                continue
            total = _whole(memory.total)
            name = _text(self.ask("nvmlDeviceGetName", instance, missing=""))
            part = total / whole.memory if whole.memory else 1 / 8
            profile = {
                "name": name if "MIG" in name else f"{whole.name} MIG",
                "address": f"{whole.address}/mig{n}",
                "memory": total,
                "free": _whole(getattr(memory, "free", 0)),
                "uuid": _text(self.ask("nvmlDeviceGetUUID", instance, missing="")),
                "share": mig_share(name, whole.name) or min(part, 1.0),
                "memory_share": min(part, 1.0),
            }
            instances.append(msgspec.structs.replace(whole, links=(), number=-1, **profile))
        return instances

    def _pairs(self, handles: dict[str, Any]) -> list[Pair]:
        read, write = (getattr(self.nvml, f"NVML_P2P_CAPS_INDEX_{name}", n) for n, name in enumerate(("READ", "WRITE")))
        pairs = []
        every = list(handles.items())
        for n, (first, a) in enumerate(every):
            for second, b in every[n + 1 :]:
                ways = [(x, y, caps) for x, y in ((a, b), (b, a)) for caps in (read, write)]
                states = [_PEER.get(self.ask("nvmlDeviceGetP2PStatus", *way, missing=-1), "") for way in ways]
                refused = next((state for state in states if state not in ("", "OK")), "")
                peer = refused or ("OK" if all(states) else "")
                level = _LEVELS.get(self.ask("nvmlDeviceGetTopologyCommonAncestor", a, b, missing=-1), "")
                pairs.append(Pair(first, second, level, peer))
        return pairs


def mig_share(name: str, whole: str = "") -> float:
    """Return the part of a GPU's multiprocessors that a MIG profile such as ``1g.10gb`` in a name has; 0 if unknown."""
    found = re.search(r"(\d)g\.\d+gb", name)
    slices = 4 if re.search(r"\bA30\b|RTX PRO", whole) else 7
    return min(int(found.group(1)) / slices, 1.0) if found else 0.0


def _whole(value: Any, most: int = 1 << 50) -> int:
    return value if isinstance(value, int) and 0 < value <= most else 0


def _least(*numbers: int) -> int:
    return min((number for number in numbers if number), default=0)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
