"""Measure a lowered model's kernels on this machine's cores, each once, and keep the times in the database."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tvm
import tvm_ffi

from tvm_sched_runtime.errors import InputError, TvmSchedError
from tvm_sched_runtime.files import content_digest
from tvm_sched_runtime.problem import Costs, Problem, Topology, cpu_topology
from tvm_sched_runtime.runtime import ScheduledModule
from tvm_sched_runtime.runtime.tensors import random_value

from ...cost_model import CostWarning
from ...cost_model.calibrated_model import call_seconds, calls_key, costs_of_rows, threads_of
from ...cost_model.database import Database
from ...cost_model.features import describe, footprint_of
from ...cost_model.predicted import database_key
from ...cost_model.profile import QUIET_LOAD, Measurement, this_machine
from ...cost_model.signature import call_signature, signatures
from ...progress import Progress
from ...schedulers import solve
from ..codegen.cpu.kernel_objects import compiler_digest
from ..emit.runnable import link_calls, make_runnable
from ..ir.attributes import SAMPLES, get_compile_target
from ..lower.kernel_libraries import claimed_functions, kernel_document
from ..problem.operator_graph import Extraction, extract
from .other_load import OtherLoad, undisturbed

SECONDS, FEWEST_RUNS, MOST_RUNS, MOST_SECONDS = 1.5, 3, 50, 10.0
"""Time and numbers of the runs of a model that measure its kernels; `FEWEST_RUNS` of a slow model may take longer."""
LEAST_SECONDS = 0.2
"""Least time of these runs, in which a fast model runs more often: another process may disturb all of a few runs."""
SHORT, WARM_SECONDS, MOST_WARM = 10e-3, 1e-3, 8
"""A run below `SHORT` seconds is also timed without a trace. Before a traced run, a short model runs for `WARM_SECONDS`, at
most so often: reading the trace of the run before has filled the caches."""
SLICE = 1e-3
"""Seconds that a process gets before others interrupt it; Linux gives some milliseconds."""
LEAST_SHARE = 0.05
"""Least share of `SECONDS` for a model; else the share is that of its new kernels."""


class KernelTimer:
    """Measures the kernels of lowered models, for `EstimateLatencies`.

    Parameters
    ----------
    progress : callable, optional
        Called with the current task, the number of finished parts, and the number of parts.
    """

    def __init__(self, progress: Progress | None = None) -> None:
        self.progress = progress
        self.load = OtherLoad()  # from now until the kernels are measured

    def __call__(self, mod: tvm.IRModule, calls: Extraction, topology: Topology) -> Costs:
        """Return the latencies of a lowered model's kernels; see `calibrated_costs`."""
        return calibrated_costs(mod, topology, self.progress, self.load, calls)


def calibrated_costs(
    mod: tvm.IRModule,
    topology: Topology,
    progress: Progress | None = None,
    load: OtherLoad | None = None,
    calls: Extraction | None = None,
    seconds: float = SECONDS,
) -> Costs:
    """Return the latencies of a lowered model on ``cpuN``; measure the kernels that the database lacks.

    A kernel's key is its signature and a digest of its code and compiler, so different kernels for the same shapes have
    different times. Known times are not measured again, so a model keeps its latencies as long as the database is kept.
    Only times that were taken beside other work are replaced, if ``load`` shows that the machine is quiet now.

    ``calls`` are the kernels; default: those of the module's graph. ``seconds`` is the time of the runs if no kernel is
    known. If a model cannot be run on random values, its kernels are predicted, with a `CostWarning`.
    """
    calls, machine = calls or extract(mod), this_machine()
    threads = threads_of(topology, machine)
    database, key = Database(), database_key(threads)
    names = kernel_keys(mod, calls)
    quiet = load is not None and load.share() <= QUIET_LOAD
    rows = {
        name: row
        for name, row in _try_database(database.read, machine, key).items()
        if row.seconds > 0 and not (quiet and row.load > QUIET_LOAD and name in names)
    }
    known_calls = _try_database(database.read, machine, calls_key(threads))
    if set(names) - rows.keys():
        if progress:
            progress("measuring kernels", 0, 1)
        try:
            share = sum(name not in rows for name in names) / len(names)
            new, call = _measure(mod, calls, topology, names, seconds * max(share, LEAST_SHARE))
            _try_database(database.write, machine, calls_key(threads), [call])
            known_calls[call.key] = call
        except TvmSchedError as error:
            warnings.warn(
                f"the kernels of {calls.graph.name!r} could not be measured and are predicted: {error}",
                CostWarning,
                stacklevel=2,
            )
            new = []
        new = [row for row in new if row.key not in rows]
        _try_database(database.write, machine, key, new)
        rows |= {row.key: row for row in new}
    return costs_of_rows(calls.graph, topology, machine, names, rows, call_seconds(calls.graph, known_calls))


