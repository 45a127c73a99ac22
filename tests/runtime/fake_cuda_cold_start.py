"""What `test_fake_cuda` runs of cold starts: parameters that are read and pinned while the first run has begun."""

from __future__ import annotations

import ctypes
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from fake_cuda_cases import calls, driver, expect, main, register, same, tvm_ffi
from runtime_plans import PlanBuilder

from tvm_sched_runtime.errors import ExecutionError, InputError
from tvm_sched_runtime.runtime import ScheduledModule, write_parameters

MIB = 1 << 20
SIZES = {"a": 3 * MIB, "small": 64, "odd": 1000, "b": MIB + 64, "c": 4096}
"""Parameters in the order of the plan's steps; pieces of 2 MiB have their bounds within some."""


def values(seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.integers(0, 256, size, "uint8") for name, size in SIZES.items()}


def plan(backend: str, direct: str = "odd") -> PlanBuilder:
    """A kernel for each parameter, which reads one of them where it lies; the last kernel's result is the output."""
    builder = PlanBuilder("cold", backend, 1)
    builder.plan["queues"].append({"name": "results"})
    x, out = builder.argument("x", [64], "uint8"), builder.output([64], "uint8")
    before, steps = x, []
    for name, size in SIZES.items():
        register(f"with_{name}", 2)
        parameter = builder.parameter(name, [size], "uint8")
        if name == direct:
            read, waits = parameter, []
        else:
            read = builder.arena(0, [size], "uint8")
            waits = [builder.copy(parameter, read, name=name)]
        result = builder.arena(0, [64], "uint8")
        steps.append(builder.kernel(0, f"with_{name}", [before, read], [result], [*waits, *steps[-1:]]))
        before = result
    builder.copy(before, out, steps[-1:])
    return builder


def modules(folder: Path, seed: int = 0) -> tuple[ScheduledModule, ScheduledModule]:
    write_parameters(folder / "p.safetensors", values(seed))
    made = plan("cpu").module(), plan("cuda").module()
    for module in made:
        module.load_parameters(folder / "p.safetensors")
    return made


def parameters_are_pinned_where_the_file_is_mapped() -> None:
    """In each way, whatever the order of threads; nothing is copied where the file's pages are pinned."""
    x = np.arange(64, dtype="uint8")
    with tempfile.TemporaryDirectory() as name:
        for way, registered in (("map,2,3,2", True), ("slab,2,3,2", True), ("allocate,2,3,2", False), ("", True)):
            os.environ["TVM_SCHED_PINNING"] = way
            cpu, gpu = modules(Path(name))
            before, expected = calls("cuMemHostRegister_v2"), cpu.run(x)
            for _ in range(2):
                same(gpu.run(x), expected)
            assert (calls("cuMemHostRegister_v2") > before) == registered
            again = calls("cuMemHostRegister_v2")
            changed = values(1)["b"]
            for module in (cpu, gpu):
                module.set_parameter("b", changed)
            expected = cpu.run(x)
            same(gpu.run(x), expected)
            assert calls("cuMemHostRegister_v2") - again == int(registered), "only the new value is pinned"
            gpu.configure(graph=True)
            for _ in range(2):
                same(gpu.run(x), expected)


def memory_that_cannot_be_registered_is_allocated() -> None:
    x = np.arange(64, dtype="uint8")
    with tempfile.TemporaryDirectory() as name:
        os.environ["TVM_SCHED_PINNING"] = "map,2"
        cpu, gpu = modules(Path(name))
        driver.fake_cuda_fail(b"cuMemHostRegister_v2", 0, 1)  # of the file: a slab
        same(gpu.run(x), cpu.run(x))
        cpu, gpu = modules(Path(name))
        driver.fake_cuda_fail(b"cuDeviceGetAttribute", 0, 1)
        before = calls("cuMemHostAlloc")
        same(gpu.run(x), cpu.run(x))
        assert calls("cuMemHostAlloc") > before
        cpu, gpu = modules(Path(name))
        driver.fake_cuda_fail(b"cuMemHostRegister_v2", 1, 1)  # a later piece
        expect(ExecutionError, "memory of the parameters cannot be pinned", lambda: gpu.run(x))
        os.environ["TVM_SCHED_PINNING"] = "heap"
        expect(
            InputError, 'TVM_SCHED_PINNING is "heap", expected "map", "slab" or "allocate"', lambda: modules(Path(name))
        )


