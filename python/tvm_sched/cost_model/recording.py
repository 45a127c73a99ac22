"""Record the hardware of a machine (sysfs, NVML) in a document from which its topology can be made anywhere."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tvm_sched_runtime.cores import container_limits
from tvm_sched_runtime.files import Document

from .copies import Bandwidths
from .gpu_records import SWITCH, Gpu, NvLink, Pair, gibibytes, pci_address
from .nvml import PciPlace, read_nvml
from .storage import MeasuredStorage

FORMAT, VERSION = "tvm_sched.recording", 1
__all__ = ["SWITCH", "Gpu", "NvLink", "Pair", "Recording", "pci_address", "record"]


class Recording(Document, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The recorded hardware of a machine."""

    kept_as = ("recording", FORMAT, VERSION)

    processor: str
    numa_cores: tuple[int, ...]
    """Cores of each node that the process may use."""
    memory: int
    """Bytes of host memory that the process may use."""
    gpus: tuple[Gpu, ...] = ()
    source: str = ""
    """Source of the information."""
    bandwidths: Bandwidths | None = None
    """Bandwidths, if copies were measured."""
    storage: MeasuredStorage | None = None
    """Storage, if reads of a disk were measured."""
    pairs: tuple[Pair, ...] = ()
    left_out: tuple[str, ...] = ()
    """GPUs that cannot be used, each with the reason."""
    notes: tuple[str, ...] = ()
    """What limits this process: its container, ``CUDA_VISIBLE_DEVICES``."""


def record(
    root: str | os.PathLike[str] = "/", nvml: Any = None, environment: Mapping[str, str] | None = None
) -> Recording:
    """Record the hardware of this machine that this process may use.

    Parameters
    ----------
    root : path
        Directory with ``proc`` and ``sys``.
    nvml : module, optional
        ``pynvml`` or a module with its interface; default: pynvml if it is installed. Without it a GPU's name, memory and
        NVLinks may be unknown, and GPUs with unknown names cannot be described. Any query may fail.
    environment : mapping, optional
        Environment variables; default: those of this process.
    """
    base = Path(root)
    info = _text(base / "proc/cpuinfo")
    name = re.search(r"^model name\s*:\s*(.*)$", info, re.MULTILINE)
    found = re.search(r"^MemTotal:\s*(\d+) kB$", _text(base / "proc/meminfo"), re.MULTILINE)
    memory = int(found.group(1)) * 1024 if found else 0
    cores, notes = _cores(base), []
    limits = container_limits(base)
    if 0 < limits.memory < memory:
        notes.append(f"the container may use {gibibytes(limits.memory)} of {gibibytes(memory)} of host memory")
        memory = limits.memory
    if 0 < limits.cores < sum(cores):
        notes.append(f"the container's CPU quota is {limits.cores} of {sum(cores)} cores")
        cores = _first(cores, limits.cores)
    machine = read_nvml(_pynvml() if nvml is None else nvml, partial(_place, base))
    if not machine.source:
        machine = machine._replace(gpus=_sysfs_gpus(base), source="sysfs")
    gpus, told = _visible(machine.gpus, os.environ if environment is None else environment)
    kept = {gpu.address for gpu in gpus}
    pairs = tuple(pair for pair in machine.pairs if {pair.first, pair.second} <= kept)
    return Recording(
        name.group(1) if name else "", cores, memory, tuple(gpus), machine.source, pairs=pairs,
        left_out=tuple(machine.left_out), notes=(*notes, *machine.notes, *told),
    )  # fmt: skip


def _cores(base: Path) -> tuple[int, ...]:
    """Return the cores of each NUMA node that this process may run on; nodes without any are left out."""
    allowed = re.search(r"^Cpus_allowed_list:\s*(\S+)$", _text(base / "proc/self/status"), re.MULTILINE)
    mine = _numbers(allowed.group(1)) if allowed else None
    nodes = sorted(base.glob("sys/devices/system/node/node[0-9]*"), key=lambda node: int(node.name[4:]))
    counts = []
    for node in nodes:
        every = {int(cpu.name[3:]) for cpu in node.glob("cpu[0-9]*")}
        counts.append(len(every if mine is None else every & mine))
    return tuple(count for count in counts if count) or (len(mine) if mine else os.cpu_count() or 1,)


