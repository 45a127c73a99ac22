"""Why SortingHat is behind DeepPlan in some cells of `sortinghat.py`'s grid, and what p4d reaches with unfused kernels.

First the cells of the grid in which SortingHat is slower than DeepPlan by the roofline: both methods again, with and without
direct host access, beside what SortingHat's last program says of its own schedule. Then the four models at 32x64 on p4d,
for which the paper's Section 6 predicts up to 3.7 times a single GPU, from TVM's kernels before and after fusion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import tvm
from _checked import checked
from _common import parser
from _grid import Cells, make_problem
from _result_page import Page

from tvm_sched.cost_model import roofline
from tvm_sched.relax.decoders import decoder_graph
from tvm_sched.schedulers import solve
from tvm_sched_runtime.problem import Problem, load_topology, problem_of
from tvm_sched_runtime.problem.costs import FORBIDDEN
from tvm_sched_runtime.problem.decoder_config import PRESETS
from tvm_sched_runtime.schedule import Schedule

GRID = Path(__file__).parent / "data" / "sortinghat_grid.json.xz"
MODELS = ("gpt2-large", "gpt2-xl", "openllama-3b", "openllama-7b")
P4D_SHAPE = (32, 64)

Cell = tuple[str, int, int, str]
"""Model, batch, tokens and server."""


def behind() -> list[Cell]:
    """Return the cells of the grid in which SortingHat is slower than DeepPlan, the furthest behind first."""
    latencies: dict[Cell, dict[str, float]] = {}
    for key, cell in Cells(GRID).done.items():
        server, model, shape, scheduler, *rest = key.split()
        paper = scheduler == "deepplan" or '"total_time_limit":3600.0' in key
        if scheduler in ("deepplan", "sortinghat") and paper and "=" not in "".join(rest) and cell.latency is not None:
            batch, tokens = map(int, shape.split("x"))
            latencies.setdefault((model, batch, tokens, server), {})[scheduler] = cell.latency
    late = {
        cell: found["sortinghat"] / found["deepplan"] for cell, found in latencies.items() if len(found) == 2
    }  # fmt: skip
    found = sorted((cell for cell, ratio in late.items() if ratio > 1), key=lambda cell: -late[cell])
    if not found:
        raise SystemExit(f"in no cell of {GRID.name} SortingHat is behind DeepPlan: there is nothing to explain")
    return found


def without_direct_access(problem: Problem) -> Problem:
    """Return the problem in which no operator may read parameters from host memory."""
    return replace(problem, costs=problem.costs.replace(direct_ns=np.full_like(problem.costs.direct_ns, FORBIDDEN)))


def latency(schedule: Schedule) -> float:
    assert schedule.certificate is not None
    return schedule.certificate.latency


def program_latency(schedule: Schedule) -> float | None:
    """Return the end of the last program, in seconds, by the program's own equations; None if HEFT's schedule was taken."""
    programs = (schedule.notes or {}).get("submodels")
    return programs[-1]["total_ns"] / 1e9 if programs else None


def rows_behind(cells: Sequence[Cell], options: dict[str, float]) -> Iterator[list[str]]:
    """Yield a line of speed-ups over `single` for each cell."""
    for model, batch, tokens, server in cells:
        print(f"{model} {batch}x{tokens} on {server}", flush=True)
        problem = make_problem(model, batch, tokens, server)
        loaded = without_direct_access(problem)
        one = latency(solve(problem, method="single"))
        sortinghat = checked(problem, solve(problem, method="sortinghat", options=options))
        by_program = program_latency(sortinghat)
        figures = [
            latency(solve(problem, method="pipelined")),
            latency(solve(loaded, method="deepplan")),
            latency(solve(problem, method="deepplan")),
            by_program,
            latency(sortinghat),
            latency(solve(loaded, method="sortinghat", options=options)),
        ]
        direct = sum(placement.direct_host_access for placement in sortinghat.placements)
        speed_ups = ["-" if seconds is None else f"{one / seconds:.2f}" for seconds in figures]
        yield [f"{model} {batch}x{tokens} on {server}", *speed_ups, str(direct)]


def rows_p4d(models: Sequence[str], options: dict[str, float]) -> Iterator[list[str]]:
    """Yield a line for each model and graph on p4d: operators, and speed-ups over `single` with the same graph."""
    for model in models:
        for name, disabled in (("fused", []), ("unfused", ["FuseOps"])):
            print(f"{model} on p4d, {name}", flush=True)
            with tvm.transform.PassContext(disabled_pass=disabled):
                graph = decoder_graph(PRESETS[model], *P4D_SHAPE)
            problem = problem_of(graph, (), load_topology("p4d"), roofline)
            one = latency(solve(problem, method="single"))
            sortinghat = checked(problem, solve(problem, method="sortinghat", options=options))
            anytime = checked(problem, solve(problem, method="anytime", options={"work": options["time_limit"]}))
            assert anytime.certificate is not None
            by_program = program_latency(sortinghat)
            simulated = latency(sortinghat), latency(anytime), anytime.certificate.lower_bound
            yield [
                model, name, str(len(graph.operators)), f"{one * 1e3:.0f}",
                "-" if by_program is None else f"{one / by_program:.2f}",
                *(f"{one / seconds:.2f}" for seconds in simulated),
            ]  # fmt: skip


def page(cells: list[list[str]], p4d: list[list[str]], options: dict[str, float], path: Path | None) -> Page:
    made = Page(
        "Where SortingHat is behind DeepPlan, and p4d without fusion", path, predicted=True,
        notes=f"Prices are the roofline's. SortingHat had {options['time_limit']:g} s a submodel and "
        f"{options['total_time_limit']:g} s a case, `anytime` {options['time_limit']:g} s of an idle core's work.",
    )  # fmt: skip
    made.text("## Cells of the grid in which SortingHat is behind", "Speed-ups over `single`.")
    made.table(
        ["cell", "`pipelined`", "DeepPlan, nothing read directly", "DeepPlan", "SortingHat by its last program",
         "SortingHat", "SortingHat, nothing read directly", "its direct reads"], cells,
    )  # fmt: skip
    made.text(
        "Three properties of the paper's program explain the cells that are more than 1 % behind; more seconds do not",
        "change them: gpt2-large 1x32 on v100-server is at 1.90 in the grid, too, where it had 30 s a submodel.",
        "- *Each program ends its own submodel as early as it can.* A kernel that reads its parameters directly ends before",
        "  a load that waits for the bus would have ended, so the program reads directly; the slower kernel then delays",
        "  all that follow. Where SortingHat is faster with nothing read directly, this is the reason.",
        "- *A direct read occupies no bus in the program* (equations 12 to 14). Where the last program's figure is above",
        "  the simulated one, loads of later submodels waited for direct reads that the program held to be free.",
        "- *A copy from another GPU occupies the GPU that receives it* (equations 21 and 22), so that a parameter that",
        "  comes through a neighbour costs time of kernels. Where kernels take as long as loads, the program therefore",
        "  loads all through one GPU's bus, as `pipelined` does; DeepPlan's copies run beside its kernels.",
    )
    made.text("## p4d, 32 sequences of 64 tokens", "The paper's Section 6 predicts up to 3.7 by its program.")
    made.table(
        ["model", "kernels", "operators", "single, ms", "SortingHat by its last program", "SortingHat", "`anytime`",
         "at most"], p4d, left=2,
    )  # fmt: skip
    made.text(
        "*At most* is the lower bound's speed-up: no schedule of these kernels at these prices is above it. What fusion",
        "joins is a chain in GPT-2, but in OpenLLaMA also parallel products (queries, keys and values; gate and up),",
        "which unfused run on several GPUs at once. 3.7 is out of reach at these prices with either graph; the paper's",
        "prices are measured times of TVM's kernels, which it does not print.",
    )
    return made


def main() -> None:
    arguments = parser(__doc__)
    options = arguments.parse_args()
    cells = behind()
    limits = {"q": 6, "dominators": 1, "time_limit": 1.0, "total_time_limit": 900.0}
    if options.quick:
        cells, limits["total_time_limit"] = cells[:1], 20.0
    made = page(
        list(rows_behind(cells, limits)), list(rows_p4d(MODELS[:1] if options.quick else MODELS, limits)), limits,
        options.markdown,
    )  # fmt: skip
    print(made.markdown)
    if options.markdown is not None:
        options.markdown.write_text(made.markdown)


if __name__ == "__main__":
    main()
