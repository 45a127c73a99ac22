"""Further cases of `test_fake_cuda`: tensors of the caller's in GPUs' memory, in the order of the caller's streams."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
from fake_cuda_cases import (
    CALLBACK,
    alive,
    calls,
    driver,
    expect,
    main,
    modules,
    note_kernels,
    relay,
    same,
    trace,
    tvm_ffi,
    view,
)
from gpu_tensor import UINT8, GpuTensor
from runtime_plans import PlanBuilder

from tvm_sched_runtime import core_library
from tvm_sched_runtime.errors import ExecutionError
from tvm_sched_runtime.runtime import ScheduledModule, make_module

driver.cuMemAlloc_v2.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
driver.cuMemFree_v2.argtypes = [ctypes.c_void_p]


class OnGpu(GpuTensor):
    """Bytes in the memory of a GPU."""

    def __init__(self, value: np.ndarray[Any, Any], gpu: int = 0, step: int = 1) -> None:
        enter(gpu)
        address = ctypes.c_uint64()
        assert driver.cuMemAlloc_v2(ctypes.byref(address), max(step * value.size, 1)) == 0
        memory = (ctypes.c_uint8 * max(step * value.size, 1)).from_address(address.value)
        self.array = np.frombuffer(memory, np.uint8)[: step * value.size : step].reshape(value.shape)
        self.array[...] = value
        super().__init__(address.value, gpu, UINT8, [value.size], [step])


def enter(gpu: int) -> None:
    """Make a GPU's context current, as a library that uses it does."""
    context = ctypes.c_void_p()
    driver.cuInit(0)
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), gpu) == 0
    driver.cuCtxSetCurrent(context)


def new_stream(gpu: int) -> ctypes.c_void_p:
    enter(gpu)
    stream = ctypes.c_void_p()
    assert driver.cuStreamCreateWithPriority(ctypes.byref(stream), 1, 0) == 0
    return stream


def late(stream: ctypes.c_void_p, work: Any, written: list[OnGpu]) -> threading.Event:
    """Put work that writes tensors into the order of a stream; it begins when the event that this returns is set."""
    go = threading.Event()
    callback = CALLBACK(lambda _: (go.wait(), work()))
    alive.append(callback)
    note_kernels(*((tensor.array.ctypes.data, tensor.array.nbytes, True) for tensor in written))
    assert driver.fake_cuda_enqueue(stream, callback, None) == 0
    note_kernels()
    return go


def polls() -> int:
    return calls("cuStreamQuery") + calls("cuEventQuery")


def tensors_on_gpus_follow_the_callers_stream() -> None:
    """Inputs are written late on a stream of the caller's; outputs are there, and nothing went through the host."""
    for seed in range(6):
        cpu, gpu, inputs, _ = modules(seed)
        if not inputs:
            continue
        for graph in (False, True):
            gpu.configure(graph=graph, devices=[0, 0, 0, 0], resident=1.0)
            gpu.run(*inputs)  # loads
            for turn in range(3):
                given = [OnGpu(np.zeros_like(value)) for value in inputs]
                wanted = [value ^ turn for value in inputs]
                stream = new_stream(0)

                def write(given: Any = given, wanted: Any = wanted) -> None:
                    for tensor, value in zip(given, wanted, strict=True):
                        tensor.array[...] = value

                go, before, asked = late(stream, write, given), len(trace()), polls()

                def run(gpu: Any = gpu, stream: ctypes.c_void_p = stream, given: Any = given) -> Any:
                    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), stream.value):
                        return gpu.run(*given)

                with ThreadPoolExecutor(1) as pool:
                    running = pool.submit(run)
                    while polls() == asked and not running.done():  # all is issued before the run asks what has ended
                        pass
                    go.set()
                found = running.result()
                assert {str(tensor.device) for tensor in found} == {"cuda:0"}
                same([view(tensor) for tensor in found], cpu.run(*wanted))
                assert turn == 0 or not set(trace()[before:]) & set("HD"), "a warm run copies from or to the host"


def tensors_on_the_default_stream_and_on_several_gpus() -> None:
    """Arguments on each GPU and on the host; outputs on the first one's, through the host where GPUs are no peers."""
    for seed in range(6):
        cpu, gpu, inputs, _ = modules(seed)
        for shift in range(3):
            given = [OnGpu(value, (n + shift) % 4) if (n + shift) % 5 else value for n, value in enumerate(inputs)]
            first = next((value.gpu for value in given if isinstance(value, OnGpu)), None)
            for graph in (False, True):
                gpu.configure(graph=graph)
                for _ in range(2):
                    found = gpu.run(*given)
                    if first is None:
                        same(found, cpu.run(*inputs))
                        continue
                    assert {str(tensor.device) for tensor in found} == {f"cuda:{first}"}
                    same([view(tensor) for tensor in found], cpu.run(*inputs))
    assert (calls("copy between GPUs") > 0) == (os.environ["FAKE_CUDA_PEERS"] != "0")


