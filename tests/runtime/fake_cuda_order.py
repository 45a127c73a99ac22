"""Further cases of `test_fake_cuda`: checks of order, flags and limits by the fake driver; failures of each of its calls."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_cuda_cases import CALLBACK, Access, conflict, driver, main, modules, note_kernels, relay, same, view
from fake_cuda_tensors import OnGpu, enter, new_stream
from runtime_plans import PlanBuilder

from tvm_sched_runtime.errors import ExecutionError

sys.path.append(str(Path(__file__).parents[1]))  # a process of its own runs this file
from thorough import repeated_here

PORTABLE, MAPPED = 1, 2
NOTHING = CALLBACK(lambda _: None)
UNKNOWN = 999


def call(name: str, *arguments: Any) -> None:
    status = getattr(driver, name)(*arguments)
    assert status == 0, f"{name}: {status}"


def on_gpu(gpu: int, size: int = 1024) -> int:
    enter(gpu)
    address = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
    return int(address.value)


def pinned(size: int = 1024, flags: int = PORTABLE | MAPPED) -> int:
    address = ctypes.c_void_p()
    call("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(size), flags)
    return int(address.value or 0)


def copy(to: int, source: int, stream: Any, size: int = 1024) -> int:
    return int(driver.cuMemcpyAsync(ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(size), stream))


def kernel(stream: Any, *accesses: tuple[int, int, bool]) -> None:
    note_kernels(*accesses)
    call("fake_cuda_enqueue", stream, NOTHING, None)
    note_kernels()


def host(*accesses: tuple[int, int, bool]) -> None:
    driver.tvm_sched_host_accesses((Access * len(accesses))(*accesses), len(accesses))


def order(first: Any, second: Any) -> None:
    """The second stream goes on when the first has done what it has so far."""
    event = ctypes.c_void_p()
    call("cuEventCreate", ctypes.byref(event), 2)
    call("cuEventRecord", event, first)
    call("cuStreamWaitEvent", second, event, 0)
    call("cuEventDestroy_v2", event)


def forget() -> None:
    """Settings anew, as they were."""
    driver.fake_cuda_configure(4, ctypes.c_longlong(1 << 30), int(os.environ["FAKE_CUDA_PEERS"]))


def told(*words: str) -> None:
    text = conflict()
    assert text, "nothing was told"
    assert all(word in text for word in words), text
    forget()


def what_no_order_has_is_told_whatever_the_time() -> None:
    """Each pair is told although the first operation has long ended, or cannot have begun; with an order nothing is told."""
    a, b, here = on_gpu(0), on_gpu(0), pinned()
    one, other = new_stream(0), new_stream(0)

    def loads(size: int = 1024) -> None:
        assert copy(a, here, one, size) == 0

    def ended(stream: Any) -> None:
        while driver.cuStreamQuery(stream) == 600:
            pass

    def synchronized(stream: Any) -> None:
        call("cuStreamSynchronize", stream)

    kernels = {"reads": (a + 100, 8, False), "writes": (a + 1023, 1, True)}
    for verb, access in kernels.items():
        loads()
        kernel(other, access)
        told(f'kernel "of the host" on stream 2 of GPU 0 {verb} bytes', "of 1024 on GPU 0, which a copy", "writes")
        for ordered in (order, lambda first, _: synchronized(first), lambda first, _: ended(first)):
            loads()
            ordered(one, other)
            kernel(other, access)
            synchronized(other)
            assert not conflict()
    loads(100)  # bytes beside them
    kernel(other, (a + 100, 924, True))
    assert not conflict()
    synchronized(one)
    synchronized(other)
    kernel(one, (a, 8, False))  # both read
    kernel(other, (a, 8, False))
    assert not conflict()
    kernel(other, (b, 8, True), (a, 8, False))
    kernel(one, (b, 8, False))  # waited for itself alone
    told("reads bytes 0 to 7", "writes")
    for access, verb in (((here, 4, True), "writes"), ((here, 4, False), "")):
        loads()
        host(access)
        assert bool(conflict()) == bool(verb), "the host may read what a copy reads"
        forget()
    assert copy(here, a, one) == 0
    host((here + 1000, 24, False))
    told("the host reads", "that are pinned", "a copy of 1024 bytes on stream 1 of GPU 0 writes")
    assert copy(here, a, one) == 0
    synchronized(one)
    host((here + 1000, 24, True))
    assert not conflict()


def what_is_freed_or_destroyed_is_not_waited_for() -> None:
    a, here, stream = on_gpu(0), pinned(), new_stream(0)
    assert copy(a, here, stream) == 0
    call("cuStreamDestroy_v2", stream)
    host((here, 8, True))
    told("the host writes")
    assert driver.cuStreamSynchronize(stream) == 400, "a destroyed handle"
    other = new_stream(0)
    assert copy(a, here, other) == 0
    call("cuMemFreeHost", ctypes.c_void_p(here))
    told("the release of it writes", "a copy of 1024 bytes")
    kernel(other, (here, 8, False))
    told("memory that is freed")


def graphs_are_checked_by_their_edges() -> None:
    a, b, here = on_gpu(0), on_gpu(0), pinned()
    one, other = new_stream(0), new_stream(0)

    def captured(joined: bool) -> ctypes.c_void_p:
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        call("cuStreamBeginCapture_v2", one, 2)
        if joined:
            assert copy(a, here, one) == 0
            order(one, other)
        else:
            order(one, other)
            assert copy(a, here, one) == 0
        kernel(other, (a, 4, False), (b, 4, True))
        order(other, one)
        call("cuStreamEndCapture", one, ctypes.byref(graph))
        call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0))
        call("cuGraphDestroy", graph)
        return executable

    captured(False)
    told('kernel "of the host", node 1 of a graph reads', "a copy of 1024 bytes, node 0", "no edge")
    executable = captured(True)
    assert not conflict()
    call("cuGraphLaunch", executable, one)
    kernel(other, (b, 4, False))
    told("which a graph on stream 1 of GPU 0 writes")
    call("cuGraphLaunch", executable, one)
    order(one, other)
    kernel(other, (b, 4, False))
    order(other, one)
    call("cuGraphLaunch", executable, one)
    call("cuStreamSynchronize", one)
    assert not conflict()
    call("cuMemFree_v2", ctypes.c_void_p(b))
    call("cuGraphLaunch", executable, one)
    told("a graph on stream 1 of GPU 0 touches memory that is freed")


def independent_nodes_of_a_graph_come_in_any_order() -> None:
    enter(0)
    streams = [new_stream(0) for _ in range(4)]
    graph, executable, done = ctypes.c_void_p(), ctypes.c_void_p(), []
    noting = [CALLBACK(lambda _, k=k: done.append(k)) for k in range(4)]
    call("cuStreamBeginCapture_v2", streams[0], 2)
    for stream in streams[1:]:
        order(streams[0], stream)
    for stream, note in zip(streams, noting, strict=True):
        call("fake_cuda_enqueue", stream, note, None)
    for stream in streams[1:]:
        order(stream, streams[0])
    call("cuStreamEndCapture", streams[0], ctypes.byref(graph))
    call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0))
    orders = set()
    for _ in range(20):
        done.clear()
        call("cuGraphLaunch", executable, streams[0])
        call("cuStreamSynchronize", streams[0])
        assert sorted(done) == [0, 1, 2, 3]
        orders.add(tuple(done))
    assert len(orders) > 5


def pinned_memory_has_its_flags_and_its_limit() -> None:
    there, stream, out = on_gpu(1, 64), new_stream(1), on_gpu(1, 64)
    function = ctypes.c_void_p()
    call("cuModuleGetFunction", ctypes.byref(function), None, b"fake_add")
    for flags in range(4):
        enter(0)
        here = pinned(64, flags)
        enter(1)
        portable = bool(flags & PORTABLE)
        assert (copy(there, here, stream, 64) == 0) == portable, "made in the context of GPU 0"
        pointers = [ctypes.c_uint64(address) for address in (here, there, out)]
        given = (ctypes.c_void_p * 3)(*(ctypes.addressof(pointer) for pointer in pointers))
        launched = driver.cuLaunchKernel(function, *[1] * 6, 0, stream, given, None)
        assert launched == (0 if portable and flags & MAPPED else 700)
    call("cuStreamSynchronize", stream)
    driver.fake_cuda_limit_pinned(ctypes.c_longlong(1 << 16))
    module = relay().module()
    x = np.arange(4, dtype="uint8")
    (expected,) = relay("cpu").module().run(x)
    same(module.run(x), [expected])
    driver.fake_cuda_limit_pinned(ctypes.c_longlong(4))
    with pytest.raises(ExecutionError, match="bytes of pinned host memory cannot be had: CUDA_ERROR_OUT_OF_MEMORY"):
        relay().module().run(x)
    same(module.run(x), [expected])


def peers_reach_what_their_direction_allows() -> None:
    """Copies are done by the receiver, so it must reach the sender; a GPU that does not is sent to through the host."""
    way = int(os.environ["FAKE_CUDA_PEERS"])
    x = np.arange(4, dtype="uint8")
    (expected,) = relay("cpu").module().run(x)
    reached = {2: {(0, 1), (1, 0), (2, 3), (3, 2)}, 3: {(a, b) for a in range(4) for b in range(4) if a < b}}[way]
    for sender in range(4):
        for receiver in range(4):
            if sender == receiver:
                continue
            module = relay().module()
            module.configure(devices=[sender, receiver])
            forget()
            same(module.run(x), [expected])
            assert driver.fake_cuda_calls(b"copy between GPUs") == ((receiver, sender) in reached)


def between_two(**settings: Any) -> int:
    """Copies between GPUs of a run over two of them, whose values are right."""
    x = np.arange(4, dtype="uint8")
    (expected,) = relay("cpu").module().run(x)
    module = relay().module()
    module.configure(devices=[0, 1], **settings)
    same(module.run(x), [expected])
    driver.fake_cuda_fail(b"nothing", 0, 0)
    count = driver.fake_cuda_calls(b"copy between GPUs")
    same(module.run(x), [expected])
    return int(driver.fake_cuda_calls(b"copy between GPUs")) - count


def peers_whose_bytes_arrive_wrong_are_not_used() -> None:
    os.environ["TVM_SCHED_PEERS"] = "trust"
    assert between_two() == 1
    os.environ["TVM_SCHED_PEERS"] = "try"
    driver.fake_cuda_spoil_peers(1)
    assert between_two() == 0
    assert "peers" in {stage["name"] for stage in relay().module().stages()}
    driver.fake_cuda_spoil_peers(0)
    assert between_two() == 0, "what was found holds for the process"
    os.environ["TVM_SCHED_PEERS"] = "sometimes"
    with pytest.raises(ExecutionError, match='TVM_SCHED_PEERS is "sometimes", expected "try", "trust" or "never"'):
        relay().module().run(np.arange(4, dtype="uint8"))


def a_gpu_that_gets_no_access_is_no_peer() -> None:
    """A GPU has a limited number of peers; the driver refuses more, although it says that they are possible."""
    driver.fake_cuda_fail(b"cuCtxEnablePeerAccess", 1, 711)  # of GPU 1, which receives
    assert between_two() == 0


def peers_that_are_slower_than_the_host_are_not_copied_between() -> None:
    os.environ["TVM_SCHED_PEERS"] = "try"
    driver.fake_cuda_spoil_peers(2)
    assert between_two() == 0


def peers_that_are_right_are_used() -> None:
    os.environ["TVM_SCHED_PEERS"] = "try"
    driver.fake_cuda_spoil_peers(3)
    assert between_two() == 1
    os.environ["TVM_SCHED_PEERS"] = "never"
    assert between_two() == 0


def a_trial_of_peers_that_fails_is_told() -> None:
    """Whichever call of the trial fails: an error says so, nothing is left, and the next run tries again."""
    os.environ["TVM_SCHED_PEERS"] = "try"
    x, module = np.arange(4, dtype="uint8"), relay().module()
    module.configure(devices=[0, 1])
    before = live()
    for name in ("cuMemcpyAsync", "cuEventElapsedTime", "copy between GPUs", "cuStreamSynchronize"):
        driver.fake_cuda_fail(name.encode(), 0, UNKNOWN)
        with pytest.raises(ExecutionError, match="CUDA_ERROR_UNKNOWN"):
            module.run(x)
        assert live() == before
    driver.fake_cuda_fail(b"cuMemHostAlloc", 0, 2)  # no room for a trial: the driver is trusted
    (expected,) = relay("cpu").module().run(x)
    same(module.run(x), [expected])


def large_tensors_go_through_the_host_in_chunks() -> None:
    """Each of the two pieces of pinned memory is used several times, which values alone need not show."""
    size = 2 * (4 << 20) + 7
    builder = PlanBuilder("chunks", "cuda")
    builder.plan["queues"].append({"name": "results"})
    x, out = builder.argument("x", [size], "uint8"), builder.output([size], "uint8")
    here, there = builder.arena(0, [size], "uint8"), builder.arena(1, [size], "uint8")
    builder.copy(there, out, [builder.copy(here, there, [builder.copy(x, here)])])
    module, values = (
        builder.module(),
        [np.random.default_rng(seed).integers(0, 256, size, "uint8") for seed in range(2)],
    )
    for value in values:
        same(module.run(value), [value])
    assert driver.fake_cuda_calls(b"copy between GPUs") == 0
    assert driver.fake_cuda_calls(b"cuMemcpyAsync") == 2 * (1 + 2 * 3 + 1)
    for skip in (2, 4):  # a receiver's copy fails: what the sender has in hand is waited for
        driver.fake_cuda_fail(b"cuMemcpyAsync", skip, UNKNOWN)
        with pytest.raises(ExecutionError, match="CUDA_ERROR_UNKNOWN"):
            module.run(values[0])
        same(module.run(values[1]), [values[1]])


CALLS = """
cuDeviceGetCount cuDeviceGet cuDevicePrimaryCtxRetain cuDeviceCanAccessPeer cuCtxEnablePeerAccess cuCtxSetCurrent
cuCtxGetCurrent cuCtxGetStreamPriorityRange cuMemAlloc_v2 cuMemHostAlloc cuMemHostRegister_v2 cuMemcpyAsync
cuStreamCreateWithPriority cuStreamQuery cuStreamSynchronize cuStreamWaitEvent cuStreamIsCapturing cuStreamBeginCapture_v2
cuStreamEndCapture cuEventCreate cuEventRecord cuEventQuery cuEventElapsedTime cuLaunchHostFunc cuGraphInstantiateWithFlags
cuGraphLaunch
"""
RELEASES = ("cuCtxGetCurrent", "cuCtxSetCurrent")
"""Calls that are also made where something is released, which then nobody can be told, and stays."""
QUIET = (*RELEASES, "cuCtxEnablePeerAccess", "cuMemHostRegister_v2", "cuDeviceGet")
"""Calls whose failure need not fail the run: copies go through the host then, pinned memory is allocated, and a GPU that
could not be opened ahead is opened by the run."""


def live() -> tuple[int, ...]:
    """Streams, events, graphs and modules, and bytes, that nobody has given back."""
    counts = (ctypes.c_int * 5)()
    driver.fake_cuda_live(ctypes.byref(counts))
    return (*counts, *(driver.fake_cuda_allocated(place) for place in range(-1, 4)))


def a_failure_of_each_call_is_told_and_leaves_nothing() -> None:
    """Whichever call fails: the run ends with an error that names what failed, the next one works, and nothing is left."""
    given: list[Any] = []

    def work(module: Any, inputs: Any) -> Any:
        """A run that is issued, one with times, and graphs; inputs on a GPU."""
        for settings in ({"trace": True}, {"graph": True}):
            module.configure(**{"trace": False, "graph": False, **settings})
            for _ in range(3):
                found = [np.array(view(tensor)) for tensor in module.run(*inputs)]
        return found

    def scenario(inject: Any = None) -> tuple[str, Any]:
        cpu, module, inputs, _ = modules(4)
        expected = cpu.run(*inputs)
        given[:] = given or [OnGpu(value, 0) for value in inputs]
        if inject:
            inject()
        error = ""
        try:
            same(work(module, given), expected)
        except ExecutionError as failure:
            error = str(failure)
        driver.fake_cuda_fail(b"nothing", 0, 0)
        return error, lambda: same(work(module, given), expected)

    scenario()
    gc.collect()
    before = live()
    counts = {name: driver.fake_cuda_calls(name.encode()) for name in CALLS.split()}
    scenario()
    counts = {name: driver.fake_cuda_calls(name.encode()) - count for name, count in counts.items()}
    gc.collect()
    assert live() == before
    failed = 0
    for name, count in counts.items():
        step = max(1, count // (50 if repeated_here() else 2))
        for skip in range(0, count, step):
            start = driver.fake_cuda_calls(name.encode())
            error, again = scenario(lambda name=name, skip=skip: driver.fake_cuda_fail(name.encode(), skip, UNKNOWN))
            fired = driver.fake_cuda_calls(name.encode()) - start > skip
            driver.fake_cuda_fail(name.encode(), 1 << 30, UNKNOWN)
            if fired and name not in QUIET:
                assert "CUDA_ERROR_UNKNOWN" in error, (name, skip, error)
            assert not conflict(), (name, skip, conflict())
            again()
            failed += bool(error)
            del again
            gc.collect()
            if name in RELEASES:
                before = live()
            assert live() == before, (name, skip, error, live(), before)
            assert not conflict(), (name, skip, conflict())
    assert failed > 25


if __name__ == "__main__":
    main(globals())
