"""``tvm-sched bench``: run all methods on a suite of instances, score external solutions, and make tables."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from ..errors import InputError
from ..files import write_atomically
from .inputs import check_outputs
from .output import FAILURE, Output
from .registration import command

if TYPE_CHECKING:
    from ..bench import Case, Result, Standings

app = typer.Typer(
    name="bench",
    help="A benchmark of schedulers, partitioners and allocators: instances, equal time, best known solutions.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
SuitePath = Annotated[
    Path, typer.Argument(metavar="SUITE", help="Suite of instances: suite.toml, or the folder that holds it.")
]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="PATTERN", help="Instances of these names, e.g. 'hios/*'; may be repeated."),
]


@command(app, "list", ("tvm-sched bench list benchmarks/instances", "tvm-sched bench list suite/ --problems problems"))
def list_instances(
    out: Output,
    suite: SuitePath,
    only: Only = None,
    problems: Annotated[
        Path | None,
        typer.Option(
            "--problems", metavar="FOLDER", help="Write each instance there (FAMILY/INSTANCE.json), show digests."
        ),
    ] = None,
) -> None:
    """Show the instances, with what is best known; write them as files for methods of your own."""
    from ..bench import BestKnown, load_suite
    from ..report.tables import table

    found = load_suite(suite)
    best, rows = BestKnown(found), []
    for case in found.chosen(only or ()):
        known = best.instances.get(case.name)
        rows.append(
            {
                "instance": case.name, "kind": case.kind.name, "unit": case.kind.unit,
                "best_known": known.value if known else None, "bound": known.bound if known else None,
                "checked_by": known.checked if known else "", "digest": case.digest if problems else "",
            }
        )  # fmt: skip
        if problems is not None and (document := case.kind.document(case.task)):
            file = problems / f"{case.name}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, document)
    if problems is not None:
        out.wrote(problems, "instances")
    shown = [
        [f"{value:.10g}" if isinstance(value, float) else str(value or "") for value in row.values()] for row in rows
    ]
    out.show(table(("instance", "kind", "unit", "best known", "bound", "checked by", "digest"), shown, text_columns=3))
    out.result({"instances": rows})


@command(
    app,
    "run",
    (
        "tvm-sched bench run benchmarks/instances -o out/run --seconds 5 --seeds 10",
        "tvm-sched bench run benchmarks/instances -o out/run --only 'moirai/*' --methods anytime,heft,my-scheduler",
    ),
)
def run(
    out: Output,
    suite: SuitePath,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FOLDER", help="Results and solutions go there.")],
    seconds: Annotated[float, typer.Option("--seconds", help="Time of each method on each instance, one core.")] = 5.0,
    seeds: Annotated[int, typer.Option("--seeds", help="Runs of methods that are random.")] = 10,
    methods: Annotated[str, typer.Option("--methods", metavar="A,B,C", help="Names; all when not given.")] = "",
    only: Only = None,
) -> None:
    """Run all methods for equal time; a second call goes on where the first one ended, whenever that was."""
    from ..bench import Limits, Run, load_suite
    from ..bench import run as run_all

    cases = load_suite(suite).chosen(only or ())
    into = Run(output)
    begun = len(into.results)

    def tell(case: Case, result: Result) -> None:
        worth = result.error if result.value is None else f"{result.value:.10g} {case.kind.unit}"
        out.say(f"{case.name}: {result.method}, seed {result.seed}: {worth} ({result.seconds:.2f} s)")

    names = [name.strip() for name in methods.split(",") if name.strip()]
    out.saved.append(str(output))
    run_all(cases, Limits(seconds, seeds), into, names, tell)
    out.show(f"{len(into.results) - begun} results more in {escape(str(output))}, {len(into.results)} in all")
    out.result({"folder": str(output), "new": len(into.results) - begun, "results": len(into.results)})


@command(
    app,
    "score",
    (
        "tvm-sched bench score benchmarks/instances my_schedules --method mine",
        "tvm-sched bench score benchmarks/instances out/run/solutions/* --keep",
    ),
)
def score(
    out: Output,
    suite: SuitePath,
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Solutions: FAMILY/INSTANCE.json.")],
    method: Annotated[
        str, typer.Option("--method", metavar="NAME", help="Whose they are; the folder's name when not given.")
    ] = "",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FOLDER", help="Write results there, for `bench table`.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep solutions better than the best known, checked twice.")
    ] = False,
) -> None:
    """Verify and price solutions from files, of any method; status 1 where one is wrong."""
    from ..bench import BestKnown, Run, load_suite
    from ..bench import keep as keep_better
    from ..bench import score as judge
    from ..report.tables import table

    found = load_suite(suite)
    if wrong := [folder for folder in folders if not folder.is_dir()]:
        raise InputError(f"{wrong[0]}: no such folder")
    best, rows = BestKnown(found), []
    into = Run(output) if output is not None else None
    if into is not None:
        into.folder.mkdir(parents=True, exist_ok=True)
    for folder in folders:
        for case, result, solution in judge(found, folder, method):
            known = best.of(case)
            kept = bool(keep_better(best, [(case, result, solution)])) if keep else False
            if into is not None and result.key not in {each.key for each in into.results}:
                into.add(result, solution, best=result.value is not None)
            rows.append(_scored(case, result, known.value if known else None, kept))
    out.show(table(("instance", "method", "worth", "over best", "bound", ""), map(_line, rows), text_columns=3))
    out.result({"solutions": rows})
    if any(row["error"] for row in rows):
        raise typer.Exit(FAILURE)


@command(app, "check", ("tvm-sched bench check benchmarks/instances --only 'tasks/*'",))
def check_kept(
    out: Output,
    suite: SuitePath,
    only: Only = None,
) -> None:
    """Check the best known solutions once more by `tvm_sched_check`: status 2 where it refuses one.

    Which of them it has checked, with the bound or alone, is noted in best.json. Status 1: a bound claims more than the
    evidence kept with it proves.
    """
    from ..bench import BestKnown, load_suite
    from ..bench import check_kept as checked
    from ..report.tables import table

    found = load_suite(suite)
    kept = list(checked(BestKnown(found), found.chosen(only or ())))
    counts = Counter((case.name.partition("/")[0], known.checked) for case, known, _ in kept)
    rows = [[family, by or "not covered", str(count)] for (family, by), count in sorted(counts.items())]
    out.show(table(("family", "checked by", "instances"), rows, text_columns=2))
    claims = [claim for _, _, claim in kept if claim]
    out.show(*map(escape, claims))
    out.result({"checked": {case.name: known.checked for case, known, _ in kept}, "unproved": claims})
    if claims:
        raise typer.Exit(FAILURE)


@command(app, "prove", ("tvm-sched bench prove benchmarks/instances --only 'regal/*'",))
def prove_kept(
    out: Output,
    suite: SuitePath,
    only: Only = None,
    iterations: Annotated[
        int, typer.Option("--iterations", min=1, help="Of searches for multipliers, which have no end.")
    ] = 2000,
) -> None:
    """Compute bounds of the best known solutions again, with evidence that `bench check` verifies.

    A bound is kept where it is proved and no weaker than the one before, or that one is not proved and no more than
    0.1 % stronger. Evidence that is refused gives way in the same way. Status 1: a kept solution is refused, or evidence
    that nothing has replaced; the other instances are looked at all the same.
    """
    from ..bench import BestKnown, load_suite
    from ..bench import prove_kept as proved

    found, changed, refused = load_suite(suite), {}, {}
    for each in proved(BestKnown(found), found.chosen(only or ()), iterations):
        name, before, now = each.case.name, each.before, each.now
        if each.refused:
            out.say(f"{each.refused}; {'replaced' if each.replaced else 'it stays as it is'}")
            if not each.replaced:
                refused[name] = each.refused
        if each.replaced:
            changed[name] = {"before": before.bound, "bound": now.bound, "by": now.bound_by}
            out.show(
                f"{name}: {before.bound:.10g} ({before.bound_by}) -> {now.bound:.10g} ({now.bound_by}), "
                f"proved by {now.checked}"
            )
    out.show(f"{len(changed)} bounds kept")
    out.result({"changed": changed, "refused": refused})
    if refused:
        raise typer.Exit(FAILURE)


def _scored(case: Case, result: Result, best: float | None, kept: bool) -> dict[str, Any]:
    """A scored solution, for programs."""
    return {
        "instance": case.name, "method": result.method, "value": result.value, "unit": case.kind.unit,
        "best_known": best, "bound": result.bound, "bound_by": result.bound_by,
        "over_best": case.kind.ratio(result.value, best) if result.value is not None and best is not None else None,
        "kept": kept, "error": result.error,
    }  # fmt: skip


def _line(row: dict[str, Any]) -> list[str]:
    """The same for people."""
    worth = row["error"] or f"{row['value']:.10g} {row['unit']}"
    over = "" if row["over_best"] is None else f"{row['over_best']:.4f}"
    return [row["instance"], row["method"], worth, over, f"{row['bound']:.10g}", "kept" if row["kept"] else ""]


@command(
    app,
    "table",
    (
        "tvm-sched bench table benchmarks/instances out/run",
        "tvm-sched bench table benchmarks/instances out/* -o page.md",
    ),
)
def show_table(
    out: Output,
    suite: SuitePath,
    runs: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="Folders of `bench run` and `bench score -o`.")
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE.md", help="Write a page there.")
    ] = None,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="A remark on the runs for the page.")] = "",
    keep_bounds: Annotated[
        bool, typer.Option("--keep-bounds", help="Keep bounds that say more than those of the best known solutions.")
    ] = False,
) -> None:
    """Compare methods: gaps to the best known solutions and to the bounds, wins, ties and errors."""
    from ..bench import BestKnown, Run, Standings, load_suite, page, raise_bounds

    check_outputs({"-o": (output, (".md",))})
    found, loaded = load_suite(suite), [Run(folder) for folder in runs]
    if empty := [run.folder for run in loaded if not run.results]:
        raise InputError(f"{empty[0]} holds no results; make some with `tvm-sched bench run`")
    best, results = BestKnown(found), [result for run in loaded for result in run.results]
    if keep_bounds:
        out.say(f"{len(raise_bounds(best, found, results))} bounds kept")
    standings = Standings(found, results, best)
    _show(out, standings)
    if output is not None:
        circumstances = [run.circumstances for run in loaded if run.circumstances is not None]
        write_atomically(output, page(standings, circumstances, _command(sys.argv[1:]), note).encode())
        out.wrote(output, "page")


def _show(out: Output, standings: Standings) -> None:
    from ..bench.standings import HEADER, cells, summaries
    from ..report.tables import table

    found = summaries(standings)
    for kind in standings.kinds:
        out.show(table(HEADER, [cells(each) for each in found if each.kind == kind], title=kind))
    if standings.left_out:
        out.say(f"left out, since they have changed or are not there: {', '.join(sorted(standings.left_out))}")
    out.result({"methods": [asdict(each) for each in found], "left_out": sorted(standings.left_out)})


def _command(arguments: Sequence[str]) -> str:
    """The command as a page may show it: without folders of this machine."""
    return " ".join(["tvm-sched", *(Path(text).name if text.startswith(("/", "..")) else text for text in arguments)])
