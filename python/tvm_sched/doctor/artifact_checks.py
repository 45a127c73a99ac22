"""Checks of an artifact on this machine: integrity, target, values, and times compared with the predicted ones."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tvm_sched_check import Refused
from tvm_sched_check.plans import check_plan
from tvm_sched_runtime.errors import InputError, TvmSchedError
from tvm_sched_runtime.runtime import MachineWarning, ScheduledModule, load
from tvm_sched_runtime.runtime.machine import differences
from tvm_sched_runtime.runtime.parameters import require_parameters
from tvm_sched_runtime.runtime.values import choose_inputs

from ..report.figures import time_by_kind
from ..report.measurement import measured_timeline, planned_timeline
from ..report.units import format_bytes, format_ns, format_rate
from .check import Check

_RUNS = 5
"""Timed runs, of which the fastest counts."""
_MIB = 1 << 20


def open_artifact(path: Path, parameters: Path | None) -> tuple[ScheduledModule | None, list[Check]]:
    """Load an artifact with its parameters; check its integrity, and the differences of this machine from its own."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.simplefilter("ignore", MachineWarning)
            module = load(path, parameters, verify=True)
        require_parameters(path, module.parameters())
    except TvmSchedError as error:
        return None, [Check("artifact", "file", "failure", str(error))]
    size = format_bytes(path.stat().st_size)
    info = module.info()
    about = ", ".join(f"{key} {info[key]}" for key in ("topology", "scheduler") if info.get(key))
    any_size = ", and a template for any size" if module.template else ""
    checks = [Check("artifact", "file", "ok", f"{path}: whole, {size}, {len(module.plans())} plans{any_size}; {about}")]
    checks.append(_parameters(module, [str(warning.message) for warning in caught]))
    checks.append(_order(module.plans()))
    found_differences = differences(info)
    checks += [Check("artifact", "machine", "warning", difference) for difference in found_differences]
    if not found_differences:
        checks.append(Check("artifact", "machine", "ok", "this machine is like the one that it was compiled for"))
    return module, checks


def _parameters(module: ScheduledModule, warned: list[str]) -> Check:
    if warned:
        return Check("artifact", "parameters", "warning", "; ".join(warned))
    external = [parameter for parameter in module.parameters() if not parameter["embedded"]]
    text = f"the file of {len(external)} parameters" if external else "embedded in the artifact"
    return Check("artifact", "parameters", "ok", f"{text}: as written, by its checksum")


def _order(plans: Sequence[dict[str, Any]]) -> Check:
    """Check that queues and waits order all accesses to the same memory, however long each step takes."""
    try:
        return Check("artifact", "order", "ok", "; ".join(check_plan(plan) for plan in plans))
    except Refused as error:
        return Check("artifact", "order", "failure", f"{error}: please report this, with the model")


def needs_gpu(module: ScheduledModule) -> bool:
    """Return whether its plans run on GPUs."""
    return any(plan["backend"] == "cuda" for plan in module.plans())


def architecture_check(info: dict[str, Any], gpus: Sequence[dict[str, Any]]) -> Check:
    """Check that each GPU can load the artifact's kernels: by binaries of its family, or by PTX that is not newer."""
    needs = info.get("needs", {}).get("cuda", {})
    binaries, ptx = list(needs.get("architectures", ())), needs.get("ptx")
    if not binaries:
        return Check("artifact", "architectures", "ok", "it does not say for which GPUs its kernels are")
    text = f"kernels for {', '.join(binaries)}{f', and {ptx} for newer ones' if ptx else ''}"
    apart = [gpu for gpu in gpus if not _loads(binaries, ptx, gpu["arch"])]
    if apart:
        names = ", ".join(f"GPU {gpu['number']} ({gpu['arch']})" for gpu in apart)
        todo = f"compile again with TVM_SCHED_CUDA_ARCHS={','.join(sorted({gpu['arch'] for gpu in apart}))}"
        return Check("artifact", "architectures", "failure", f"{text}; none for {names}: {todo}", dict(needs))
    return Check("artifact", "architectures", "ok", text, dict(needs))


def _loads(binaries: Sequence[str], ptx: str | None, arch: str) -> bool:
    here = _number(arch)
    for binary in binaries:
        number = _number(binary)
        if binary == arch or (not binary[-1].isalpha() and number // 10 == here // 10 and number <= here):
            return True
    return ptx is not None and _number(ptx) <= here


def _number(arch: str) -> int:
    return int(re.sub(r"\D", "", arch))


def run_checks(module: ScheduledModule, seed: int = 0, devices: Sequence[int] | None = None) -> list[Check]:
    """Run it on random inputs: values and times.

    The module's options are left at graphs off and traces on.
    """
    plans = module.plans()
    inputs = choose_inputs(plans[:1], {}, seed)
    if devices is not None:
        module.configure(devices=devices)
    try:
        module.configure(graph=False, trace=True)
        outputs = module.run(*inputs)
        checks = [_values(module, inputs, outputs), *_times(module, inputs, plans[0])]
        if module.template is not None:
            checks += _any_size(module, seed)
        if needs_gpu(module):
            checks.append(_graph(module, inputs, outputs))
    except TvmSchedError as error:
        return [Check("artifact", "run", "failure", str(error))]
    return checks


def _values(module: ScheduledModule, inputs: list[Any], outputs: list[Any]) -> Check:
    """Check that a second run gives the same bits, and that floating-point outputs of normal inputs are numbers."""
    again = module.run(*inputs)
    changed = [n for n, (a, b) in enumerate(zip(outputs, again, strict=True)) if not _equal_bytes(a, b)]
    if changed:
        text = f"outputs {changed} differ between two runs with the same inputs"
        return Check("artifact", "values", "failure", f"{text}: please report it with the artifact")
    odd = [n for n, value in enumerate(outputs) if value.dtype.kind == "f" and not np.isfinite(value).all()]
    if odd:
        text = f"outputs {odd} have values that are no numbers, for random inputs"
        return Check("artifact", "values", "warning", f"{text}: --against compares with an artifact for CPUs")
    return Check("artifact", "values", "ok", f"two runs gave the same {len(outputs)} outputs, and all are finite")


def _any_size(module: ScheduledModule, seed: int) -> list[Check]:
    """Check runs of a size that has no plan: one more than the least of each open dimension."""
    template = module.template or {}
    sizes = {s["name"]: min(s.get("low", 0) + 1, s.get("high", s.get("low", 0) + 1)) for s in template["symbols"]}
    inputs = choose_inputs([], {}, seed, template, sizes)
    try:
        check = _values(module, inputs, module.run(*inputs))
    except InputError as error:  # of another condition of the model
        return [Check("artifact", "any size", "ok", f"not tried: {error}")]
    named = ", ".join(f"{name} {size}" for name, size in sizes.items())
    return [msgspec.structs.replace(check, name="any size", text=f"{named}: {check.text}")]


def _equal_bytes(a: Any, b: Any) -> bool:
    return a.shape == b.shape and bool(np.array_equal(a.reshape(-1).view(np.uint8), b.reshape(-1).view(np.uint8)))


def _times(module: ScheduledModule, inputs: list[Any], plan: dict[str, Any]) -> list[Check]:
    """Compare latency, kernels and copies of the fastest of a few runs with the plan's."""
    runs = []
    for _ in range(_RUNS):
        module.run_times(*inputs)
        runs.append(module.timeline())
    fastest = min(runs, key=lambda run: int(run["latency_ns"]))
    predicted, measured = planned_timeline(plan), measured_timeline(fastest)
    spent = [time_by_kind(timeline) for timeline in (predicted, measured)]
    data = {"predicted_ns": predicted.latency_ns, "measured_ns": measured.latency_ns, "by_kind": spent}
    text = f"{format_ns(measured.latency_ns)}, predicted {format_ns(predicted.latency_ns)}"
    by_kind = [
        f"{kind} {format_ns(spent[1].get(kind, 0))} ({format_ns(spent[0].get(kind, 0))} predicted)"
        for kind in ("load", "kernel", "copy")
        if spent[0].get(kind) or spent[1].get(kind)
    ]
    overlap = _overlap(measured)
    if overlap is not None:
        by_kind.append(f"{100 * overlap:.0f} % of the copies' time beside kernels")
    checks = [Check("artifact", "latency", "ok", f"{text}; {', '.join(by_kind)}", data)]
    return [*checks, _kernels(plan, fastest), *_copies(plan, fastest)]


def _overlap(timeline: Any) -> float | None:
    """Return the part of the copies' time during which some kernel runs."""
    copies = [(e.start_ns, e.end_ns) for e in timeline.events if e.kind in ("load", "copy")]
    kernels = sorted((e.start_ns, e.end_ns) for e in timeline.events if e.kind == "kernel")
    total = sum(end - start for start, end in copies)
    if not total or not kernels:
        return None
    merged: list[list[int]] = []
    for start, end in kernels:
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    beside = sum(max(0, min(e, b) - max(s, a)) for s, e in copies for a, b in merged)
    return beside / total


def _kernels(plan: dict[str, Any], run: dict[str, Any]) -> Check:
    """Compare the time of each kernel with the prediction; the largest differences come first."""
    rows = []
    for event in run["events"]:
        step = plan["steps"][event["step"]]
        if step["kind"] == "kernel":
            rows.append((step["name"], event["end_ns"] - event["start_ns"], step.get("duration_ns", 0)))
    rows.sort(key=lambda row: -abs(row[1] - row[2]))
    furthest = [f"{name} {format_ns(took)} ({format_ns(wanted)} predicted)" for name, took, wanted in rows[:5]]
    data = {"kernels": [{"name": name, "measured_ns": took, "predicted_ns": wanted} for name, took, wanted in rows]}
    return Check("artifact", "kernels", "ok", f"{len(rows)} ran; furthest from the plan: {', '.join(furthest)}", data)


def _copies(plan: dict[str, Any], run: dict[str, Any]) -> list[Check]:
    """Return bytes a second of large copies, by the queue that they were on."""
    lanes: dict[str, list[tuple[int, int]]] = {}
    for event in run["events"]:
        size = int((event["event"] or {}).get("bytes", 0))
        if plan["steps"][event["step"]]["kind"] == "copy" and size >= _MIB:
            lanes.setdefault(event["queue"], []).append((size, max(event["end_ns"] - event["start_ns"], 1)))
    rates = {lane: sum(s for s, _ in copies) / sum(t for _, t in copies) * 1e9 for lane, copies in lanes.items()}
    if not rates:
        return []
    text = ", ".join(f"{lane} {format_rate(rate)}" for lane, rate in rates.items())
    return [Check("artifact", "copies", "ok", f"of 1 MiB and more: {text}", rates)]


def _graph(module: ScheduledModule, inputs: list[Any], outputs: list[Any]) -> Check:
    """Check that a replayed graph gives the same bits as the issued run."""
    module.configure(trace=False, graph=True)
    runs = [module.run(*inputs) for _ in range(3)]
    latency = module.latency()
    module.configure(trace=True, graph=False)
    for values in runs:
        if not all(_equal_bytes(a, b) for a, b in zip(outputs, values, strict=True)):
            return Check("artifact", "graph", "failure", "a replayed graph gives other values: please report it")
    text = f"replayed with the same values in {format_ns(round(latency * 1e9))}"
    return Check("artifact", "graph", "ok", text, {"latency_ns": round(latency * 1e9)})


def check_choice(path: Path | None, against: Path | None) -> None:
    """Refuse ``--against`` without an artifact to compare."""
    if against is not None and path is None:
        raise InputError("--against compares an artifact: name one for GPUs, and one of the same model for CPUs")
