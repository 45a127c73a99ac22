"""Language models whose batch or tokens are computed in parts: the cells of SortingHat's grid that were above 10 % open.

"one graph" is `anytime` with all variants on the graph of the whole batch, as kept beside the grid's page; "in parts" is
`anytime` with the same work on the graph in parts (``--row-parts``): 8 on p4d, 4 for its batch of 4, and 2 on a6000-server.
The bound "of both" is the lower one of the two graphs, so it holds whichever is chosen; graphs in other numbers of parts
have bounds of their own. A cell is in the half "tuned on" if the SHA-256 of its name is even. The rules of list scheduling
were written while looking at gpt2-large at 32x64, which is in the other half; nothing was tuned on the other held out cells.
`tvm_sched_check` replayed each schedule in parts before it was kept.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any

from _checked import checked
from _common import parser
from _grid import Cells
from _result_page import PREDICTED, Page

from tvm_sched.cost_model import costs
from tvm_sched.problem import load_topology, problem_of
from tvm_sched.problem.decoder_config import PRESETS
from tvm_sched.relax.decoders import decoder_variants
from tvm_sched.relax.variants.offer_variants import pieces_for
from tvm_sched.schedulers import solve

GRID = Path(__file__).parent / "data" / "sortinghat_grid.json.xz"
PARTS = {"p4d": 8, "a6000-server": 2}
CELLS = (
    "p4d gpt2-large 32x64", "a6000-server gpt2-large 32x64", "p4d gpt2-large 1x1024", "a6000-server gpt2-large 1x1024",
    "p4d gpt2-large 4x128", "a6000-server gpt2-xl 32x64", "p4d gpt2-xl 32x64", "a6000-server gpt2-xl 1x1024",
    "p4d gpt2-xl 1x1024", "a6000-server openllama-3b 32x64", "a6000-server openllama-7b 32x64",
    "a6000-server openllama-7b 1x1024",
)  # fmt: skip


def half(cell: str) -> str:
    """Return the half of a cell."""
    return "tuned on" if sha256(cell.encode()).digest()[-1] % 2 == 0 else "held out"


def run(cell: str, work: float) -> dict[str, Any]:
    """Search in the graph in parts; return latency and bound in milliseconds."""
    server, model, shape = cell.split()
    batch, tokens = map(int, shape.split("x"))
    parts = PARTS[server] if batch == 1 else min(PARTS[server], batch)
    topology = load_topology(server)
    graph, groups = decoder_variants(PRESETS[model], batch, tokens, pieces=pieces_for(topology), row_parts=parts)
    problem = problem_of(graph, groups, topology, costs)
    schedule = checked(problem, solve(problem, method="anytime", options={"work": work, "time_limit": None}))
    known = schedule.certificate
    assert known is not None
    return {"cell": cell, "parts": parts, "work": work, "ms": known.latency * 1e3, "bound": known.lower_bound * 1e3}


def one_graph(work: float) -> dict[str, tuple[float, float]]:
    """Return latency and bound in milliseconds of the graph of the whole batch, from the grid's file."""
    found = {}
    for key, cell in Cells(GRID).done.items():
        name, _, options = key.partition(" anytime variants {")
        if options and f'"work":{work:.1f}' in options and cell.latency and cell.bound:
            found[name] = cell.latency * 1e3, cell.bound * 1e3
    return found


def rows(done: dict[str, dict[str, Any]], whole: dict[str, tuple[float, float]]) -> Iterator[tuple[str, Any]]:
    """Yield half and line of each finished cell: latencies, the bound over both graphs, gaps before and now."""
    for cell in CELLS:
        if cell in whole and cell in done:
            (before, own_bound), parts = whole[cell], done[cell]
            bound, best = min(own_bound, parts["bound"]), min(before, parts["ms"])
            yield half(cell), (cell, before, parts["ms"], own_bound, bound, 1 - own_bound / before, 1 - bound / best)


def write(page: Page, done: dict[str, dict[str, Any]], whole: dict[str, tuple[float, float]]) -> None:
    """Write a table and a sentence for each half."""
    lines = list(rows(done, whole))
    page.text(f"{len(lines)} of {len(CELLS)} cells are done; the command goes on with the others.", "")
    head = ("cell", "one graph, ms", "in parts, ms", "bound of one graph", "of both", "gap of one graph", "of the best")
    for part in ("tuned on", "held out"):
        own = [line for which, line in lines if which == part]
        page.text(f"## {part.capitalize()}", "")
        page.table(
            head, [(c, *(f"{ms:.1f}" for ms in figures[:4]), *(f"{g:.1%}" for g in figures[4:])) for c, *figures in own]
        )
        if own:
            faster = [1 - line[2] / line[1] for line in own]
            page.text(
                f"{sum(f > 0 for f in faster)} of {len(own)} cells are faster in parts; the change in latency is "
                f"{-max(faster):.1%} at best, {-median(faster):.1%} in the median and {-min(faster):+.1%} at worst.",
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
    for cell in CELLS[:1] if options.quick else CELLS:
        if cell not in done and not options.only_page:
            done[cell] = run(cell, options.work)
            print(*done[cell].values(), file=sys.stderr)
            with file.open("a") as results:
                results.write(json.dumps(done[cell]) + "\n")
    page = Page("Language models in parts by rows", options.markdown)
    page.text(PREDICTED, "", *(__doc__ or "").split("\n\n", 1)[1].strip().split("\n"), "")
    write(page, done, one_graph(options.work))
    page.write()


if __name__ == "__main__":
    main()
