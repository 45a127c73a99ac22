"""What `test_fake_cuda` runs of failures at single calls of the driver, and of the memory of inputs and outputs."""

from __future__ import annotations

import ctypes
import os

import numpy as np
import pytest
from fake_cuda_cases import calls, driver, main, modules, relay, same
from fake_cuda_tensors import new_stream
from runtime_plans import PlanBuilder

from tvm_sched_runtime.errors import ExecutionError


def a_capture_that_fails_anywhere_is_ended() -> None:
    """Each call between the begin and the end of a capture fails once; the runs after it are right, the next is captured."""
    failed = 0
    cpu, gpu, inputs, parameters = modules(3)
    name, value = next(iter(parameters.items()))
    expected = cpu.run(*inputs)
    gpu.configure(graph=True)
    functions = ("cuStreamBeginCapture_v2", "cuEventRecord", "cuStreamWaitEvent", "cuStreamEndCapture",
                 "cuGraphInstantiateWithFlags", "cuMemcpyAsync")  # fmt: skip
    for function in functions:
        for skip in (0, 1, 2, 5):
            same(gpu.run(*inputs), expected)
            gpu.set_parameter(name, value)  # the graph is forgotten
            same(gpu.run(*inputs), expected)
            driver.fake_cuda_fail(function.encode(), skip, 1)
            try:
                same(gpu.run(*inputs), expected)
            except ExecutionError:
                failed += 1
            driver.fake_cuda_fail(function.encode(), 1 << 30, 1)  # what was not reached
            for _ in range(3):
                same(gpu.run(*inputs), expected)
    assert failed >= 12
    assert calls("cuGraphLaunch") > 2 * len(functions)


def outputs_are_taken_again_once_nobody_holds_them() -> None:
    module, cpu = relay().module(), relay("cpu").module()
    module.configure(devices=[0, 0])
    x = np.arange(4, dtype="uint8")
    (first,) = module.run(x)
    kept = first.copy()
    (second,) = module.run(x ^ 1)
    assert first.ctypes.data != second.ctypes.data
    same([first], [kept])
    address = first.ctypes.data
    part = first[1:]  # a view holds the memory, too
    del first
    (third,) = module.run(x ^ 2)
    assert third.ctypes.data not in (address, second.ctypes.data)
    same([part], [kept[1:]])
    del part
    (fourth,) = module.run(x ^ 3)
    assert fourth.ctypes.data == address
    many = [module.run(x ^ k)[0] for k in range(20)]
    for k, value in enumerate(many):
        same([value], cpu.run(x ^ k))


def pinned_outputs_are_where_the_gpu_wrote_them() -> None:
    """What a caller holds is not written again; memory is pinned until it holds many, which are copied then."""
    x, cpu = np.arange(4, dtype="uint8"), relay("cpu").module()
    stream, there = new_stream(0), ctypes.c_uint64()
    assert driver.cuMemAlloc_v2(ctypes.byref(there), ctypes.c_size_t(4)) == 0

    def pinned(value: np.ndarray) -> bool:
        address = ctypes.c_uint64(value.ctypes.data)
        refused = driver.cuMemcpyAsync(there, address, ctypes.c_size_t(4), stream)
        assert driver.cuStreamSynchronize(stream) == 0
        return refused == 0

    for graph in (False, True):
        module = relay().module()
        module.configure(devices=[0, 0], pinned_outputs=True, graph=graph)
        held = [module.run(x ^ k)[0] for k in range(10)]
        assert [pinned(value) for value in held] == [True] * 4 + [False] * 6
        for k, value in enumerate(held):
            same([value], cpu.run(x ^ k))
        addresses = {value.ctypes.data for value in held[:4]}
        made, graphs = calls("cuMemHostAlloc"), calls("cuGraphInstantiateWithFlags")
        del held[:3], value
        for k in range(20):
            (value,) = module.run(x ^ k)
            assert value.ctypes.data in addresses
            same([value], cpu.run(x ^ k))
        assert calls("cuMemHostAlloc") == made
        assert calls("cuGraphInstantiateWithFlags") <= graphs + 3, "a graph for each address"
        module.configure(pinned_outputs=False)
        (value,) = module.run(x)
        assert not pinned(value)
        same([value], cpu.run(x))


def any_number_of_threads_may_issue_a_run() -> None:
    cpu, gpu, inputs, _ = modules(3)
    expected = cpu.run(*inputs)
    for count in ("1", "3", "12", ""):
        os.environ["TVM_SCHED_ISSUING_THREADS"] = count
        same(gpu.run(*inputs), expected)
    for wrong in ("0", "many", "1000"):
        os.environ["TVM_SCHED_ISSUING_THREADS"] = wrong
        with pytest.raises(
            ExecutionError, match=f'TVM_SCHED_ISSUING_THREADS is "{wrong}", expected a number from 1 to 999'
        ):
            gpu.run(*inputs)
    os.environ.pop("TVM_SCHED_ISSUING_THREADS")
    same(gpu.run(*inputs), expected)


def inputs_may_begin_anywhere() -> None:
    module, cpu = relay().module(), relay("cpu").module()
    module.configure(devices=[0, 0])
    memory = np.arange(128, dtype="uint8")
    for begin in (0, 1, 16, 63):
        x = memory[begin : begin + 4]
        same(module.run(x), cpu.run(x.copy()))
        strided = memory[begin : begin + 8 : 2]
        same(module.run(strided), cpu.run(strided.copy()))


def large_inputs_and_outputs_are_copied_whole() -> None:
    """Several threads copy them; the last byte is beyond equal parts."""
    for size in ((4 << 20) + 1, (8 << 20) - 1):
        builder = PlanBuilder("large", "cuda", 1)
        x, out = builder.argument("x", [size], "uint8"), builder.output([size], "uint8")
        here = builder.arena(0, [size], "uint8")
        builder.copy(here, out, [builder.copy(x, here)])
        module = builder.module()
        value = np.random.default_rng(size).integers(0, 256, size, "uint8")
        for turn in (0, 1):
            same(module.run(value ^ turn), [value ^ turn])


if __name__ == "__main__":
    main(globals())
