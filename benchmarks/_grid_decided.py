"""What decided SortingHat's rows of the grid: the program's solver, or the heuristic from which it starts."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Any

from _grid import Case, Cell
from _grid_speedups import Pairs
from _page import Page

HEAD = (
    "case", "method", "limit", "submodels", "programs", "solver improved", "proved", "alike", "limit", "no solution",
    "not asked",
    "median gap", "solver", "found in", "TotalLatency", "simulated",
)  # fmt: skip


def decided(pairs: list[tuple[Case, Cell]]) -> list[list[str]]:
    """A row of `HEAD` for each case whose schedule says what decided its submodels."""
    found = []
    for case, cell in pairs:
        notes = cell.schedule.notes if cell.schedule is not None else {}
        if "submodels" in notes and cell.latency is not None:
            limit = f"{case.method.options['time_limit']:g} s" if "time_limit" in case.method.options else "-"
            where = f"{case.model} {case.shape} on {case.server}"
            found.append([where, case.method.label, limit, *_row(notes, cell)])
    return found


def _row(notes: dict[str, Any], cell: Cell) -> list[str]:
    told = notes["submodels"]
    solved = [each for each in told if each.get("same_as") is None]
    status = Counter(each["status"] for each in told)
    gaps = [gap for each in told if (gap := solver_gap(each)) is not None]
    assert cell.latency is not None
    return [
        str(len(told)),
        str(len(solved)),
        str(notes["decided_by_solver"]),
        *(str(status[name]) for name in ("optimal", "alike", "limit", "no solution", "not asked")),
        f"{statistics.median(gaps):.1%}" if gaps else "-",
        f"{sum(each['seconds'] for each in told):.1f} s",
        f"{cell.found_in:.1f} s",
        f"{notes['total_latency_ns'] / 1e6:.3g} ms",
        f"{cell.latency * 1e3:.3g} ms",
    ]


def solver_gap(told: dict[str, Any]) -> float | None:
    """1 - bound / objective of a submodel's program, both from the start of the run; None where there is no bound."""
    if told["bound_ns"] is None or not told["objective_ns"]:
        return None
    return 1 - told["bound_ns"] / told["objective_ns"]


def programs(page: Page, pairs: Pairs) -> None:
    """What decided each schedule of SortingHat's."""
    rows = decided(pairs)
    if not rows:
        return
    page.text(
        "## What decided SortingHat's schedules",
        "Each submodel's program starts from a heuristic's assignment, and its solver's answer is taken where that is",
        "better: *solver improved*. *Programs* are those that differ: a submodel whose program is that of one before has",
        "its answer, and the columns count all submodels. *Proved* were solved to the end, *alike* have the optimum of a",
        "program that is not quite their own (option `alike`, 2 % of a submodel's time), *limit* have a solution that is",
        "not proved, *no solution* have none within their time, *not asked* had no time left. The gap is the solver's,",
        "1 - bound / objective, where it has a bound; *found in* has the heuristic's time, too. TotalLatency is the",
        "program's, beside what the simulator makes of the schedule. The file of `--json` has them for each submodel,",
        "as have the `notes` of `tvm-sched schedule --scheduler sortinghat --json`.",
    )
    told = [each for _, cell in pairs if cell.schedule for each in cell.schedule.notes.get("submodels", [])]
    improved = sum(each["decided_by"] == "solver" for each in told)
    differ = sum(each.get("same_as") is None for each in told)
    page.text(
        f"In all, {len(told)} submodels have {differ} programs that differ, and the solver improved on the start in "
        f"{improved} submodels ({improved / len(told):.0%})."
    )
    page.table(HEAD, rows)
