"""Read a machine from the text of `nvidia-smi`: `topo -m`, `topo -p2p r`, `-L`, `--query-gpu` as CSV, and its table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from tvm_sched_runtime.errors import InputError

from .gpu_records import LEVELS, PEER_STATES, SWITCH, Gpu, NvLink, Pair, pci_address
from .gpu_specifications import known_names, specification_of
from .nvml import mig_share
from .recording import Recording

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\[(?:\d+(?:;\d+)*)?m")
_STATES = {"OK", *PEER_STATES}
_CELL = re.compile(rf"X|NV\d+|SOC|{'|'.join(LEVELS)}|{'|'.join(sorted(_STATES))}|N/A")
_MIB = 1 << 20
_LINKS = {"6.0": 4, "7.0": 6, "7.5": 2, "8.0": 12, "8.6": 4, "9.0": 18, "10.0": 18, "10.3": 18}
"""NVLinks of a GPU by its compute capability. More in all than these mean that the GPUs are joined by a switch."""


@dataclass
class _Seen:
    """What the text tells of a GPU."""

    name: str = ""
    address: str = ""
    uuid: str = ""
    memory: int = 0
    free: int = -1
    generation: int = 0
    width: int = 0
    most_width: int = 0
    capability: str = ""
    numa: int = -1
    mig: list[str] = field(default_factory=list)
    mig_on: bool = False


@dataclass
class _Text:
    gpus: dict[int, _Seen] = field(default_factory=dict)
    cells: dict[tuple[int, str], str] = field(default_factory=dict)
    """What `topo -m` has between a GPU and a column, such as ``GPU1`` or ``NIC0``."""
    peers: dict[tuple[int, int], str] = field(default_factory=dict)

    def gpu(self, number: int) -> _Seen:
        return self.gpus.setdefault(number, _Seen())


def read_smi(texts: Sequence[str]) -> Recording:
    """Return the recording of a machine of which these texts are.

    Raises
    ------
    InputError
        No GPU is found in the texts, or a GPU has no name or an unknown one.
    """
    seen = _Text()
    for text in texts:
        lines = [line.replace("\xa0", " ") for line in _ESCAPES.sub("", text).splitlines()]
        _read_matrices(lines, seen)
        _read_list(lines, seen)
        _read_table(lines, seen)
        _read_csv(lines, seen)
    if not seen.gpus:
        raise InputError(
            "no GPU is found in the text; the outputs of `nvidia-smi topo -m`, `nvidia-smi topo -p2p r`, `nvidia-smi -L`, "
            "`nvidia-smi`, and `nvidia-smi --query-gpu=index,name,memory.total,memory.free,pcie.link.gen.max,"
            "pcie.link.width.current --format=csv` are read"
        )
    _check_names(seen)
    gpus: list[Gpu] = []
    left_out = []
    for number, gpu in sorted(seen.gpus.items()):
        whole = _gpu(number, gpu, seen)
        if gpu.mig:
            gpus += [_instance(whole, n, profile) for n, profile in enumerate(gpu.mig)]
        elif gpu.mig_on:
            left_out.append(
                f"GPU {number} ({gpu.name}) has MIG on, and the text lists no instance (`nvidia-smi -L` does)"
            )
        else:
            gpus.append(whole)
    addresses = {gpu.number: gpu.address for gpu in gpus if gpu.number >= 0}
    pairs = [
        Pair(addresses[a], addresses[b], _level(seen, a, b), _peer(seen, a, b))
        for a in addresses
        for b in addresses
        if a < b
    ]
    notes = ("the text does not tell the host's memory and processor",)
    return Recording(
        "", (), 0, tuple(gpus), "nvidia-smi's text", pairs=tuple(pairs), left_out=tuple(left_out), notes=notes
    )


def _check_names(seen: _Text) -> None:
    known = f"known are {', '.join(known_names())}"
    nameless = [number for number, gpu in sorted(seen.gpus.items()) if not gpu.name]
    if nameless:
        raise InputError(
            f"the text has no name of GPU {', '.join(map(str, nameless))}; give that of `nvidia-smi -L` as well: {known}"
        )
    for number, gpu in sorted(seen.gpus.items()):
        if specification_of(gpu.name) is None:
            cut = "; the name is cut off, `nvidia-smi -L` has all of it" if gpu.name.endswith("...") else ""
            raise InputError(f"GPU {number} is {gpu.name!r}, which is not known{cut}; {known}")


def _read_matrices(lines: Sequence[str], seen: _Text) -> None:
    """Read the matrices of ``topo -m`` and ``topo -p2p``: a line of columns, then a line for each GPU and NIC."""
    columns: list[str] = []
    for line in lines:
        words = line.replace("|", " ").split()
        if not words:
            continue
        row = re.fullmatch(r"GPU(\d+)", words[0])
        cells = words[1 : 1 + len(columns)]
        if row and columns and len(cells) == len(columns) and all(_CELL.fullmatch(cell) for cell in cells):
            _read_row(int(row.group(1)), columns, cells, words[1 + len(columns) :], seen)
        elif row and not _CELL.fullmatch(words[1] if len(words) > 1 else "GPU"):
            head = words[: words.index("CPU")] if "CPU" in words else words
            columns = [word for word in head if word not in ("Affinity", "NUMA")]


def _read_row(number: int, columns: Sequence[str], cells: Sequence[str], rest: Sequence[str], seen: _Text) -> None:
    gpu = seen.gpu(number)
    is_peers = any(cell in _STATES for cell in cells)
    for column, cell in zip(columns, cells, strict=True):
        other = re.fullmatch(r"GPU(\d+)", column)
        if other and int(other.group(1)) != number:
            seen.gpu(int(other.group(1)))
        if is_peers and other:
            seen.peers[number, int(other.group(1))] = cell
        elif not is_peers:
            seen.cells[number, column] = "SYS" if cell == "SOC" else cell
    if not is_peers and len(rest) > 1 and rest[1].isdecimal():
        gpu.numa = int(rest[1])


def _read_list(lines: Sequence[str], seen: _Text) -> None:
    """Read ``nvidia-smi -L``."""
    number = None
    for line in lines:
        if found := re.match(r"\s*GPU (\d+): (.+?)(?:\s*\(UUID: ([^)\s]+)\))?\s*$", line):
            number = int(found.group(1))
            gpu = seen.gpu(number)
            gpu.name, gpu.uuid = found.group(2).strip(), found.group(3) or ""
        elif number is not None and (found := re.match(r"\s*MIG (\S+)\s+Device\s+\d+:", line)):
            seen.gpu(number).mig.append(found.group(1))


def _read_table(lines: Sequence[str], seen: _Text) -> None:
    """Read the table of ``nvidia-smi``: two or three lines for each GPU."""
    number = None
    for line in lines:
        found = re.match(
            r"\s*\|\s+(\d+)\s+(\S.*?)\s+(?:On|Off|N/A|TCC|WDDM|MCDM)?\s*\|\s*([0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]+)", line
        )
        if found:
            number = int(found.group(1))
            gpu = seen.gpu(number)
            name = re.sub(r"\s+(?:On|Off|N/A|TCC|WDDM|MCDM)$", "", found.group(2))
            if not gpu.name or gpu.name.endswith("..."):
                gpu.name = name
            gpu.address = pci_address(found.group(3))
        elif number is not None and (found := re.search(r"(\d+)MiB\s*/\s*(\d+)MiB", line)) and line.count("|") >= 4:
            gpu = seen.gpu(number)
            gpu.memory = int(found.group(2)) * _MIB
            gpu.free = max(gpu.memory - int(found.group(1)) * _MIB, 0)
        elif number is not None and re.search(r"\|\s+Enabled\*?\s+\|\s*$", line):
            seen.gpu(number).mig_on = True
        elif line.lstrip().startswith(("+--", "|==")):
            number = None if "Processes" in line else number
        if "Processes" in line:
            number = None


def _read_csv(lines: Sequence[str], seen: _Text) -> None:
    """Read ``--query-gpu=... --format=csv``: a line of fields, then a line for each GPU."""
    fields: list[str] = []
    count = 0
    for line in lines:
        words = [word.strip() for word in line.split(",")]
        names = [re.sub(r"\s*\[.*\]$", "", word).lower() for word in words]
        if "name" in names or "gpu_name" in names:
            fields, count = names, 0
        elif fields and len(words) == len(fields):
            row = dict(zip(fields, words, strict=True))
            _read_record(row, seen.gpu(_number(row.get("index", ""), count)))
            count += 1


def _read_record(row: dict[str, str], gpu: _Seen) -> None:
    gpu.name = row.get("name") or row.get("gpu_name") or gpu.name
    gpu.uuid = row.get("uuid") or row.get("gpu_uuid") or gpu.uuid
    if row.get("pci.bus_id", "").count(":") == 2:
        gpu.address = pci_address(row["pci.bus_id"])
    gpu.memory = _number(row.get("memory.total", ""), 0) * _MIB or gpu.memory
    free, used = _number(row.get("memory.free", ""), -1), _number(row.get("memory.used", ""), -1)
    if free >= 0:
        gpu.free = free * _MIB
    elif used >= 0 and gpu.memory:
        gpu.free = max(gpu.memory - used * _MIB, 0)
    gpu.generation = _number(row.get("pcie.link.gen.max", row.get("pcie.link.gen.current", "")), gpu.generation)
    gpu.most_width = _number(row.get("pcie.link.width.max", ""), gpu.most_width)
    gpu.width = _number(row.get("pcie.link.width.current", ""), gpu.width)
    gpu.capability = row["compute_cap"] if re.fullmatch(r"\d+\.\d", row.get("compute_cap", "")) else gpu.capability
    gpu.mig_on = row.get("mig.mode.current", "") == "Enabled" or gpu.mig_on


def _number(text: str, missing: int) -> int:
    found = re.match(r"\d{1,9}\b", text)
    return int(found.group()) if found else missing


def _gpu(number: int, gpu: _Seen, seen: _Text) -> Gpu:
    address = _address(number, gpu)
    known = specification_of(gpu.name)
    capability = gpu.capability or (known.capability if known else "")
    counts = {
        other: int(cell[2:])
        for (mine, column), cell in seen.cells.items()
        if mine == number and cell.startswith("NV") and (other := _number(column.removeprefix("GPU"), -1)) >= 0
    }
    if len(counts) > 1 and sum(counts.values()) > _LINKS.get(capability, 18):
        links: tuple[NvLink, ...] = (NvLink(SWITCH, 0, min(counts.values())),)
    else:
        links = tuple(NvLink(_address(n, seen.gpu(n)), 0, count) for n, count in sorted(counts.items()) if count)
    free = gpu.free if 0 <= gpu.free <= gpu.memory else -1
    width = gpu.width if 0 < gpu.width <= 32 else 0
    return Gpu(
        gpu.name, address, (address,), gpu.memory, gpu.generation, width, capability, numa=gpu.numa, links=links,
        number=number, uuid=gpu.uuid, free=free, most_width=gpu.most_width,
    )  # fmt: skip


def _address(number: int, gpu: _Seen) -> str:
    return gpu.address or f"gpu{number}"


def _instance(whole: Gpu, n: int, profile: str) -> Gpu:
    """Return a MIG instance of a profile such as ``1g.10gb``."""
    found = re.search(r"\.(\d+)gb", profile)
    memory = int(found.group(1)) * 1_000_000_000 if found else 0
    known = specification_of(whole.name)
    total = whole.memory or (known.memory if known else 0)
    part = min(memory / total, 1.0) if total and memory else 1 / 8
    return Gpu(
        f"{whole.name} MIG {profile}", f"{whole.address}/mig{n}", whole.path, memory or int(total * part), whole.generation,
        whole.width, whole.capability, numa=whole.numa, share=mig_share(profile, whole.name) or part, memory_share=part,
        most_width=whole.most_width,
    )  # fmt: skip


def _level(seen: _Text, a: int, b: int) -> str:
    """Return what PCIe copies between two GPUs cross; of GPUs with NVLinks, as their NICs and NUMA nodes tell."""
    cell = seen.cells.get((a, f"GPU{b}")) or seen.cells.get((b, f"GPU{a}"), "")
    if cell in LEVELS:
        return cell
    columns = {column for _, column in seen.cells if not re.fullmatch(r"GPU\d+", column)}
    near = [{column for column in columns if seen.cells.get((n, column)) in ("PIX", "PXB")} for n in (a, b)]
    if near[0] & near[1]:
        return "PXB"
    nodes = seen.gpu(a).numa, seen.gpu(b).numa
    if min(nodes) >= 0 and nodes[0] != nodes[1]:
        return "SYS"
    return "NODE" if all(near) else ""


def _peer(seen: _Text, a: int, b: int) -> str:
    states = [seen.peers.get((a, b), ""), seen.peers.get((b, a), "")]
    refused = next((state for state in states if state not in ("", "OK", "U", "N/A")), "")
    return refused or ("OK" if "OK" in states and not {"U", "N/A"} & set(states) else "")
