"""Results of the commands on topologies, latencies and the cache."""

from __future__ import annotations

from typing import Any

from ...cost_model.contention import Contention
from ...cost_model.profile import Copies, Machine
from ...cost_model.recording import Recording
from ...doctor import Check
from ...problem import Bus, Device, Topology
from ...problem.topology import Link as DeviceLink
from ...problem.topology import Switch as DeviceSwitch
from .base import Result


class Preset(Result, frozen=True):
    """A topology that comes with the package, and how many parts it has."""

    name: str
    devices: int
    buses: int
    links: int
    switches: int
    source: str


class Presets(Result, frozen=True):
    """``topology list``."""

    presets: list[Preset]
    families: list[str]


class Joined(Result, frozen=True):
    """What joins two devices: in the words of ``nvidia-smi topo -m``, bytes a second, channels."""

    by: str
    bandwidth: float | None
    channels: tuple[str, ...]


class ShownTopology(Result, frozen=True):
    """``topology show``."""

    name: str
    devices: tuple[Device, ...]
    buses: tuple[Bus, ...]
    links: tuple[DeviceLink, ...]
    switches: tuple[DeviceSwitch, ...]
    peer_access: bool
    host_memory: int
    source: str
    channels: tuple[str, ...]
    matrix: dict[str, dict[str, Joined]]


class CheckedTopology(Result, frozen=True):
    """``topology check`` of a file that is right."""

    file: str
    name: str
    right: bool
    devices: int
    buses: int
    links: int
    switches: int


class DetectedTopology(Result, frozen=True):
    """``topology detect``."""

    topology: Topology
    bandwidths: Any
    recording: Recording


class Diagnosed(Result, frozen=True):
    """``doctor``."""

    healthy: bool
    checks: tuple[Check, ...]


class Profiled(Result, frozen=True):
    """``profile``."""

    contention: Contention | None
    kernels: int
    machine: Machine
    device: Any
    latencies: dict[str, float]
    copies: tuple[Copies, ...]
    pairs: int
    files: dict[str, str]


class Learned(Result, frozen=True):
    """``learn``."""

    about: dict[str, str]
    samples: int
    files: dict[str, str]


class CachedModel(Result, frozen=True):
    """A compiled model in the cache; when it was last used, in seconds since 1970."""

    key: str
    model: str | None
    bytes: int
    last_used: int


class Cached(Result, frozen=True):
    """``cache show``."""

    path: str
    compiled: list[CachedModel]
    compiled_bytes: int
    limit_bytes: int
    kernels: int
    kernels_bytes: int
    choices: int
    choices_bytes: int
    measurements_bytes: int


class Cleared(Result, frozen=True):
    """``cache clear``."""

    compiled_removed: int
    kernels_removed: int
    measurements_removed: bool


class CachePath(Result, frozen=True):
    """``cache path``."""

    path: str
