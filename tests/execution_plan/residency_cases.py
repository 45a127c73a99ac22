"""Cases of `test_residency.py` that other tests use, too."""

import msgspec

from tvm_sched.execution_plan import emit_plan
from tvm_sched_bench.testing.shapes_only import ShapesOnly
from tvm_sched_runtime.problem import Problem


def as_bytes(problem):
    tensors = tuple(msgspec.structs.replace(t, shape=(t.size,), dtype="uint8") for t in problem.graph.tensors)
    # With plenty of memory: where there is little, buffers share it, and a warm run may wait for their readers.
    devices = tuple(msgspec.structs.replace(d, memory=1 << 40) for d in problem.topology.devices)
    topology = msgspec.structs.replace(problem.topology, devices=devices)
    return Problem(msgspec.structs.replace(problem.graph, tensors=tensors), topology, problem.costs)


def plan_of(problem, schedule):
    calls = ShapesOnly(problem.graph)
    return emit_plan(
        problem, schedule, calls, name="p", backend="emulated", functions={}, values=tuple(calls.parameters)
    )
