"""Compare the values of an artifact with the values of the same model compiled for CPUs (``--backend emulated``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_sched_runtime.errors import TvmSchedError
from tvm_sched_runtime.runtime import ScheduledModule, make_module
from tvm_sched_runtime.runtime.tensors import random_value, tensor_bytes
from tvm_sched_runtime.runtime.values import choose_inputs

from .artifact_checks import needs_gpu
from .check import Check

_TOLERANCES = {"float64": 1e-6, "float32": 1e-3, "float16": 2e-2, "bfloat16": 8e-2}
"""Allowed difference of two values, as a fraction of the largest absolute value; other types must be equal."""


def against_checks(module: ScheduledModule, other: ScheduledModule, seed: int = 0) -> list[Check]:
    """Compare the outputs of two artifacts for the same inputs, and each of their kernels on random values."""
    plans = module.plans()
    inputs = choose_inputs(plans[:1], {}, seed)
    try:
        other.configure(times_only=False)
        error, where = _worst(module.run(*inputs), other.run(*inputs))
    except TvmSchedError as failed:
        return [Check("artifact", "outputs beside the CPU's", "failure", str(failed))]
    checks = [_verdict("outputs beside the CPU's", error, f"output {where}" if where is not None else "no outputs")]
    return [*checks, _kernels(module, other, seed)]


def _verdict(name: str, error: float, where: str) -> Check:
    text = f"greatest difference {error:.1e} of the tolerance, in {where}"
    status: Any = "ok" if error <= 1 else "failure"
    return Check("artifact", name, status, text if error <= 1 else f"{text}: please report it with both artifacts")


def _kernels(module: ScheduledModule, other: ScheduledModule, seed: int) -> Check:
    """Compare each function that both artifacts call with tensors of the same types."""
    name = "kernels beside the CPU's"
    theirs = {_signature(plan, step) for plan in other.plans() for step in plan["steps"] if step["kind"] == "kernel"}
    compared: dict[str, float] = {}
    wrong: list[str] = []
    alone = 0
    done: set[Any] = set()
    for plan in module.plans()[:1]:
        for step in plan["steps"]:
            if step["kind"] != "kernel" or _signature(plan, step) in done:
                continue
            done.add(_signature(plan, step))
            if _signature(plan, step) not in theirs:
                alone += 1
                continue
            try:
                compared[step["function"]] = _compare(plan, step, module, other, seed)
            except TvmSchedError as failed:
                wrong.append(f"{step['function']}: {failed}")
    wrong += [f"{kernel}: {error:.1e} of the tolerance" for kernel, error in compared.items() if not error <= 1]
    text = f"{len(compared)} compared"
    if compared:
        kernel = max(compared, key=lambda k: compared[k])
        text += f", greatest difference {compared[kernel]:.1e} of the tolerance in {kernel}"
    if alone:
        text += f"; {alone} have no counterpart there (a library's, or fused otherwise), and count in the outputs alone"
    if wrong:
        return Check("artifact", name, "failure", f"{text}; wrong: {'; '.join(wrong)}", {"compared": compared})
    return Check("artifact", name, "ok", text, {"compared": compared})


def _signature(plan: dict[str, Any], step: dict[str, Any]) -> tuple[Any, ...]:
    buffers = [plan["buffers"][b] for b in (*step.get("inputs", ()), *step.get("outputs", ()))]
    types = tuple((tuple(buffer["shape"]), buffer["dtype"]) for buffer in buffers)
    return (step["function"], len(step.get("inputs", ())), types)


def _compare(
    plan: dict[str, Any], step: dict[str, Any], module: ScheduledModule, other: ScheduledModule, seed: int
) -> float:
    rng = np.random.default_rng(seed)
    values = [random_value(rng, plan["buffers"][buffer]) for buffer in step.get("inputs", ())]
    results = []
    for owner in (module, other):
        single = make_module([_single(plan, step, "cuda" if needs_gpu(owner) else "cpu")], {}, {})
        for kernels in owner.module.imports:
            single.import_module(kernels)
        results.append(ScheduledModule(single).run(*values))
    return _worst(*results)[0]


def _single(plan: dict[str, Any], step: dict[str, Any], backend: str) -> dict[str, Any]:
    """Return a plan that copies random values in, calls one kernel, and copies its results back."""
    inputs = [plan["buffers"][b] for b in step.get("inputs", ())]
    results = [plan["buffers"][b] for b in step["outputs"]]
    types = [{"name": f"t{n}", "shape": b["shape"], "dtype": b["dtype"]} for n, b in enumerate((*inputs, *results))]
    offsets, size = [], 0
    for value in types:
        offsets.append(size)
        size += (tensor_bytes(value) // 256 + 1) * 256
    inside = [{**t, "source": {"kind": "arena", "device": 0, "offset": o}} for t, o in zip(types, offsets, strict=True)]
    n, total = len(inputs), len(types)
    outside = [
        {**t, "source": {"kind": "argument", "index": k} if k < n else {"kind": "output", "index": k - n}}
        for k, t in enumerate(types)
    ]
    copies = [
        {
            "queue": 1, "kind": "copy", "name": f"t{k}", "duration_ns": 0, "waits": [] if k < n else [n],
            "inputs": [total + k if k < n else k], "outputs": [k if k < n else total + k],
        }
        for k in range(total)
    ]  # fmt: skip
    call: dict[str, Any] = {
        **{key: step[key] for key in ("name", "function", "calling") if key in step},
        "queue": 0, "kind": "kernel", "duration_ns": 0, "waits": list(range(n)),
        "inputs": list(range(n)), "outputs": list(range(n, total)),
    }  # fmt: skip
    return {
        "format": "tvm_sched.plan", "version": 1, "name": "kernel", "backend": backend,
        "devices": [{"name": "device", "arena_bytes": size}], "queues": [{"name": "device"}, {"name": "bus"}],
        "arguments": types[:n], "parameters": [], "buffers": [*inside, *outside],
        "outputs": [{"shape": t["shape"], "dtype": t["dtype"]} for t in types[n:]],
        "steps": [*copies[:n], call, *copies[n:]],
    }  # fmt: skip


def _worst(actual: list[Any], expected: list[Any]) -> tuple[float, int | None]:
    """Return the largest difference as a fraction of the tolerance, and the position of its tensor."""
    worst, where = 0.0, None
    for n, (a, b) in enumerate(zip(actual, expected, strict=True)):
        error = _difference(a, b)
        if where is None or not error <= worst:
            worst, where = error, n
    return worst, where


def _difference(a: Any, b: Any) -> float:
    tolerance = _TOLERANCES.get(b.dtype.name)
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    if tolerance is None or not b.size:
        return 0.0 if np.array_equal(a, b) else float("inf")
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    numbers = np.isfinite(y)
    if not np.array_equal(x[~numbers], y[~numbers], equal_nan=True) or not np.isfinite(x[numbers]).all():
        return float("inf")
    largest = float(np.abs(y[numbers]).max(initial=0.0)) or 1.0
    return float(np.abs(x[numbers] - y[numbers]).max(initial=0.0)) / (tolerance * largest)
