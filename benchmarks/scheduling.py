"""Predicted latency, lower bound, gap, scheduling time and memory of every scheduler, on real models and all presets."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from _checked import checked
from _common import parser
from _result_page import Row, report
from rich.console import Console

from tvm_sched.schedulers import names, solve
from tvm_sched_bench.testing import models
from tvm_sched_runtime.errors import InfeasibleError
from tvm_sched_runtime.problem import Problem, load_topology, preset_names

QUICK_MODELS = ("inception_v1", "squeezenet", "llama")
MODELS = (*QUICK_MODELS, "resnet50", "densenet121", "gpt2", "minilm")


def problems(folder: Path | None, quick: bool) -> Iterator[tuple[str, Problem]]:
    """Yield each problem with its name: those of a folder's files, or each model on each preset and on ``cpu2``."""
    if folder:
        files = sorted(folder.glob("*.json"))
        if not files:
            raise SystemExit(f"{folder} holds no problem files (*.json)")
        yield from ((file.stem, Problem.load(file)) for file in files)
        return
    from tvm_sched.relax import make_problem

    topologies = [load_topology(name) for name in [*preset_names(), "cpu2"]]
    for name in QUICK_MODELS if quick else MODELS:
        model = models.onnx_model(name) if name in models.ONNX_MODELS else getattr(models, name)()
        for topology in topologies:
            yield f"{name} on {topology.name}", make_problem(model, topology, cost_model="roofline", name=name)


def rows_of(case: str, problem: Problem, scheduler: str, options: dict[str, Any], single: float | None) -> list[Row]:
    try:
        schedule = checked(problem, solve(problem, method=scheduler, options=options))
    except InfeasibleError as error:
        Console(stderr=True).print(f"{case}: {scheduler}: {error}")
        return []
    certificate = schedule.certificate
    assert certificate is not None
    return [
        Row(case, scheduler, certificate.latency * 1e3, "ms", single, "single"),
        Row(case, scheduler, certificate.lower_bound * 1e3, "ms lower bound"),
        Row(case, scheduler, certificate.gap * 100, "% gap"),
        Row(case, scheduler, schedule.seconds, "s to schedule"),
        Row(case, scheduler, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "MiB, most so far"),
    ]


def summary(rows: list[Row]) -> list[Row]:
    """Median and largest gap, and longest time, of each scheduler."""
    found = []
    for scheduler in dict.fromkeys(row.method for row in rows):
        gaps = [row.figure for row in rows if row.method == scheduler and row.unit == "% gap"]
        seconds = [row.figure for row in rows if row.method == scheduler and row.unit == "s to schedule"]
        found.append(Row(f"median of {len(gaps)}", scheduler, median(gaps), "% gap"))
        found.append(Row(f"median of {len(gaps)}", scheduler, median(seconds), "s to schedule"))
        found.append(Row("largest", scheduler, max(gaps), "% gap"))
        found.append(Row("largest", scheduler, max(seconds), "s to schedule"))
    return found


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--instances", type=Path, metavar="DIR", help="take a folder of problem files (*.json)")
    arguments.add_argument("--schedulers", help="some instead of all, separated by commas")
    arguments.add_argument(
        "--time-limit", type=float, help="seconds for each problem, for schedulers that have a limit"
    )
    options = arguments.parse_args()
    chosen = options.schedulers.split(",") if options.schedulers else names()
    limit = options.time_limit or (10.0 if options.quick else 120.0)
    rows: list[Row] = []
    for case, problem in problems(options.instances, options.quick):
        Console(stderr=True).print(case)
        single: float | None = None
        for scheduler in ["single", *(name for name in chosen if name != "single")]:
            limited = {"time_limit": limit} if scheduler == "anytime" else {}
            found = rows_of(case, problem, scheduler, limited, single)
            if scheduler == "single" and found:
                single = found[0].figure
            rows += found
    rows += summary(rows)
    report("Schedulers", rows, options.json, options.markdown, predicted=True)


if __name__ == "__main__":
    main()
