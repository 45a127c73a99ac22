"""Which side leaves the gaps of cold runs open: schedules or bounds, on cases that `strangers.py` draws from a seed.

Two measurements of each case on 2 to 8 GPUs. *Whole*: `anytime` with `--work` seconds, and with 20 times that; what the
long search gains is the schedule's share of the gap, at least. *Contracted*: the operators, in topological order, become up
to `--parts` operators with the sums of times, direct reads and parameters of about equal parts of the model, on the same
machine. CP-SAT solves a program of the whole contracted problem, with all loads, copies and direct reads, within
`--seconds` of deterministic time, of which a unit is about a second of an idle core. Between its bound and the best schedule
known lies the optimum. So the gap of `anytime` divides into what the schedule leaves open, what the bound leaves open, and
what is unknown.

Limits: parameters are not joined in the contracted problem, whose operators load theirs in one piece. Memory is left aside
there, and operators of one part run one after another. Few large operators have other gaps than many small ones. A long
search is no optimum: what it does not gain may still be the schedule's.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from _common import parser
from _result_page import PREDICTED, Page
from ortools.sat.python import cp_model
from strangers import draw

from tvm_sched.bounds import lower_bound
from tvm_sched.schedulers import solve
from tvm_sched_runtime.errors import TvmSchedError
from tvm_sched_runtime.problem import FORBIDDEN, HOST, Costs, Operator, OpGraph, Problem, Tensor

LONGER = 20
DEVICES = range(2, 9)


def contracted(problem: Problem, parts: int) -> Problem:
    """Return the problem whose operators are successive parts of the model, about equal in time and parameters."""
    index, graph, costs = problem.graph.index, problem.graph, problem.costs
    least = costs.operator_ns.min(axis=1).astype(float)
    first = {t: o for o in reversed(index.order) for t in index.host_inputs[o]}
    brought = np.zeros(len(least))
    for t, o in first.items():
        brought[o] += index.size[t]
    weight = least / least.sum() + brought / max(brought.sum(), 1.0)
    part, total = [0] * len(least), 0.0
    for o in index.order:
        part[o] = min(int((total + weight[o] / 2) / weight.sum() * parts), parts - 1)
        total += weight[o]
    part = np.unique(part, return_inverse=True)[1].tolist()
    sizes: dict[tuple[int, tuple[int, ...]], int] = defaultdict(int)
    for t, size in enumerate(index.size):
        maker = part[index.producer[t]] if index.producer[t] >= 0 else HOST
        readers = tuple(sorted({part[o] for o in index.consumers[t]} - {maker}))
        if readers:
            sizes[maker, readers] += size
    name = {key: f"t{k}" for k, key in enumerate(sizes)}
    tensors = [Tensor(name[key], size, "parameter" if key[0] == HOST else "activation") for key, size in sizes.items()]
    operators, rows = [], []
    for p in range(max(part) + 1):
        members = [o for o in index.order if part[o] == p]
        outputs = tuple(name[key] for key in sizes if key[0] == p) or (f"y{p}",)
        tensors += [Tensor(f"y{p}", 1, "activation")] if outputs == (f"y{p}",) else []
        operators.append(Operator(f"p{p}", "", tuple(name[key] for key in sizes if p in key[1]), outputs))
        normal = costs.operator_ns[members]
        readers = [bool(index.host_inputs[o]) for o in members]
        direct = np.where(np.array(readers)[:, None], costs.direct_ns[members], normal)
        allowed = any(readers) & (direct != FORBIDDEN).all(axis=0)
        runs = (normal != FORBIDDEN).all(axis=0)
        reads = np.where(np.array(readers)[:, None], problem.host_reads_ns[members], 0).sum(axis=0)
        rows.append(
            [
                np.where(runs, np.where(normal == FORBIDDEN, 0, normal).sum(axis=0), FORBIDDEN),
                np.where(allowed, np.where(direct == FORBIDDEN, 0, direct).sum(axis=0), FORBIDDEN),
                np.where(allowed, reads, FORBIDDEN),
            ]
        )
    normal, direct, reads = (np.array([row[k] for row in rows]) for k in range(3))
    made = OpGraph(graph.name, tuple(operators), tuple(tensors))
    return Problem(made, problem.topology, Costs(normal, direct, host_read_ns=reads))


class Program:
    """CP-SAT's program of a whole problem without joined parameters, evictions and limits of memory.

    Each operator takes one device and kind of access; each tensor comes to each device by at most one transfer, from
    host memory or from a device that has it; devices and channels serve one interval at a time.
    """

    def __init__(self, problem: Problem, most: int) -> None:
        self.problem, self.model, self.most = problem, cp_model.CpModel(), most
        self.devices = range(len(problem.topology.devices))
        self.busy = defaultdict[Any, list[cp_model.IntervalVar]](list)
        index = problem.graph.index
        self.start = [self._time() for _ in index.inputs]
        self.end = [self._time() for _ in index.inputs]
        self.on: list[dict[tuple[int, bool], cp_model.IntVar]] = []
        for o in range(len(index.inputs)):
            self.on.append(self._options(o))
        for t in range(len(index.size)):
            self._arrivals(t)
        for intervals in self.busy.values():
            self.model.add_no_overlap(intervals)
        self.latency = self._time()
        self.model.add_max_equality(self.latency, self.end)
        self.model.minimize(self.latency)

    def _time(self) -> cp_model.IntVar:
        return self.model.new_int_var(0, self.most, "")

    def _options(self, o: int) -> dict[tuple[int, bool], cp_model.IntVar]:
        """Add the options of an operator; one is chosen."""
        problem, model, options = self.problem, self.model, {}
        for d in self.devices:
            for direct, costs in ((False, problem.costs.operator_ns), (True, problem.costs.direct_ns)):
                if (ns := int(costs[o, d])) == FORBIDDEN:
                    continue
                chosen = options[d, direct] = model.new_bool_var("")
                self.busy["device", d].append(
                    model.new_optional_interval_var(self.start[o], ns, self.end[o], chosen, "")
                )
                route, read = problem.topology.route(HOST, d), problem.host_read_ns(o, d)
                if direct and route is not None and read:
                    for channel in route.channels:
                        self.busy[channel].append(
                            model.new_optional_fixed_size_interval_var(self.start[o], read, chosen, "")
                        )
        model.add_exactly_one(options.values())
        return options

    def _arrivals(self, t: int) -> None:
        """Add the transfers of a tensor, and let its readers wait for them."""
        problem, model, index = self.problem, self.model, self.problem.graph.index
        maker, readers, size = index.producer[t], index.consumers[t], index.size[t]
        there = [self._time() for _ in self.devices]  # when a device has the tensor
        has: list[list[Any]] = [[] for _ in self.devices]
        for d in self.devices:
            if maker >= 0:
                for (on, _), chosen in self.on[maker].items():
                    if on == d:
                        has[d].append(chosen)
                        model.add(there[d] >= self.end[maker]).only_enforce_if(chosen)
            elif problem.reads_host_in_place(d):
                has[d].append(model.new_constant(1))
        moves = []
        for d in self.devices:
            load = problem.topology.route(HOST, d)
            for s in (HOST, *self.devices):
                route = problem.topology.route(s, d)
                if (
                    s == d
                    or route is None
                    or not readers
                    or (s == HOST and maker >= 0)
                    or (problem.reads_host_in_place(d) and maker < 0)
                ):
                    continue
                ns = route.nanoseconds(size)
                if (
                    s != HOST
                    and maker < 0
                    and load
                    and {*load.channels} <= {*route.channels}
                    and load.nanoseconds(size) <= ns
                ):
                    continue  # a load takes its place
                moved, begin, end = model.new_bool_var(""), self._time(), self._time()
                interval = model.new_optional_interval_var(begin, ns, end, moved, "")
                for channel in route.channels:
                    self.busy[channel].append(interval)
                # Devices must not get a tensor from each other by copies that take no time.
                model.add(there[d] >= end + (ns == 0)).only_enforce_if(moved)
                has[d].append(moved)
                if s != HOST:
                    moves.append((s, moved, begin))
        for s, moved, begin in moves:
            model.add_at_least_one([*has[s], moved.negated()])
            model.add(begin >= there[s]).only_enforce_if(moved)
        for d in self.devices:
            if has[d]:
                model.add_at_most_one(has[d])
            for o in readers:
                for direct in (False, True):
                    chosen = self.on[o].get((d, direct))
                    if chosen is not None and not (direct and maker < 0):
                        model.add_at_least_one([*has[d], chosen.negated()])
                        model.add(self.start[o] >= there[d]).only_enforce_if(chosen)

    def solve(self, seconds: float) -> tuple[int, int]:
        """Return the least latency found, or `most`, and the bound, after so much deterministic time on one core."""
        solver = cp_model.CpSolver()
        solver.parameters.max_deterministic_time = seconds
        solver.parameters.max_time_in_seconds = 20 * seconds
        solver.parameters.num_workers = 1
        status = solver.solve(self.model)
        found = int(solver.objective_value) if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else self.most
        return found, found if status == cp_model.OPTIMAL else int(solver.best_objective_bound)


def latency(problem: Problem, work: float) -> int:
    """Return the latency of `anytime` in a cold run."""
    found = solve(problem, method="anytime", options={"work": work}).certificate
    assert found is not None
    return found.latency_ns


def settings(options: Any) -> dict[str, Any]:
    """Return the options that a row depends on: rows of others stand on no page together."""
    return {name: getattr(options, name) for name in ("seed", "work", "parts", "seconds")}


def run(seed: int, number: int, options: Any) -> dict[str, Any] | None:
    """Return the figures of a case; None if it has fewer or more GPUs, or does not fit."""
    problem = draw(seed, number)
    if len(problem.topology.devices) not in DEVICES:
        return None
    row: dict[str, Any] = settings(options) | {
        "number": number,
        "name": f"{problem.graph.name} on {problem.topology.name}",
    }
    try:
        row |= {"value": latency(problem, options.work), "bound": lower_bound(problem).ns}
        row["long"] = min(row["value"], latency(problem, LONGER * options.work))
        small = contracted(problem, options.parts)
        row |= {"small": latency(small, options.work), "small_bound": lower_bound(small).ns}
    except TvmSchedError as error:
        print(f"case {number}: {error}", file=sys.stderr)
        return None
    best, bound = Program(small, row["small"]).solve(options.seconds)
    return row | {"small_best": best, "small_least": max(bound, row["small_bound"])}


def shares(row: dict[str, Any]) -> tuple[float, float, float]:
    """Return the parts of the contracted case's latency that schedule, bound and neither certainly leave open."""
    value = row["small"]
    return (
        (value - row["small_best"]) / value,
        (row["small_least"] - row["small_bound"]) / value,
        (row["small_best"] - row["small_least"]) / value,
    )