def a_module_goes_before_its_parameters_are_read() -> None:
    with tempfile.TemporaryDirectory() as name:
        os.environ["TVM_SCHED_PINNING"] = "slab,2,2,1"
        for _ in range(5):
            modules(Path(name))
        x = np.arange(64, dtype="uint8")
        for _ in range(3):
            cpu, gpu = modules(Path(name))
            gpu.prepare()
            del gpu
        del cpu
        driver.fake_cuda_allocated.restype = ctypes.c_longlong
        assert driver.fake_cuda_allocated(-1) == 0, "what was registered is given back"
        _, gpu = modules(Path(name))
        gpu.run(x)


def preparation_opens_the_gpu_and_stages_say_so() -> None:
    x = np.arange(64, dtype="uint8")
    with tempfile.TemporaryDirectory() as name:
        cpu, gpu = modules(Path(name))
        gpu.configure(trace=True)
        gpu.prepare()
        assert calls("cuStreamCreateWithPriority") > 0
        made = calls("cuStreamCreateWithPriority"), calls("cuMemHostAlloc"), calls("cuMemAlloc_v2")
        same(gpu.run(x), cpu.run(x))
        found = calls("cuStreamCreateWithPriority"), calls("cuMemHostAlloc"), calls("cuMemAlloc_v2")
        assert found == made, "the first run opens and allocates nothing"
        stages = gpu.stages()
    names = [stage["name"] for stage in stages]
    assert names[0] == "process"
    for expected in (
        "artifact",
        "driver",
        "open GPU 0",
        "memory",
        "streams",
        "kernels",
        "read parameters",
        "pin parameters",
    ):
        assert names.count(expected) >= 1, (expected, names)
        stage = stages[names.index(expected)]
        assert 0 <= stage["start_s"] <= stage["end_s"]
        assert stage["model"] == "not counted"
    run = stages[names.index("first run")]
    copies = stages[names.index("copies of the first run")]
    assert copies["model"] == "counted"
    assert copies["bytes"] == sum(SIZES.values()) - SIZES["odd"] + 64
    assert run["model"] == "partly"
    assert run["end_s"] > stages[names.index("open GPU 0")]["end_s"]


def kernels_of_libraries_are_called_once_before_the_first_run() -> None:
    """Those that touch GPU memory alone; the values of the first run are those of a run without it."""
    register("doubled", 1)
    x = np.arange(64, dtype="uint8")
    warmed: list[str] = []

    def module(backend: str) -> ScheduledModule:
        builder = PlanBuilder("warm", backend, 1)
        x, out = builder.argument("x", [64], "uint8"), builder.output([64], "uint8")
        a, b = builder.arena(0, [64], "uint8"), builder.arena(0, [64], "uint8")
        first = builder.kernel(0, "doubled", [x], [a])
        builder.kernel(0, "summed", [b], [out], [builder.kernel(0, "summed", [a], [b], [first])])
        return builder.module()

    register("summed", 1)
    for name in ("doubled", "summed"):
        kernel = tvm_ffi.get_global_func(name)

        def warm_up(*tensors: Any, name: str = name, kernel: Any = kernel) -> None:
            warmed.append(name)
            kernel(*tensors)

        tvm_ffi.register_global_func(f"tvm_sched.warm_up:{name}", warm_up, override=True)
    expected = module("cpu").run(x)
    gpu = module("cuda")
    gpu.prepare()
    assert warmed == ["summed"], "the others read or write memory of the host"
    assert "warm-up" in {stage["name"] for stage in gpu.stages()}
    for _ in range(3):
        same(gpu.run(x), expected)
    assert warmed == ["summed"]
    driver.fake_cuda_fail(b"cuStreamSynchronize", 0, 700)
    other = module("cuda")
    other.prepare()  # tells nobody: the first run does, if it fails, too
    driver.fake_cuda_fail(b"nothing", 0, 0)
    same(other.run(x), expected)
    os.environ["TVM_SCHED_WARM_UP"] = "0"
    warmed.clear()
    module("cuda").prepare()
    assert not warmed