def _numbers(text: str) -> set[int]:
    """Return the numbers of a list such as ``0-3,8``."""
    ranges = (part.partition("-") for part in text.split(","))
    return {n for first, _, last in ranges for n in range(int(first), int(last or first) + 1)}


def _first(counts: tuple[int, ...], most: int) -> tuple[int, ...]:
    """Return the counts up to a sum of ``most``."""
    kept: list[int] = []
    for count in counts:
        kept.append(min(count, most - sum(kept)))
    return tuple(count for count in kept if count)


def _visible(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> tuple[list[Gpu], list[str]]:
    """Return the GPUs that ``CUDA_VISIBLE_DEVICES`` leaves, in its order, and what to say of it."""
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None or not gpus:
        return list(gpus), []
    chosen: list[Gpu] = []
    for word in (word.strip() for word in listed.split(",")):
        if word.isdecimal():
            found = next((gpu for gpu in gpus if gpu.number == int(word)), None)
        else:
            found = next((gpu for gpu in gpus if word and gpu.uuid.lower().startswith(word.lower())), None)
        if found is None or found in chosen:
            break  # CUDA ignores the list from its first wrong word on
        chosen.append(found)
    hidden = {gpu.address for gpu in gpus} - {gpu.address for gpu in chosen}
    chosen = [
        msgspec.structs.replace(gpu, links=tuple(link for link in gpu.links if link.to not in hidden)) for gpu in chosen
    ]
    of = f"CUDA_VISIBLE_DEVICES={listed} leaves {len(chosen)} of {len(gpus)} GPUs"
    order = environment.get("CUDA_DEVICE_ORDER")
    if not chosen:
        return [], [f"{of}: the processor is described"]
    notes = [of]
    if len({(gpu.name, gpu.memory) for gpu in gpus}) > 1 and order != "PCI_BUS_ID" and listed[:1].isdecimal():
        notes.append(
            "the numbers in CUDA_VISIBLE_DEVICES are taken as nvidia-smi counts; CUDA counts its fastest GPU first unless "
            "CUDA_DEVICE_ORDER=PCI_BUS_ID is set"
        )
    return chosen, notes


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _pynvml() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


def _place(base: Path, address: str) -> PciPlace:
    """Return what sysfs tells of the device at a PCI address."""
    path = _path(base, address)
    information = _text(base / "proc/driver/nvidia/gpus" / address / "information")
    model = re.search(r"^Model:\s*(.*)$", information, re.MULTILINE)
    widths = [
        int(text) for each in path if (text := _text(_device(base, each) / "current_link_width").strip()).isdigit()
    ]
    speeds = [speed for each in path if (speed := _generation(_text(_device(base, each) / "max_link_speed")))]
    return PciPlace(
        path, _numa(base, address), model.group(1) if model else "", min(speeds, default=0),
        min((width for width in widths if width), default=0),
    )  # fmt: skip


def _device(base: Path, address: str) -> Path:
    return base / "sys/bus/pci/devices" / address


def _generation(speed: str) -> int:
    """Return the PCIe generation of a speed such as ``16.0 GT/s PCIe``; 0 if there is none."""
    found = re.match(r"([\d.]+) GT/s", speed)
    return {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}.get(float(found.group(1)) if found else 0.0, 0)


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
    gpus: list[Gpu] = []
    for device in sorted((base / "sys/bus/pci/devices").glob("*")):
        if _text(device / "vendor").strip() != "0x10de" or not _text(device / "class").startswith("0x03"):
            continue
        place = _place(base, device.name)
        text = _text(device / "max_link_width").strip()
        most = int(text) if text.isdigit() else 0
        name = place.model or f"PCI device {_text(device / 'device').strip()}"
        width = min(filter(None, (most, place.width)), default=0)
        unknown = ("peer access, NVLinks and memory in use (NVML is not there)",)
        gpus.append(
            Gpu(name, device.name, place.path, _largest_window(device), place.generation, width, numa=place.numa,
                number=len(gpus), most_width=most, unanswered=unknown)
        )  # fmt: skip
    return gpus


def _largest_window(device: Path) -> int:
    """Return the size of a device's largest memory range: all of its memory on server GPUs, 256 MiB on others."""
    sizes = [0]
    for line in _text(device / "resource").splitlines():
        begin, end = (int(word, 16) for word in line.split()[:2])
        sizes.append(end - begin + 1 if end else 0)
    return max(sizes)
