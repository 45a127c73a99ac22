"""Record the hardware of a machine (sysfs, NVML) in a document from which its topology can be made anywhere."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from ..files import Document
from .copies import Bandwidths
from .storage import MeasuredStorage

FORMAT, VERSION = "tvm_sched.recording", 1
SWITCH = "switch"
"""Target of links that do not lead to a GPU."""


class NvLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Links of one GPU to one neighbour: the PCI address of a GPU, or ``"switch"``."""

    to: str
    version: int
    count: int = 1


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU as the system describes it."""

    name: str
    """Product name."""
    address: str
    """PCI address, such as ``"0000:17:00.0"``."""
    path: tuple[str, ...]
    """PCI addresses of its path, from the root port."""
    memory: int
    """Bytes."""
    generation: int
    width: int
    """Generation and lanes of its PCIe link."""
    capability: str = ""
    """Compute capability such as ``"9.0"``; empty if unknown."""
    cores: int = 0
    clock_mhz: int = 0
    memory_clock_mhz: int = 0
    memory_bits: int = 0
    """Figures for chips that are not known by name; 0 if unknown."""
    numa: int = -1
    """NUMA node; -1 if there is none."""
    links: tuple[NvLink, ...] = ()


class Recording(Document, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The recorded hardware of a machine."""

    kept_as = ("recording", FORMAT, VERSION)

    processor: str
    numa_cores: tuple[int, ...]
    """Cores of each node."""
    memory: int
    """Bytes of host memory."""
    gpus: tuple[Gpu, ...] = ()
    source: str = ""
    """Source of the information."""
    bandwidths: Bandwidths | None = None
    """Bandwidths, if copies were measured."""
    storage: MeasuredStorage | None = None
    """Storage, if reads of a disk were measured."""


def record(root: str | os.PathLike[str] = "/", nvml: Any = None) -> Recording:
    """Record the hardware of this machine.

    Parameters
    ----------
    root : path
        Directory with ``proc`` and ``sys``.
    nvml : module, optional
        ``pynvml`` or a module with its interface; default: pynvml if it is installed. Without it a GPU's name, memory and
        NVLinks may be unknown, and GPUs with unknown names cannot be described.
    """
    base = Path(root)
    nodes = sorted(base.glob("sys/devices/system/node/node[0-9]*"))
    cores = tuple(len(list(node.glob("cpu[0-9]*"))) for node in nodes) or (os.cpu_count() or 1,)
    info = _text(base / "proc/cpuinfo")
    name = re.search(r"^model name\s*:\s*(.*)$", info, re.MULTILINE)
    memory = re.search(r"^MemTotal:\s*(\d+) kB$", _text(base / "proc/meminfo"), re.MULTILINE)
    gpus, source = _nvml_gpus(base, _nvml() if nvml is None else nvml)
    if not source:
        gpus, source = _sysfs_gpus(base), "sysfs"
    return Recording(
        name.group(1) if name else "", cores, int(memory.group(1)) * 1024 if memory else 0, tuple(gpus), source
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _nvml() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


def _nvml_gpus(base: Path, nvml: Any) -> tuple[list[Gpu], str]:
    """Describe the GPUs by NVML; the source is empty if there is no driver."""
    if nvml is None:
        return [], ""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return [], ""
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())]
        return [_nvml_gpu(base, nvml, handle) for handle in handles], "NVML and sysfs"
    finally:
        nvml.nvmlShutdown()


def _nvml_gpu(base: Path, nvml: Any, gpu: Any) -> Gpu:
    def ask(name: str, *arguments: Any, missing: Any = 0) -> Any:
        try:
            return getattr(nvml, name)(gpu, *arguments)
        except (nvml.NVMLError, AttributeError):
            return missing

    address = pci_address(ask("nvmlDeviceGetPciInfo").busId)
    capability = ask("nvmlDeviceGetCudaComputeCapability", missing=())
    links: Counter[tuple[str, int]] = Counter()
    for n in range(18):
        if ask("nvmlDeviceGetNvLinkState", n) == 1:
            kind = ask("nvmlDeviceGetNvLinkRemoteDeviceType", n, missing=None)
            switched = kind == getattr(nvml, "NVML_NVLINK_DEVICE_TYPESWITCH", 2)
            remote = ask("nvmlDeviceGetNvLinkRemotePciInfo", n, missing=None)
            to = SWITCH if switched or remote is None else pci_address(remote.busId)
            links[to, int(ask("nvmlDeviceGetNvLinkVersion", n, missing=3))] += 1
    name = ask("nvmlDeviceGetName", missing="")
    return Gpu(
        name.decode() if isinstance(name, bytes) else name, address, _path(base, address),
        int(ask("nvmlDeviceGetMemoryInfo").total), int(ask("nvmlDeviceGetMaxPcieLinkGeneration")),
        int(ask("nvmlDeviceGetMaxPcieLinkWidth")), ".".join(map(str, capability)), int(ask("nvmlDeviceGetNumGpuCores")),
        int(ask("nvmlDeviceGetMaxClockInfo", getattr(nvml, "NVML_CLOCK_SM", 1))),
        int(ask("nvmlDeviceGetMaxClockInfo", getattr(nvml, "NVML_CLOCK_MEM", 2))),
        int(ask("nvmlDeviceGetMemoryBusWidth")), _numa(base, address),
        tuple(NvLink(to, version, count) for (to, version), count in sorted(links.items())),
    )  # fmt: skip


def pci_address(text: Any) -> str:
    """Convert a PCI address such as ``00000000:17:00.0`` to the form of sysfs."""
    name = (text.decode() if isinstance(text, bytes) else str(text)).lower()
    domain, _, slot = name.partition(":")
    return f"{domain[-4:]}:{slot}"


def _path(base: Path, address: str) -> tuple[str, ...]:
    """Return PCI addresses from the root port to a device."""
    real = os.path.realpath(base / "sys/bus/pci/devices" / address)
    addresses = tuple(re.findall(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", real))
    return addresses or (address,)


def _numa(base: Path, address: str) -> int:
    text = _text(base / "sys/bus/pci/devices" / address / "numa_node").strip()
    return int(text) if re.fullmatch(r"-?\d+", text) else -1


def _sysfs_gpus(base: Path) -> list[Gpu]:
    """Describe the GPUs without NVML: by their PCI addresses, and their names if the driver tells them."""
    gpus = []
    for device in sorted((base / "sys/bus/pci/devices").glob("*")):
        if _text(device / "vendor").strip() != "0x10de" or not _text(device / "class").startswith("0x03"):
            continue
        information = _text(base / "proc/driver/nvidia/gpus" / device.name / "information")
        name = re.search(r"^Model:\s*(.*)$", information, re.MULTILINE)
        speed = re.match(r"([\d.]+) GT/s", _text(device / "max_link_speed"))
        generation = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}.get(float(speed.group(1)) if speed else 0.0, 0)
        width = _text(device / "max_link_width").strip()
        gpus.append(
            Gpu(name.group(1) if name else f"PCI device {_text(device / 'device').strip()}", device.name,
                _path(base, device.name), _largest_window(device), generation, int(width) if width.isdigit() else 0,
                numa=_numa(base, device.name))
        )  # fmt: skip
    return gpus


def _largest_window(device: Path) -> int:
    """Return the size of a device's largest memory range: all of its memory on server GPUs, 256 MiB on others."""
    sizes = [0]
    for line in _text(device / "resource").splitlines():
        begin, end = (int(word, 16) for word in line.split()[:2])
        sizes.append(end - begin + 1 if end else 0)
    return max(sizes)