def write(page: Page, rows: list[dict[str, Any]], options: Any) -> None:
    """Write the page."""
    page.text((__doc__ or "").split("\n\n", 1)[1].strip(), "")
    page.text(
        f"Seed {options.seed}, {len(rows)} cases, {options.work:g} s of work, {options.parts} parts, {options.seconds:g} s "
        f"of CP-SAT. {PREDICTED}",
        "",
    )
    gaps = [(1 - row["bound"] / row["value"], 1 - row["long"] / row["value"]) for row in rows]
    parts = [shares(row) for row in rows]
    proved = sum(row["small_best"] == row["small_least"] for row in rows)
    lines = [
        ("whole: gap", *_sums([gap for gap, _ in gaps])),
        (f"whole: gained by {LONGER} times the work", *_sums([gained for _, gained in gaps])),
        ("contracted: gap", *_sums([sum(each) for each in parts])),
        ("contracted: schedule above the best known", *_sums([each[0] for each in parts])),
        ("contracted: bound below what is proved", *_sums([each[1] for each in parts])),
        ("contracted: unknown", *_sums([each[2] for each in parts])),
    ]
    page.text(f"CP-SAT and the bounds prove the optimum of {proved} of {len(rows)} contracted cases.", "")
    page.table(("part of the latency", "median", "mean", "largest"), lines)
    page.text("## Cases", "", "Parts of the latency that `anytime` finds with the short search.", "")
    rows = sorted(rows, key=lambda row: row["bound"] / row["value"])
    page.table(
        ("case", "latency, ms", "whole: gap", "gained", "contracted: gap", "schedule", "bound", "unknown"),
        [
            (
                row["name"],
                f"{row['value'] / 1e6:.3f}",
                *(f"{part:.1%}" for part in (1 - row["bound"] / row["value"], 1 - row["long"] / row["value"])),
                f"{sum(shares(row)):.1%}",
                *(f"{part:.1%}" for part in shares(row)),
            )
            for row in rows
        ],
    )


