"""Checks of GPUs: driver, memory, peer access, NVIDIA's libraries, and copy rates compared with the topology's."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm_sched_runtime import core_library
from tvm_sched_runtime.problem import HOST, Topology

from ..report.connections import connection
from ..report.units import format_bytes, format_rate
from .check import Check, values_check

COPY_BYTES = 64 << 20
"""Bytes of the timed copies."""
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_DEVICE_MAX_CONNECTIONS")
_TOLERATED = 0.25
"""Allowed ratio of a measured bandwidth to the topology's."""
_ROUTES = {
    "from_host": "from the host",
    "to_host": "to the host",
    "from_host_both": "from the host, both directions at once",
    "to_host_both": "to the host, both directions at once",
    "within": "within",
}
"""Meanings of the rates of `tvm_sched.cuda_copy_rates`."""


def gpu_report() -> tuple[dict[str, Any] | None, str]:
    """Return the driver's report on itself and its GPUs, or None and the reason why there is none."""
    try:
        return dict(json.loads(core_library.function("tvm_sched.cuda_report")())), ""
    except RuntimeError as error:
        return None, str(error)


def gpu_checks(needed: bool, topology: Topology | None = None) -> list[Check]:
    """Run all checks that need no artifact; a missing GPU is a failure if one is ``needed``."""
    report, reason = gpu_report()
    if report is None:
        return [Check("gpu", "driver", "failure" if needed else "absent", reason)]
    version, gpus = report["driver"], report["gpus"]
    checks = [
        Check(
            "gpu", "driver", "ok", f"knows CUDA up to {version // 1000}.{version % 1000 // 10}", {"version": version}
        ),
        *(_gpu(gpu) for gpu in gpus),
        _environment(gpus),
        *_libraries(),
    ]
    if len(gpus) > 1:
        checks += [_peers(report["peers"]), iommu_check(), peer_driver_check(gpus, report["peers"])]
    if topology is not None:
        checks.append(_devices(topology, gpus))
    checks += [check for gpu in gpus for check in _copies(gpu["number"], topology)]
    pairs = [(a["number"], b["number"]) for a in gpus for b in gpus if a is not b]
    return checks + [_peer_copies(a, b, topology) for a, b in pairs if report["peers"][b][a]]


def _gpu(gpu: dict[str, Any]) -> Check:
    text = (
        f"{gpu['name']}, {gpu['arch']}, {format_bytes(gpu['memory'])} ({format_bytes(gpu['free'])} free), "
        f"{gpu['multiprocessors']} multiprocessors at up to {gpu['clock_mhz']} MHz, {gpu['copy_engines']} copy engines, "
        f"PCI {gpu['address']}"
    )
    if gpu["compute_mode"]:
        text += "; only one process or none may use it: nvidia-smi --compute-mode=0 allows any number"
    return Check("gpu", f"GPU {gpu['number']}", "warning" if gpu["compute_mode"] else "ok", text, gpu)


def _environment(gpus: list[dict[str, Any]]) -> Check:
    values = {name: os.environ.get(name) for name in _VARIABLES}
    text = ", ".join(f"{name}={value}" if value is not None else f"{name} is not set" for name, value in values.items())
    addresses = [gpu["address"] for gpu in gpus]
    if addresses != sorted(addresses):
        text += "; GPUs are not numbered as nvidia-smi does, which CUDA_DEVICE_ORDER=PCI_BUS_ID changes"
    return Check("gpu", "environment", "ok", text, values)


def _libraries() -> list[Check]:
    checks = []
    for library in json.loads(core_library.function("tvm_sched.nvidia_libraries")()):
        if library["problem"]:
            checks.append(
                Check("gpu", library["name"], "warning", f"artifacts that call it cannot run: {library['problem']}")
            )
        else:
            text = f"version {library['version']}, {library['file']}"
            details = {name: library[name] for name in ("version", "file")}
            checks.append(Check("gpu", library["name"], "ok", text, details))
    return [*checks, values_check("gpu", "cuBLASLt and cuDNN", "tvm_sched.nvidia_found_wrong")]


