"""The evaluation of SortingHat (ICS 2025, Sections 4 and 6) with our schedulers: Figures 9 to 14 as tables and pictures.

GPT2-large, GPT2-xl, OpenLLaMA-3B and OpenLLaMA-7B, made from their configurations, in float32, at the paper's four input
shapes on its servers; each case is predicted by the simulator and run by the executor with emulated devices. A full run
takes many hours: with ``--resume FILE`` finished cells are kept there, and a run that was interrupted goes on where it was.
By the roofline, the papers' methods have ``--submodel-time-limit`` on 8 of the 64 cells (`thorough`), and
``--other-submodel-time-limit`` on the others. First come the methods without programs, on all cells; then the 8 cells; then
the others (`stage`), so that what is done at any time is spread evenly over models, shapes and servers.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
from _common import parser
from _grid import Case, Cell, Cells, Method, make_problem, measure, predict, replay
from _result_page import version_and_date
from _sortinghat_page import write_page
from rich.console import Console

from tvm_sched_runtime.problem.decoder_config import PRESETS

MODELS = ("gpt2-large", "gpt2-xl", "openllama-3b", "openllama-7b")
SERVERS = ("v100-server", "v100-hetero", "a6000-server", "p4d")
SHAPES = ("1x32", "1x1024", "4x128", "32x64")
ABLATED = ("v100-server", "v100-hetero")
SEARCHED = ("v100-server", "a6000-server")
OPENLLAMA = ("openllama-3b", "openllama-7b")
"""Models with products that are fused, and so can be apart."""
METHODS = (
    Method("single", "single"),
    Method("pipelined", "pipelined"),
    Method("EfficientMIP", "efficient-mip", {"q": 6}, limit="paper"),
    Method("DeepPlan", "deepplan"),
    Method("SortingHat", "sortinghat", {"q": 6, "dominators": 1}, limit="paper"),
    Method("anytime", "anytime", limit="anytime", variants="all"),
    Method("anytime, fused kernels", "anytime", limit="anytime"),
    Method(
        "SortingHat, apart", "sortinghat", {"q": 6, "dominators": 1}, limit="short", variants="apart", square=True,
        models=OPENLLAMA,
    ),
    Method("anytime, apart", "anytime", limit="anytime", variants="apart", square=True, models=OPENLLAMA),
    Method(
        "SortingHat, HEFT's variants", "sortinghat", {"q": 6, "dominators": 1}, limit="short", variants="heft",
        square=True,
    ),
    Method("anytime, HEFT's variants", "anytime", limit="anytime", variants="heft", square=True),
    Method(
        "SortingHat, short", "sortinghat", {"q": 6, "dominators": 1},
        tuple(dict.fromkeys((*SEARCHED, *ABLATED))), "ablation",
    ),
    Method("SortingHat, q 6, nDom 2", "sortinghat", {"q": 6, "dominators": 2}, SEARCHED, "ablation"),
    Method("SortingHat, q 12, nDom 1", "sortinghat", {"q": 12, "dominators": 1}, SEARCHED, "ablation"),
    Method("SortingHat, a third of the time", "sortinghat", {"q": 6, "dominators": 1}, SEARCHED, "third"),
    Method(
        "SortingHat without contention avoidance", "sortinghat",
        {"q": 6, "dominators": 1, "contention": False}, ABLATED, "ablation",
    ),
    Method(
        "SortingHat without topology", "sortinghat",
        {"q": 6, "dominators": 1, "topology_aware": False}, ABLATED, "ablation",
    ),
)  # fmt: skip
ABLATION = {"time_limit": 1.0, "total_time_limit": 30.0}
"""Seconds a submodel and a case for SortingHat and its variants in Figures 12 and 13, so that 208 cells can be computed."""
SHORT = {"time_limit": 1.0, "total_time_limit": 60.0}
"""Seconds a submodel and a case for SortingHat where variants are fixed, in graphs of up to five times the operators."""
MODIFIED = "-dirty"
"""In the version of a tree with changes that no commit has."""
ROOFLINE = "roofline"
"""Cost model of the fixed variants, of the long limits and of Figures 12 and 13."""
PICTURED = ("openllama-3b", "1x1024")
"""Model and shape whose timelines are drawn, as in Figure 10."""

screen = Console(stderr=True)


def words(allowed: tuple[str, ...], open_end: bool = False) -> Any:
    """Return a parser of names separated by commas."""

    def parse(text: str) -> tuple[str, ...]:
        found = tuple(word.strip() for word in text.split(",") if word.strip())
        unknown = [word for word in found if word not in allowed and not open_end]
        if unknown or not found:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown) or text!r} is not among {', '.join(allowed)}")
        return found

    return parse


def shapes(text: str) -> tuple[str, ...]:
    found = tuple(word.strip() for word in text.split(","))
    if not all(re.fullmatch(r"\d+x\d+", word) for word in found):
        raise argparse.ArgumentTypeError(f"{text!r} is not BATCHxTOKENS, e.g. 1x32,1x1024")
    return found


def arguments() -> argparse.Namespace:
    result = parser(__doc__)
    result.add_argument("--models", type=words(tuple(PRESETS)), default=MODELS, metavar="A,B")
    result.add_argument("--topologies", type=words(SERVERS, open_end=True), default=SERVERS, metavar="A,B")
    result.add_argument("--shapes", type=shapes, default=SHAPES, metavar="BxT,BxT")
    schedulers = tuple(dict.fromkeys(method.scheduler for method in METHODS))
    result.add_argument("--schedulers", type=words(schedulers), default=schedulers, metavar="A,B")
    result.add_argument(
        "--costs", type=words((ROOFLINE, "learned")), default=(ROOFLINE,), metavar="A,B",
        help="cost models; of two, the page is of the first, with speed-ups by the second beside; fixed variants, long "
        "limits and Figures 12 and 13 are by roofline only",
    )  # fmt: skip
    result.add_argument("--time-limit", type=float, default=60.0, help="seconds for `anytime`, a case")
    result.add_argument(
        "--work", type=float, help="seconds of an idle core's work for `anytime` instead: the same on a busy machine"
    )
    result.add_argument(
        "--submodel-time-limit", type=float, default=30.0, help="seconds a submodel, the papers' methods, on 8 cells"
    )
    result.add_argument("--other-submodel-time-limit", type=float, default=3.0, help="the same on the other cells")
    result.add_argument(
        "--total-time-limit", type=float, default=3600.0, help="seconds a case in all, the papers' methods"
    )
    result.add_argument(
        "--resume", type=Path, metavar="FILE", help="finished cells (JSON, or *.json.xz): read if there, and added to"
    )
    result.add_argument(
        "--no-measure", action="store_true",
        help="predict only; with --resume, a later call without this option runs the schedules emulated",
    )  # fmt: skip
    result.add_argument(
        "--shared",
        nargs="?",
        const="",
        metavar="COSTS",
        help="other work runs on the machine meanwhile: the page says so; with a name, of cells by this cost model",
    )
    result.add_argument("--only-page", action="store_true", help="compute nothing: the page of what --resume has")
    result.add_argument(
        "--replay", action="store_true",
        help="compute nothing new: price and check again what trees with changes made, so that the rows are of a commit",
    )  # fmt: skip
    result.add_argument(
        "--squares", type=words(("0", "1", "2", "3")), metavar="N,N",
        help="only the cells of these Latin squares, 16 each (limits are long in 8 of square 0), without fixed variants",
    )  # fmt: skip
    result.add_argument("--no-ablation", action="store_true", help="leave out what only Figures 12 and 13 need")
    return result.parse_args()


def coordinates(model: str, shape: str, server: str) -> tuple[int, int, int]:
    """Return the positions of a cell in the grid; an unknown name counts as the first."""
    axes = ((model, MODELS), (shape, SHAPES), (server, SERVERS))
    found = [axis.index(name) if name in axis else 0 for name, axis in axes]
    return found[0], found[1], found[2]


def thorough(model: str, shape: str, server: str) -> bool:
    """Whether the papers' methods have their long limit: of model i in shapes i and i + 1, each on one server.

    They are the half of a Latin square, so that each model, each shape and each server has two such cells.
    """
    m, s, v = coordinates(model, shape, server)
    return (m + s + v) % 4 == 0 and (s - m) % 4 < 2


def square_of(model: str, shape: str, server: str) -> int:
    """Return the Latin square of a cell: 16 cells, in which each model has each shape once, on different servers.

    Methods of `Method.square` run in square 0.
    """
    return sum(coordinates(model, shape, server)) % 4


def stage(case: Case) -> tuple[int, int, int]:
    """Cells of a lower number are computed first.

    Methods without programs; then the thorough cells, where computing takes longer than loading first, since submodels are
    more alike there; then the others, one Latin square after the other, but p4d at shapes of few tokens at the end, where
    programs are the largest. What Figures 12 and 13 need besides comes last, one Latin square
    first.
    """
    m, s, v = coordinates(case.model, case.shape, case.server)
    square, diagonal = (m + s + v) % 4, (s - m) % 4
    if case.method.limit in ("", "anytime"):
        return 0, 0, 0
    if case.method.servers:
        return 2, square, 0
    loading = case.shape in ("1x32", "4x128")
    place = (1 + square + 4 * (loading and case.server == "p4d"), diagonal)
    if thorough(case.model, case.shape, case.server):
        place = 0, int(loading)
    return (1, *place)


def by_cell(case: Case) -> tuple[int, int, int]:
    """Order of whole cells, for `--squares`: each eight have each model and each shape equally often."""
    m, s, _ = coordinates(case.model, case.shape, case.server)
    return square_of(case.model, case.shape, case.server), (s - m) % 4, m


def with_limits(method: Method, options: argparse.Namespace, long: bool) -> Method:
    """Return the method with its limits. Seconds of a submodel grow with its dominators, so the sum is equal."""
    each = options.submodel_time_limit if long else options.other_submodel_time_limit
    paper = {"time_limit": each, "total_time_limit": options.total_time_limit}
    third = {name: seconds / 3 for name, seconds in ABLATION.items()}
    anytime = {"time_limit": options.time_limit} if options.work is None else {"work": options.work}
    limits = {"": {}, "anytime": anytime, "short": SHORT, "ablation": ABLATION, "third": third}.get(method.limit, paper)
    if "time_limit" in limits and "dominators" in method.options:
        limits = {**limits, "time_limit": limits["time_limit"] * method.options["dominators"]}
    return msgspec.structs.replace(method, options={**method.options, **limits})


def methods(options: argparse.Namespace) -> list[Method]:
    """Return the requested methods that can run here; print the others with the reason."""
    chosen = []
    for method in METHODS:
        if method.scheduler not in options.schedulers or (options.no_ablation and method.servers):
            continue
        why_not = method.why_not()
        if why_not:
            screen.print(f"left out: {method.label}: {why_not}")
        else:
            chosen.append(method)
    return chosen


def cases(options: argparse.Namespace) -> Iterator[Case]:
    chosen = methods(options)
    for model in options.models:
        for shape in options.shapes:
            batch, tokens = map(int, shape.split("x"))
            for server in options.topologies:
                long, square = thorough(model, shape, server), square_of(model, shape, server)
                if options.squares and str(square) not in options.squares:
                    continue
                for costs, method in product(options.costs, chosen):
                    if method.square and (square or options.squares):
                        continue
                    if method.models and model not in method.models:
                        continue
                    if costs != ROOFLINE and (method.square or method.servers):
                        continue
                    if not method.servers or server in method.servers:
                        limited = with_limits(method, options, long and costs == ROOFLINE)
                        yield Case(server, model, batch, tokens, limited, costs)


def quick(options: argparse.Namespace) -> None:
    """Reduce to two models, two shapes and short limits, except options that were given."""
    defaults = {"models": MODELS, "shapes": SHAPES, "time_limit": 60.0, "total_time_limit": 3600.0}
    short = {
        "models": ("gpt2-large", "openllama-3b"), "shapes": ("1x32", "1x1024"), "time_limit": 20.0, "total_time_limit": 20.0
    }  # fmt: skip
    for name, value in short.items():
        if getattr(options, name) == defaults[name]:
            setattr(options, name, value)


def unfinished(cell: Cell | None, measured: bool) -> bool:
    return cell is None or (measured and cell.schedule is not None and cell.wall is None)


def replay_modified(plan: list[Case], cells: Cells) -> None:
    """Price and check the schedules again that trees with changes made."""
    version = version_and_date()
    if MODIFIED in version:
        raise SystemExit("--replay needs a tree without changes: commit first")
    problem, made_for = None, None
    for case in sorted(plan, key=lambda case: (case.server, case.model, case.shape, case.method.variants)):
        cell = cells.get(case)
        if cell is None or cell.schedule is None or MODIFIED not in cell.made:
            continue
        place = case.server, case.model, case.shape, case.method.variants, case.costs
        if place != made_for:
            problem, made_for = make_problem(case.model, case.batch, case.tokens, *place[:1], *place[3:]), place
        assert problem is not None
        again = replay(problem, cell, version)
        screen.print(f"{' '.join(place[:3])}, {case.method.label}: {'differs' if again is cell else 'alike'}")
        cells.add(case, again)


def run(plan: list[Case], cells: Cells, measured: bool, order: Callable[[Case], tuple[int, int, int]]) -> None:
    """Compute the unfinished cells in an order."""
    problem, made_for = None, None
    for n, case in enumerate(sorted(plan, key=order)):
        cell = cells.get(case)
        if not unfinished(cell, measured):
            continue
        name = f"{case.model} {case.shape} on {case.server}"
        screen.print(f"{n + 1} of {len(plan)}: {name}, {case.method.label}, {case.costs}")
        if (name, case.method.variants, case.costs) != made_for:
            problem = make_problem(case.model, case.batch, case.tokens, case.server, case.method.variants, case.costs)
            made_for = name, case.method.variants, case.costs
        assert problem is not None
        if cell is None:
            cell = predict(case, problem, (case.model, case.shape) == PICTURED)
            cell.made = version_and_date()
            cells.add(case, cell)
        if measured:
            cells.add(case, measure(problem, cell))


def main() -> None:
    options = arguments()
    if options.quick:
        quick(options)
    cells, plan = Cells(options.resume), list(cases(options))
    if options.replay:
        replay_modified(plan, cells)
    elif not options.only_page:
        run(plan, cells, not options.no_measure, by_cell if options.squares else stage)
    write_page(plan, cells, options.markdown, options.json, options.shared)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("interrupted; cells that are done are in the file of --resume, if there is one") from None
