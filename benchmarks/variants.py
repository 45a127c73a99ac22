"""What it is worth that a schedule sees inside kernels: language models with variants and without.

"one device" is the fastest single one; "fused" is `anytime` on the kernels as TVM fuses them, "apart" on those and on the
same with their ends apart, "columns" on these and products in pieces too, "tensor" on these and blocks in parts that are
added at their end. With ``--warm`` all parameters are on the devices already, and "rows" has parts of the batch and of the
tokens, too. Each search has the same work. Latencies are the roofline's.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path

import msgspec
from _checked import checked
from _common import parser
from _result_page import Row, report

from tvm_sched.bounds import lower_bound
from tvm_sched.cost_model import get_cost_model
from tvm_sched.relax.decoders import decoder_variants
from tvm_sched.relax.variants.offer_variants import pieces_for
from tvm_sched.schedulers import solve
from tvm_sched_runtime.problem import Group, Problem, Workload, load_topology, problem_of
from tvm_sched_runtime.problem.decoder_config import PRESETS
from tvm_sched_runtime.schedule import requests_of

CELLS = (
    ("openllama-7b", 32, 64, "p4d"),
    ("openllama-7b", 32, 64, "v100-server"),
    ("openllama-3b", 1, 1024, "p4d"),
    ("openllama-3b", 4, 128, "v100-server"),
    ("gpt2-xl", 1, 32, "v100-hetero"),
    ("gpt2-large", 1, 32, "a6000-server"),
)
WARM_CELLS = (("openllama-3b", 32, 64, "v100-server"), ("gpt2-large", 1, 1024, "v100-server"))
QUICK = CELLS[2:3]
COLD, WARM = ("fused", "apart", "columns", "tensor"), ("fused", "columns", "tensor", "rows")
PREFIXES = {"apart": ("apart",), "columns": ("apart", "columns"), "tensor": ("apart", "columns", "tensor")}


class Found(msgspec.Struct):
    """Latency of a case and column in seconds, and the bound over all alternatives of the case."""

    latency: float
    bound: float = 0.0


def problem_for(model: str, batch: int, tokens: int, server: str, warm: bool) -> Problem:
    """Make the problem with all alternatives."""
    topology = load_topology(server)
    graph, groups = decoder_variants(PRESETS[model], batch, tokens, pieces=pieces_for(topology), rows=warm)
    return problem_of(graph, groups, topology, get_cost_model("roofline"))


def with_ways(problem: Problem, column: str) -> Problem:
    """Return the problem with the alternatives of a column only."""
    assert problem.variants is not None
    if column == "fused":
        return problem.resolve({})
    prefixes = PREFIXES.get(column)
    kept = [_kept(group, prefixes) for group in problem.variants.groups] if prefixes else list(problem.variants.groups)
    groups = [group for group in kept if group is not None]
    return problem_of(problem.graph, groups, problem.topology, get_cost_model("roofline"))


def _kept(group: Group, prefixes: tuple[str, ...]) -> Group | None:
    kept = tuple(each for each in group.alternatives if each.name.partition("/")[0] in prefixes)
    return msgspec.structs.replace(group, alternatives=kept) if kept else None


def run(options: argparse.Namespace, done: dict[str, Found]) -> Iterator[None]:
    """Compute what is missing, a case and column at a time."""
    for cell in cells(options):
        case = name_of(cell)
        columns = ("one device", *(WARM if options.warm else COLD))
        if all(f"{case}: {column}" in done for column in columns):
            continue
        problem = problem_for(*cell, options.warm)
        requests = requests_of(problem, 1.0 if options.warm else 0.0)
        bound = lower_bound(Workload(requests).scenario(problem)).seconds
        for column in columns:
            if f"{case}: {column}" in done:
                continue
            of = problem if column == "one device" else with_ways(problem, column)
            requests = requests_of(of, 1.0 if options.warm else 0.0)
            method, limit = ("single", None) if column == "one device" else ("anytime", {"work": options.work})
            known = checked(of, solve(of, method=method, options=limit, workload=Workload(requests)))
            done[f"{case}: {column}"] = Found(known.certificate.latency, bound)
            yield


def cells(options: argparse.Namespace) -> tuple[tuple[str, int, int, str], ...]:
    return QUICK if options.quick else WARM_CELLS if options.warm else CELLS


def name_of(cell: tuple[str, int, int, str]) -> str:
    model, batch, tokens, server = cell
    return f"{model}, {batch}x{tokens}, {server}"


def rows_of(options: argparse.Namespace, done: dict[str, Found]) -> list[Row]:
    rows = []
    for case in map(name_of, cells(options)):
        base = done.get(f"{case}: one device")
        for column in ("one device", *(WARM if options.warm else COLD)) if base else ():
            if (found := done.get(f"{case}: {column}")) is not None:
                note = "" if column == "one device" else f"gap {1 - found.bound / found.latency:.1%}"
                rows.append(Row(case, column, found.latency * 1e3, "ms", base.latency * 1e3, "one device", note))
    return rows


def conclusions(options: argparse.Namespace, done: dict[str, Found]) -> str:
    """Summarise the cases that have all columns."""
    columns = WARM if options.warm else COLD
    known = [case for case in map(name_of, cells(options)) if all(f"{case}: {c}" in done for c in columns)]
    if not known:
        return "No case is done yet."
    lines = [
        f"Each search had work {options.work:g}, seconds of an idle core, whatever ran beside it. A gap is 1 - bound / "
        "latency with the bound over all ways of the case, also in columns that have fewer.",
        "",
    ]
    for column in columns:
        ups = [done[f"{case}: one device"].latency / done[f"{case}: {column}"].latency for case in known]
        gaps = [1 - done[f"{case}: {column}"].bound / done[f"{case}: {column}"].latency for case in known]
        lines.append(
            f"- *{column}*: {statistics.mean(ups):.2f} times as fast as one device on average, {max(ups):.2f} at most; gap "
            f"{statistics.median(gaps):.1%} in the median, {max(gaps):.1%} at most."
        )
    last, before = columns[-1], columns[-2]
    slower = [c for c in known if done[f"{c}: {last}"].latency > 1.001 * done[f"{c}: {before}"].latency]
    lines.append(
        f"- With more ways a search has less work for each: {last} is slower than {before} in {len(slower)} of {len(known)} "
        f"cases{': ' + '; '.join(slower) if slower else ''}."
    )
    return "\n".join(lines)


def main() -> None:
    """Write the page after each search, so that an interrupted run keeps its results."""
    arguments = parser(__doc__)
    arguments.add_argument("--work", type=float, default=4.0, help="work of each search (seconds of an idle core)")
    arguments.add_argument("--warm", action="store_true", help="all parameters on the devices; parts by rows, too")
    arguments.add_argument(
        "--resume", type=Path, metavar="FILE", help="keep finished searches there and go on with them"
    )
    options = arguments.parse_args()
    title = (
        "Tensor parallelism and parts by rows in warm runs"
        if options.warm
        else "Schedules with variants of fused kernels"
    )
    file: Path | None = options.resume
    done: dict[str, Found] = {}
    if file is not None and file.is_file():
        done = msgspec.json.decode(file.read_bytes(), type=dict[str, Found])
    for _ in run(options, done):
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(msgspec.json.encode(done))
        write(title, options, done)
    write(title, options, done)


def write(title: str, options: argparse.Namespace, done: dict[str, Found]) -> None:
    report(
        title,
        rows_of(options, done),
        options.json,
        options.markdown,
        predicted=True,
        notes="\n" + conclusions(options, done),
    )


if __name__ == "__main__":
    main()