def _sums(values: list[float]) -> tuple[str, str, str]:
    return f"{median(values):.1%}", f"{sum(values) / len(values):.1%}", f"{max(values):.1%}"


def main() -> None:
    """Run the cases that the file of results lacks, and write the page."""
    arguments = parser(__doc__)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--cases", type=int, default=30)
    arguments.add_argument("--work", type=float, default=1.0, help="seconds of work on an idle core")
    arguments.add_argument("--parts", type=int, default=6, help="operators of a contracted case")
    arguments.add_argument("--seconds", type=float, default=10.0, help="of CP-SAT")
    arguments.add_argument("--results", type=Path, required=True, metavar="FILE.jsonl", help="a run goes on there")
    options = arguments.parse_args()
    done = [json.loads(line) for line in options.results.read_text().splitlines()] if options.results.exists() else []
    done, number = [row for row in done if settings(options).items() <= row.items()], 0
    while len([row for row in done if row["number"] < number]) < (2 if options.quick else options.cases):
        if all(row["number"] != number for row in done):
            row = run(options.seed, number, options)
            if row is not None:
                done.append(row)
                with options.results.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(number, row["name"], *(f"{part:.1%}" for part in shares(row)), file=sys.stderr)
        number += 1
    page = Page("Gaps: schedule or bound", options.markdown)
    write(page, sorted(done, key=lambda row: row["number"])[: options.cases], options)
    page.write()


if __name__ == "__main__":
    main()
