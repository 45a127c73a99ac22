"""Run all checks in order; check the host."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

from tvm_sched_runtime import core_library
from tvm_sched_runtime.cores import cores
from tvm_sched_runtime.problem import Topology
from tvm_sched_runtime.runtime.machine import versions

from ..cost_model.recording import record
from ..progress import Progress
from ..report.units import format_bytes
from .against import against_checks
from .artifact_checks import architecture_check, check_choice, needs_gpu, open_artifact, run_checks
from .check import Check, Diagnosis, values_check
from .gpus import gpu_checks, gpu_report


def diagnose(
    artifact: Path | None = None,
    parameters: Path | None = None,
    against: Path | None = None,
    topology: Topology | None = None,
    cuda: bool = False,
    devices: Sequence[int] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Diagnosis:
    """Check this machine, and an artifact on it.

    Parameters
    ----------
    artifact, parameters : Path, optional
        Arguments of `tvm_sched_runtime.load`; the artifact runs on random inputs.
    against : Path, optional
        Reference artifact of the same model for CPUs or emulated devices.
    topology : Topology, optional
        Topology whose bandwidths and devices are compared with this machine.
    cuda : bool
        GPUs are needed: their absence is a failure.
    devices : sequence of int, optional
        GPU of each of the artifact's devices.
    seed : int
        Seed of the random inputs.

    Raises
    ------
    InputError
        ``against`` without an artifact.
    """
    check_choice(artifact, against)
    report = progress or (lambda *_: None)
    report("the host", 0, 4)
    checks = host_checks()
    module, opened = open_artifact(artifact, parameters) if artifact is not None else (None, [])
    on_gpus = module is not None and needs_gpu(module)
    report("GPUs", 1, 4)
    checks += [*gpu_checks(cuda or on_gpus, topology), *opened]
    if module is None or any(check.status == "failure" and check.name == "driver" for check in checks):
        return Diagnosis.of(checks)
    report("the artifact", 2, 4)
    if on_gpus:
        found_gpus, _ = gpu_report()
        gpus = (found_gpus or {}).get("gpus", [])
        checks.append(architecture_check(module.info(), gpus))
        if devices is None and len(gpus) < len(module.plans()[0]["devices"]):
            devices = [d % len(gpus) for d in range(len(module.plans()[0]["devices"]))]
            text = f"its devices share the GPUs: {devices}, so that its times say little"
            checks.append(Check("artifact", "devices", "warning", text))
    checks += run_checks(module, seed, devices)
    if against is not None:
        report("values beside the CPU's", 3, 4)
        other, load_checks = open_artifact(against, None)
        checks += against_checks(module, other, seed) if other is not None else load_checks
    return Diagnosis.of(checks)


def host_checks() -> list[Check]:
    """Check the needs of every artifact: processor, memory, versions, libraries of CPU kernels."""
    host = record()
    facts = {"processor": host.processor, "architecture": platform.machine(), "cores": cores(), "memory": host.memory}
    name = f"{host.processor or 'processor unknown'} ({platform.machine()})"
    text = f"{name}, {facts['cores']} cores for this process, {format_bytes(host.memory)} of memory"
    packages = versions()
    package_versions = ", ".join(f"{package} {version}" for package, version in packages.items())
    missing = str(core_library.function("tvm_sched.why_not_onednn")())
    onednn = (
        [Check("host", "oneDNN", "warning", f"cannot be used, so TVM's kernels do its work: {missing}")]
        if missing
        else [
            Check("host", "oneDNN", "ok", "can be used"),
            values_check("host", "oneDNN", "tvm_sched.onednn_found_wrong"),
        ]
    )
    return [
        Check("host", "machine", "ok", text, facts),
        Check("host", "versions", "ok", f"Python {platform.python_version()}, {package_versions}", dict(packages)),
        *onednn,
    ]