def small_loads_become_one_copy() -> None:
    """Loads that follow each other, and lie behind each other on both sides, if no other queue comes between."""
    names = [f"p{k}" for k in range(6)]
    register("sum_all", len(names))
    random = np.random.default_rng(3)
    given = {name: random.integers(0, 256, 192 if k != 2 else 100, "uint8") for k, name in enumerate(names)}

    def module(backend: str, *, apart: bool) -> ScheduledModule:
        builder = PlanBuilder("small", backend, 1)
        builder.plan["queues"].append({"name": "results"})
        x, out = builder.argument("x", [64], "uint8"), builder.output([64], "uint8")
        register("before", 1)
        y = builder.arena(0, [64], "uint8")
        early = builder.kernel(0, "before", [x], [y])
        offset = builder.plan["devices"][0]["arena_bytes"]
        loads, there = [], []
        for k, name in enumerate(names):
            size = given[name].size
            there.append(builder.arena(0, [size], "uint8"))
            builder.plan["buffers"][there[-1]]["source"]["offset"] = offset
            offset += -(-size // 64) * 64
            waits = [early] if apart and k == 4 else []
            loads.append(builder.copy(builder.parameter(name, [size], "uint8"), there[-1], waits, name=name))
        result = builder.arena(0, [64], "uint8")
        builder.plan["buffers"][result]["source"]["offset"] = offset
        builder.plan["devices"][0]["arena_bytes"] = offset + 64
        last = builder.kernel(0, "sum_all", there, [result], loads)
        builder.copy(result, out, [last])
        return builder.module()

    x = np.arange(64, dtype="uint8")
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "p.safetensors"
        for slab in (False, True):
            os.environ["TVM_SCHED_PINNING"] = "slab" if slab else "map"
            write_parameters(path, given, names)
            for apart in (False, True):
                cpu, gpu = module("cpu", apart=apart), module("cuda", apart=apart)
                for each in (cpu, gpu):
                    each.load_parameters(path)
                gpu.configure(trace=True)
                same(gpu.run(x), cpu.run(x))
                gpu.configure(trace=False)
                before = calls("cuMemcpyAsync")
                same(gpu.run(x), cpu.run(x))
                # The result, and all parameters; in the file, the one of 100 bytes is the last.
                assert calls("cuMemcpyAsync") - before == (2 if slab else 4) + apart, (slab, apart)
                gpu.configure(resident=["p3"])
                same(gpu.run(x), cpu.run(x))
                same(gpu.run(x), cpu.run(x))
                gpu.configure(resident=0.0)
                gpu.set_parameter("p4", given["p4"] ^ 255)
                cpu.set_parameter("p4", given["p4"] ^ 255)
                same(gpu.run(x), cpu.run(x))


def connections(module: ScheduledModule) -> str | None:
    """What the driver finds in its environment at a module's first run."""
    module.run(np.arange(64, dtype="uint8"))
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    found = getenv(b"CUDA_DEVICE_MAX_CONNECTIONS")
    return None if found is None else str(found.decode())


def few_streams_need_no_more_connections() -> None:
    """Each connection makes opening a GPU slower."""
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    with tempfile.TemporaryDirectory() as name:
        _, gpu = modules(Path(name))
        assert connections(gpu) is None


def many_streams_have_a_connection_each() -> None:
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    with tempfile.TemporaryDirectory() as name:
        _, gpu = modules(Path(name))
        gpu.configure(instances=4)
        queues = gpu.plans()[0]["queues"]
        assert connections(gpu) == str(4 * len(queues))


def a_fork_reads_anew() -> None:
    """A child of a process that has begun to read, but has not opened a GPU, runs the model itself."""
    x = np.arange(64, dtype="uint8")
    with tempfile.TemporaryDirectory() as name:
        os.environ["TVM_SCHED_PINNING"] = "slab,2,2,1"
        cpu, gpu = modules(Path(name))
        expected = cpu.run(x)
        child = os.fork()
        if child == 0:
            try:
                same(gpu.run(x), expected)
                os._exit(0)
            except BaseException:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0


if __name__ == "__main__":
    main(globals())
