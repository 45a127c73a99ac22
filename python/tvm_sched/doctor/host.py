"""Checks of the host: processor, memory, versions, libraries of CPU kernels."""

from __future__ import annotations

import platform

from .. import _library
from ..cores import cores
from ..cost_model.recording import record
from ..report.units import format_bytes
from ..runtime.machine import versions
from .check import Check


def host_checks() -> list[Check]:
    """Checks of what every artifact needs."""
    found = record()
    facts = {"processor": found.processor, "architecture": platform.machine(), "cores": cores(), "memory": found.memory}
    name = f"{found.processor or 'processor unknown'} ({platform.machine()})"
    text = f"{name}, {facts['cores']} cores for this process, {format_bytes(found.memory)} of memory"
    packages = versions()
    package_versions = ", ".join(f"{package} {version}" for package, version in packages.items())
    missing = str(_library.function("tvm_sched.why_not_onednn")())
    onednn = (
        Check("host", "oneDNN", "warning", f"cannot be used, so TVM's kernels do its work: {missing}")
        if missing
        else Check("host", "oneDNN", "ok", "can be used")
    )
    return [
        Check("host", "machine", "ok", text, facts),
        Check("host", "versions", "ok", f"Python {platform.python_version()}, {package_versions}", dict(packages)),
        onednn,
    ]
