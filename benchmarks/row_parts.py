"""Compare language models of SortingHat's grid as one graph and in parts by rows, as ``--row-parts auto`` chooses.

"one graph" is `anytime` with all variants on the undivided graph; its figures come from the rows of SortingHat's grid.
"in parts" is `anytime` with the same work on the graph in the number of parts that ``auto`` chooses; ``auto`` searches for
a second of work with each of 1, 2, 4 and 8 parts. The bound "of all" is the least of the bounds of these graphs, so it holds
for each number of parts. At 1x32 loading takes nearly all the time, so no parts are tried, and "in parts" repeats "one
graph". A cell is in the half "tuned on" if the SHA-256 of its name is even. But the first list-scheduling rules were written
with gpt2-large at 32x64 on p4d, the later ones with gpt2-xl and openllama-3b at 32x64 on a6000-server, in whichever half.
`tvm_sched_check` replayed each schedule in parts before it was kept.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from _checked import checked
from _common import HALVES, half, parser
from _grid import Cells
from _result_page import PREDICTED, Page

from tvm_sched.bounds import lower_bound
from tvm_sched.cost_model import roofline
from tvm_sched.relax.decoders import decoder_variants
from tvm_sched.relax.variants.choose_row_parts import with_best_parts
from tvm_sched.relax.variants.offer_variants import pieces_for
from tvm_sched.schedulers import solve
from tvm_sched_runtime.problem import Problem, load_topology, problem_of
from tvm_sched_runtime.problem.decoder_config import PRESETS

GRID = Path(__file__).parent / "data" / "sortinghat_grid.json.xz"
SERVERS = ("v100-server", "v100-hetero", "a6000-server", "p4d")
MODELS = ("gpt2-large", "gpt2-xl", "openllama-3b", "openllama-7b")
SHAPES = ("32x64", "1x1024", "4x128", "1x32")
CELLS = [f"{server} {model} {shape}" for shape, server, model in product(SHAPES, SERVERS, MODELS)]
WHOLE = "1x32"
"""Shape that is not tried in parts."""


def run(cell: str, work: float) -> dict[str, Any]:
    """Choose the number of parts and search in their graph; return it, latency and bound of all in milliseconds."""
    server, model, shape = cell.split()
    batch, tokens = map(int, shape.split("x"))
    topology = load_topology(server)
    bounds: dict[int, float] = {}

    def in_parts(parts: int) -> tuple[int, Problem]:
        graph, groups = decoder_variants(PRESETS[model], batch, tokens, pieces=pieces_for(topology), row_parts=parts)
        problem = problem_of(graph, groups, topology, roofline)
        bounds[parts] = lower_bound(problem).ns / 1e6
        return parts, problem

    parts, problem = with_best_parts(in_parts, lambda made: made[1], len(topology.devices))
    schedule = checked(problem, solve(problem, method="anytime", options={"work": work, "time_limit": None}))
    known = schedule.certificate
    assert known is not None
    return {
        "cell": cell, "parts": parts, "work": work, "ms": known.latency * 1e3, "bound": known.lower_bound * 1e3,
        "bounds": bounds,
    }  # fmt: skip


class Whole(NamedTuple):
    """Milliseconds of a cell's graph of the whole batch: on a single GPU, by `anytime`, and the bound."""

    single: float
    anytime: float
    bound: float


def one_graph(work: float) -> dict[str, Whole]:
    """Return the figures of the graphs of whole batches from the grid's file."""
    single: dict[str, float] = {}
    found: dict[str, tuple[float, float]] = {}
    for key, cell in Cells(GRID).done.items():
        name, _, options = key.partition(" anytime variants {")
        if options.endswith("}") and f'"work":{work:.1f}' in options and cell.latency and cell.bound:
            found[name] = cell.latency * 1e3, cell.bound * 1e3
        if key.endswith(" single {}") and cell.latency:
            single[key.removesuffix(" single {}")] = cell.latency * 1e3
    return {name: Whole(single[name], *figures) for name, figures in found.items() if name in single}


