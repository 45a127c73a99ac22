"""How well latencies on this machine's cores are predicted: by model, and for each kernel above 50 us.

*Compiled*: what the artifact says of itself (its kernels were measured when it was compiled) against runs in a process of
its own, kernels traced in some of them. With ``--anew`` both happen within the same minute, and then once more: where the
two predictions, or the two measurements, differ by more than 10 %, the machine's speed changed meanwhile, and the network
is tried again, up to ``--attempts`` times. The attempt in which they differ least stands, whatever it says. With ``--anew``
there is nothing to predict kernels from, and *graph only* is left out.

*Graph only*: the kernels of each model predicted from those of all other models that the database of measurements holds, as
for a graph without kernels. Networks, artifacts and cache are those of `cpu_latency` (``--prepare`` there compiles them
ahead).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from _result_page import Row, report
from cpu_latency import Bench, chosen_cases, fingerprint, network_parser

METHOD = "ours, one stream"
FLOOR = 50e-6
"""Seconds of the kernels that are looked at one by one."""
MODEL_AIM, CLOSE, KERNEL_AIM = 1.25, 1.1, 2.0
DRIFT_LIMIT = 1.1
RATIO, DRIFT, KERNELS, WITHIN, WORST = "predicted / measured", "drift", "kernels", "within 2x", "worst"
"""Units: of a model, also how far the machine's speed changed; kernels above the floor, the share of them within the aim,
the worst ratio."""


def measure(folder: Path, file: str, seconds: float, least: bool) -> dict[str, Any]:
    """Predicted and measured seconds of an artifact and of its kernels; in a process of its own."""
    from tvm_sched import runtime

    module = runtime.load(file)
    with np.load(folder / "inputs.npz") as loaded:
        values = list(loaded.values())
    plan = module.plans()[0]
    predicted = {step["name"]: step["duration_ns"] / 1e9 for step in plan["steps"] if step["kind"] == "kernel"}
    found: dict[str, list[float]] = {name: [] for name in predicted}
    for _ in range(3):
        module.run(*values)
    latencies: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(latencies) < 5:
        begin = time.perf_counter()
        module.run(*values)
        latencies.append(time.perf_counter() - begin)
    module.configure(trace=True)
    end = time.monotonic() + seconds / 2
    while time.monotonic() < end or len(found[next(iter(found))]) < 5:
        module.run(*values)
        for row in module.timeline()["events"]:
            if row["event"]["kind"] == "kernel":
                found[row["event"]["name"]].append((row["end_ns"] - row["start_ns"]) / 1e9)
    typical = min if least else statistics.median
    kernels = [[name, predicted[name], typical(times)] for name, times in found.items()]
    info = module.info()["plans"][0]
    return {"predicted": info["latency_ns"] / 1e9, "measured": typical(latencies), "kernels": kernels}


def forget(bench: Bench, case: Any) -> None:
    """Remove a network's artifact and the measurements of all kernels, so that compiling it measures them."""
    from tvm_sched.cost_model.database import Database

    for file in bench.folder(case).glob("cpu1-*"):
        file.unlink()
    Database().clear()


def rows_of(name: str, found: dict[str, Any]) -> list[Row]:
    """Make the rows of a model."""
    ratios = ratios_of([row[1:] for row in found["kernels"]])
    rows = [
        Row(name, "compiled", found["predicted"] * 1e3, "ms", found["measured"] * 1e3, "measured"),
        Row(name, "compiled", found["predicted"] / found["measured"], RATIO),
        *([Row(name, "compiled", found["drift"], DRIFT)] if "drift" in found else []),
    ]
    return [*rows, *kernel_rows(name, "compiled", ratios)]


def ratios_of(pairs: list[list[float]]) -> list[float]:
    """Return predicted over measured of each kernel above the floor."""
    return [predicted / measured for predicted, measured in pairs if max(predicted, measured) > FLOOR]


