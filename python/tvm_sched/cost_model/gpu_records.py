"""GPUs and their connections as the system describes them: what a recording has of them, and what it leaves open."""

from __future__ import annotations

from typing import Any

import msgspec

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
    number: int = -1
    """Its number as nvidia-smi counts, by PCI address; -1 if unknown."""
    uuid: str = ""
    free: int = -1
    """Bytes of its memory that nobody used; -1 if unknown."""
    most_width: int = 0
    """Lanes that the GPU and its slot have, of which ``width`` are in use; 0 if unknown."""
    link_rate: float = 0.0
    """Bytes a second of one NVLink in one direction; 0 if unknown."""
    share: float = 1.0
    memory_share: float = 1.0
    """Parts of the GPU's multiprocessors and of its memory that a MIG instance has."""
    unanswered: tuple[str, ...] = ()
    """Questions that the driver does not answer, with its reasons."""


class Pair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How two GPUs, by their PCI addresses, are joined without NVLinks."""

    first: str
    second: str
    level: str = ""
    """What a copy crosses, in the words of ``nvidia-smi topo -m``: one of `LEVELS`; empty if unknown."""
    peer: str = ""
    """Whether they reach each other's memory: ``"OK"``, or why not in the words of ``nvidia-smi topo -p2p``; empty if
    unknown."""


LEVELS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""What a copy between two GPUs crosses: one PCIe switch, several, the host bridge, host bridges of a NUMA node, the
connection of NUMA nodes."""
PEER_STATES = {
    "CNS": "the chipset does not support it",
    "GNS": "the GPU does not support it",
    "TNS": "their positions do not support it",
    "NS": "not supported",
    "DR": "disabled by the driver's settings",
    "U": "unknown",
}
"""States of ``nvidia-smi topo -p2p`` beside ``OK``."""


def pci_address(text: Any) -> str:
    """Convert a PCI address such as ``00000000:17:00.0`` to the form of sysfs."""
    name = (text.decode() if isinstance(text, bytes) else str(text)).strip().lower()
    domain, _, slot = name.partition(":")
    return f"{domain[-4:]}:{slot}"


def gibibytes(size: int) -> str:
    """Return a size of memory for messages."""
    return f"{size / 2**30:.3g} GiB"