class Line(NamedTuple):
    """A finished cell: milliseconds and bounds before and now."""

    cell: str
    parts: int
    single: float
    before: float
    in_parts: float
    own_bound: float
    bound: float

    @property
    def best(self) -> float:
        """The shorter latency."""
        return min(self.before, self.in_parts)

    @property
    def gap(self) -> float:
        """What the bound leaves open."""
        return 1 - self.bound / self.best


def lines_of(done: dict[str, dict[str, Any]], whole: dict[str, Whole]) -> Iterator[Line]:
    """Yield the finished cells."""
    for cell in CELLS:
        before = whole.get(cell)
        if before and cell.endswith(WHOLE):
            yield Line(cell, 1, before.single, before.anytime, before.anytime, before.bound, before.bound)
        elif before and (now := done.get(cell)):
            bound = min(before.bound, now["bound"], *now["bounds"].values())
            yield Line(cell, now["parts"], before.single, before.anytime, now["ms"], before.bound, bound)


def write(page: Page, lines: list[Line]) -> None:
    """Write the averages, and a table and a sentence for each half."""
    if len(lines) < len(CELLS):
        page.text(f"{len(lines)} of {len(CELLS)} cells are done; the command goes on with the others.", "")
    if not lines:
        return
    page.text("## Speed-up over a single GPU", "")
    rows = []
    for name, servers in (("V100, V100 (hetero), A6000", SERVERS[:3]), *((each, (each,)) for each in SERVERS)):
        own = [line for line in lines if line.cell.split()[0] in servers]
        if own:
            averages = (mean(each.single / ms for each, ms in zip(own, column, strict=True)) for column in (
                [each.before for each in own], [each.in_parts for each in own], [each.best for each in own],
                [each.bound for each in own],
            ))  # fmt: skip
            gaps = [each.gap for each in own]
            rows.append((name, len(own), *(f"{each:.2f}" for each in averages), f"{median(gaps):.1%}, {max(gaps):.1%}",
                         sum(gap > 0.1 for gap in gaps)))  # fmt: skip
    page.table(
        ("average of", "cells", "one graph", "in parts", "better", "bound", "median gap, largest", "gaps above 10%"),
        rows,
    )  # fmt: skip
    head = (
        "cell",
        "parts",
        "one graph, ms",
        "in parts, ms",
        "bound of one graph",
        "of all",
        "gap of one graph",
        "of the best",
    )
    for part in HALVES:
        own = [line for line in lines if half(line.cell) == part]
        page.text(f"## {part.capitalize()}", "")
        page.table(
            head,
            [
                (
                    each.cell, each.parts,
                    *(f"{ms:.1f}" for ms in (each.before, each.in_parts, each.own_bound, each.bound)),
                    f"{1 - each.own_bound / each.before:.1%}", f"{each.gap:.1%}",
                )
                for each in own
            ],
        )  # fmt: skip
        cut = [1 - each.in_parts / each.before for each in own if each.parts > 1]
        if cut:
            page.text(
                f"{len(cut)} of {len(own)} cells are computed in parts, {sum(each > 0 for each in cut)} of them faster; "
                f"their latency changes by {-max(cut):.1%} at best, {-median(cut):.1%} in the median and "
                f"{-min(cut):+.1%} at worst.",
                "",
            )


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--work", type=float, default=4.0, help="work of each cell (seconds of an idle core)")
    arguments.add_argument("--results", type=Path, required=True, metavar="FILE.jsonl", help="a run goes on there")
    arguments.add_argument("--only-page", action="store_true", help="compute nothing: the page of what --results has")
    options = arguments.parse_args()
    file: Path = options.results
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    done = {each["cell"]: each for each in lines if each["work"] == options.work}
    for cell in CELLS[12:13] if options.quick else CELLS:
        if cell not in done and not cell.endswith(WHOLE) and not options.only_page:
            done[cell] = run(cell, options.work)
            print(*done[cell].values(), file=sys.stderr, flush=True)
            with file.open("a") as results:
                results.write(json.dumps(done[cell]) + "\n")
    page = Page("Language models in parts by rows", options.markdown)
    page.text(PREDICTED, "", *(__doc__ or "").split("\n\n", 1)[1].strip().split("\n"), "")
    write(page, list(lines_of(done, one_graph(options.work))))
    page.write()


if __name__ == "__main__":
    main()
