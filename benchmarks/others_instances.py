"""Schedules and bounds of task graphs that others published, beside HEFT and CP-SAT's program of the whole problem.

`--instances` is a folder that holds, in folders of their own, files of the three formats of
[the benchmark](../tasks/benchmark.md#task-graphs-of-others). `--sample N` takes the N instances of each kind and half
whose names have the least SHA-256; without it all run. An instance is "tuned on" if the SHA-256 of its name is even, else
"held out". `--results` keeps the rows, and the command goes on where it ended.

*Published* is the length of the schedule in the file. All schedules of `anytime` are replayed, and their bounds proved, by
`tvm_sched_check`. *Optimal* means that it accepts a bound equal to the length. `anytime` gets four fifths of `--seconds` as
`work`; CP-SAT gets them as deterministic time, of which a unit is about a second of an idle core,
for at most 2,000 tasks times devices.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

from _checked import PROVED, verdict
from _common import HALVES, half, parser
from _result_page import Page
from ortools.sat.python import cp_model

from tvm_sched.bounds import lower_bound
from tvm_sched.schedulers import solve
from tvm_sched_bench import load_suite
from tvm_sched_bench.suite import Case
from tvm_sched_bench.task_files import read_auckland
from tvm_sched_runtime.problem import Problem
from tvm_sched_runtime.schedule import simulate

REASONS = """
**The rows are a small sample**: the machine was shared, and the run ended before graphs of the kinds fork, join, fork
join, series-parallel and independent. It ended while the checker read the evidence of a
stencil of 21 tasks and CCR 0.1 on two processors, which stays open and has no row: the share of the optimal is too
high by that. Rows without CP-SAT have more than 2,000 tasks times devices or come from a run
without it.

**Rows and figures are older than a correction of the search**: `enumeration` took states for equal whose hashes agreed.
It compares whole states since then, as the checker always did, which accepted every bound of these rows. The bounds of
all rows of Auckland were computed anew and are the same. Of the figures below, only the nine cases that the checker was
run on are confirmed in that way.

**What was proved how** (2026-11-29, all kinds, the 150 graphs of Auckland whose file paths had the least SHA-256, by
the search alone): paths and work prove 86 published schedules optimal. Of the other 64,
[enumeration](../proofs/enumeration.md) proves 58: 49 with at most 50,000 states, the others with at most 1,000,000.
None of the 150 published schedules was found not to be optimal. Six are left open: two in-trees of 21 tasks and CCR
10, on 6 and 16 processors; an out-tree of 21 tasks and CCR 1; a series-parallel graph of 30 tasks and CCR 10; two
stencils of CCR 0.1 on two processors. The checker was run on nine of the 58 and accepts them. The 150 are of both
halves, and enumeration was written with them in view, so its figures are not of unseen graphs. All 1,975 schedules
replay to the length in their file.

**Schedules were at fault as well.** Before `anytime` began from the schedule that enumeration finds, it took 50 where
48 is optimal for `OutTree-Balanced-MaxBf-3_Nodes_30_CCR_0.99_WeightType_Random_Homogeneous-6`, after 3.9 s; now 48,
after 0.1 s. `OutTree-Balanced-MaxBf-3_Nodes_21_CCR_10.02_WeightType_Random_Homogeneous-6` still takes 80 where the
published schedule takes 75: the states do not suffice, and annealing does not find it.

**Unrelated machines**: most of the gap is open where copies are long (`robot-64-88-0.75-10`: 62 %). Whether bound or
schedule is at fault is not known. The set has no results of each instance, so of the published heuristics only HEFT
stands here.
"""
MOST_PLACES = 2_000
"""Largest number of tasks times devices for CP-SAT's program of the whole problem."""
CCR = re.compile(r"_CCR_([\d.]+)_")


def kind(case: Case) -> str:
    """Return the kind of graph: of Auckland the structure, else the folder or file, without numbers."""
    name = case.name.partition("/")[2]
    if case.source == "auckland":
        return re.split(r"_Nodes_|-Balanced|-Unbalanced|-MaxBf", name)[0].replace("_", " ")
    return f"Estee: {name.partition('-')[0]}" if case.source == "estee" else case.name.partition("/")[0]


