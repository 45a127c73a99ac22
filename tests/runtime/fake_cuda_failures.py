"""What `test_fake_cuda` runs of failures at single calls of the driver, and of the memory of inputs and outputs."""

from __future__ import annotations

import numpy as np
from fake_cuda_cases import calls, driver, main, modules, relay, same
from runtime_plans import PlanBuilder

from tvm_sched.errors import ExecutionError


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
