"""Occupancy, cubins, and how operators together share a device."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tvm_sched.cost_model import costs
from tvm_sched.cost_model.cubin import CompiledKernel, read_cubin
from tvm_sched.cost_model.occupancy_model import occupancy, occupancy_share
from tvm_sched_runtime.errors import CostsError, FormatError
from tvm_sched_runtime.problem import MULTIPROCESSORS, Device, KernelResources, Operator, OpGraph, Tensor, Topology

A40 = Device("gpu0", 10**9, 1e12, {"float32": 1e12}, model="A40", arch="sm_86")


def test_blocks_on_a_multiprocessor_by_hand():
    v100 = MULTIPROCESSORS["sm_70"]
    assert v100.resident(KernelResources(1, 256, 32)) == 8  # 2048 threads; 8192 registers each
    assert v100.resident(KernelResources(1, 256, 65)) == 3  # 72 registers a thread: 18432 a block
    assert v100.resident(KernelResources(1, 256, 32, 48 * 1024)) == 2
    assert v100.resident(KernelResources(1, 32, 16)) == 32


def test_the_share_of_an_a40():
    # 6 blocks of 256 threads on each of 84 multiprocessors.
    assert occupancy_share(A40, KernelResources(252, 256)) == 0.5
    assert occupancy_share(A40, KernelResources(5000, 256)) == 1
    assert occupancy_share(Device("x", 1, 1.0, {"float32": 1.0}), KernelResources(1, 32)) == 1
    with pytest.raises(CostsError, match="does not fit"):
        occupancy_share(A40, KernelResources(1, 256, 32, 1 << 20))
    with pytest.raises(CostsError, match="blocks is 0"):
        KernelResources(0, 256)


def test_operators_share_by_the_resource_that_runs_out():
    # 1 GFLOP at 1 TFLOP/s: 1 ms of arithmetic alone; 0.25 GB at 1 TB/s: a quarter of that time of bandwidth.
    graph = OpGraph(
        "g",
        (Operator("f", outputs=("a",), flops=10**9), Operator("m", outputs=("b",))),
        (Tensor("a", 4 * 10**6), Tensor("b", 10**9)),
    )
    topology = Topology("t", (A40,))
    kernels = {"f": KernelResources(126, 256), "m": KernelResources(126, 256)}
    found = occupancy(graph, topology, kernels)
    assert found.operator_ns.tolist() == [[10**6], [10**6]]
    assert found.concurrency is not None
    assert np.allclose(found.concurrency.utilisation[:, 0], [[0.25, 1, 0.004], [0.25, 1e-6, 1]])
    with pytest.raises(CostsError, match="no 'm'"):
        occupancy(graph, topology, {"f": kernels["f"]})
    assert costs(graph, topology, "occupancy").source == "occupancy"


SOURCE = """
extern "C" __global__ void __launch_bounds__(256) reverse(float* y, const float* x) {
  __shared__ float part[512];
  part[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = part[255 - threadIdx.x];
}
"""


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not here to compile a kernel")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])  # they keep registers in different places
def test_a_cubin_of_nvcc(tmp_path, arch):
    (tmp_path / "kernel.cu").write_text(SOURCE)
    cubin = tmp_path / "kernel.cubin"
    command = ["nvcc", f"-arch={arch}", "-cubin", "-Xptxas", "-v", "-o", str(cubin), str(tmp_path / "kernel.cu")]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    kernel = read_cubin(cubin)["reverse"]
    assert kernel == CompiledKernel(kernel.registers, 2048, 256)
    assert f"Used {kernel.registers} registers" in said
    assert "2048 bytes smem" in said


def test_resident_blocks_are_those_that_the_driver_of_an_h100_names():
    data = json.loads((Path(__file__).parents[2] / "benchmarks/data/h100_concurrency.json").read_text())
    rows = data["occupancy"]["rows"]
    assert len(rows) == 784
    for registers, threads, shared, resident in rows:
        assert MULTIPROCESSORS["sm_90"].resident(KernelResources(1, threads, registers, shared)) == resident


def test_what_is_no_cubin(tmp_path):
    (tmp_path / "x").write_bytes(b"hello" * 30)
    with pytest.raises(FormatError, match="not a cubin"):
        read_cubin(tmp_path / "x")
    (tmp_path / "y").write_bytes(b"\x7fELF")
    with pytest.raises(FormatError, match="not a cubin"):
        read_cubin(tmp_path / "y")
