"""Measure the kernels of models on a device of this machine: in the model's run, alone, and in parallel."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tvm

from tvm_frontends.shapes import InputShapes
from tvm_sched_runtime.problem import Topology
from tvm_sched_runtime.runtime.tensors import random_value

from ..cost_model.database import Database
from ..cost_model.device_properties import DeviceProperties
from ..cost_model.features import describe, footprint_of
from ..cost_model.profile import Copies, Machine, Measurement, Pair, Profile
from ..cost_model.signature import graph_of, signatures
from ..progress import Progress
from .api import CompiledModel, compile
from .codegen.prepare_kernels import PrepareKernels
from .lower.lower_to_kernels import LowerToKernels
from .model_loading import load_model
from .problem.operator_graph import Extraction, extract
from .profiling.cpu_bench import CpuBench
from .profiling.cuda_bench import CudaBench
from .profiling.measure_interference import choose_pairs
from .profiling.other_load import FEWEST_RUNS, OtherLoad, undisturbed
from .toolchain.failures import explained

TOLERANCE = 0.02
"""Measuring ends when the 95 % confidence interval of the median latency reaches this share of it to either side."""
MOST_RUNS, LEAST_SECONDS, MOST_SECONDS = 1000, 1.0, 20.0
SLICE_SECONDS = 0.2
"""Time between two readings of the machine's load."""


class Bench(Protocol):
    """A device on which `profile_models` measures kernels."""

    machine: Machine
    topology: Topology  # models run on its first device
    device: DeviceProperties  # of that device
    key: str  # its name in the database of measurements
    threads: int  # 0 for a GPU
    backend: str | None  # for which models are compiled; None: the topology's own
    settings: dict[str, Any]  # of the executor

    def alone(
        self, mod: tvm.IRModule, extraction: Extraction, measured: Mapping[str, Measurement]
    ) -> dict[str, Measurement]:
        """Add times of kernels outside of their model to measurements."""

    def beside(self, mod: tvm.IRModule, extraction: Extraction, pairs: Sequence[tuple[str, str]]) -> list[Pair]:
        """Measure pairs of kernels in parallel, by signature; omit pairs that cannot be measured."""

    def copies(self) -> tuple[Copies, ...]:
        """Time copies of many sizes, alone and together."""


def bench_of(device: str) -> Bench:
    """Return the bench for ``"cpuN"`` or ``"cuda:N"``; raise `InputError` for other devices and missing GPUs."""
    return CudaBench(device) if device.startswith("cuda") else CpuBench(device)


def profile_models(
    models: Mapping[str, Any],
    device: str = "cpu1",
    *,
    input_shapes: InputShapes | None = None,
    database: Database | None = None,
    again: bool = False,
    alone: bool = True,
    pairs: int = 0,
    progress: Progress | None = None,
) -> Profile:
    """Measure every distinct kernel of some models on one device.

    Parameters
    ----------
    models : mapping of str to model
        Models by name, as for `load_model`.
    device : str
        ``"cpuN"``: one of N devices that share the cores. ``"cuda:N"``: GPU number N.
    database : Database, optional
        Kernels in it are not measured again; new measurements are stored there.
    again : bool
        Measure all kernels again, and delete times measured by compilations, so that the next one measures again.
    alone : bool
        Whether to measure kernels outside of their model, too.
    pairs : int
        How many pairs of kernels of each model to measure in parallel.

    Raises
    ------
    InputError
        The device is not of this machine, or a model cannot be compiled.
    """
    bench, report = bench_of(device), progress or (lambda *_: None)
    known = database.read(bench.machine, bench.key) if database and not again else {}
    beside = database.read_pairs(bench.machine, bench.key) if database and not again else {}
    used: dict[str, None] = {}
    latencies: dict[str, float] = {}
    for position, (name, model) in enumerate(models.items()):
        report(f"compiling {name}", position, len(models))
        imported = load_model(model, input_shapes, name).with_parameters()
        with explained(f"model {name!r}"):
            mod = tvm.transform.Sequential([LowerToKernels(device_kind=bench.device.kind), PrepareKernels()])(imported)
        extraction = extract(mod)
        texts = list(dict.fromkeys(signatures(extraction.graph)))
        if missing := set(texts) - known.keys():
            report(f"measuring {name}", position, len(models))
            if database and again:
                database.forget(bench.machine, bench.key, missing)
            compiled = compile(
                model,
                bench.topology,
                "single",
                input_shapes=input_shapes,
                cost_model="roofline",
                name=name,
                backend=bench.backend,
            )
            times, latencies[name] = run_times(compiled, **bench.settings)
            measured = _in_run(name, extraction, times, missing)
            measured = bench.alone(mod, extraction, measured) if alone else measured
            known |= measured
            if database:
                database.write(bench.machine, bench.key, measured.values())
        used |= dict.fromkeys(text for text in texts if text in known)
        unmeasured = _pairs_to_measure(extraction, known, bench.device, pairs, beside)
        new = bench.beside(mod, extraction, unmeasured) if unmeasured else []
        beside |= {(pair.first, pair.second): pair for pair in new}
        if database and new:
            database.write_pairs(bench.machine, bench.key, new)
    return Profile(
        bench.machine, bench.device, tuple(known[text] for text in used),
        tuple(pair for (a, b), pair in beside.items() if a in used and b in used), bench.copies(), latencies, bench.threads,
    )  # fmt: skip