def sampled(cases: list[Case], count: int | None) -> list[Case]:
    """Return the cases to run, in an order that does not depend on what they are."""
    ordered = sorted(cases, key=lambda case: sha256(case.name.encode()).digest())
    if count is None:
        return ordered
    groups: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for case in ordered:
        groups[kind(case), half(case.name)].append(case)
    return [case for group in groups.values() for case in group[:count]]


def whole_program(problem: Problem, seconds: float) -> tuple[int | None, int]:
    """Return the length of CP-SAT's schedule and its bound, by one program of the whole problem on one core.

    Each task has an optional interval on each device; those of a device do not overlap. Between tasks on different devices
    the copy's time passes.
    """
    index, times = problem.graph.index, problem.costs.operator_ns
    devices = range(times.shape[1])
    horizon = int(times.max(axis=1).sum() + sum(problem.copy_ns(t, 0, 1) for t in range(len(problem.graph.tensors))))
    model = cp_model.CpModel()
    start = [model.new_int_var(0, horizon, "") for _ in times]
    end = [model.new_int_var(0, horizon, "") for _ in times]
    on = [[model.new_bool_var("") for _ in devices] for _ in times]
    for row in on:
        model.add_exactly_one(row)
    for d in devices:
        model.add_no_overlap(
            [
                model.new_optional_interval_var(start[o], int(row[d]), end[o], on[o][d], "")
                for o, row in enumerate(times)
            ]
        )
    for o in index.order:
        for t in index.inputs[o]:
            maker, copy = index.producer[t], problem.copy_ns(t, 0, 1)
            model.add(start[o] >= end[maker])
            for d in devices:
                model.add(start[o] >= end[maker] + copy).only_enforce_if(on[maker][d], on[o][d].negated())
    makespan = model.new_int_var(0, horizon, "")
    model.add_max_equality(makespan, end)
    model.minimize(makespan)
    solver = cp_model.CpSolver()
    solver.parameters.max_deterministic_time = seconds
    solver.parameters.max_time_in_seconds = 20 * seconds
    solver.parameters.num_workers = 1
    found = solver.solve(model) in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return int(solver.objective_value) if found else None, int(solver.best_objective_bound)


def run(case: Case, seconds: float, with_program: bool) -> dict[str, Any]:
    """Return the figures of an instance, with or without CP-SAT's."""
    problem = case.task.problem
    row: dict[str, Any] = {"name": case.name, "source": case.source, "kind": kind(case), "seconds": seconds}
    row |= {"tasks": len(problem.graph.operators), "devices": len(problem.topology.devices)}
    if ccr := CCR.search(case.name):
        row["ccr"] = min((0.1, 1.0, 2.0, 10.0), key=lambda value: abs(value - float(ccr[1])))
    if case.source == "auckland":
        published = read_auckland(case.arguments["path"])
        row["published"] = simulate(problem, published.schedule).latency_ns
        assert row["published"] == published.length_ns, case.name
    before = process_time()
    found = solve(problem, method="anytime", options={"work": 0.8 * seconds, "time_limit": None, "seed": 0})
    assert found.certificate is not None
    bound = lower_bound(problem)
    row |= {"anytime": found.certificate.latency_ns, "bound": bound.ns, "by": bound.name}
    row["anytime_seconds"] = process_time() - before
    row["checked"] = verdict(problem, found)
    heft = solve(problem, method="heft").certificate
    assert heft is not None
    row["heft"] = heft.latency_ns
    small = with_program and problem.places <= MOST_PLACES
    row["cp_sat"], row["cp_sat_bound"] = whole_program(problem, seconds) if small else (None, 0)
    return row


