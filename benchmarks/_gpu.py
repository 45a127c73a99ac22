"""Networks lowered for CUDA, without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tvm_sched_runtime.problem import OpGraph, Problem, Topology


def gpu_graph(make: Callable[[], Any], topology: Topology, kept: Path | None = None) -> OpGraph:
    """Lower the model that ``make`` returns for CUDA, without nvcc: register counts are assumed.

    Lowering a large network takes minutes, so the graph is stored in the file ``kept`` and read from it the next time.
    """
    if kept is not None and kept.exists():
        return Problem.load(kept).graph
    import tvm

    from tvm_sched.relax import load_model
    from tvm_sched.relax.api import model_with_name
    from tvm_sched.relax.ir.attributes import get_problem
    from tvm_sched.relax.passes import DescribeLaunches, EstimateLatencies, LowerToKernels

    archs = sorted({device.arch for device in topology.devices})
    passes = [
        LowerToKernels(device_kind="cuda", libraries=("nvidia",), archs=archs),
        DescribeLaunches(archs),
        EstimateLatencies(topology, "occupancy"),
    ]
    problem = get_problem(tvm.transform.Sequential(passes)(model_with_name(load_model(make()))))
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        problem.save(kept)
    return problem.graph