def _try_database(work: Callable[..., Any], *arguments: Any) -> Any:
    """Read or write the database; if that fails, warn."""
    try:
        return work(*arguments)
    except InputError as error:
        warnings.warn(f"{error}; kernels are measured again each time", CostWarning, stacklevel=3)
        return {}


def kernel_keys(mod: tvm.IRModule, calls: Extraction) -> list[str]:
    """Return the database key of each operator: signature and digest of its kernel."""
    claimed = claimed_functions(mod)
    digests: dict[str, str] = {}
    keys = []
    for text, call in zip(signatures(calls.graph), calls.calls, strict=True):
        if call.function not in digests:
            digests[call.function] = _digest(mod, call.function, call.function in claimed, call.external)
        keys.append(Measurement(text, content=digests[call.function]).key)
    return keys


def _digest(mod: tvm.IRModule, function: str, claimed: bool, external: bool) -> str:
    if claimed:
        content = json.dumps(kernel_document(mod, function)[1], sort_keys=True)
    elif external:
        content = function
    else:
        content = str(tvm_ffi.structural_hash(mod[function].without_attr("global_symbol"), map_free_vars=True))
    return content_digest(f"{content} {get_compile_target(mod).host_here} {compiler_digest()}".encode())


def _measure(
    mod: tvm.IRModule, calls: Extraction, topology: Topology, keys: Sequence[str], seconds: float
) -> tuple[list[Measurement], Measurement]:
    """Measure the distinct kernels of a model in its run on one of the topology's devices, and the call of the model."""
    if not (target := get_compile_target(mod)).runs_here():
        raise InputError(f"this machine lacks instructions of {target.host}")
    graph = calls.graph
    problem = Problem(graph, cpu_topology(1), Costs(np.ones((len(graph.operators), 1), np.int64)))
    shares = {call.function: (1, len(topology.devices)) for call in calls.calls}
    kernels = link_calls(mod, calls, topology)
    module = make_runnable(mod, calls, problem, solve(problem, method="single"), kernels, shares)
    others = OtherLoad()
    runs = kernel_times(module, [operator.name for operator in graph.operators], seconds, sample_arguments(mod))
    load = round(others.share(), 2)
    quiet = load <= QUIET_LOAD
    kept = runs.undisturbed(np.full(len(runs.calls), load)) if quiet else runs
    low, middle, repeats = kept.kernels.min(axis=0), kept.medians(), len(kept.calls)
    if not quiet:
        one_thread = threads_of(topology, this_machine()) == 1
        if one_thread:
            low, called = runs.without_interruptions()
            kept = kept._replace(calls=np.array([called]))
        middle = np.maximum(low, middle)
    footprint = footprint_of(graph, describe(graph))
    together: dict[str, list[int]] = {}
    for position, key in enumerate(keys):
        together.setdefault(key, []).append(position)
    texts, rows = signatures(graph), []
    for key, same in together.items():
        seconds, error = _typical(float(low[same].mean()), float(middle[same].mean()), quiet)
        content = key.rpartition("#")[2]
        row = Measurement(
            texts[same[0]], graph.name, seconds, repeats=repeats, error=error, footprint=footprint, content=content,
            load=load,
        )  # fmt: skip
        rows.append(row)
    seconds, error = _typical(float(kept.calls.min()), float(np.median(kept.calls)), quiet)
    call = Measurement(call_signature(graph), graph.name, seconds, repeats=repeats, error=error, load=load)
    return rows, call


def _typical(low: float, middle: float, quiet: bool) -> tuple[float, float]:
    """Return the seconds of a kernel with these least and median seconds, and their distance as a share of it.

    On a quiet machine the minimum would be too little: in no run all kernels are at their fastest. Beside other work the
    median is too much, since every run is interrupted.
    """
    low, middle = max(low, 1e-9), max(middle, 1e-9)
    seconds = middle if quiet else low
    return seconds, round(abs(middle - low) / seconds, 4)


def _goes_on(runs: int, spent: float, seconds: float) -> bool:
    """Whether another run is worth its time, after ``spent`` of ``seconds``."""
    if runs == 0 or spent < min(LEAST_SECONDS, seconds):
        return True
    return runs < (FEWEST_RUNS if spent > seconds else MOST_RUNS) and spent <= MOST_SECONDS


