"""Results of the command on runtimes of others."""

from __future__ import annotations

from typing import Any

from .base import Result


class DeviceMemory(Result, frozen=True):
    """What a split takes of a device's memory, and what it may, in bytes."""

    device: str
    bytes: int
    limit: int


class Split(Result, frozen=True):
    """A split and what it takes, in nanoseconds."""

    split: str
    total_ns: int
    phase_ns: dict[str, int]
    fits: bool
    memory: list[DeviceMemory]


class Planned(Result, frozen=True):
    """``plan``: our split beside those of the runtime."""

    runtime: str
    model: str
    topology: str
    costs: str
    measure: str
    ours: Split
    defaults: list[Split]
    lower_bound_ns: int
    bound: str
    gap: float
    on_gpus: bool
    settings: dict[str, Any]
    notes: list[str]
    limits: list[str]
    files: list[str]
