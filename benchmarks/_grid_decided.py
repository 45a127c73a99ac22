"""What decided SortingHat's rows of the grid: the program's solver, or the heuristic from which it starts."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Any

from _grid import Case, Cell

HEAD = (
    "case", "method", "limit", "submodels", "solver improved", "proved", "limit", "no solution", "not asked", "median gap",
    "solver", "TotalLatency", "simulated",
)  # fmt: skip


def decided(pairs: list[tuple[Case, Cell]]) -> list[list[str]]:
    """A row of `HEAD` for each case whose schedule says what decided its submodels."""
    found = []
    for case, cell in pairs:
        notes = cell.schedule.notes if cell.schedule is not None else {}
        if "submodels" in notes and cell.latency is not None:
            limit = f"{case.method.options['time_limit']:g} s" if "time_limit" in case.method.options else "-"
            where = f"{case.model} {case.shape} on {case.server}"
            found.append([where, case.method.label, limit, *_row(notes, cell.latency)])
    return found


def _row(notes: dict[str, Any], latency: float) -> list[str]:
    told = notes["submodels"]
    status = Counter(each["status"] for each in told)
    gaps = [gap for each in told if (gap := solver_gap(each)) is not None]
    return [
        str(len(told)),
        str(notes["decided_by_solver"]),
        *(str(status[name]) for name in ("optimal", "limit", "no solution", "not asked")),
        f"{statistics.median(gaps):.1%}" if gaps else "-",
        f"{sum(each['seconds'] for each in told):.1f} s",
        f"{notes['total_latency_ns'] / 1e6:.3g} ms",
        f"{latency * 1e3:.3g} ms",
    ]


def solver_gap(told: dict[str, Any]) -> float | None:
    """1 - bound / objective of a submodel's program, both from the start of the run; None where there is no bound."""
    if told["bound_ns"] is None or not told["objective_ns"]:
        return None
    return 1 - told["bound_ns"] / told["objective_ns"]
