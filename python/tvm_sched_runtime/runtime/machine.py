"""Versions and machine of an artifact's compilation, and how this machine differs."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from numbers import Integral
from typing import Any

from .. import core_library
from .._version import __version__
from ..cores import cores
from ..errors import InputError

_MOST_THREADS = 1 << 16
_PACKAGES = ("apache-tvm", "apache-tvm-ffi")
_INSTALLED = ".dist-info"


EMULATED = "kernels and copies take the time that the plan says, and this machine's CPU computes the values"
"""Note in the metadata of artifacts for emulated devices."""


class EmulationWarning(UserWarning):
    """A model is compiled for emulated devices without an explicit request.

    Examples
    --------
    >>> from tvm_sched_runtime.runtime import EmulationWarning
    >>> issubclass(EmulationWarning, UserWarning)
    True
    """


class MachineWarning(UserWarning):
    """An artifact runs on another machine, or with other versions, than it was compiled for.

    Examples
    --------
    >>> from tvm_sched_runtime.runtime import MachineWarning
    >>> issubclass(MachineWarning, UserWarning)
    True
    """


def versions() -> dict[str, str]:
    """Return the versions of the installed packages that make and run artifacts."""
    return {"tvm-sched": __version__, **_installed(_PACKAGES)}


def _installed(packages: tuple[str, ...]) -> dict[str, str]:
    """Read versions from the folders that pip leaves, because importing `importlib.metadata` takes 25 ms."""
    heads = {f"{package.replace('-', '_')}-": package for package in packages}
    installed: dict[str, str] = {}
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            head, dash, version = name.removesuffix(_INSTALLED).partition("-")
            if name.endswith(_INSTALLED) and head + dash in heads:
                installed.setdefault(heads[head + dash], version)
    return installed


def check_threads(threads: Any) -> None:
    """Raise `InputError` for a value that is neither None nor a number of threads."""
    whole = isinstance(threads, Integral) and not isinstance(threads, bool)
    if threads is not None and not (whole and 1 <= threads <= _MOST_THREADS):
        raise InputError(f"threads is {threads!r}; allowed are 1 to {_MOST_THREADS}")


def describe(
    backend: str, devices: list[Mapping[str, Any]], target: str, needs: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return an artifact's metadata: the machine that compiled it, and what it needs in addition to ``needs``."""
    return {
        **({"emulated": EMULATED} if backend == "emulated" else {}),
        "versions": versions(),
        "target": target,
        "machine": {"architecture": platform.machine(), "cores": cores()},
        "needs": {"backend": backend, "devices": [dict(device) for device in devices], **(needs or {})},
    }


def differences(info: Mapping[str, Any]) -> list[str]:
    """Return the differences of this machine from an artifact's metadata, each with a remedy; none without metadata."""
    result = [str(each) for each in core_library.function("tvm_sched.machine_differences")(json.dumps(dict(info)))]
    here = versions()
    for package, version in info.get("versions", {}).items():
        if here.get(package, version).split(".")[:2] != version.split(".")[:2]:
            result.append(
                f"it was made with {package} {version}, here is {here[package]}: compile it again if it fails"
            )
    return result
