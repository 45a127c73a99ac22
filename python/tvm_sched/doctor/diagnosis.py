"""Run all checks in order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..problem import Topology
from ..progress import Progress
from .against import against_checks
from .artifact_checks import architecture_check, check_choice, needs_gpu, open_artifact, run_checks
from .check import Check, Diagnosis
from .gpus import gpu_checks, gpu_report
from .host import host_checks


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
    """Look at this machine, and at an artifact on it.

    Parameters
    ----------
    artifact, parameters : Path, optional
        What `tvm_sched.runtime.load` takes; it is run on random inputs.
    against : Path, optional
        An artifact of the same model for CPUs or emulated devices, whose values are the right ones.
    topology : Topology, optional
        Whose bandwidths and devices are compared with what is there.
    cuda : bool
        GPUs are needed: their absence is a failure.
    devices : sequence of int, optional
        GPU of each of the artifact's devices.
    seed : int
        Of random inputs.
    progress : callable, optional

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
        found, _ = gpu_report()
        gpus = (found or {}).get("gpus", [])
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