def kernel_rows(name: str, method: str, ratios: list[float]) -> list[Row]:
    """Make the rows on kernels above the floor: number, share within the aim, worst ratio."""
    if not ratios:
        return []
    within = sum(1 / KERNEL_AIM <= ratio <= KERNEL_AIM for ratio in ratios)
    worst = max(ratios, key=lambda ratio: max(ratio, 1 / ratio))
    return [
        Row(name, method, len(ratios), KERNELS),
        Row(name, method, within / len(ratios), WITHIN),
        Row(name, method, worst, WORST),
    ]


def graph_only(threads: int) -> list[Row]:
    """Predict each model's kernels in the database from the other models' kernels."""
    from tvm_sched.cost_model.calibrated_model import costs_of_rows
    from tvm_sched.cost_model.database import Database
    from tvm_sched.cost_model.predicted import database_key
    from tvm_sched.cost_model.profile import this_machine
    from tvm_sched.cost_model.signature import graph_of
    from tvm_sched.problem import load_topology

    machine, topology = this_machine(), load_topology("cpu1")
    known = [row for row in Database().read(machine, database_key(threads)).values() if row.seconds > 0]
    rows = []
    for model in dict.fromkeys(row.model for row in known):
        mine = {row.signature: row.seconds for row in known if row.model == model}
        others = {row.signature: row for row in known if row.signature not in mine}
        if not others:
            continue
        texts = list(mine)
        costs = costs_of_rows(graph_of(texts), topology, machine, texts, others)
        predicted = costs.operator_ns[:, 0] / 1e9
        total = float(predicted.sum() / sum(mine.values()))
        rows.append(Row(model, "graph only", total, RATIO))
        rows += kernel_rows(
            model, "graph only", ratios_of([[p, mine[t]] for p, t in zip(predicted, texts, strict=True)])
        )
    return rows


def summary(rows: list[Row]) -> list[Row]:
    """Return the shares of models and kernels within the aims."""
    result = []
    for method in dict.fromkeys(row.method for row in rows):
        mine = [row for row in rows if row.method == method]
        models = [row.figure for row in mine if row.unit == RATIO]
        for aim in (MODEL_AIM, CLOSE):
            share = len(within(models, aim)) / max(len(models), 1)
            result.append(Row("all", f"{method}: models within {aim - 1:.0%}", share, "share"))
        counts = {row.case: row.figure for row in mine if row.unit == KERNELS}
        shares = {row.case: row.figure for row in mine if row.unit == WITHIN}
        weight = sum(counts.values())
        if weight:
            share = sum(shares[case] * counts[case] for case in counts) / weight
            result.append(Row("all", f"{method}: kernels above 50 us within 2 times", share, "share"))
    return result


def within(ratios: list[float], aim: float) -> list[float]:
    """Return the ratios within a factor."""
    return [ratio for ratio in ratios if 1 / aim <= ratio <= aim]


def conclusion(rows: list[Row]) -> str:
    """Compare the rows with the aims, in words."""
    ratios = {row.case: row.figure for row in rows if row.unit == RATIO and row.method == "compiled"}
    drifts = {row.case: row.figure for row in rows if row.unit == DRIFT}
    counts = {row.case: row.figure for row in rows if row.unit == KERNELS and row.method == "compiled"}
    shares = {row.case: row.figure for row in rows if row.unit == WITHIN and row.method == "compiled"}
    said = [
        f"{len(within([*ratios.values()], MODEL_AIM))} of {len(ratios)} models are predicted within 25 %, "
        f"{len(within([*ratios.values()], CLOSE))} within 10 %."
    ]
    if total := sum(counts.values()):
        right = sum(counts[case] * shares[case] for case in counts)
        said.append(f"Of {total:.0f} kernels above 50 us, {right / total:.1%} are right within 2 times.")
    if drifts:
        steady = {case: ratios[case] for case, drift in drifts.items() if drift <= DRIFT_LIMIT}
        said.append(
            f"On {len(steady)} of the models the machine kept its speed within 10 % while they were measured: of these "
            f"{len(within([*steady.values()], MODEL_AIM))} are within 25 %, {len(within([*steady.values()], CLOSE))} "
            "within 10 %. Beyond that a prediction cannot be right: two compilations of the same network, or two series "
            "of runs of it, differ by as much (drift)."
        )
    off = [f"{case} ({ratio:.2f})" for case, ratio in ratios.items() if not within([ratio], MODEL_AIM)]
    said.append(f"Not within 25 %: {', '.join(off)}." if off else "")
    said.append("A measured latency includes the call from Python, some 40 us, which a prediction does not.")
    return " ".join(filter(None, said))


