"""Gaps between solutions and lower bounds at stated amounts of work: schedules and partitions by `anytime`.

The gap is 1 - bound / value. The value is the latency of a schedule, or the cost of a partition, from one run with one seed
and the option ``work``. The bound is the strongest one kept with the instance. The same work gives the same solution on
every machine, so a change cannot gain by spending more time. An instance is "tuned on" if the SHA-256 of its name is even,
else "held out"; methods are tuned on the first half alone. ``benchmarks/data/equal_work.jsonl`` keeps the rows. After a
change to a method, remove the rows that it may affect and run the command again. Rows of 10 and 60 s were made with
``--sample 2 --work 10`` and ``--sample 1 --work 60``.
"""

from __future__ import annotations

import fnmatch
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

from _common import HALVES, half, parser
from _result_page import Page

from tvm_sched.pipeline.partitioner_registry import partition
from tvm_sched.schedulers import solve
from tvm_sched_bench import BestKnown, load_suite
from tvm_sched_bench.suite import Case

SUITE = Path(__file__).parent / "instances"
KINDS = ("latency", "throughput")
SAMPLED_WORK = 10.0
"""Work from which on only a sample may have been run, so the tables of medians leave it out."""


def sampled(cases: Sequence[Case], count: int) -> list[Case]:
    """Return of each family and half the ``count`` cases whose names have the least SHA-256."""
    chosen: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for case in sorted(cases, key=lambda each: sha256(each.name.encode()).digest()):
        chosen[case.name.partition("/")[0], half(case.name)].append(case)
    return [case for group in chosen.values() for case in group[:count]]


def run(case: Case, work: float) -> dict[str, Any]:
    """Return the value that one run reaches, and its processor time in seconds."""
    before, options = process_time(), {"work": work, "time_limit": None, "seed": 0, "threads": 1}
    if case.kind.name == "latency":
        del options["threads"]
        schedule = solve(case.task.problem, case.task.workload, "anytime", options)
        assert schedule.certificate is not None
        value = float(schedule.certificate.latency_ns)
    else:
        value = partition(case.task.graph, case.task.stages, "anytime", options).cost
    return {"name": case.name, "work": work, "value": value, "seconds": process_time() - before}


def compared(page: Page, old: list[dict[str, Any]], new: list[dict[str, Any]], bounds: dict[str, float]) -> None:
    """Write the gaps before and after a change, over the instances and works that both files have."""
    before = {(each["name"], each["work"]): 1 - bounds[each["name"]] / each["value"] for each in old}
    after = {(each["name"], each["work"]): 1 - bounds[each["name"]] / each["value"] for each in new}
    pairs: dict[tuple[str, str, float], list[tuple[float, float]]] = defaultdict(list)
    for name, work in sorted(before.keys() & after.keys()):
        if before[name, work] != after[name, work]:
            pairs[half(name), name.partition("/")[0], work].append((before[name, work], after[name, work]))
    page.text("## Before and after", "", "Instances whose solutions changed, both with the present bounds.", "")
    rows = []
    for (part, family, work), gaps in sorted(pairs.items()):
        cells = [f"{median(side):.2%}, {max(side):.1%}" for side in zip(*gaps, strict=True)]
        rows.append((part, family, f"{work:g} s", len(gaps), *cells))
    page.table(("half", "family", "work", "instances", "before: median, largest", "after: median, largest"), rows)


def tables(page: Page, results: Iterable[dict[str, Any]], bounds: dict[str, float]) -> None:
    """Write a table of median and largest gaps for each half."""
    gaps: dict[tuple[str, str], dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in results:
        gap = 1 - bounds[each["name"]] / each["value"]
        for family in (each["name"].partition("/")[0], "all"):
            gaps[half(each["name"]), family][each["work"]].append(gap)
    works = sorted({work for by_work in gaps.values() for work in by_work})
    for part in HALVES:
        page.text(f"## {part.capitalize()}", "")
        head = ("family", "instances", *(f"{work:g} s: median gap, largest" for work in works))
        families = sorted({family for which, family in gaps if which == part} - {"all"})
        rows = []
        for family in [*families, "all"]:
            by_work = gaps[part, family]
            cells = [f"{median(found):.2%}, {max(found):.1%}" if (found := by_work.get(w)) else "–" for w in works]
            rows.append((family, max(map(len, by_work.values()), default=0), *cells))
        page.table(head, rows)


def longer(page: Page, results: Iterable[dict[str, Any]], bounds: dict[str, float]) -> None:
    """Write the gaps of the instances that were also run with more work, one a row."""
    gaps: dict[str, dict[float, float]] = defaultdict(dict)
    for each in results:
        gaps[each["name"]][each["work"]] = 1 - bounds[each["name"]] / each["value"]
    works = sorted({work for by_work in gaps.values() for work in by_work})
    rows = [
        (name, half(name), *(f"{by_work[work]:.2%}" if work in by_work else "–" for work in works))
        for name, by_work in sorted(gaps.items())
        if max(by_work) >= SAMPLED_WORK
    ]
    if rows:
        told = f"Instances that were also run with {SAMPLED_WORK:g} s of work or more. ``--sample N`` takes N instances"
        page.text("## Longer runs", "", told, "of each family and half: those whose names have the least SHA-256.", "")
        page.table(("instance", "half", *(f"{work:g} s" for work in works)), rows)


def main() -> None:
    """Run what is missing in the file of results, and write the page."""
    arguments = parser(__doc__)
    arguments.add_argument("--work", default="0.5,2,10", metavar="S,S,...", help="seconds of work on an idle core")
    arguments.add_argument("--only", default="*", metavar="PATTERN", help="instances by name")
    arguments.add_argument("--sample", type=int, metavar="N", help="only N instances of each family and half")
    arguments.add_argument("--results", type=Path, required=True, metavar="FILE.jsonl", help="a run goes on there")
    arguments.add_argument("--before", type=Path, metavar="FILE.jsonl", help="results before a change, to compare with")
    options = arguments.parse_args()
    suite = load_suite(SUITE)
    best = BestKnown(suite).instances
    done = [json.loads(line) for line in options.results.read_text().splitlines()] if options.results.exists() else []
    known = {(each["name"], each["work"]) for each in done}
    cases = [case for case in suite.cases if case.kind.name in KINDS and case.name in best]
    cases = sampled(cases, options.sample) if options.sample else cases
    for work in map(float, options.work.split(",")):
        for case in cases:
            if fnmatch.fnmatch(case.name, options.only) and (case.name, work) not in known:
                done.append(run(case, work))
                print(*done[-1].values(), file=sys.stderr)
                with options.results.open("a") as file:
                    file.write(json.dumps(done[-1]) + "\n")
    page = Page("Gaps at equal work", options.markdown)
    page.text(*(__doc__ or "").split("\n\n", 1)[1].strip().split("\n"), "")
    bounds = {name: each.bound for name, each in best.items()}
    tables(page, [each for each in done if each["work"] < SAMPLED_WORK], bounds)
    longer(page, done, bounds)
    if options.before:
        old = [json.loads(line) for line in options.before.read_text().splitlines()]
        compared(page, old, done, bounds)
    page.write()


if __name__ == "__main__":
    main()
