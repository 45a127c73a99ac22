"""Steps about what runs at once: streams and launch orders, pairs of kernels, loads and direct reads; how busy a GPU is."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tvm_sched_runtime import core_library

from .artifacts import load, network_tensors, write_parameters
from .cases import chain_weight, cold_weight
from .record import NotAvailable, Step, torch_with_cuda
from .running import grouped, medians, network
from .weights import numbers

BUSY = "sm__cycles_active.avg.pct_of_peak_sustained_elapsed"
"""Nsight Compute's metric of the part of the time in which a multiprocessor has a warp."""
DURATION = "gpu__time_duration.sum"
ISSUING, ISSUED = "TVM_SCHED_ISSUING_THREADS", ("one", "opara, opara")
"""Variable with the number of threads that issue a run, and the streams that `issuing` measures."""


def streams(step: Step) -> None:
    """Time networks with each way to allocate streams and to order launches, all in turns, beside PyTorch."""
    for title, group in grouped(step, "streams"):
        step.measure(title, lambda group=group: network(step, group), 12, 60, [file for file, _ in group])


def issuing(step: Step) -> None:
    """Time runs that are issued step by step, not as graphs, by the number of threads that issue them."""
    cores = os.cpu_count() or 1
    counts = sorted({1, 2, min(4, cores), cores})
    for title, group in grouped(step, "streams"):
        for file, about in group:

            def run(file: Path = file, about: Mapping[str, Any] = about) -> dict[str, Any]:
                _, tensor, x = network_tensors(about)
                parameters = write_parameters(step, file, about, tensor, f"{about['network']}-{about['dtype']}")
                loaded = load(file, parameters, resident=1.0)
                value, runs = given(x), {}
                for count in counts:

                    def issued(count: int = count) -> None:
                        os.environ[ISSUING] = str(count)
                        loaded.run(value)

                    runs[f"{count} threads"] = issued
                try:
                    return {"times": medians(runs, 0.1 if step.quick else 0.8)}
                finally:
                    os.environ.pop(ISSUING, None)

            if about["streams"] in ISSUED:
                step.measure(f"{title}, {about['streams']}", run, 4, 40, (file,))


def pairs(step: Step) -> None:
    """Time chains of equal kernels alone and two at once, each in a thread and on streams of its own."""
    chains = [(file, about) for file, about in step.artifacts("chain")]
    running: dict[str, Any] = {}

    def started(file: Path, about: Mapping[str, Any]) -> Any:
        if about["name"] not in running:
            parameters = write_parameters(step, file, about, lambda _: chain_weight(about["name"], about["weight"]))
            loaded = load(file, parameters, resident=1.0, graph=True)
            x = given(numbers("x0", tuple(about["shape"])))
            for _ in range(3):
                (first,) = loaded.run(x)
            if not np.isfinite(host_sample(first)).all():
                raise ValueError("results are not finite")
            times = medians({"alone": lambda: loaded.run(x)}, 0.05 if step.quick else 0.3)
            running[about["name"]] = loaded, x, times["alone"]["median_us"]
        return running[about["name"]]

    for file, about in chains:

        def alone(file: Path = file, about: Mapping[str, Any] = about) -> dict[str, Any]:
            return {"us": started(file, about)[2], "predicted": about["predicted"], "shares": about["shares"]}

        step.measure(about["name"], alone, 2, 20, (file,))
    for (file, about), (other, about_other) in itertools.combinations_with_replacement(chains, 2):
        if about is about_other:
            continue

        def both(
            file: Path = file,
            about: Mapping[str, Any] = about,
            other: Path = other,
            about_other: Mapping[str, Any] = about_other,
        ) -> dict[str, Any]:
            return at_once(started(file, about), started(other, about_other), 0.02 if step.quick else 0.15)

        step.measure(f"{about['name']} and {about_other['name']}", both, 1, 20, (file, other))


def contention(step: Step) -> None:
    """Time two runs at once on the bus: each loads its weight, or its kernel reads it in host memory.

    On several GPUs also by two of them. The model lets what shares a bus take turns, so it predicts a ratio of 1.
    """
    prepared = {about["direct"]: (file, about) for file, about in step.artifacts("direct") if measured_at_once(about)}
    gpus = len(json.loads(core_library.function("tvm_sched.cuda_report")())["gpus"])
    for ways in itertools.combinations_with_replacement(sorted(prepared), 2):
        for other in range(min(gpus, 2)):

            def run(ways: tuple[bool, ...] = ways, other: int = other) -> dict[str, Any]:
                started = []
                for (file, about), device in zip((prepared[way] for way in ways), (0, other), strict=True):
                    weight = cold_weight(0, about["width"])
                    parameters = write_parameters(step, file, about, lambda _, w=weight: w, f"direct-{about['width']}")
                    loaded = load(file, parameters, devices=[device], resident=0.0, graph=True)
                    x = numbers("x0", (about["rows"], about["width"]))
                    for _ in range(3):
                        loaded.run(x)
                    times = medians({"alone": lambda loaded=loaded, x=x: loaded.run(x)}, 0.02 if step.quick else 0.2)
                    started.append((loaded, x, times["alone"]["median_us"]))
                return at_once(*started, 0.02 if step.quick else 0.3)

            names = " and ".join("read in host memory" if way else "loaded" for way in ways)
            step.measure(f"{names}, GPUs 0 and {other}", run, 3, 30, [prepared[way][0] for way in ways])


def measured_at_once(about: Mapping[str, Any]) -> bool:
    """Return whether a product of one row, by a kernel of a library, reads its weight once."""
    return about["rows"] == 1 and bool(about["libraries"])


def given(x: Any) -> Any:
    """Put an input on the GPU where PyTorch can, so that no copy between host and GPU counts."""
    try:
        torch_with_cuda()
    except NotAvailable:
        return x
    from .networks import to_torch

    return to_torch(x).cuda()


def host_sample(value: Any) -> Any:
    """Return some values of an output on the host."""
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value).reshape(-1)[:64]


def at_once(first: Any, second: Any, seconds: float) -> dict[str, Any]:
    """Run two chains at once for about some seconds; return the time beside the sum of both alone.

    Each runs as often as fits into half of the time alone, so that neither is left alone for long.
    """
    counts = [max(1, round(seconds * 1e6 / 2 / us)) for _, _, us in (first, second)]
    begin, failures = threading.Barrier(3), list[BaseException]()

    def work(loaded: Any, x: Any, count: int) -> None:
        begin.wait()
        try:
            for _ in range(count):
                loaded.run(x)
        except BaseException as error:  # told by the caller
            failures.append(error)

    threads = [
        threading.Thread(target=work, args=(loaded, x, count))
        for (loaded, x, _), count in zip((first, second), counts, strict=True)
    ]
    for thread in threads:
        thread.start()
    begin.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    together = 1e6 * (time.perf_counter() - started)
    if failures:
        raise failures[0]
    alone = sum(us * count for (_, _, us), count in zip((first, second), counts, strict=True))
    return {"together_us": together, "one_after_another_us": alone, "ratio": together / alone, "runs": counts}


def efficiency(step: Step) -> None:
    """Read by Nsight Compute how much of the time the multiprocessors are busy in a captured graph, by streams."""
    tool = shutil.which("ncu")
    if tool is None:
        step.write("ncu", status="not available", reason="ncu (Nsight Compute) is not there")
        return
    script = Path(__file__).resolve().parents[1] / "gpu_hour.py"
    for title, group in grouped(step, "streams"):
        for file, about in group:

            def run(file: Path = file) -> dict[str, Any]:
                command = [tool, "--graph-profiling", "graph", "--metrics", f"{BUSY},{DURATION}", "--csv"]
                command += [sys.executable, str(script), "once", "--folder", str(step.folder), str(file)]
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=step.left, check=False, env={**os.environ}
                )
                if done.returncode:
                    raise RuntimeError((done.stdout + done.stderr)[-500:])
                return busy(done.stdout)

            step.measure(f"{title}, {about['streams']}", run, 15, 60, (file,))


def busy(text: str) -> dict[str, Any]:
    """Return what Nsight Compute says of graphs, its longest workloads: percent that is busy, and microseconds."""
    lines = text.splitlines()
    head = next((k for k, line in enumerate(lines) if line.startswith('"ID"')), None)
    if head is None:
        raise ValueError(f"ncu printed no table: {text[-300:]}")
    works: dict[str, dict[str, float]] = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines[head:]))):
        if row.get("Metric Name") in (BUSY, DURATION):
            value = float(row["Metric Value"].replace(",", ""))
            scale = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3}
            unit = row["Metric Unit"]
            works.setdefault(row["ID"], {})[row["Metric Name"]] = value * scale.get(unit, 1.0)
    whole = [work for work in works.values() if BUSY in work and DURATION in work]
    if not whole:
        raise ValueError(f"ncu measured nothing: {text[-300:]}")
    longest = max(whole, key=lambda work: work[DURATION])
    return {"busy_percent": longest[BUSY], "us": longest[DURATION], "workloads": len(whole)}
