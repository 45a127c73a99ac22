"""Plans and kernels for the tests of the executor: kernels are Python functions in the global registry."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from tvm_sched_runtime.runtime import ScheduledModule, make_module, to_numpy
from tvm_sched_runtime.startup import ffi

tvm_ffi = ffi()


def tensor(name: str, shape: list[int], dtype: str = "float32") -> dict[str, Any]:
    return {"name": name, "shape": shape, "dtype": dtype}


class PlanBuilder:
    """Adds buffers and steps; sizes of arenas follow."""

    def __init__(self, name: str = "plan", backend: str = "cpu", devices: int = 2) -> None:
        self.plan: dict[str, Any] = {
            "format": "tvm_sched.plan",
            "version": 1,
            "name": name,
            "backend": backend,
            "devices": [{"name": f"cpu{d}", "arena_bytes": 0} for d in range(devices)],
            "queues": [*({"name": f"cpu{d}"} for d in range(devices)), {"name": "bus"}],
            "arguments": [],
            "parameters": [],
            "buffers": [],
            "outputs": [],
            "steps": [],
        }

    def buffer(self, spec: dict[str, Any], source: dict[str, Any]) -> int:
        self.plan["buffers"].append({**spec, "source": source})
        return len(self.plan["buffers"]) - 1

    def argument(self, name: str, shape: list[int], dtype: str = "float32") -> int:
        self.plan["arguments"].append(tensor(name, shape, dtype))
        index = len(self.plan["arguments"]) - 1
        return self.buffer(tensor(name, shape, dtype), {"kind": "argument", "index": index})

    def parameter(self, name: str, shape: list[int], dtype: str = "float32") -> int:
        self.plan["parameters"].append(tensor(name, shape, dtype))
        index = len(self.plan["parameters"]) - 1
        return self.buffer(tensor(name, shape, dtype), {"kind": "parameter", "index": index})

    def output(self, shape: list[int], dtype: str = "float32") -> int:
        self.plan["outputs"].append({"shape": shape, "dtype": dtype})
        index = len(self.plan["outputs"]) - 1
        return self.buffer(tensor(f"out{index}", shape, dtype), {"kind": "output", "index": index})

    def arena(self, device: int, shape: list[int], dtype: str = "float32") -> int:
        owner = self.plan["devices"][device]
        offset = owner["arena_bytes"]
        owner["arena_bytes"] = offset + 64 * (1 + int(np.prod(shape)) * 8 // 64)
        return self.buffer(tensor("t", shape, dtype), {"kind": "arena", "device": device, "offset": offset})

    def kernel(
        self,
        queue: int,
        function: str,
        inputs: list[int],
        outputs: list[int],
        waits: list[int] | None = None,
        **more: Any,
    ) -> int:
        step = {"kind": "kernel", "name": f"op{len(self.plan['steps'])}", "function": function, **more}
        return self._step(queue, step, inputs, outputs, waits)

    def copy(self, source: int, target: int, waits: list[int] | None = None, **more: Any) -> int:
        return self._step(
            len(self.plan["queues"]) - 1, {"kind": "copy", "name": "t", **more}, [source], [target], waits
        )

    def _step(
        self, queue: int, step: dict[str, Any], inputs: list[int], outputs: list[int], waits: list[int] | None
    ) -> int:
        base = {"queue": queue, "inputs": inputs, "outputs": outputs, "waits": waits or [], "duration_ns": 1000}
        self.plan["steps"].append({**base, **step})
        return len(self.plan["steps"]) - 1

    def module(self, embedded: dict[str, Any] | None = None, **metadata: Any) -> ScheduledModule:
        return ScheduledModule(make_module([self.plan], metadata, embedded))


def add_and_double(
    backend: str = "cpu", function: str = "tvm_sched.test.add", name: str = "plan", size: int = 4
) -> PlanBuilder:
    """x + w on the first device, copied to the second, doubled there."""
    builder = PlanBuilder(name, backend)
    x, w = builder.argument("x", [size]), builder.parameter("w", [size])
    here, there, out = builder.arena(0, [size]), builder.arena(1, [size]), builder.output([size])
    first = builder.kernel(0, function, [x, w], [here], event={"kind": "kernel", "name": "sum"})
    second = builder.copy(here, there, [first])
    builder.kernel(1, "tvm_sched.test.add", [there, there], [out], [second])
    return builder


def register_kernels() -> None:
    """Register ``tvm_sched.test.*``."""

    def dps(name: str, compute: Any) -> None:
        def kernel(*tensors: Any) -> None:
            arrays = [to_numpy(t) for t in tensors]
            arrays[-1][...] = compute(*arrays[:-1])

        tvm_ffi.register_global_func(f"tvm_sched.test.{name}", kernel, override=True)

    def fail(*_: Any) -> None:
        raise ValueError("no luck")

    def packed(*tensors: Any) -> Any:
        arrays = [to_numpy(t) for t in tensors]
        return [tvm_ffi.from_dlpack(arrays[0] + 1), tvm_ffi.from_dlpack(arrays[0].T * 2)]

    dps("add", np.add)
    dps("negate", np.negative)
    dps("identity", lambda x: x)
    dps("not", np.logical_not)
    tvm_ffi.register_global_func("tvm_sched.test.fail", fail, override=True)
    tvm_ffi.register_global_func("tvm_sched.test.packed", packed, override=True)


def in_threads(work, count=4):
    """Call ``work(0)``, ``work(1)``, ... in threads at once, and return the exceptions."""
    failures = []

    def call(turn):
        try:
            work(turn)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=call, args=(turn,)) for turn in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures
