"""The work of `tvm-sched auto`: plans for this machine, and alternating runs of two artifacts, or with ONNX Runtime."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from tvm_sched_runtime.cores import cores
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.runtime import ScheduledModule

from .cost_model.detect import to_topology
from .cost_model.recording import Recording
from .progress import report_progress
from .relax.options import CompileOptions
from .relax.profiling.measured_choice import LEAST_SECONDS, RUNS, SECONDS, Runner
from .relax.profiling.paired_runs import compare
from .relax.toolchain.nvcc import has_nvcc
from .report.gains import Rival

SEARCH_SECONDS = 20
"""Time limit of the search for a schedule over several GPUs."""
ONNXRUNTIME = "ONNX Runtime"


@dataclass(frozen=True)
class Plan:
    """A compilation to try."""

    name: str
    """Name to show."""
    options: CompileOptions


def plans_for(recorded: Recording) -> tuple[str, list[Plan]]:
    """Return the name of a machine and what to compile for it: first one device, then all of them.

    It uses the GPUs, if there are any and nvcc can compile for them, otherwise the cores of the processor.
    """
    if recorded.gpus and has_nvcc():
        machine = to_topology(recorded)
        name = f"{len(machine.devices)} {machine.devices[0].model}"
        common: dict[str, Any] = {"backend": "cuda", "resident": 1.0}
        plans = [Plan("one GPU", CompileOptions(topology=machine, scheduler="single", **common))]
        if len(machine.devices) > 1:
            limit = {"time_limit": SEARCH_SECONDS}
            plans.append(
                Plan(f"{len(machine.devices)} GPUs", CompileOptions(topology=machine, options=limit, **common))
            )
        return name, plans
    one = CompileOptions.of("cpu1")
    return f"{recorded.processor or 'this processor'} ({cores()} cores)", [
        Plan("one device with all cores", one),
        Plan("the fastest measured schedule", CompileOptions.of("cpu")),
    ]


def against(module: ScheduledModule, name: str, rival: ScheduledModule) -> Rival:
    """Compare two artifacts of a model by alternating runs."""
    ours = Runner(module)
    comparison = compare(Runner(rival), ours, _seconds(ours), partial(report_progress, "pairs of turns"))
    return Rival(name=name, seconds=comparison.first, ours=comparison.second, quiet=comparison.quiet)


def latency(module: ScheduledModule) -> float:
    """Return the median seconds of a run."""
    run = Runner(module)
    return float(np.median(run(_seconds(run))))


def _seconds(run: Runner) -> float:
    """Return the time for one comparison, as for schedules that are measured."""
    return min(max(RUNS * min(run(0.0)), LEAST_SECONDS), SECONDS)


def why_not_onnxruntime(model: Path, module: ScheduledModule) -> str:
    """Return why ONNX Runtime cannot run the model here; empty if it can."""
    if model.suffix.lower() != ".onnx":
        return "it runs ONNX files only"
    if find_spec("onnxruntime") is None:
        return "not installed, so there is no comparison: pip install onnxruntime"
    if any(plan["backend"] == "cuda" for plan in module.plans()):
        return "it is compared on CPUs only"
    return ""


def against_onnxruntime(model: Path, module: ScheduledModule, constants: Mapping[str, Any]) -> Rival:
    """Compare an artifact with ONNX Runtime by alternating runs on as many threads; compare their outputs, too.

    Raises
    ------
    InputError
        ONNX Runtime cannot load or run the model.
    """
    import onnxruntime

    ours = Runner(module)
    arguments = module.plans()[0]["arguments"]
    feed = {each["name"]: value for each, value in zip(arguments, ours.arguments, strict=True)}
    try:
        options = onnxruntime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 3, cores()
        session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        wanted = {each.name for each in session.get_inputs()}
        feed |= {name: np.asarray(value) for name, value in constants.items()}
        feed = {name: value for name, value in feed.items() if name in wanted}
        theirs = session.run(None, feed)
    except Exception as error:
        raise InputError(f"it cannot run this model: {' '.join(str(error).split())[:200]}") from None

    def turn(limit: float) -> list[float]:
        times: list[float] = []
        session.run(None, feed)
        end = time.perf_counter() + limit
        while not times or time.perf_counter() < end:
            begin = time.perf_counter()
            session.run(None, feed)
            times.append(time.perf_counter() - begin)
        return times

    comparison = compare(turn, ours, _seconds(ours), partial(report_progress, f"pairs of turns with {ONNXRUNTIME}"))
    difference = largest_difference(module.run(*ours.arguments), theirs)
    name = f"{ONNXRUNTIME} {onnxruntime.__version__}"
    return Rival(
        name=name, seconds=comparison.first, ours=comparison.second, quiet=comparison.quiet, difference=difference
    )


def largest_difference(ours: Sequence[Any], theirs: Sequence[Any]) -> float | None:
    """Return the largest difference of numeric outputs over the largest value; None if there is nothing to compare."""
    pairs = [
        (np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64))
        for a, b in zip(ours, theirs, strict=False)
        if isinstance(b, np.ndarray) and b.dtype.kind in "fiub"
    ]
    pairs = [(a, b) for a, b in pairs if a.shape == b.shape and a.size]
    if not pairs:
        return None
    largest = max(float(np.nanmax(np.abs(b))) for _, b in pairs)
    apart = max(float(np.nanmax(np.abs(a - b))) for a, b in pairs)
    return apart / largest if largest else apart