def groups_of(rows: list[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the groups of a table: kinds, then ratios of communication to computation, then halves."""
    for key in ("kind", "ccr", "devices"):
        for value in sorted({row[key] for row in rows if key in row}, key=str):
            title = {
                "kind": str(value),
                "ccr": f"CCR {value:g}" if key == "ccr" else "",
                "devices": f"{value} devices",
            }[key]
            yield title, [row for row in rows if row.get(key) == value]
    for part in HALVES:
        yield part, [row for row in rows if half(row["name"]) == part]
    yield "all", rows


def tables(page: Page, rows: list[dict[str, Any]]) -> None:
    """Write a table for each source."""
    titles = {
        "auckland": "Equal processors (Auckland)",
        "unrelated": "Unrelated machines (Santiago et al.)",
        "estee": "Workflows (Estee)",
    }
    for source, title in titles.items():
        own = [row for row in rows if row["source"] == source]
        if not own:
            continue
        page.text(f"## {title}")
        head = ["group", "instances", "optimal, checked", "median gap", "largest gap", "HEFT / ours", "ours > HEFT"]
        head += ["CP-SAT optimal", "CP-SAT / ours", "ours > CP-SAT"]
        head += ["ours > published", "published > ours"] if source == "auckland" else []
        lines = []
        for group, members in groups_of(own):
            if not members:
                continue
            gaps = [1 - row["bound"] / row["anytime"] for row in members]
            solved = [row for row in members if row["cp_sat"] is not None]
            line: list[object] = [group, len(members), _share([_optimal(row) for row in members])]
            line += [
                f"{median(gaps):.1%}",
                f"{max(gaps):.1%}",
                _mean([row["heft"] / row["anytime"] for row in members]),
            ]
            line += [sum(row["anytime"] > row["heft"] for row in members)]
            line += [_share([row["cp_sat"] == row["cp_sat_bound"] for row in solved]) if solved else "–"]
            line += [_mean([row["cp_sat"] / row["anytime"] for row in solved]) if solved else "–"]
            line += [sum(row["anytime"] > row["cp_sat"] for row in solved)]
            if source == "auckland":
                line += [sum(row["anytime"] > row["published"] for row in members)]
                line += [sum(row["anytime"] < row["published"] for row in members)]
            lines.append(line)
        page.table(head, lines)
        open_rows = sorted((row for row in own if not _optimal(row)), key=lambda row: row["bound"] / row["anytime"])
        if source == "auckland" and open_rows:
            page.text("Not proved optimal:")
            page.table(
                ("instance", "bound", "ours", "published", "CP-SAT", "checked"),
                [
                    (row["name"], row["bound"], row["anytime"], row["published"], row["cp_sat"] or "–", row["checked"])
                    for row in open_rows
                ],
            )


def _optimal(row: dict[str, Any]) -> bool:
    return row["anytime"] == row["bound"] and row["checked"] == PROVED


def _share(values: list[bool]) -> str:
    return f"{sum(values)} ({sum(values) / len(values):.0%})"


def _mean(values: list[float]) -> str:
    return f"{sum(values) / len(values):.3f}"


def main() -> None:
    """Run what is missing in the file of results, and write the page."""
    arguments = parser(__doc__)
    arguments.add_argument("--instances", type=Path, required=True, metavar="FOLDER", help="task graphs of others")
    arguments.add_argument("--seconds", type=float, default=10.0, help="of each method on each instance")
    arguments.add_argument("--sample", type=int, metavar="N", help="only N instances of each kind, size and half")
    arguments.add_argument(
        "--most", type=float, metavar="SECONDS", help="processor time of this command; 0: the page alone"
    )
    arguments.add_argument("--without-cp-sat", action="store_true", help="add rows without CP-SAT's figures")
    arguments.add_argument("--results", type=Path, required=True, metavar="FILE.jsonl", help="a run goes on there")
    options = arguments.parse_args()
    done = [json.loads(line) for line in options.results.read_text().splitlines()] if options.results.exists() else []
    known = {(each["name"], each["seconds"]) for each in done}
    for case in sampled(load_suite(options.instances).cases, options.sample):
        if options.most is not None and process_time() > options.most:
            break
        if (case.name, options.seconds) not in known:
            done.append(run(case, options.seconds, not options.without_cp_sat))
            print(*done[-1].values(), file=sys.stderr)
            with options.results.open("a") as file:
                file.write(json.dumps(done[-1]) + "\n")
    page = Page("Task graphs of others", options.markdown)
    page.text((__doc__ or "").split("\n\n", 1)[1].strip())
    tables(page, [row for row in done if row["seconds"] == options.seconds])
    page.text("## Reasons", "", REASONS.strip())
    page.write()


if __name__ == "__main__":
    main()
