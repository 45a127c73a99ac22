"""Measure the kernels of a model on this machine's CPU: in the model's run, alone and warm, alone and cold."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import tvm

from ..cost_model.devices import properties
from ..cost_model.predicted import database_key
from ..cost_model.profile import Database, Measurement, Profile, this_machine
from ..cost_model.signature import signatures
from ..errors import InputError
from ..problem import load_topology
from ..runtime.machine import cores
from ..runtime.tensors import random_value
from .build import CompiledModel, compile
from .graph import Extraction, extract
from .importers import load_model
from .importers.shapes import InputShapes
from .kernel_libraries import KERNELS, make_modules
from .kernels import compile_kernels, host_target
from .passes.lower import LowerToKernels

Progress = Callable[[str, int, int], None]

TOLERANCE = 0.02
"""Measuring ends when the 95 % confidence interval of the median latency is this share of it to either side."""
MOST_RUNS, MOST_SECONDS = 400, 20.0
_FLUSH_BYTES = 64 << 20  # more than the last-level cache of most CPUs
_COPY_SIZES = tuple(4**n << 10 for n in range(0, 9))  # 1 KiB to 64 MiB


def profile_models(
    models: Mapping[str, Any],
    device: str = "cpu1",
    *,
    input_shapes: InputShapes | None = None,
    database: Database | None = None,
    again: bool = False,
    alone: bool = True,
    progress: Progress | None = None,
) -> Profile:
    """Measure every distinct kernel of some models on one device of a topology ``cpuN``.

    Parameters
    ----------
    models : mapping of str to model
        By name; as for `load_model`.
    device : str
        ``"cpuN"``: the device has the threads that each of N devices gets.
    database : Database, optional
        Kernels that it knows are not measured again, and what is measured goes there.
    again : bool
        Measure all kernels all the same.
    alone : bool
        Whether to measure kernels outside of their model, too.

    Raises
    ------
    InputError
        A topology that is not of this machine's cores, or a model that cannot be compiled.
    """
    topology = load_topology(device)
    if any(each.kind != "cpu" for each in topology.devices):
        raise InputError(f"device {device!r}: kernels are measured on this machine's cores; allowed is cpuN")
    machine, tell = this_machine(), progress or (lambda *_: None)
    key = database_key(max(cores() // len(topology.devices), 1))
    known = database.read(machine, key) if database and not again else {}
    found: dict[str, Measurement] = {}
    latencies: dict[str, float] = {}
    for position, (name, model) in enumerate(models.items()):
        tell(f"compiling {name}", position, len(models))
        imported = load_model(model, input_shapes, name).with_parameters()
        mod = tvm.transform.Sequential([LowerToKernels()])(imported)
        extraction = extract(mod)
        asked = signatures(extraction.graph)
        if set(asked) - known.keys():
            tell(f"measuring {name}", position, len(models))
            compiled = compile(model, topology, "single", input_shapes=input_shapes, name=name)
            times, latencies[name] = run_times(compiled)
            measured = _in_run(name, extraction, times, set(asked) - known.keys())
            if alone:
                measured = _alone(mod, extraction, measured, len(topology.devices))
            known |= measured
            if database:
                database.write(machine, key, measured.values())
        found |= {each: known[each] for each in asked if each in known and each not in found}
    return Profile(machine, properties(topology.devices[0]), tuple(found.values()), copy_times(), latencies)


def _in_run(
    name: str, extraction: Extraction, times: Mapping[str, Sequence[float]], missing: set[str]
) -> dict[str, Measurement]:
    """The missing kernels of one model, by signature; calls of equal kernels are one measurement."""
    together: dict[str, list[float]] = {}
    for operator, text in zip(extraction.graph.operators, signatures(extraction.graph), strict=True):
        together.setdefault(text, []).extend(times.get(operator.name, ()))
    result = {}
    for text, seconds in together.items():
        if text in missing and seconds:
            median, error = median_and_error(np.array(seconds))
            result[text] = Measurement(text, name, median, repeats=len(seconds), error=round(error, 4))
    return result


def run_times(compiled: CompiledModel) -> tuple[dict[str, list[float]], float]:
    """Seconds of each operator in runs of a model, until the median of the latency is known well; and that median."""
    module = compiled.module
    module.configure(trace=True)
    rng = np.random.default_rng(0)
    values = [random_value(rng, argument) for argument in module.plans()[0]["arguments"]]
    times: dict[str, list[float]] = {}
    latencies: list[float] = []
    begin = time.monotonic()
    for n in range(MOST_RUNS):
        module.run(*values)
        if n < 3:
            continue
        latencies.append(module.latency())
        for row in module.timeline()["events"]:
            event = row["event"]
            if event and event.get("kind") == "kernel":
                times.setdefault(event["name"], []).append((row["end_ns"] - row["start_ns"]) / 1e9)
        spent = time.monotonic() - begin
        if n >= 12 and ((median_and_error(np.array(latencies))[1] <= TOLERANCE and spent > 1) or spent > MOST_SECONDS):
            break
    return times, median_and_error(np.array(latencies))[0]


def median_and_error(values: np.ndarray) -> tuple[float, float]:
    """Median, and half the width of its 95 % confidence interval as a share of it, by order statistics."""
    ordered = np.sort(values)
    count = len(ordered)
    reach = 0.98 * np.sqrt(count)  # 1.96 standard deviations of how many of n fall below the median
    low, high = int(max(np.floor(count / 2 - reach), 0)), int(min(np.ceil(count / 2 + reach), count - 1))
    median = float(np.median(ordered))
    return median, float((ordered[high] - ordered[low]) / 2 / median) if median else 0.0


def _alone(
    mod: tvm.IRModule, extraction: Extraction, measured: Mapping[str, Measurement], devices: int
) -> dict[str, Measurement]:
    """The measurements with those of kernels called again and again, and with caches flushed before each call."""
    texts = signatures(extraction.graph)
    first = {text: o for o, text in reversed(list(enumerate(texts))) if text in measured}
    claimed = {str(name) for name in mod.attrs[KERNELS]} if mod.attrs and KERNELS in mod.attrs else set()
    calls = [extraction.calls[o] for o in first.values() if not extraction.calls[o].packed]
    libraries = {call.function: call.function for call in calls if call.function in claimed}
    own = {call.function: mod[call.function] for call in calls if not call.external}
    modules = make_modules(mod, libraries, dict.fromkeys(libraries, (1, devices)))
    modules += [compile_kernels(own, host_target())] if own else []
    rng, result = np.random.default_rng(0), dict(measured)
    for text, o in first.items():
        call = extraction.calls[o]
        holder = next((m for m in modules if m.implements_function(call.function)), None)
        if holder is None:
            continue
        values = [_value(rng, extraction, tensor) for tensor in (*call.inputs, *call.outputs)]
        warm = holder.time_evaluator(call.function, tvm.cpu(), number=3, repeat=5, min_repeat_ms=2)
        cold = holder.time_evaluator(call.function, tvm.cpu(), number=1, repeat=5, cache_flush_bytes=_FLUSH_BYTES)
        result[text] = msgspec.structs.replace(
            measured[text], warm=float(np.median(warm(*values).results)), cold=float(np.median(cold(*values).results))
        )
    return result


def _value(rng: np.random.Generator, extraction: Extraction, name: str) -> Any:
    tensor = extraction.graph.tensors[extraction.graph.index.tensor_id[name]]
    return tvm.runtime.tensor(random_value(rng, {"shape": tensor.shape, "dtype": tensor.dtype}))


def copy_times() -> tuple[tuple[int, float], ...]:
    """Seconds of copies from memory to memory, by bytes; the median of several."""
    result = []
    for size in _COPY_SIZES:
        source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
        times = []
        for _ in range(9):
            begin = time.perf_counter()
            np.copyto(target, source)
            times.append(time.perf_counter() - begin)
        result.append((size, float(np.median(times))))
    return tuple(result)