def _pairs_to_measure(
    extraction: Extraction,
    known: Mapping[str, Measurement],
    device: DeviceProperties,
    count: int,
    measured: Container[tuple[str, str]],
) -> list[tuple[str, str]]:
    """Return the signatures of at most ``count`` pairs of a model's kernels, without the measured pairs."""
    often = Counter(text for text in signatures(extraction.graph) if text in known)
    texts = list(often)
    if not texts or not count:
        return []
    seconds = np.array([known[text].seconds * often[text] for text in texts])
    chosen = choose_pairs(describe(graph_of(texts)), device, seconds, count)
    return [(texts[a], texts[b]) for a, b in chosen if (texts[a], texts[b]) not in measured]


def _in_run(
    name: str, extraction: Extraction, times: Mapping[str, Sequence[float]], missing: set[str]
) -> dict[str, Measurement]:
    """Return the measurements of one model's missing kernels by signature; calls of equal kernels count together."""
    graph = extraction.graph
    together: dict[str, list[float]] = {}
    for operator, text in zip(graph.operators, signatures(graph), strict=True):
        together.setdefault(text, []).extend(times.get(operator.name, ()))
    result = {}
    footprint = footprint_of(graph, describe(graph))
    for text, seconds in together.items():
        if text in missing and seconds:
            median, error = median_and_error(np.array(seconds))
            result[text] = Measurement(text, name, median, 0.0, 0.0, len(seconds), round(error, 4), footprint)
    return result


def run_times(compiled: CompiledModel, **settings: Any) -> tuple[dict[str, list[float]], float]:
    """Measure the seconds of each operator in undisturbed runs of a model, and the median latency of these runs.

    Runs continue until that median is known to `TOLERANCE`. ``settings`` are those of the executor.
    """
    module = compiled.module
    module.configure(trace=True, **settings)
    rng = np.random.default_rng(0)
    values = [random_value(rng, argument) for argument in module.plans()[0]["arguments"]]
    for _ in range(3):
        module.run(*values)
    runs: list[dict[str, float]] = []
    latencies: list[float] = []
    loads: list[float] = []
    load, begin = OtherLoad(), time.monotonic()
    while len(runs) < MOST_RUNS:
        slice_end = time.monotonic() + SLICE_SECONDS
        while time.monotonic() < slice_end:
            module.run(*values)
            latencies.append(module.latency())
            runs.append(_kernel_seconds(module.timeline()))
        loads += [load.share()] * (len(runs) - len(loads))
        kept = undisturbed(np.array(latencies), np.array(loads))
        spent = time.monotonic() - begin
        known = spent > LEAST_SECONDS and _is_known(np.array(latencies)[kept])
        if len(runs) >= FEWEST_RUNS and (known or spent > MOST_SECONDS):
            break
    times: dict[str, list[float]] = {}
    for row in kept.tolist():
        for name, seconds in runs[row].items():
            times.setdefault(name, []).append(seconds)
    return times, float(np.median(np.array(latencies)[kept]))


def _kernel_seconds(timeline: Mapping[str, Any]) -> dict[str, float]:
    return {
        row["event"]["name"]: (row["end_ns"] - row["start_ns"]) / 1e9
        for row in timeline["events"]
        if row["event"] and row["event"].get("kind") == "kernel"
    }


def _is_known(latencies: npt.NDArray[np.float64]) -> bool:
    return len(latencies) >= FEWEST_RUNS and median_and_error(latencies)[1] <= TOLERANCE


def median_and_error(values: np.ndarray) -> tuple[float, float]:
    """Return the median, and half of its 95 % confidence interval (order statistics) as a share of the median."""
    ordered = np.sort(values)
    count = len(ordered)
    reach = 0.98 * np.sqrt(count)  # 1.96 standard deviations of the number of values below the median
    low, high = int(max(np.floor(count / 2 - reach), 0)), int(min(np.ceil(count / 2 + reach), count - 1))
    median = float(np.median(ordered))
    return median, float((ordered[high] - ordered[low]) / 2 / median) if median else 0.0
