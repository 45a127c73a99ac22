"""Throughput partitioning: the tables of Archer et al. (ICML 2024) on our instances, and what `pipeline-exact` adds.

Table 1 and 3 of the paper: geometric means of lower bound over the best partition found. Table 2: of partition over the
simple bound, for ways to search orders. Figure 5: running times. Instances are REGAL-like graphs made from seeds
(`tvm_sched.testing.regal`, which states its parameters), or files: JSON with ``nodes`` and ``edges``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING

from _common import Row, parser, report

if TYPE_CHECKING:
    from tvm_sched.pipeline import PartitionProblem

ORDERS = (
    ("mla", "mla", 10_000),
    ("mla-weighted", "mla-weighted", 10_000),
    ("random-1", "random", 1),
    ("random-100", "random", 100),
    ("random-10000", "random", 10_000),
    ("brkga-100", "brkga", 100),
    ("brkga-10000", "brkga", 10_000),
)


def main() -> None:
    arguments = parser(__doc__ or "", models=False)
    arguments.add_argument("--instances", type=Path, metavar="DIR", help="a folder of graphs (*.json) instead")
    arguments.add_argument("--count", type=int, default=20, metavar="N", help="REGAL-like instances")
    arguments.add_argument("--stages", default="4,8,16", metavar="K,K", help="numbers of stages")
    arguments.add_argument("--seconds", type=float, default=60.0, help="for pipeline-exact, and for each program")
    arguments.add_argument("--bounds", action="store_true", help="each bound of the paper by itself, too (Tables 1, 3)")
    arguments.add_argument("--orders", action="store_true", help="each search over orders, too (Table 2)")
    given = arguments.parse_args()
    if given.quick:
        given.count, given.seconds = 3, 4.0
    problems = _instances(given.instances, given.count)
    rows: list[Row] = []
    for k in [int(text) for text in given.stages.split(",")]:
        rows += _stages(problems, k, given.seconds, given.bounds, given.orders)
    title = f"Throughput partitioning: {len(problems)} graphs, {given.seconds:g} s each"
    report(title, rows, given.json, given.markdown)


def _instances(folder: Path | None, count: int) -> list[PartitionProblem]:
    from tvm_sched.pipeline.instances import load_instance
    from tvm_sched.testing.regal import regal_like

    if folder is None:
        return [regal_like(seed) for seed in range(count)]
    files = sorted(folder.glob("*.json"))
    if not files:
        raise SystemExit(f"{folder} holds no graphs (*.json)")
    return [load_instance(file) for file in files]


def _stages(problems: Sequence[PartitionProblem], k: int, seconds: float, bounds: bool, orders: bool) -> Iterator[Row]:
    """All rows for one number of stages; the best partition of each graph is what bounds are compared with."""
    from tvm_sched.pipeline import partition
    from tvm_sched.pipeline.programs import simple_bound

    case = f"k={k}"
    started = time.monotonic()
    found = [partition(problem, k, "pipeline-exact", {"time_limit": seconds}) for problem in problems]
    spent = (time.monotonic() - started) / len(problems)
    best = [result.cost for result in found]
    rows = [
        Row(case, "pipeline-exact", _mean([f.bound / f.cost for f in found]), "bound / best"),
        Row(case, "pipeline-exact", spent, "s a graph"),
        Row(
            case, "simple", _mean([simple_bound(p, k) / b for p, b in zip(problems, best, strict=True)]), "bound / best"
        ),
    ]
    for name, order, evaluations in ORDERS if orders else (("brkga-10000", "brkga", 10_000),):
        started = time.monotonic()
        costs = [partition(p, k, "slicegraph", {"order": order, "evaluations": evaluations}).cost for p in problems]
        spent = (time.monotonic() - started) / len(problems)
        simple = [simple_bound(problem, k) for problem in problems]
        rows.append(Row(case, name, _mean([c / b for c, b in zip(costs, best, strict=True)]), "partition / best"))
        rows.append(
            Row(case, name, _mean([c / s for c, s in zip(costs, simple, strict=True)]), "partition / simple bound")
        )
        rows.append(Row(case, name, spent, "s a graph"))
    if bounds:
        rows += _bounds(problems, best, k, seconds, case)
    yield from rows


def _bounds(
    problems: Sequence[PartitionProblem], best: Sequence[float], k: int, seconds: float, case: str
) -> Iterator[Row]:
    from tvm_sched.pipeline.programs import bottleneck_bound, bottleneck_guess_bound, exact_program, simple_bound

    programs: dict[str, Callable[[PartitionProblem], float]] = {
        "bottleneck": lambda problem: bottleneck_bound(problem, k, seconds=seconds).bound,
        "bottleneck-guess": lambda problem: bottleneck_guess_bound(problem, k, seconds=seconds).bound,
        "exact": lambda problem: exact_program(problem, k, seconds=seconds).bound,
    }
    for name, bound in programs.items():
        started = time.monotonic()
        ratios = [max(bound(p), simple_bound(p, k)) / b for p, b in zip(problems, best, strict=True)]
        yield Row(case, name, _mean(ratios), "bound / best")
        yield Row(case, name, (time.monotonic() - started) / len(problems), "s a graph")


def _mean(ratios: Sequence[float]) -> float:
    """Geometric mean."""
    return exp(sum(log(ratio) for ratio in ratios) / len(ratios))


if __name__ == "__main__":
    main()
