"""Latency on a GPU of what each stream allocator gives, as CUDA graphs, beside PyTorch's CUDA graph, batch 1 to 32.

Needs a GPU, nvcc and the CUDA driver; says so and ends where they are missing. Every method has the same kernels and the
same launch order (Opara's), ours too, and runs as one captured graph: they differ in streams and waits alone. "ours" is
the allocation that the simulator finds fastest. Inputs are copied to the GPU by ours in each run; by PyTorch they are not.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from _common import Row, parser, report
from stream_allocation import MODELS

BATCHES = (1, 2, 4, 8, 16, 32)
METHODS = {"sequential": "one", "nimble": "nimble", "wavefront": "wavefront", "opara": "opara", "ours": "best"}


def why_not() -> str:
    """Why nothing can be measured here; empty where it can."""
    from tvm_sched.errors import TvmSchedError
    from tvm_sched.relax.codegen.cuda import find_nvcc

    try:
        if status := ctypes.CDLL("libcuda.so.1").cuInit(0):
            return f"there is no GPU: cuInit gave {status}"
        find_nvcc()
    except (OSError, TvmSchedError) as error:
        return f"there is no GPU to compile for and run on: {error}"
    return ""


def one_gpu() -> Any:
    """The first GPU of this machine, its parameters on the device from the second run on."""
    from tvm_sched.cost_model.detect import to_topology
    from tvm_sched.cost_model.recording import record

    found = to_topology(record())
    (first, *_) = [device for device in found.devices if device.kind == "cuda"]
    buses = tuple(bus for bus in found.buses if bus.name == first.bus)
    return msgspec.structs.replace(found, name="one GPU", devices=(first,), buses=buses, links=(), switches=())


def median_ms(run: Callable[[], object], seconds: float = 1.0) -> float:
    times: list[float] = []
    for _ in range(5):
        run()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 20:
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times)


def ours(model: Any, topology: Any, method: str) -> Callable[[], object]:
    """A run of the model with the streams that a method gives."""
    from tvm_sched.relax import compile, make_problem
    from tvm_sched.runtime.tensors import random_value
    from tvm_sched.schedulers import solve
    from tvm_sched.streams import allocate_streams, order_launches

    problem = make_problem(model, topology, cost_model="occupancy", backend="cuda")
    schedule = allocate_streams(problem, order_launches(problem, solve(problem, method="single")), method)
    compiled = compile(model, topology, schedule=schedule, cost_model="occupancy", backend="cuda")
    compiled.module.configure(graph=True, resident=1.0)
    rng = np.random.default_rng(0)
    values = [random_value(rng, argument) for argument in compiled.module.plans()[0]["arguments"]]
    return lambda: compiled.module.run(*values)


def pytorch(model: Any) -> Callable[[], object] | None:
    """A replay of PyTorch's CUDA graph of an exported program; None where PyTorch has no GPU, or the model is another's."""
    import torch

    if not torch.cuda.is_available() or not isinstance(model, torch.export.ExportedProgram):
        return None
    module = model.module().cuda()
    inputs = [value.cuda() for value in model.example_inputs[0]]
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        for _ in range(3):
            module(*inputs)
        with torch.cuda.graph(graph):
            module(*inputs)

    def run() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return run


def main() -> None:
    given = parser(__doc__ or "", models=False).parse_args()
    reason = why_not()
    if reason:
        print(f"skipped: {reason}")
        return
    topology = one_gpu()
    rows: list[Row] = []
    for name, make in list(MODELS.items())[: 1 if given.quick else None]:
        for batch in BATCHES[: 1 if given.quick else None]:
            model, case = make(batch), f"{name}, batch {batch}"
            peer = pytorch(model)
            beside = median_ms(peer) if peer else None
            for method, allocator in METHODS.items():
                figure = median_ms(ours(model, topology, allocator))
                rows.append(Row(case, method, figure, "ms", beside, "PyTorch's CUDA graph" if beside else ""))
    report(f"Streams on {topology.devices[0].model}", rows, given.json, given.markdown)


if __name__ == "__main__":
    main()
