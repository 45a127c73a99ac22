"""What `test_fake_cuda` runs, each in a process of its own: the CUDA backend through Python over a driver without a GPU.

Kernels are Python functions that are put into the order of their stream, as real kernels are, so values are right only if
events are.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import time
from typing import Any

import msgspec
import numpy as np
import pytest
from runtime_plans import PlanBuilder, in_threads

from tvm_sched.execution_plan import emit_plan
from tvm_sched_bench.testing import random_concurrency, random_problem, random_schedule, random_stages, random_streams
from tvm_sched_bench.testing.shapes_only import ShapesOnly
from tvm_sched_runtime import core_library, startup
from tvm_sched_runtime.errors import ExecutionError
from tvm_sched_runtime.problem import Bus, Concurrency, Costs, Device, Operator, OpGraph, Problem, Tensor, Topology
from tvm_sched_runtime.runtime import ScheduledModule, make_module, to_numpy
from tvm_sched_runtime.schedule import Placement, Schedule, Transfer

tvm_ffi = startup.ffi()  # without PyTorch, which takes longer than most of these
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
driver = ctypes.CDLL(os.environ["TVM_SCHED_CUDA_DRIVER"])
driver.fake_cuda_enqueue.argtypes = [ctypes.c_void_p, CALLBACK, ctypes.c_void_p]
driver.fake_cuda_fail.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int]
driver.fake_cuda_lose.argtypes = [ctypes.c_char_p, ctypes.c_int]
driver.fake_cuda_trace.argtypes = [ctypes.c_char_p, ctypes.c_int]
driver.fake_cuda_calls.argtypes = [ctypes.c_char_p]
driver.fake_cuda_allocated.restype = ctypes.c_longlong
alive: list[Any] = []  # callbacks, which a graph calls again
kernel_seconds = 0.0


def calls(name: str) -> int:
    return int(driver.fake_cuda_calls(name.encode()))


class Access(ctypes.Structure):
    """``FakeCudaAccess``."""

    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_ulonglong), ("written", ctypes.c_int))


def note_kernels(*accesses: tuple[int, int, bool]) -> None:
    """What kernels touch that this thread launches from now on: address, bytes, whether they are written."""
    driver.tvm_sched_kernel_accesses((Access * len(accesses))(*accesses), len(accesses))


def conflict() -> str:
    """What two operations touch that no order has; empty where there are none."""
    text = ctypes.create_string_buffer(1000)
    return text.value.decode() or "?" if driver.fake_cuda_conflicts(text, len(text)) else ""


def main(cases: dict[str, Any]) -> None:
    """Run the case that the command line names; operations without order fail it, whatever the values were."""
    cases[sys.argv[1]]()
    if text := conflict():
        sys.exit(text)


def view(tensor: Any) -> np.ndarray[Any, Any]:
    """The array of a tensor, also where that says that it is on a GPU."""
    if tensor.device.type == "cpu":
        return to_numpy(tensor)
    dtype = np.dtype(str(tensor.dtype))
    size = int(np.prod(tensor.shape)) * dtype.itemsize
    memory = (ctypes.c_char * max(size, 1)).from_address(tensor.data_ptr())
    return np.frombuffer(memory, dtype, int(np.prod(tensor.shape))).reshape(tensor.shape)


def on_stream(tensor: Any, work: Any) -> None:
    if tensor.device.type == "cpu":
        work()
        return
    callback = CALLBACK(lambda _: work())
    alive.append(callback)
    stream = tvm_ffi.get_raw_stream(tensor.device)
    assert driver.fake_cuda_enqueue(stream, callback, None) == 0


def register(name: str, inputs: int, only: str = "") -> None:
    """A kernel whose outputs depend on each byte of its inputs and on its name; with ``only``, on one kind of device."""
    former = tvm_ffi.get_global_func(name, allow_missing=True)

    def kernel(*tensors: Any) -> None:
        if only and tensors[-1].device.type != only:
            return former(*tensors)
        arrays = [view(tensor) for tensor in tensors]

        def work() -> None:
            time.sleep(kernel_seconds)
            total = sum(name.encode())
            for position, array in enumerate(arrays[:inputs]):
                total += int((array.astype(np.int64) * (1 + np.arange(array.size) % 97)).sum()) * (position + 1)
            for position, array in enumerate(arrays[inputs:]):
                array[...] = (total + position + np.arange(array.size)) % 251

        on_stream(tensors[-1], work)

    tvm_ffi.register_global_func(name, kernel, override=True)


def as_bytes(problem: Problem) -> Problem:
    tensors = tuple(msgspec.structs.replace(t, shape=(t.size,), dtype="uint8") for t in problem.graph.tensors)
    return Problem(msgspec.structs.replace(problem.graph, tensors=tensors), problem.topology, problem.costs)


def modules(
    seed: int, devices: int = max(4, int(os.environ["FAKE_CUDA_DEVICES"])), problem: Problem | None = None
) -> tuple[ScheduledModule, ScheduledModule, list[Any], dict[str, Any]]:
    """One random schedule for the CPU and for GPUs, with streams or stages two times of three, inputs, and parameters."""
    problem = problem or random_concurrency(
        as_bytes(random_problem(seed, 5 + seed % 20, devices, memory="generous", style="bus")), seed
    )
    schedule = random_schedule(problem, seed)
    if seed % 3:
        schedule = (random_streams if seed % 3 == 1 else random_stages)(problem, schedule, seed)
    graph = ShapesOnly(problem.graph)
    for operator in problem.graph.operators:
        register(operator.name, len(operator.inputs))
    random = np.random.default_rng(seed)
    values = {t.name: random.integers(0, 256, t.shape, "uint8") for t in problem.graph.tensors}
    parameters = {name: values[name] for name in graph.parameters}
    made = []
    for backend in ("cpu", "cuda"):
        plan = emit_plan(
            problem, schedule, graph, name="p", backend=backend, functions={}, values=tuple(graph.parameters)
        )
        used = {spec["name"] for spec in plan["parameters"]}
        embedded = {name: value for name, value in parameters.items() if name in used}
        made.append(ScheduledModule(make_module([plan], {}, embedded)))
    inputs = [values[spec["name"]] for spec in made[0].plans()[0]["arguments"]]
    return made[0], made[1], inputs, embedded


def same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def values_equal_the_cpus() -> None:
    direct = streams = 0
    for seed in range(12):
        cpu, gpu, inputs, _ = modules(seed)
        expected = cpu.run(*inputs)
        if os.environ["FAKE_CUDA_DEVICES"] == "1":
            gpu.configure(devices=[0, 0, 0, 0])
        for _ in range(2):
            same(gpu.run(*inputs), expected)
        same(gpu.run(*[value ^ 1 for value in inputs]), cpu.run(*[value ^ 1 for value in inputs]))
        assert gpu.latency() > 0
        plan = gpu.plans()[0]
        direct += any(step["kind"] == "host_read" for step in plan["steps"])
        streams += sum("device" in queue for queue in plan["queues"]) > len(plan["devices"])
    assert direct > 0, "no schedule reads parameters where they lie"
    several = 5 if len(plan["devices"]) == 4 else 0
    assert streams > several, "too few schedules have several streams on a device"
    peers = os.environ.get("FAKE_CUDA_PEERS") != "0" and os.environ["FAKE_CUDA_DEVICES"] != "1"
    assert (calls("copy between GPUs") > 0) == peers


def graphs_give_the_same_values() -> None:
    for seed in range(8):
        cpu, gpu, inputs, parameters = modules(seed)
        before = calls("cuGraphLaunch")
        gpu.configure(graph=True)
        for turn in range(4):
            changed = [value ^ turn for value in inputs]
            same(gpu.run(*changed), cpu.run(*changed))
        assert calls("cuGraphLaunch") == before + 3, "the first run is issued, the others replayed"
        if not parameters:
            continue
        name, value = next(iter(parameters.items()))  # a new value: issued, then captured anew
        for module in (cpu, gpu):
            module.set_parameter(name, value ^ 255)
        for _ in range(3):
            same(gpu.run(*inputs), cpu.run(*inputs))
        assert calls("cuGraphLaunch") == before + 5


def graphs_note_the_branch_first_that_shall_start_last() -> None:
    """Of branches that are ready together a graph starts the one that was captured last first, as an H100 does."""
    names = ("fork", "a", "b", "c", "join")
    tensors = tuple(Tensor(f"t{name}", 64, shape=(64,), dtype="uint8") for name in names)
    operators = (
        Operator("fork", "relu", ("x",), ("tfork",)),
        *(Operator(name, "relu", ("tfork",), (f"t{name}",)) for name in "abc"),
        Operator("join", "relu", ("ta", "tb", "tc"), ("tjoin",)),
    )
    x = Tensor("x", 64, kind="input", shape=(64,), dtype="uint8")
    graph = OpGraph("g", operators, (x, *tensors), ("tjoin",))
    gpu = Device("gpu0", 10**9, 1e12, {"float32": 1e13}, bus="bus")
    together = Concurrency(np.full((5, 1, 1), 0.2))
    topology = Topology("one", (gpu,), (Bus("bus", 1e10),))
    problem = Problem(graph, topology, Costs(np.full((5, 1), 1000), concurrency=together))
    streams = dict(zip(names, (0, 0, 1, 2, 0), strict=True))
    placements = tuple(Placement(name, "gpu0", stream=streams[name]) for name in names)
    schedule = Schedule(problem.digest, placements, (Transfer("load", "gpu0", "x"),))
    called: list[str] = []
    for operator in operators:
        register(operator.name, len(operator.inputs))
        done = tvm_ffi.get_global_func(operator.name)

        def noted(*arguments: Any, name: str = operator.name, done: Any = done) -> None:
            called.append(name)
            done(*arguments)

        tvm_ffi.register_global_func(operator.name, noted, override=True)
    plan = emit_plan(problem, schedule, ShapesOnly(graph), name="p", backend="cuda", functions={}, values=())
    module = ScheduledModule(make_module([plan], {}, {}))
    module.configure(graph=True)
    value = np.arange(64, dtype="uint8")
    first = module.run(value)
    assert (called[0], sorted(called[1:4]), called[4:]) == ("fork", ["a", "b", "c"], ["join"]), (
        "a thread issues each stream"
    )
    called.clear()
    same(module.run(value), first)
    assert called == ["fork", "c", "b", "a", "join"], "captured the other way round"
    called.clear()
    same(module.run(value), first)
    assert called == [], "replayed"


def warm_runs_move_nothing() -> None:
    moved = 0
    for seed in range(8):
        cpu, gpu, inputs, _ = modules(seed)
        expected = cpu.run(*inputs)
        for graph in (False, True):
            gpu.configure(resident=1.0, graph=graph, trace=not graph)
            same(gpu.run(*inputs), expected)
            if not graph:
                cold = len(gpu.timeline()["events"])
            for _ in range(3):
                same(gpu.run(*inputs), expected)
            if not graph:
                moved += cold - len(gpu.timeline()["events"])
    assert moved > 0


def instances_share_parameters() -> None:
    cpu, gpu, inputs, _ = modules(3)
    gpu.configure(instances=3)
    expected = {turn: cpu.run(*[value ^ turn for value in inputs]) for turn in range(4)}

    def work(turn: int) -> None:
        for _ in range(3):
            same(gpu.run(*[value ^ turn for value in inputs]), expected[turn])

    assert not in_threads(work)


def relay(backend: str = "cuda") -> PlanBuilder:
    """x to the first device, its sum with itself, to the second device, and back."""
    builder = PlanBuilder("relay", backend)
    builder.plan["queues"].append({"name": "results"})
    x, out = builder.argument("x", [4], "uint8"), builder.output([4], "uint8")
    here, sum_, there = builder.arena(0, [4], "uint8"), builder.arena(0, [4], "uint8"), builder.arena(1, [4], "uint8")
    first = builder.copy(x, here, name="x")
    second = builder.kernel(0, "relay_sum", [here], [sum_], [first])
    third = builder.copy(sum_, there, [second], name="s")
    builder.copy(there, out, [third], name="out")
    register("relay_sum", 1)
    return builder


def expect(kind: type[Exception], text: str, call: Any) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        call()


def faults_name_their_cause() -> None:
    x = np.arange(4, dtype="uint8")
    (expected,) = relay("cpu").module().run(x)
    module = relay().module()
    driver.fake_cuda_fail(b"copy between GPUs", 0, 1)
    expect(ExecutionError, 'transfer of "s" (step 2', lambda: module.run(x))
    same(module.run(x), [expected])
    driver.fake_cuda_fail(b"cuStreamQuery", 0, 700)
    expect(ExecutionError, "CUDA_ERROR_ILLEGAL_ADDRESS", lambda: module.run(x))
    same(module.run(x), [expected])
    driver.fake_cuda_fail(b"cuMemAlloc_v2", 1, 2)
    other = relay().module()
    expect(ExecutionError, 'on device "cpu1": GPU 1 has', lambda: other.run(x))
    same(other.run(x), [expected])
    other.configure(graph=True)
    driver.fake_cuda_fail(b"cuGraphInstantiateWithFlags", 0, 2)
    expect(ExecutionError, "a captured graph", lambda: other.run(x))
    for _ in range(3):
        same(other.run(x), [expected])
    other.configure(devices=[0])
    expect(ExecutionError, "options.devices names 1 GPUs, expected one for each of the plan's 2", lambda: other.run(x))
    other.configure(devices=[1, 0])
    same(other.run(x), [expected])


def a_gpu_that_stays_lost_is_told_and_others_go_on() -> None:
    """In the middle of a run with several contexts: no hang, an error at each run, and models on other GPUs are right."""
    global kernel_seconds
    count = int(os.environ["FAKE_CUDA_DEVICES"])
    spare, there = [count - 1] * 4, [k % (count // 2) for k in range(4)]  # the last GPU is never lost
    named = r'^(transfer of "|operator "|the captured graph |a kernel or copy failed on GPU ).*CUDA_ERROR_LAUNCH_FAILED'
    kernel_seconds = 0.001  # so that the others are in the middle of their work
    issued = ("cuStreamWaitEvent", "cuEventRecord", "cuMemcpyAsync", "cuStreamQuery")
    for function, graph in [(name, False) for name in issued] + [("cuGraphLaunch", True), ("cuStreamQuery", True)]:
        cpu, module, inputs, _ = modules(3, 4)
        _, other, _, _ = modules(3, 4)
        expected = cpu.run(*inputs)
        module.configure(devices=there, graph=graph)
        other.configure(devices=spare)
        for _ in range(3):
            same(module.run(*inputs), expected)
        driver.fake_cuda_lose(function.encode(), 0)
        for _ in range(3):
            with pytest.raises(ExecutionError, match=named):
                module.run(*inputs)
            same(other.run(*inputs), expected)
        module.configure(devices=spare)  # it goes on there
        same(module.run(*inputs), expected)
        del module
        same(other.run(*inputs), expected)
        driver.fake_cuda_find_again()


def a_kernel_of_two_gpus_is_refused() -> None:
    builder = PlanBuilder("two", "cuda")
    x, out = builder.argument("x", [4], "uint8"), builder.output([4], "uint8")
    here, there = builder.arena(0, [4], "uint8"), builder.arena(1, [4], "uint8")
    register("relay_sum", 1)
    second = builder.kernel(0, "relay_sum", [here], [there], [builder.copy(x, here)])
    builder.copy(there, out, [second])
    module = builder.module()
    expect(ExecutionError, "a kernel may touch one", lambda: module.run(np.zeros(4, "uint8")))


def trace() -> str:
    """What streams did: ``H``, ``D``, ``K`` where a copy to a device, from one or a kernel began, small where it ended."""
    text = ctypes.create_string_buffer(1 << 20)
    driver.fake_cuda_trace(text, len(text))
    return text.value.decode()


def too_few_gpus_say_what_to_do() -> None:
    module = relay().module()
    expect(ExecutionError, "the plan is for 2 GPUs, and this machine has 1", lambda: module.run(np.zeros(4, "uint8")))


def a_fork_is_refused() -> None:
    x = np.arange(4, dtype="uint8")
    module = relay().module()
    module.run(x)
    child = os.fork()
    if child == 0:
        try:
            module.run(x)
            os._exit(1)
        except ExecutionError as error:
            os._exit(0 if "forked" in str(error) else 2)
    assert os.waitpid(child, 0)[1] == 0


def images_are_launched_with_their_pointers() -> None:
    """The module that holds compiled kernels: here one that the fake driver knows, which adds two numbers."""

    launch = {"symbol": "fake_add", "grid": [1, 1, 1], "block": [1, 1, 1], "shared_bytes": 1 << 16}
    pointers = lambda *places: [list(place) for place in places]  # noqa: E731
    function = {
        "tensors": 3,
        "workspaces": [8],  # (a + b) + b
        "launches": [
            {**launch, "pointers": pointers(("tensor", 0), ("tensor", 1), ("workspace", 0))},
            {**launch, "pointers": pointers(("workspace", 0), ("tensor", 1), ("tensor", 2))},
        ],
    }
    document = msgspec.json.encode({"version": 1, "functions": {"add_twice": function}}).decode()
    kernels = core_library.function("tvm_sched.make_cuda_module")(document, b"binary")
    builder = PlanBuilder("p", "cuda")
    builder.plan["queues"].append({"name": "results"})
    x, w, out = builder.argument("x", [1], "int64"), builder.parameter("w", [1], "int64"), builder.output([1], "int64")
    here, there, back = (builder.arena(d, [1], "int64") for d in (0, 0, 1))
    first = builder.copy(x, here)
    second = builder.kernel(0, "add_twice", [here, w], [there], [first])  # w is read where it lies, in host memory
    third = builder.copy(there, back, [second])
    builder.kernel(1, "add_twice", [back, w], [out], [third])  # written straight to host memory
    raw = make_module([builder.plan], {}, {"w": np.array([5], "int64")})
    raw.import_module(kernels)
    module = ScheduledModule(raw)
    for graph in (False, True):
        module.configure(graph=graph)
        for value in (1, 2, 3):
            same(module.run(np.array([value], "int64")), [np.array([value + 20])])
    assert calls("cuFuncSetAttribute") > 0
    assert calls("cuModuleLoadData") == 2, "once for each GPU"


if __name__ == "__main__":
    main(globals())