def _peers(peers: list[list[bool]]) -> Check:
    rows = ["".join("x" if can else "." for can in row) for row in peers]
    apart = any("." in row for row in rows)
    text = f"access each other's memory (a row for each GPU): {' '.join(rows)}"
    if apart:
        text += "; copies between the others go through the host's memory"
    return Check("gpu", "peers", "ok", text, {"matrix": peers})


def iommu_check(root: Path = Path("/")) -> Check:
    """Check whether an IOMMU is on without virtualisation: NVIDIA's driver then supports no copies between PCIe peers.

    CUDA C++ Programming Guide, "IOMMU on Linux": such copies may end with wrong bytes.
    """
    units = sorted(unit.name for unit in (root / "sys/class/iommu").glob("*"))
    try:
        virtual = "hypervisor" in (root / "proc/cpuinfo").read_text()
    except OSError:
        virtual = False
    if not units or virtual:
        return Check("gpu", "IOMMU", "ok", "in a virtual machine" if virtual else "off", {"units": units})
    text = (
        f"on ({', '.join(units)}), without virtualisation: NVIDIA's driver does not support copies between PCIe peers then, "
        "and bytes may arrive wrong; turn it off in the firmware or by the kernel's option iommu=off"
    )
    return Check("gpu", "IOMMU", "warning", text, {"units": units})


@dataclass(frozen=True)
class _DriverProblem:
    """Copies between GPUs that are known to corrupt bytes: which kernel module, GPUs, and where it is told."""

    module: str
    """Regular expression for the line of ``/proc/driver/nvidia/version`` that names the kernel module."""
    gpu: str
    """Regular expression for a GPU's name."""
    told: str


_DRIVER_PROBLEMS = (
    _DriverProblem(
        r"Open Kernel Module.* 580\.142\b",
        r"RTX 6000 Ada",
        "copies between these GPUs return wrong bytes without an error (NVIDIA/open-gpu-kernel-modules, issue 1257)",
    ),
    _DriverProblem(
        r"",
        r"GeForce RTX [45]0[0-9]0",
        "NVIDIA's drivers give GeForce RTX 40 and 50 no peer access; early ones of branch 525, and changed kernel "
        "modules that give it, have corrupted bytes (pytorch/pytorch, issue 84803; aikitoria/open-gpu-kernel-modules, "
        "issues 8 and 11)",
    ),
)


def peer_driver_check(gpus: list[dict[str, Any]], peers: list[list[bool]], root: Path = Path("/")) -> Check:
    """Check whether copies between these GPUs are known to corrupt bytes with this driver."""
    try:
        lines = (root / "proc/driver/nvidia/version").read_text().splitlines()
    except OSError:
        lines = []
    module = (
        next((line for line in lines if line.startswith("NVRM version:")), "").removeprefix("NVRM version:").strip()
    )
    paired = [gpu for gpu, row in zip(gpus, peers, strict=True) if sum(row) > 1]
    for problem in _DRIVER_PROBLEMS:
        hit = [str(gpu["number"]) for gpu in paired if re.search(problem.gpu, gpu["name"])]
        if hit and re.search(problem.module, module):
            text = (
                f"GPUs {', '.join(hit)}, {module or 'driver of unknown version'}: {problem.told}. Runs compare bytes when "
                "they open the GPUs, and copy through the host where these differ; another driver, or "
                "TVM_SCHED_PEERS=never, is safer"
            )
            return Check("gpu", "driver and peers", "warning", text, {"module": module})
    text = f"no known trouble with copies between GPUs ({module or 'the kernel module does not say its version'})"
    return Check("gpu", "driver and peers", "ok", text, {"module": module})


