"""``tvm-sched bench``: run all methods on a suite of instances, score external solutions, and make tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.markup import escape

from tvm_sched.cli.attached_commands import RESEARCH
from tvm_sched.cli.inputs import Writes
from tvm_sched.cli.output import FAILURE, Output
from tvm_sched.cli.registration import command, command_group
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.files import write_atomically

from .training.command import app as learn

if TYPE_CHECKING:
    from . import Case, Result, Standings

app = command_group(
    "bench", "A benchmark of schedulers, partitioners and allocators: instances, equal time, best known solutions."
)


def COMMANDS(root: typer.Typer) -> None:  # noqa: N802 - the name of the entry point
    """Add the group ``bench``, and ``learn``."""
    root.add_typer(app, rich_help_panel=RESEARCH)
    root.add_typer(learn)


T = TypeVar("T")
HOME = "tvm_sched_bench.bench_summaries"
SuitePath = Annotated[
    Path,
    typer.Argument(
        metavar="SUITE", help="suite.toml, the folder that holds it, or a folder of .dot, .dag or .zip task graphs."
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="PATTERN", help="Instances of these names, e.g. 'hios/*'; may be repeated."),
]


@command(app, "list", f"{HOME}:Instances")
def list_instances(
    out: Output,
    suite: SuitePath,
    only: Only = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Write each instance there (FAMILY/INSTANCE.json), show digests."
        ),
    ] = None,
) -> None:
    """Show the instances, with what is best known; write them as files for methods of your own.

    $ tvm-sched bench list benchmarks/instances
    $ tvm-sched bench list suite/ --output problems
    """
    from tvm_sched.report.tables import table

    from . import BestKnown, load_suite
    from .bench_summaries import list_instances as summarise

    loaded = load_suite(suite)
    cases = loaded.chosen(only or ())
    for case in cases:
        if output is not None and (document := case.kind.document(case.task)):
            file = output / f"{case.name}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, document)
    if output is not None:
        out.wrote(output, "instances")
    listed = summarise(BestKnown(loaded), cases, with_digests=output is not None)
    head = ("instance", "kind", "unit", "best known", "bound", "checked by", "digest")
    out.show(table(head, [each.cells for each in listed.instances], text_columns=3))
    out.result(listed)


@command(app, "run", f"{HOME}:RunCounts")
def run(
    out: Output,
    suite: SuitePath,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="Results and solutions go there.")],
    time_limit: Annotated[
        float, typer.Option("--time-limit", metavar="SECONDS", help="Time of each method on each instance, one core.")
    ] = 5.0,
    seeds: Annotated[int, typer.Option("--seeds", metavar="N", help="Runs of methods that are random.")] = 10,
    methods: Annotated[str, typer.Option("--methods", metavar="A,B,C", help="Names; all when not given.")] = "",
    only: Only = None,
) -> None:
    """Run all methods for equal time; a second call goes on where the first one ended, whenever that was.

    $ tvm-sched bench run benchmarks/instances -o out/run --time-limit 5 --seeds 10
    $ tvm-sched bench run benchmarks/instances -o out/run --only 'moirai/*' --methods anytime,heft,my-scheduler
    """
    from . import Run, RunLimits, load_suite
    from . import run as run_all
    from .bench_summaries import RunCounts

    cases = load_suite(suite).chosen(only or ())
    into = Run(output)
    begun = len(into.results)

    def tell(case: Case, result: Result) -> None:
        worth = result.error if result.value is None else f"{result.value:.10g} {case.kind.unit}"
        out.say(f"{case.name}: {result.method}, seed {result.seed}: {worth} ({result.seconds:.2f} s)")

    names = [name.strip() for name in methods.split(",") if name.strip()]
    out.files["results"] = str(output)
    run_all(cases, RunLimits(time_limit, seeds), into, names, tell)
    out.show(f"{len(into.results) - begun} results more in {escape(str(output))}, {len(into.results)} in all")
    out.result(RunCounts(str(output), len(into.results) - begun, len(into.results)))


@command(app, "score", f"{HOME}:Scores")
def score(
    out: Output,
    suite: SuitePath,
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Solutions: FAMILY/INSTANCE.json.")],
    method: Annotated[
        str, typer.Option("--method", metavar="NAME", help="Whose they are; the folder's name when not given.")
    ] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FOLDER", help="Write results there, for `bench table`.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep solutions better than the best known, checked twice.")
    ] = False,
) -> None:
    """Verify and price solutions from files, of any method; status 1 where one is wrong.

    $ tvm-sched bench score benchmarks/instances my_schedules --method mine
    $ tvm-sched bench score benchmarks/instances out/run/solutions/* --keep
    """
    from tvm_sched.report.tables import table

    from . import BestKnown, Run, load_suite
    from . import keep as keep_better
    from . import score as judge
    from .bench_summaries import ScoredSolution, Scores

    loaded = load_suite(suite)
    if wrong := [folder for folder in folders if not folder.is_dir()]:
        raise InputError(f"{wrong[0]}: no such folder")
    best, rows = BestKnown(loaded), []
    into = Run(output) if output is not None else None
    if into is not None:
        into.folder.mkdir(parents=True, exist_ok=True)
    for folder in folders:
        for case, result, solution in judge(loaded, folder, method):
            known = best.of(case)
            kept = bool(keep_better(best, [(case, result, solution)])) if keep else False
            if into is not None and result.key not in {each.key for each in into.results}:
                into.add(result, solution, best=result.value is not None)
            rows.append(ScoredSolution.of(case, result, known.value if known else None, kept))
    head = ("instance", "method", "worth", "over best", "bound", "")
    out.show(table(head, [row.cells for row in rows], text_columns=3))
    out.result(Scores(rows))
    if any(row.error for row in rows):
        raise typer.Exit(FAILURE)


@command(app, "check", f"{HOME}:CheckedSolutions")
def check_kept(out: Output, suite: SuitePath, only: Only = None) -> None:
    """Check the best known solutions once more by `tvm_sched_check`: status 2 where it refuses one.

    Which of them it has checked, with the bound or alone, is noted in best.json. Status 1: a bound claims more than the
    evidence kept with it proves.

    $ tvm-sched bench check benchmarks/instances --only 'tasks/*'
    """
    from tvm_sched.report.tables import table

    from . import BestKnown, load_suite
    from . import check_kept as checked
    from .bench_summaries import CheckedSolutions

    instances = load_suite(suite)
    cases = instances.chosen(only or ())
    kept = list(_with_progress(out, "Checking", checked(BestKnown(instances), cases), len(cases)))
    summary = CheckedSolutions(
        {case.name: known.checked for case, known, _ in kept}, [claim for _, _, claim in kept if claim]
    )
    out.show(table(("family", "checked by", "instances"), summary.rows(), text_columns=2))
    out.show(*map(escape, summary.unproved))
    out.result(summary)
    if summary.unproved:
        raise typer.Exit(FAILURE)


@command(app, "prove", f"{HOME}:ProvedBounds")
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

    $ tvm-sched bench prove benchmarks/instances --only 'regal/*'
    """
    from . import BestKnown, load_suite
    from . import prove_kept as proved
    from .bench_summaries import ProvedBound, ProvedBounds

    instances, changed, refused = load_suite(suite), {}, {}
    cases = instances.chosen(only or ())
    for each in _with_progress(out, "Proving", proved(BestKnown(instances), cases, iterations), len(cases)):
        name, before, now = each.case.name, each.before, each.now
        if each.refused:
            out.say(f"{each.refused}; {'replaced' if each.replaced else 'it stays as it is'}")
            if not each.replaced:
                refused[name] = each.refused
        if each.replaced:
            changed[name] = ProvedBound(before.bound, now.bound, now.bound_by)
            out.show(
                f"{name}: {before.bound:.10g} ({before.bound_by}) -> {now.bound:.10g} ({now.bound_by}), "
                f"proved by {now.checked}"
            )
    out.show(f"{len(changed)} bounds kept")
    out.result(ProvedBounds(changed, refused))
    if refused:
        raise typer.Exit(FAILURE)


def _with_progress(out: Output, title: str, results: Iterator[T], count: int) -> Iterator[T]:
    """Yield results, with their number as progress."""
    with out.step(title) as step:
        for number, each in enumerate(results, 1):
            step("instances", number, count)
            yield each


@command(app, "table", f"{HOME}:MethodSummaries")
def show_table(
    out: Output,
    suite: SuitePath,
    runs: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="Folders of `bench run` and `bench score -o`.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.md", help="Write a page there."), Writes((".md",))
    ] = None,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="A remark on the runs for the page.")] = "",
    keep_bounds: Annotated[
        bool, typer.Option("--keep-bounds", help="Keep bounds that say more than those of the best known solutions.")
    ] = False,
) -> None:
    """Compare methods: gaps to the best known solutions and to the bounds, wins, ties and errors.

    $ tvm-sched bench table benchmarks/instances out/run
    $ tvm-sched bench table benchmarks/instances out/* -o page.md
    """
    from . import BestKnown, Run, Standings, load_suite, page, raise_bounds

    instances, loaded = load_suite(suite), [Run(folder) for folder in runs]
    if empty := [run.folder for run in loaded if not run.results]:
        raise InputError(f"{empty[0]} holds no results; make some with `tvm-sched bench run`")
    best, results = BestKnown(instances), [result for run in loaded for result in run.results]
    if keep_bounds:
        out.say(f"{len(raise_bounds(best, instances, results))} bounds kept")
    standings = Standings(instances, results, best)
    if output is not None:
        circumstances = [run.circumstances for run in loaded if run.circumstances is not None]
        write_atomically(output, page(standings, circumstances, _command(sys.argv[1:]), note).encode())
        out.wrote(output, "page")
    _show(out, standings)


@command(app, "regal", "tvm_sched_bench.regal_table:RegalTable")
def regal(
    out: Output,
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Graphs: CostGraphDef as text (*.pbtxt), or JSON with nodes and edges."),
    ],
    stages: Annotated[
        str, typer.Option("--stages", "-k", metavar="K,K", help="Numbers of stages, of 2, 4, 8, 16, 32, 64.")
    ] = "2,4,8,16,32,64",
    seconds: Annotated[
        float, typer.Option("--time-limit", metavar="SECONDS", min=0.001, help="For each integer program of a graph.")
    ] = 60.0,
) -> None:
    """Compare bounds with BRKGA's partitions on a folder of graphs, beside Table 3 of Archer et al. (ICML 2024).

    The paper's figures are of the REGAL graphs, with 900 seconds for `bottleneck` and 3600 for the other programs.

    $ tvm-sched bench regal graphs/
    $ tvm-sched bench regal graphs/ --stages 4,16 --time-limit 900
    """
    from tvm_sched.report.tables import table

    from .regal_table import STAGES, load_regal, regal_table

    allowed = {str(k): k for k in STAGES}
    if wrong := [text for text in stages.split(",") if text not in allowed]:
        raise InputError(f"--stages: {wrong[0]!r} is none of the paper's, {', '.join(allowed)}")
    numbers = list(dict.fromkeys(allowed[text] for text in stages.split(",")))
    comparison = regal_table(load_regal(folder), numbers, seconds, out.say)
    out.show(table(("bound", "stages", "bound / best", "paper"), comparison.rows))
    out.show(comparison.sentence)
    out.result(comparison)


def _show(out: Output, standings: Standings) -> None:
    from tvm_sched.report.tables import table

    from .bench_summaries import MethodSummaries
    from .standings import HEADER, cells, summaries

    rows = summaries(standings)
    for kind in standings.kinds:
        out.show(table(HEADER, [cells(each) for each in rows if each.kind == kind], title=kind))
    if standings.left_out:
        out.say(f"left out, since they have changed or are not there: {', '.join(sorted(standings.left_out))}")
    out.result(MethodSummaries(rows, sorted(standings.left_out)))


def _command(arguments: Sequence[str]) -> str:
    """Return the command without the folders of this machine, for a page."""
    return " ".join(["tvm-sched", *(Path(text).name if text.startswith(("/", "..")) else text for text in arguments)])
