"""How strong the solver's bound of SortingHat's program is: as printed, and strengthened.

Strengthened is with the inequalities of `strengthening` and the order of equal buses of `symmetry`; both are HiGHS's.
Submodels of 12, 24 and 48 operators at most, of each the first largest one of two models, with the state that the
heuristic's schedules of the submodels before leave. Each program is solved from the same start in the same time. The gap
is of what the submodel adds: 1 - (bound - begin) / (objective - begin), where it begins with the first device or bus that
is free, and the objective is the start's where the solver has none.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from _common import parser
from _grid import make_problem
from _result_page import Row, report

from tvm_sched.schedulers.common.milp import Effort
from tvm_sched.schedulers.common.submodels import split
from tvm_sched.schedulers.sortinghat import program
from tvm_sched.schedulers.sortinghat.adjustments import Adjustments, Latencies
from tvm_sched.schedulers.sortinghat.handover import State
from tvm_sched.schedulers.sortinghat.heuristic import best_assignment
from tvm_sched.schedulers.sortinghat.submodel import Submodel, evaluate
from tvm_sched.schedulers.sortinghat.symmetry import equal_buses

SIZES = (12, 24, 48)
CASES = (("gpt2-large", 1, 64, "v100-server"), ("openllama-3b", 1, 32, "v100-server"))
METHODS = {
    "as printed": partial(program.solve, strengthened=False),
    "strengthened": program.solve,
}
GAP_UNIT = "% gap"
EVALUATIONS = 500
"""Of the heuristic, whose answer is the start."""


def submodels(sizes: tuple[int, ...]) -> Iterator[tuple[str, Submodel, list[int]]]:
    """Yield name, constants and start of the first largest submodel of each model, for each size."""
    for model, batch, tokens, server in CASES:
        problem = make_problem(model, batch, tokens, server)
        for size in sizes:
            groups = split(problem, 0, size)
            state = State(problem, Latencies(problem, Adjustments()), 6)
            largest = max(range(len(groups)), key=lambda number: len(groups[number]))
            for number, group in enumerate(groups[: largest + 1]):
                s, nodes = state.submodel(group)
                start = best_assignment(s, EVALUATIONS)
                times = evaluate(s, start) if start is not None else None
                if start is None or times is None:
                    raise SystemExit(f"submodel {number} of {model} on {server} has no start")
                if number == largest:
                    equal = f", {sum(map(len, equal_buses(s)))} equal buses" if equal_buses(s) else ""
                    yield (
                        f"{model} {batch}x{tokens}, {size}: {s.operators} operators, {s.parameters} tensors{equal}",
                        s,
                        start,
                    )
                else:
                    state.accept(s, nodes, start, times)


def gap(s: Submodel, objective: int, bound: int | None) -> float:
    """Return the gap of the submodel's part, from 0 to 1; 1 without a bound."""
    if bound is None or objective <= s.base:
        return 1.0
    return min(1.0, 1 - (bound - s.base) / (objective - s.base))


def solved(sizes: tuple[int, ...], effort: Effort) -> list[Row]:
    """Yield gap, improvement and time of each method on each submodel."""
    rows = []
    for name, s, start in submodels(sizes):
        for method, solve in METHODS.items():
            found = solve(s, start, effort)
            known = evaluate(s, start)
            assert known is not None
            total = round(known.total)
            left = gap(s, found.objective_ns or total, found.bound_ns)
            rows.append(Row(name, method, 100 * left, GAP_UNIT, note=found.status))
            better = 100 * (1 - (found.objective_ns or total) / total)
            rows.append(Row(name, method, better, "% below the start"))
            rows.append(Row(name, method, found.seconds, "s"))
    return rows


def conclusion(rows: list[Row]) -> str:
    """Summarise the gaps in a sentence."""
    gaps = {method: [row.figure for row in rows if row.method == method and row.unit == GAP_UNIT] for method in METHODS}
    cases = zip(*gaps.values(), strict=True)
    better = sum(min(others) < printed for printed, *others in cases)
    medians = ", ".join(f"{statistics.median(values):.1f} % {method}" for method, values in gaps.items())
    return (
        f"The median gap is {medians}. In {better} of {len(gaps['as printed'])} submodels the strengthened program has a "
        "smaller one than the program as printed."
    )


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument(
        "--rows", type=Path, metavar="FILE", help="rows that --json wrote: the page of these, nothing anew"
    )
    arguments.add_argument("--time-limit", type=float, default=30.0, help="seconds of the solver, a program")
    arguments.add_argument("--state", default="", help="what else runs on the machine, for the page")
    options = arguments.parse_args()
    if options.quick:
        options.time_limit = min(options.time_limit, 5.0)
    if options.rows:
        rows = [Row(**row) for row in json.loads(options.rows.read_text())]
    else:
        rows = solved(SIZES[:2] if options.quick else SIZES, Effort("highs", options.time_limit, 0, 0))
    notes = f"HiGHS, {options.time_limit:g} s a program. {options.state} {conclusion(rows)}".strip()
    report("Gaps of SortingHat's program", rows, options.json, options.markdown, predicted=True, notes=notes)


if __name__ == "__main__":
    main()
