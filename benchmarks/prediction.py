"""How well latencies on this machine's cores are predicted: by model, and for each kernel above 50 us.

*Compiled*: what the artifact says of itself (its kernels were measured when it was compiled) against runs in a process of
its own, kernels traced in some of them. With ``--anew`` both happen within the same minute, and then once more: where the
two predictions, or the two measurements, differ by more than 10 %, the machine's speed changed meanwhile, and the network
is tried again, up to ``--attempts`` times. The attempt in which they differ least stands, whatever it says.

*Graph only*: what `tvm-sched schedule` says of the model's problem file on a processor that it never met: it measures
typical layers, and predicts all kernels from these. Networks, artifacts and cache are those of `cpu_latency`
(``--prepare`` there compiles them ahead).
"""

from __future__ import annotations

import json
import os
import shutil
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


def measure(folder: Path, file: str, seconds: float, least: bool, busy: bool) -> dict[str, Any]:
    """Predicted and measured seconds of an artifact and of its kernels; in a process of its own.

    ``least``: of the runs, instead of the median. ``busy``: a run is measured by its processor time, which is its latency on
    one thread where nothing interrupts it; of a kernel the least time counts.
    """
    clock = time.process_time if busy else time.perf_counter
    from tvm_sched_runtime import runtime

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
        begin = clock()
        module.run(*values)
        latencies.append(clock() - begin)
    module.configure(trace=True)
    end = time.monotonic() + seconds / 2
    while time.monotonic() < end or len(found[next(iter(found))]) < 5:
        module.run(*values)
        for row in module.timeline()["events"]:
            if row["event"]["kind"] == "kernel":
                found[row["event"]["name"]].append((row["end_ns"] - row["start_ns"]) / 1e9)
    typical = min if least else statistics.median
    kernels = [[name, predicted[name], min(times) if busy else typical(times)] for name, times in found.items()]
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
    graph, whole = found["graph"], sum(found["graph"].values())
    rows = [
        Row(name, "graph only", whole * 1e3, "ms", found["measured"] * 1e3, "measured"),
        Row(name, "graph only", whole / found["measured"], RATIO),
        *kernel_rows(name, "graph only", ratios_of([[graph[k], t] for k, _, t in found["kernels"] if k in graph])),
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


def predict_graph(file: Path) -> dict[str, float]:
    """Return the predicted seconds of a problem's kernels by name; in a process of its own."""
    from tvm_sched.problem_sources import SourceOptions, load_problem

    problem = load_problem([file], "cpu1", SourceOptions(costs="calibrated"), lambda *_: None)
    names = [operator.name for operator in problem.graph.operators]
    return dict(zip(names, (problem.costs.operator_ns[:, 0] / 1e9).tolist(), strict=True))


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
    graphs = [row.figure for row in rows if row.unit == RATIO and row.method == "graph only"]
    said.append(
        f"From the graph alone, after typical layers were measured, {len(within(graphs, MODEL_AIM))} of {len(graphs)} are "
        "within 25 %."
    )
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
        return json.loads(done.stdout.splitlines()[-1]) | {"graph": self._graph(Path(cell["file"]))}

    def _graph(self, file: Path) -> dict[str, float]:
        """Return the result of `predict_graph`, with typical layers as the only measurements."""
        command = [sys.executable, __file__, "--predict", str(file.with_suffix(".problem.json"))]
        environment = self.bench.environment | {"TVM_SCHED_CACHE": str(self.bench.cache / "typical")}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
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
    made.add_argument(
        "--busy", action="store_true", help="processor time, with --threads 1: on a machine with other work"
    )
    made.add_argument("--predict", metavar="FILE", type=Path, help="one problem file only; used by itself")
    made.add_argument("--measure", nargs=2, metavar=("FOLDER", "FILE"), help="one artifact only; used by itself")
    args = made.parse_args()
    if args.busy and args.threads != 1 and not args.measure:
        raise SystemExit("--busy counts the processor time of one thread: give --threads 1, too")
    seconds = 1.0 if args.quick else 4.0
    if args.measure:
        print(json.dumps(measure(Path(args.measure[0]), args.measure[1], seconds, args.least, args.busy)))
        return
    if args.predict:
        print(json.dumps(predict_graph(args.predict)))
        return
    if args.anew:  # what is forgotten is of this run alone, not what the user's own cache knows
        os.environ["TVM_SCHED_CACHE"] = str(args.cache.resolve() / "anew")
        shutil.rmtree(args.cache.resolve() / "typical", ignore_errors=True)
    bench = Bench(args.cache, args.threads, seconds, 1, args.limit, "" if args.any_version else fingerprint())
    rows: list[Row] = []
    measured = Measured(bench, ["--quick"] * args.quick + ["--least"] * args.least + ["--busy"] * args.busy)
    for case in chosen_cases(args):
        found = measured.steady(case, args.attempts) if args.anew else measured.once(case, False)
        if "failed" in found:
            print(f"{case.name}: left out, {found['failed']}", flush=True)
            continue
        new = rows_of(case.name, found)
        print(f"{case.name}: " + "; ".join(f"{row.figure:.3g} {row.unit}" for row in new), flush=True)
        rows += new
    title = f"Predicted latencies on {args.threads} threads of this machine"
    report(title, [*summary(rows), *rows], args.json, args.markdown, notes=f"\n{conclusion(rows)}" if rows else "")


if __name__ == "__main__":
    main()
