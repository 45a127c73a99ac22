"""Further cases of `test_fake_cuda`: what `tvm_sched.doctor` says of artifacts for GPUs."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from fake_cuda_cases import driver, main, modules, register

from tvm_sched.doctor import gpus
from tvm_sched.doctor.against import against_checks
from tvm_sched.doctor.artifact_checks import architecture_check, run_checks
from tvm_sched.doctor.gpus import gpu_checks, gpu_report


def by_name(checks):
    return {check.name: check for check in checks}


def artifacts_are_healthy() -> None:
    """Values, times, graphs, and each kernel beside the CPU's."""
    compared = 0
    for seed in range(5):
        cpu, gpu, _, _ = modules(seed)
        checks = by_name([*run_checks(gpu), *against_checks(gpu, cpu)])
        assert {check.status for check in checks.values()} == {"ok"}, checks
        assert {"values", "latency", "kernels", "graph"} <= set(checks)
        kernels = [step for step in gpu.plans()[0]["steps"] if step["kind"] == "kernel"]
        assert len(checks["kernels"].data["kernels"]) == len(kernels)
        compared += len(checks["kernels beside the CPU's"].data["compared"])
    assert compared > 20


def faults_are_told() -> None:
    """A kernel with other values than the CPU's, a run that fails, a GPU without kernels."""
    cpu, gpu, _, _ = modules(2)
    kernel = next(step for step in gpu.plans()[0]["steps"] if step["kind"] == "kernel")
    register(kernel["function"], 0, only="cuda")
    wrong = by_name(against_checks(gpu, cpu))
    assert wrong["kernels beside the CPU's"].status == "failure"
    assert kernel["function"] in wrong["kernels beside the CPU's"].text
    driver.fake_cuda_fail(b"cuStreamQuery", 2, 700)
    (failed,) = run_checks(gpu)
    assert failed.status == "failure"
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in failed.text
    gpus = [{"number": 0, "arch": "sm_80"}, {"number": 1, "arch": "sm_90"}]
    for binaries, ptx, status in (
        (["sm_80"], None, "failure"),
        (["sm_80"], "compute_80", "ok"),
        (["sm_80", "sm_90"], None, "ok"),
        (["sm_86", "sm_90"], None, "failure"),
        (["sm_90"], "compute_90", "failure"),
    ):
        info = {"needs": {"cuda": {"architectures": binaries, "ptx": ptx}}}
        assert architecture_check(info, gpus).status == status, (binaries, ptx)


def machines_are_described() -> None:
    gpus.COPY_BYTES = 1 << 16
    report, _ = gpu_report()
    assert [gpu["address"] for gpu in report["gpus"]] == ["0000:01:00.0", "0000:02:00.0", "0000:03:00.0"]
    assert report["peers"] == [[True, False, False], [False, True, False], [False, False, True]]
    checks = by_name(gpu_checks(needed=True))
    assert {checks[f"GPU {n}"].status for n in range(3)} == {"ok"}
    assert "x.. .x. ..x" in checks["peers"].text
    assert len(checks["copies of GPU 2"].data) == 5
    assert min(checks["copies of GPU 2"].data.values()) > 0
    driver.fake_cuda_fail(b"cuMemcpyAsync", 3, 700)
    assert by_name(gpu_checks(needed=True))["copies of GPU 0"].status == "failure"


def peers_that_corrupt_bytes_are_told() -> None:
    gpus.COPY_BYTES = 1 << 16
    os.environ["TVM_SCHED_PEERS"] = "try"
    driver.fake_cuda_spoil_peers(1)
    checks = by_name(gpu_checks(needed=True))
    for name in ("copies from GPU 0 to GPU 1", "copies from GPU 1 to GPU 0"):
        assert checks[name].status == "failure"
        assert "bytes arrive wrong" in checks[name].text
        assert checks[name].data["pulled"] == 0 < checks[name].data["staged"]


def rates_between_gpus_are_told() -> None:
    gpus.COPY_BYTES = 1 << 16
    for policy in ("try", "trust"):
        os.environ["TVM_SCHED_PEERS"] = policy
        check = by_name(gpu_checks(needed=True))["copies from GPU 0 to GPU 1"]
        assert check.status == "ok"
        assert min(check.data.values()) > 0
    os.environ["TVM_SCHED_PEERS"] = "never"
    check = by_name(gpu_checks(needed=True))["copies from GPU 0 to GPU 1"]
    assert "through the host" in check.text
    assert check.data["pulled"] == check.data["pushed"] == 0 < check.data["staged"]


def an_iommu_without_virtualisation_is_told() -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        assert gpus.iommu_check(root).status == "ok"
        (root / "sys/class/iommu/dmar0").mkdir(parents=True)
        (root / "proc").mkdir()
        (root / "proc/cpuinfo").write_text("flags : fpu vme")
        found = gpus.iommu_check(root)
        assert found.status == "warning"
        assert "dmar0" in found.text
        (root / "proc/cpuinfo").write_text("flags : fpu hypervisor vme")
        assert gpus.iommu_check(root).status == "ok"
        version = root / "proc/driver/nvidia/version"
        version.parent.mkdir(parents=True)
        open_module = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build\nGCC version: 12\n"
        for number, name, joined, status in (
            ("580.142", "NVIDIA RTX 6000 Ada Generation", True, "warning"),
            ("580.142", "NVIDIA RTX 6000 Ada Generation", False, "ok"),
            ("580.159.04", "NVIDIA RTX 6000 Ada Generation", True, "ok"),
            ("580.142", "NVIDIA H100 80GB HBM3", True, "ok"),
            ("595.71.05", "NVIDIA GeForce RTX 5090", True, "warning"),
            ("595.71.05", "NVIDIA GeForce RTX 5090", False, "ok"),
        ):
            version.write_text(open_module.format(number))
            here = [{"number": n, "name": name} for n in range(2)]
            peers = [[True, joined], [joined, True]]
            check = gpus.peer_driver_check(here, peers, root)
            assert (check.status, number in check.text) == (status, True), check
        version.unlink()
        assert gpus.peer_driver_check(here, peers, root).status == "ok"
    assert {"IOMMU", "driver and peers"} <= set(by_name(gpu_checks(needed=True)))


if __name__ == "__main__":
    main(globals())
