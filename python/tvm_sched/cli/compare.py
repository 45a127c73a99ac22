"""The command `tvm-sched compare`: several schedulers on one problem."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvm_sched_runtime.errors import InputError, TvmSchedError

from ..worker_pool import workers_of
from .attached_commands import RESEARCH
from .inputs import ModelsOrProblems, OptionalTopology, ReportFile, Workers
from .interrupt import interruptible, was_interrupted
from .methods import MethodOptions, parse_options, solve_with_progress
from .model_options import OfferedVariants, RequestOptions, load_problem
from .output import FAILURE, INTERRUPTED, Output
from .registration import app, command

if TYPE_CHECKING:
    from tvm_sched_runtime.problem import Problem, Workload
    from tvm_sched_runtime.schedule import Schedule

    from ..schedulers.solver import SolveCall

HOME = ".report.scheduler_comparison"


@dataclass(frozen=True)
class SeveralMethodOptions(MethodOptions):
    """Options of several schedulers; each takes the ones that it knows."""

    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="[NAME.]KEY=VALUE", help="Option of one scheduler, or of all that know it."),
    ] = None

    def of_each(self, names: list[str]) -> dict[str, dict[str, Any]]:
        """Return the options of each scheduler: ``KEY=VALUE`` if it knows the key, ``NAME.KEY=VALUE`` if that is its name.

        Raises
        ------
        InputError
            No scheduler takes one of the options.
        """
        from ..schedulers import get

        methods = {name: get(name) for name in names}
        options = {name: self.limits(method) for name, method in methods.items()}
        for key, value in parse_options(self.option).items():
            owner, _, own = key.rpartition(".")
            takers = [name for name in names if own in methods[name].option_names and owner in ("", name)]
            if not takers:
                raise InputError(f"--option {key}: none of the schedulers {', '.join(names)} has it")
            for name in takers:
                options[name][own] = value
        return options


@command(app, "compare", (f"{HOME}:Comparison", f"{HOME}:Comparisons"), panel=RESEARCH, apart=True)
def compare(
    out: Output,
    *,
    sources: ModelsOrProblems,
    schedulers: Annotated[str, typer.Option("--schedulers", metavar="A,B,C", help="Names; default: all of them.")] = "",
    topology: OptionalTopology = None,
    methods: SeveralMethodOptions,
    model_options: RequestOptions,
    offered: OfferedVariants,
    each: Annotated[
        bool, typer.Option("--each", help="Each model or problem by itself, not all of them at once on one machine.")
    ] = False,
    report: ReportFile = None,
    workers: Workers = None,
) -> None:
    """Schedule one problem with several schedulers and put them in a table; speed-ups are over `single`.

    The last row is the papers' critical path: what model parallelism alone could reach; no schedule, and no bound.

    $ tvm-sched compare googlenet.onnx --topology v100-server --schedulers single,anytime
    $ tvm-sched compare problem.json --option anytime.work=10 --time-limit 20 --report report.html
    $ tvm-sched compare problems/*.json --each --schedulers single,sortinghat,anytime --json
    """
    from tvm_sched_runtime.problem import Workload

    if each and report:
        raise InputError("--report is of one problem; leave --each away, or ask for one report after the other")
    model_options = replace(model_options, **offered)
    names = _names(schedulers)
    options = methods.of_each(names)
    apart = [[source] for source in sources] if each else [sources]
    problems = [load_problem(out, group, topology, model_options) for group in apart]
    with workers_of(workers):
        wanted = [Workload(model_options.requests(problem)) for problem in problems]
        solves: list[SolveCall] = [
            (problem, of, name, options[name]) for problem, of in zip(problems, wanted, strict=True) for name in names
        ]
        answers = _solve_all(out, solves)
    from ..report.scheduler_comparison import Comparison, Comparisons

    if not answers:
        raise KeyboardInterrupt
    comparisons, complete = [], True
    for n, problem in enumerate(problems):
        own = dict(zip(names, answers[n * len(names) :], strict=False))
        failed = {name: str(error) for name, error in own.items() if isinstance(error, TvmSchedError)}
        solved = {name: answer for name, answer in own.items() if not isinstance(answer, TvmSchedError)}
        if not own:  # Ctrl-C came before
            break
        for name, message in failed.items():
            out.say(f"error: {name}: {message}")
        if report and solved:
            from ..report.html import Entry, write_report

            write_report(report, problem, [Entry(name, chosen) for name, chosen in solved.items()], title="")
            out.wrote(report, "report")
        comparisons.append(Comparison.of(problem, solved, failed))
        out.show(comparisons[-1].table())
        complete &= not failed
    out.result(Comparisons(comparisons) if each else comparisons[0])
    if len(answers) < len(solves):
        out.say(f"interrupted; {len(answers)} of {len(solves)} schedules are there")
        raise typer.Exit(INTERRUPTED)
    if not complete:
        raise typer.Exit(FAILURE)


def _solve_all(out: Output, solves: list[SolveCall]) -> list[Schedule | TvmSchedError]:
    """Return the schedule of each call, or the error that prevented it; with workers, all calls run at once.

    After Ctrl-C, the calls until then are answered, the last one with its best schedule so far.
    """
    from ..schedulers.solver import solve_many
    from ..worker_pool import have_workers

    if not have_workers():
        answers: list[Schedule | TvmSchedError] = []
        out.show_partial = partial(_show_first, out, solves, answers)  # if Ctrl-C ends a method that answers nothing
        with suppress(KeyboardInterrupt):
            for one in solves:
                answers.append(solve_here(out, *one))
                if was_interrupted():
                    break
        return answers
    with interruptible(out), out.step(f"Scheduling {len(solves)} times"):
        return solve_many(solves)


def _show_first(out: Output, solves: list[SolveCall], answers: list[Schedule | TvmSchedError]) -> None:
    """Show the schedules of the first problem that are there."""
    from ..report.scheduler_comparison import Comparison

    problem = solves[0][0]
    named = zip(solves, answers, strict=False)
    solved = {call[2]: answer for call, answer in named if call[0] is problem and not isinstance(answer, TvmSchedError)}
    if solved:
        out.show(Comparison.of(problem, solved, {}).table())


def solve_here(
    out: Output, problem: Problem, workload: Workload, scheduler: str, options: Mapping[str, Any]
) -> Schedule | TvmSchedError:
    """Solve a problem with one scheduler; return its error where it has no schedule."""
    try:
        return solve_with_progress(out, problem, scheduler, options, workload.requests)
    except InputError:
        raise
    except TvmSchedError as error:
        return error


def _names(text: str) -> list[str]:
    """Return the schedulers' names, `single` first if it is among them."""
    from .. import schedulers

    names = [name.strip() for name in text.split(",") if name.strip()] or schedulers.names()
    for name in names:
        schedulers.get(name)
    return sorted(dict.fromkeys(names), key=lambda name: name != "single")
