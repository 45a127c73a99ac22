"""Microseconds per operator of the executor and of TVM's virtual machine, on graphs of empty kernels.

Both call the same compiled kernels, which write one element each; what is measured is everything around them. Runs of
both take turns, so that a change of the machine's speed meets both; the figure is the median.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from _common import parser
from _result_page import Row, report

from tvm_sched_runtime.runtime import ScheduledModule, make_module

SHAPE = [16]


def spec(name: str) -> dict[str, Any]:
    return {"name": name, "shape": SHAPE, "dtype": "float32"}


def kernel_library() -> Any:
    """`one` reads a tensor and writes a single element of another."""
    import tvm
    from tvm.script import tirx as T  # noqa: N812

    # fmt: off
    @T.prim_func
    def one(a: T.Buffer((16,), "float32"), b: T.Buffer((16,), "float32")):
        T.func_attr({"global_symbol": "one", "tirx.noalias": True})
        b[0] = a[0]
    # fmt: on

    return tvm.IRModule({"one": one})


def plan(count: int, devices: int, crossing: bool, wide: bool) -> dict[str, Any]:
    """A chain or a wide graph of ``count`` kernels.

    The wide one fans out from the input, over all devices; the chain changes the device at every step where it is
    ``crossing``.
    """
    buffers = [{**spec("x"), "source": {"kind": "argument", "index": 0}}]
    steps = []
    for k in range(count):
        device = (k % devices) if crossing or wide else 0
        last = k == count - 1
        # Buffers take turns, as in an arena whose lifetimes are short: 64 of each device.
        source = (
            {"kind": "output", "index": 0} if last else {"kind": "arena", "device": device, "offset": 64 * (k % 64)}
        )
        buffers.append({**spec(f"t{k}"), "source": source})
        before = 0 if wide or k == 0 else k
        waits = [k - 1] if crossing and k > 0 else []
        if wide and last:
            waits = list(range(max(0, k - devices), k))
        steps.append({
            "queue": device, "kind": "kernel", "name": f"op{k}", "function": "one", "inputs": [before],
            "outputs": [k + 1], "waits": waits, "duration_ns": 1000,
        })  # fmt: skip
    return {
        "format": "tvm_sched.plan", "version": 1, "name": "plan", "backend": "cpu",
        "devices": [{"name": f"cpu{d}", "arena_bytes": 64 * 64} for d in range(devices)],
        "queues": [{"name": f"cpu{d}"} for d in range(devices)],
        "arguments": [spec("x")], "parameters": [], "outputs": [{"shape": SHAPE, "dtype": "float32"}],
        "buffers": buffers, "steps": steps,
    }  # fmt: skip


def ours(library: Any, document: dict[str, Any]) -> Callable[[], float]:
    import tvm_ffi

    module = make_module([document], {})
    module.import_module(library)
    handle = ScheduledModule(module)
    main, x = module["main"], tvm_ffi.from_dlpack(np.zeros(SHAPE, "float32"))

    def run() -> float:
        start = time.perf_counter()
        main(x)
        return time.perf_counter() - start

    run.handle = handle  # type: ignore[attr-defined]
    return run


def virtual_machine(kernels: Any, count: int, wide: bool) -> Callable[[], float]:
    """The same graph as Relax bytecode, compiled as `tvm.compile` does, memory planned."""
    import tvm
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    function = builder.add_func(kernels["one"], "one")
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for _ in range(count):
                value = builder.emit(
                    relax.call_tir(function, relax.Tuple([x if wide else value]), relax.TensorType(SHAPE, "float32"))
                )
            value = builder.emit_output(value)
        builder.emit_func_output(value)
    # Dead kernels of the wide graph must stay, so no pass that removes them.
    passes = tvm.transform.Sequential([
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(), relax.transform.CallTIRRewrite(),
        relax.transform.StaticPlanBlockMemory(), relax.transform.LowerAllocTensor(),
        relax.transform.KillAfterLastUse(), relax.transform.LowerRuntimeBuiltin(),
        relax.transform.VMShapeLower(), relax.transform.AttachGlobalSymbol(),
    ])  # fmt: skip
    executable = relax.build(passes(builder.get()), "llvm", relax_pipeline=None)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    main, argument = machine["main"], tvm.runtime.tensor(np.zeros(SHAPE, "float32"))

    def run() -> float:
        start = time.perf_counter()
        main(argument)
        return time.perf_counter() - start

    return run


def medians(runs: list[Callable[[], float]], repeats: int) -> list[float]:
    """Return the median seconds of each run; the runs alternate."""
    seconds: list[list[float]] = [[] for _ in runs]
    for repeat in range(repeats + 3):
        for k, run in enumerate(runs):
            elapsed = run()
            if repeat >= 3:
                seconds[k].append(elapsed)
    return [statistics.median(values) for values in seconds]


def main() -> None:
    import tvm

    arguments = parser(__doc__)
    arguments.add_argument("--operators", type=int, default=10_000)
    arguments.add_argument("--repeats", type=int, default=50)
    options = arguments.parse_args()
    count = options.operators // 10 if options.quick else options.operators
    kernels = kernel_library()
    library = tvm.compile(kernels, "llvm")
    library = getattr(library, "mod", library)
    library = library.jit() if hasattr(library, "jit") else library
    chain, wide = virtual_machine(kernels, count, False), virtual_machine(kernels, count, True)
    cases = [
        ("chain, 1 device", plan(count, 1, False, False), chain),
        ("wide, 1 device", plan(count, 1, False, True), wide),
        ("wide, 2 devices", plan(count, 2, False, True), wide),
        ("chain crossing 2 devices at each step", plan(count, 2, True, False), chain),
    ]
    rows = []
    for name, document, machine in cases:
        seconds, peer = medians([ours(library, document), machine], options.repeats)
        rows.append(Row(name, "tvm_sched", seconds / count * 1e6, "us per operator", peer / count * 1e6, "Relax VM"))
    report(f"overhead of {count} empty kernels", rows, options.json, options.markdown)


if __name__ == "__main__":
    main()