def _devices(topology: Topology, gpus: list[dict[str, Any]]) -> Check:
    """Check that the topology's devices are the GPUs of this machine, in their order."""
    wanted = [device for device in topology.devices if device.kind == "cuda"]
    if len(wanted) > len(gpus):
        text = f"topology {topology.name!r} has {len(wanted)} GPUs, and this process may use {len(gpus)}"
        return Check(
            "gpu", "topology", "warning", f"{text}: several devices then share one, and predictions do not hold"
        )
    other = [
        f"{device.name} is {device.model or device.arch} in topology {topology.name!r}, and GPU {gpu['number']} is "
        f"{gpu['name']}, {gpu['arch']}"
        for device, gpu in zip(wanted, gpus, strict=False)
        if device.arch not in ("", gpu["arch"]) or device.memory > 1.05 * gpu["memory"]
    ]
    if other:
        todo = "tvm-sched topology detect describes this machine"
        return Check("gpu", "topology", "warning", f"{'; '.join(other)}: predictions do not hold; {todo}")
    return Check("gpu", "topology", "ok", f"the devices of {topology.name!r} are like the GPUs that are there")


def _copies(gpu: int, topology: Topology | None) -> list[Check]:
    """Check the copies between pinned memory and a GPU."""
    name = f"copies of GPU {gpu}"
    try:
        rates = core_library.function("tvm_sched.cuda_copy_rates")(gpu, COPY_BYTES)
    except RuntimeError as error:
        return [Check("gpu", name, "failure", str(error))]
    measured = {words: float(rates[route]) for route, words in _ROUTES.items()}
    text = ", ".join(f"{route} {format_rate(rate)}" for route, rate in measured.items())
    status, difference = _compare_rate(rates["from_host"], gpu, HOST, topology, down=True)
    return [Check("gpu", name, status, text + difference, measured)]


def _peer_copies(source: int, target: int, topology: Topology | None) -> Check:
    name = f"copies from GPU {source} to GPU {target}"
    try:
        rates = {
            k: float(v)
            for k, v in core_library.function("tvm_sched.cuda_peer_rates")(source, target, COPY_BYTES).items()
        }
    except RuntimeError as error:
        return Check("gpu", name, "failure", str(error))
    if not rates["right"]:
        text = (
            f"bytes arrive wrong, although the driver says that they are peers; runs copy through the host, "
            f"{format_rate(rates['staged'])}. See the checks IOMMU and of the driver, switch off PCIe's ACS in the "
            "firmware, or update the driver; TVM_SCHED_PEERS=never stops runs from trying"
        )
        return Check("gpu", name, "failure", text, rates)
    if not rates["pulled"]:
        text = f"no access, runs copy through the host, {format_rate(rates['staged'])}"
        return Check("gpu", name, "ok", text, rates)
    status, difference = _compare_rate(rates["pulled"], source, target, topology)
    text = (
        f"{format_rate(rates['pulled'])} by the receiver, {format_rate(rates['pushed'])} by the sender, "
        f"{format_rate(rates['staged'])} through the host"
    )
    return Check("gpu", name, status, text + difference, rates)


def _compare_rate(rate: float, gpu: int, other: int, topology: Topology | None, down: bool = False) -> tuple[Any, str]:
    """Compare a measured rate with the topology's rate of the same route."""
    devices = [] if topology is None else [d for d in topology.devices if d.kind == "cuda" and d.bus]
    if topology is None or max(gpu, other) >= len(devices):
        return "ok", ""
    ends = [HOST if end == HOST else topology.device_id[devices[end].name] for end in (gpu, other)]
    expected = connection(topology, *(reversed(ends) if down else ends)).bandwidth
    if not expected:
        return "ok", ""
    text = f"; topology {topology.name!r} says {format_rate(expected)}"
    if abs(rate / expected - 1) <= _TOLERATED:
        return "ok", text
    return "warning", f"{text}: tvm-sched topology detect measures it for predictions that hold"