class RunTimes(NamedTuple):
    """Seconds of several runs of a model."""

    kernels: npt.NDArray[np.float64]
    calls: npt.NDArray[np.float64]
    """Seconds of each call in which no kernel runs."""
    busy: npt.NDArray[np.float64]
    """Processor time of each call. With one thread, this is its time without interruptions by other processes."""

    def undisturbed(self, loads: npt.NDArray[np.float64]) -> RunTimes:
        """Return the runs that no other process slowed down; ``loads`` as in `undisturbed`."""
        rows = undisturbed(self.kernels.sum(axis=1), loads)
        return RunTimes(self.kernels[rows], self.calls[rows], self.busy[rows])

    def without_interruptions(self) -> tuple[npt.NDArray[np.float64], float]:
        """Return the time of each kernel and of the call on one thread as if no other process had interrupted them.

        The least times are scaled so that they add up to the processor time of the median run. Kernels shorter than a
        `SLICE` ran without interruption in some run, so if the least times are too long, only the time of longer kernels
        beyond it is scaled.
        """
        least, call = self.kernels.min(axis=0), float(self.calls.min())
        total = max(float(np.median(self.busy)), 1e-9)
        whole = np.minimum(least, SLICE)
        beyond, short = least - whole, float(whole.sum()) + call
        if short < total < short + float(beyond.sum()):
            return whole + beyond * (total - short) / float(beyond.sum()), call
        factor = total / max(float(least.sum()) + call, 1e-12)
        return least * factor, call * factor

    def without_trace(self, whole: npt.NDArray[np.float64], busy: npt.NDArray[np.float64]) -> RunTimes:
        """Return the times as they are without a trace; ``whole`` and ``busy`` are of such runs.

        A trace takes some tenths of a microsecond for each kernel, much of a model of microseconds.
        """
        traced = float((self.kernels.sum(axis=1) + self.calls).min())
        factor = min(float(whole.min()) / max(traced, 1e-12), 1.0)
        return RunTimes(self.kernels * factor, self.calls * factor, np.resize(busy, len(self.busy)))

    def medians(self) -> npt.NDArray[np.float64]:
        """Return the median time of each kernel, scaled by one factor so that the times add up to the median run.

        In a typical run some kernels are slower than their medians.
        """
        medians = np.median(self.kernels, axis=0)
        return medians * float(np.median(self.kernels.sum(axis=1))) / max(float(medians.sum()), 1e-12)


def _untraced(
    module: ScheduledModule, arguments: list[npt.NDArray[np.generic]], runs: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the seconds of runs without a trace, by the clock and of processor time."""
    times = []
    for _ in range(runs):
        clock, busy = time.perf_counter(), time.process_time()
        module.run(*arguments)
        times.append((time.perf_counter() - clock, time.process_time() - busy))
    whole, busy_times = zip(*times, strict=True)
    return np.array(whole), np.array(busy_times)


def sample_arguments(mod: tvm.IRModule) -> dict[str, list[int]]:
    """Return the integers that inputs have in a typical run, as far as the module tells them (`SAMPLES`)."""
    return json.loads(str(mod.attrs[SAMPLES])) if mod.attrs and SAMPLES in mod.attrs else {}


def kernel_times(
    module: ScheduledModule, operators: Sequence[str], seconds: float, samples: Mapping[str, list[int]] | None = None
) -> RunTimes:
    """Run a module of one stream repeatedly; return the seconds of each operator and of the call.

    Arguments are random, but for those of ``samples``.

    An operator's time begins at the end of the operator before it, so the times of a run and its call add up to the
    latency that a caller sees. The runs are in a new thread; when it ends, the OpenMP threads that the kernels started end,
    too. While a process has more of these than cores, libgomp lets them sleep between kernels.
    """
    position = {name: k for k, name in enumerate(operators)}

    def one(arguments: list[npt.NDArray[np.generic]]) -> tuple[npt.NDArray[np.float64], float, float]:
        called, busy = time.perf_counter(), time.process_time()
        module.run(*arguments)
        called, busy = time.perf_counter() - called, time.process_time() - busy
        times = np.zeros(len(operators))
        rows = [row for row in module.timeline()["events"] if (row["event"] or {}).get("kind") == "kernel"]
        begin = min((row["start_ns"] for row in rows), default=0)
        for row in sorted(rows, key=lambda row: row["end_ns"]):
            times[position[row["event"]["name"]]] = (row["end_ns"] - begin) / 1e9
            begin = row["end_ns"]
        return times, max(called - float(times.sum()), 0.0), busy

    def work() -> RunTimes:
        rng = np.random.default_rng(0)
        arguments = [
            np.array(samples[argument["name"]], argument["dtype"])
            if samples and argument["name"] in samples
            else random_value(rng, argument)
            for argument in module.plans()[0]["arguments"]
        ]
        module.configure(trace=True)
        times, called, _ = one(arguments)
        runs: list[tuple[npt.NDArray[np.float64], float, float]] = []
        begin = time.monotonic()
        while _goes_on(len(runs), time.monotonic() - begin, seconds):
            for _ in range(min(int(WARM_SECONDS / max(float(times.sum()) + called, 1e-9)), MOST_WARM)):
                module.run(*arguments)
            times, called, busy = one(arguments)
            runs.append((times, called, busy))
        found = RunTimes(*(np.array(column) for column in zip(*runs, strict=True)))
        if float((found.kernels.sum(axis=1) + found.calls).min()) > SHORT:
            return found
        module.configure(trace=False)
        module.run(*arguments)
        return found.without_trace(*_untraced(module, arguments, min(len(runs), MOST_RUNS)))

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()