def results_have_memory_of_their_own() -> None:
    """An argument among the results, and an output twice, on the host and on a GPU."""
    x = np.arange(4, dtype="uint8")
    (expected,) = relay("cpu").module().run(x)
    module = relay().module(plans=[{"results": [{"argument": 0}, {"output": 0}, {"output": 0}]}])
    for pinned in (False, True):
        module.configure(pinned_outputs=pinned)
        found = module.run(x)
        same(found, [x, expected, expected])
        found[0][:], found[1][:] = 9, 8
        same([x, found[2]], [np.arange(4, dtype="uint8"), expected])
    given = OnGpu(x.copy(), 1)
    found = module.run(given)
    same([view(tensor) for tensor in found], [x, expected, expected])
    assert {str(tensor.device) for tensor in found} == {"cuda:1"}
    assert len({given.array.ctypes.data, *(tensor.data_ptr() for tensor in found)}) == 4
    view(found[0])[:] = 9
    same([given.array, view(found[1])], [x, expected])
    held = driver.fake_cuda_allocated(1)
    del found
    gc.collect()
    assert driver.fake_cuda_allocated(1) < held


def what_a_run_leaves_behind() -> None:
    """The caller's thread has its context back, and memory of outputs is given back with them."""
    x = np.arange(4, dtype="uint8")
    module = relay().module()
    given = OnGpu(x, 1)
    module.run(given)
    enter(1)
    own, after = ctypes.c_void_p(), ctypes.c_void_p()
    driver.cuCtxGetCurrent(ctypes.byref(own))
    before = driver.fake_cuda_allocated(1)
    for _ in range(5):
        (found,) = module.run(given)
        del found
    driver.cuCtxGetCurrent(ctypes.byref(after))
    assert own.value == after.value
    assert driver.fake_cuda_allocated(1) == before


def tensors_that_cannot_be_taken_are_refused() -> None:
    x = np.arange(4, dtype="uint8")
    module = relay().module()
    expect(
        ExecutionError,
        "argument 0 is on GPU 2, and the plan's devices are the GPUs 0, 1: move it",
        lambda: module.run(OnGpu(x, 2)),
    )
    expect(ExecutionError, "argument 0 is strided and lies on a GPU", lambda: module.run(OnGpu(x, 0, step=2)))
    stream = new_stream(0)
    driver.cuStreamBeginCapture_v2(stream, 0)
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), stream.value):
        expect(ExecutionError, "the current stream of GPU 0 is being captured", lambda: module.run(OnGpu(x, 0)))
    (expected,) = relay("cpu").module().run(x)
    found = module.run(OnGpu(x, 0))
    same([view(tensor) for tensor in found], [expected])
    other = relay("cpu").module()
    expect(ExecutionError, "expected a tensor in the CPU's memory", lambda: other.run(OnGpu(x, 0)))


def adder(size: int) -> dict[str, Any]:
    """A function of `make_cuda_module` with two workspaces: (a + b) + b."""
    launch = {"symbol": "fake_add", "grid": [1, 1, 1], "block": [1, 1, 1], "shared_bytes": 0}
    first = [["tensor", 0], ["tensor", 1], ["workspace", 1]]
    second = [["workspace", 1], ["tensor", 1], ["tensor", 2]]
    launches = [{**launch, "pointers": pointers} for pointers in (first, second)]
    return {"tensors": 3, "workspaces": [size, 8], "launches": launches}


def workspaces_are_shared_by_a_stream_and_go_with_it() -> None:
    functions = {"one": adder(1000), "two": adder(3000), "three": adder(500)}
    document = msgspec.json.encode({"version": 1, "functions": functions}).decode()
    kernels = core_library.function("tvm_sched.make_cuda_module")(document, b"binary")
    before = driver.fake_cuda_allocated(0)
    for _ in range(2):
        builder = PlanBuilder("p", "cuda", 1)
        x, out = builder.argument("x", [1], "int64"), builder.output([1], "int64")
        value, step = builder.arena(0, [1], "int64"), None
        step = builder.copy(x, value)
        for name in functions:
            after = builder.arena(0, [1], "int64")
            step, value = builder.kernel(0, name, [value, value], [after], [step]), after
        builder.copy(value, out, [step])
        raw = make_module([builder.plan], {}, {})
        raw.import_module(kernels)
        module = ScheduledModule(raw)
        allocations = calls("cuMemAlloc_v2")
        same(module.run(np.array([1], "int64")), [np.array([27])])
        assert calls("cuMemAlloc_v2") == allocations + 3, "an arena, a workspace for all, and once more of it"
        same(module.run(np.array([2], "int64")), [np.array([54])])
        assert calls("cuMemAlloc_v2") == allocations + 3
        del module, raw
        gc.collect()
        assert driver.fake_cuda_allocated(0) == before, "what kernels keep for streams ends with these"


if __name__ == "__main__":
    main(globals())