class Measured:
    """Compiles a network and measures the artifact."""

    def __init__(self, bench: Bench, options: list[str]) -> None:
        self.bench, self.options = bench, options

    def once(self, case: Any, anew: bool) -> dict[str, Any]:
        """Return the result of `measure`, or the reason of a failure as ``failed``."""
        if anew:
            forget(self.bench, case)
        cell = self.bench.prepare(case, [METHOD])[METHOD]
        if "failed" in cell:
            return {"failed": cell["failed"]}
        command = [sys.executable, __file__, "--measure", str(self.bench.folder(case)), cell["file"], *self.options]
        environment, limit = self.bench.environment, self.bench.limit
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit)
        if done.returncode:
            return {"failed": done.stderr.strip().splitlines()[-1]}
        return json.loads(done.stdout.splitlines()[-1])

    def steady(self, case: Any, attempts: int) -> dict[str, Any]:
        """Return the attempt in which two rounds of compiling and running differ least."""
        best: dict[str, Any] = {}
        for _ in range(attempts):
            first, second = self.once(case, True), self.once(case, True)
            if "failed" in first or "failed" in second:
                return first if "failed" in first else second
            changes = [first[key] / second[key] for key in ("predicted", "measured")]
            first["drift"] = max(max(change, 1 / change) for change in changes)
            best = min(best or first, first, key=lambda found: found["drift"])
            if best["drift"] <= DRIFT_LIMIT:
                break
        return best


def main() -> None:
    made = network_parser(__doc__)
    made.add_argument("--anew", action="store_true", help="measure and compile each network anew, just before it runs")
    made.add_argument("--attempts", type=int, default=3, metavar="N", help="with --anew, at most so many for a network")
    made.add_argument("--least", action="store_true", help="the least of the runs, not the median: on a busy machine")
    made.add_argument("--measure", nargs=2, metavar=("FOLDER", "FILE"), help="one artifact only; used by itself")
    args = made.parse_args()
    seconds = 1.0 if args.quick else 4.0
    if args.measure:
        print(json.dumps(measure(Path(args.measure[0]), args.measure[1], seconds, args.least)))
        return
    if args.anew:  # what is forgotten is of this run alone, not what the user's own cache knows
        os.environ["TVM_SCHED_CACHE"] = str(args.cache.resolve() / "anew")
    bench = Bench(args.cache, args.threads, seconds, 1, args.limit, "" if args.any_version else fingerprint())
    rows: list[Row] = []
    measured = Measured(bench, ["--quick"] * args.quick + ["--least"] * args.least)
    for case in chosen_cases(args):
        found = measured.steady(case, args.attempts) if args.anew else measured.once(case, False)
        if "failed" in found:
            print(f"{case.name}: left out, {found['failed']}", flush=True)
            continue
        new = rows_of(case.name, found)
        print(f"{case.name}: " + "; ".join(f"{row.figure:.3g} {row.unit}" for row in new), flush=True)
        rows += new
    os.environ["TVM_SCHED_NUM_THREADS"] = str(args.threads)
    rows += [] if args.anew else graph_only(args.threads)
    title = f"Predicted latencies on {args.threads} threads of this machine"
    report(title, [*summary(rows), *rows], args.json, args.markdown, notes=f"\n{conclusion(rows)}" if rows else "")


if __name__ == "__main__":
    main()
