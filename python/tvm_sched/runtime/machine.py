"""What an artifact was made with and for, and how this machine differs."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib import metadata
from typing import Any

_PACKAGES = ("tvm-sched", "apache-tvm", "apache-tvm-ffi")


class MachineWarning(UserWarning):
    """An artifact runs on another machine, or with other versions, than it was made for."""


def versions() -> dict[str, str]:
    """Versions of the packages that make and run artifacts; those that are not installed are left out."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0))


def describe(backend: str, devices: list[Mapping[str, Any]], target: str) -> dict[str, Any]:
    """What an artifact's metadata says of where it was made and what it needs."""
    return {
        "versions": versions(),
        "target": target,
        "machine": {"architecture": platform.machine(), "cores": cores()},
        "needs": {"backend": backend, "devices": [dict(device) for device in devices]},
    }


def differences(info: Mapping[str, Any]) -> list[str]:
    """How this machine differs from what an artifact says of itself, each with what to do; nothing where it says nothing."""
    result = []
    made = info.get("machine", {})
    architecture = made.get("architecture", platform.machine())
    if architecture != platform.machine():
        result.append(
            f"it was compiled on {architecture}, this machine is {platform.machine()}: compile it here, or with this "
            "machine's target"
        )
    needs = info.get("needs", {})
    devices = needs.get("devices", [])
    if needs.get("backend") == "cpu" and len(devices) > cores():
        result.append(
            f"it is scheduled over {len(devices)} CPU devices, and this process may use {cores()} cores, so devices take "
            f"turns: schedule it for cpu{cores()}, or give the process more cores"
        )
    memory = sum(device.get("arena_bytes", 0) for device in devices)
    if needs.get("backend") == "cpu" and memory > _memory():
        result.append(f"it needs {memory} bytes of memory for its buffers, and this machine has {_memory()}")
    here = versions()
    for package, version in info.get("versions", {}).items():
        if here.get(package, version).split(".")[:2] != version.split(".")[:2]:
            result.append(
                f"it was made with {package} {version}, here is {here[package]}: compile it again if it fails"
            )
    return result


def _memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
