"""The command `tvm-sched compare`: several schedulers on one problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InputError, TvmSchedError
from .inputs import HTML, ModelsOrProblems, OptionalTopology, ReportFile, Workers, check_outputs, workers_of
from .interrupt import interruptible
from .methods import MethodOptions, parse_options
from .models import RequestOptions, load_problem
from .output import FAILURE, Output
from .solving import solve_with_progress

if TYPE_CHECKING:
    from ..problem import Problem
    from ..schedule import Schedule
    from ..schedulers.batch import SolveRequest


@dataclass(frozen=True)
class SeveralMethodOptions(MethodOptions):
    """Options of several schedulers, each of which takes those that it knows."""

    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="[NAME.]KEY=VALUE", help="Option of one scheduler, or of all that know it."),
    ] = None

    def of_each(self, names: list[str]) -> dict[str, dict[str, Any]]:
        """Options of each scheduler: ``KEY=VALUE`` if it knows the key, ``NAME.KEY=VALUE`` if the name is its.

        Raises
        ------
        InputError
            An option that none of them takes.
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


def compare(
    out: Output,
    *,
    sources: ModelsOrProblems,
    schedulers: Annotated[
        str, typer.Option("--schedulers", metavar="A,B,C", help="Names; all of them when not given.")
    ] = "",
    topology: OptionalTopology = None,
    methods: SeveralMethodOptions,
    given: RequestOptions,
    each: Annotated[
        bool, typer.Option("--each", help="Each model or problem by itself, not all of them at once on one machine.")
    ] = False,
    report: ReportFile = None,
    workers: Workers = None,
) -> None:
    """Schedule one problem with several schedulers and put them in a table; speed-ups are over `single`.

    The last row is the papers' critical path: what model parallelism alone could reach; no schedule, and no bound.
    """
    check_outputs({"--report": (report, HTML)}, sources)
    if each and report:
        raise InputError("--report is of one problem; leave --each away, or ask for one report after the other")
    names = _names(schedulers)
    options = methods.of_each(names)
    apart = [[source] for source in sources] if each else [sources]
    problems = [load_problem(out, group, topology, given) for group in apart]
    with workers_of(workers):
        wanted = [given.requests(made) for made in problems]
        solves: list[SolveRequest] = [
            (made, name, options[name], of) for made, of in zip(problems, wanted, strict=True) for name in names
        ]
        answers = _solve_all(out, solves)
    comparisons, complete = [], True
    for n, made in enumerate(problems):
        found, failed = _sorted(out, dict(zip(names, answers[n * len(names) :], strict=False)))
        if report and found:
            from ..report.html import Entry, write_report

            write_report(report, made, [Entry(name, chosen) for name, chosen in found.items()], title="")
            out.wrote(report, "report")
        comparisons.append(_show_comparison(out, made, found, failed))
        complete &= not failed
    out.result({"problems": comparisons} if each else comparisons[0])
    if not complete:
        raise typer.Exit(FAILURE)


def _sorted(out: Output, answers: dict[str, Schedule | TvmSchedError]) -> tuple[dict[str, Schedule], dict[str, str]]:
    """The schedules that were found, and why the others were not, by scheduler."""
    found, failed = {}, {}
    for name, answer in answers.items():
        if isinstance(answer, TvmSchedError):
            failed[name] = str(answer)
            out.say(f"error: {name}: {answer}")
        else:
            found[name] = answer
    return found, failed


def _solve_all(out: Output, solves: list[SolveRequest]) -> list[Schedule | TvmSchedError]:
    """The schedule of each problem and scheduler, or why there is none; all at once where there are workers."""
    from ..schedulers.batch import solve_many
    from ..worker_pool import have_workers

    if not have_workers():
        return [_solve_here(out, *one) for one in solves]
    with interruptible(out), out.step(f"Scheduling {len(solves)} times"):
        return solve_many(solves)


def _solve_here(out: Output, *request: Any) -> Schedule | TvmSchedError:
    try:
        return solve_with_progress(out, *request)
    except InputError:
        raise
    except TvmSchedError as error:
        return error


def _names(text: str) -> list[str]:
    """The schedulers asked for, `single` first where it is among them."""
    from .. import schedulers

    names = [name.strip() for name in text.split(",") if name.strip()] or schedulers.names()
    for name in names:
        schedulers.get(name)
    return sorted(dict.fromkeys(names), key=lambda name: name != "single")


def _show_comparison(out: Output, made: Problem, found: dict[str, Schedule], failed: dict[str, str]) -> dict[str, Any]:
    """Show a problem's table; the same for programs."""
    from ..report.tables import table
    from ..report.units import format_ns, format_percent, format_time
    from ..schedule.schedule import weighted_mean
    from ..schedulers import REFERENCES

    certificates = {name: chosen.certificate for name, chosen in found.items() if chosen.certificate}
    base = certificates["single"].latency_ns if "single" in certificates else None
    rows, data = [], []
    for name, c in certificates.items():
        speedup = base / c.latency_ns if base and c.latency_ns else None
        seconds = found[name].seconds
        rows.append(
            (name, format_ns(c.latency_ns), format_ns(c.lower_bound_ns), format_percent(c.gap), c.bound,
             format_time(seconds), f"{speedup:.2f}×" if speedup else "-")
        )  # fmt: skip
        data.append(
            {"scheduler": name, "latency_ns": c.latency_ns, "lower_bound_ns": c.lower_bound_ns, "gap": c.gap,
             "bound": c.bound, "status": c.status, "seconds": seconds, "speedup_over_single": speedup}
        )  # fmt: skip
    rows += [(name, "failed", "", "", "", "", "") for name in failed]
    data += [{"scheduler": name, "error": message} for name, message in failed.items()]
    requests = next((c.requests for c in certificates.values()), ())
    runs = [made.with_resident(request.resident) for request in requests] or [made]
    references = {name: weighted_mean(requests, [ns(run) for run in runs]) for name, ns in REFERENCES.items()}
    rows += [
        (f"({name})", format_ns(ns), "", "", "", "no schedule", f"{base / ns:.2f}×" if base and ns else "-")
        for name, ns in references.items()
    ]
    title = f"{made.graph.name} on {made.topology.name}"
    out.show(table(("scheduler", "latency", "lower bound", "gap", "bound by", "found in", "speed-up"), rows, title))
    return {
        "problem": made.digest, "model": made.graph.name, "topology": made.topology.name, "schedulers": data,
        "references": [{"name": name, "latency_ns": ns} for name, ns in references.items()],
    }  # fmt: skip
