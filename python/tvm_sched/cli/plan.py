"""Commands on problems and schedules: nothing here compiles or runs a model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from ..errors import InputError, TvmSchedError
from .command import BAD_INPUT, FAILURE, Output
from .inputs import (
    InputShapes,
    Models,
    ModelsOrProblems,
    OptionalCosts,
    Options,
    Phase,
    ProblemFile,
    Ray,
    ReportFile,
    ScheduleFile,
    SchedulerName,
    Seed,
    TimeLimit,
    TimelineFile,
    TokenShape,
    TopologyName,
    TraceFile,
    check_outputs,
    common_options,
    known_options,
    load_problem,
    load_schedule,
    load_timeline,
    parse_options,
    scheduler_options,
    workers_of,
)
from .interrupt import interruptible

if TYPE_CHECKING:
    from ..problem import Problem
    from ..schedule import Schedule, Timeline

JSON, HTML = (".json",), (".html", ".htm")

OptionalTopology = Annotated[
    str | None,
    typer.Option("--topology", "-t", metavar="NAME|FILE", help="Preset or TOML file. A problem file brings its own."),
]


def problem(
    out: Output,
    models: Models,
    topology: TopologyName,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.json", help="Where to write the problem.")],
    input_shape: InputShapes = None,
    shape: TokenShape = None,
    phase: Phase = "full",
    costs: OptionalCosts = None,
) -> None:
    """Write the scheduling problem of models on a machine: operators, tensors, topology, latencies."""
    check_outputs({"--output": (output, JSON)}, models)
    made = load_problem(out, models, topology, input_shape, shape, phase, costs)
    made.save(output)
    out.wrote(output, "problem")
    graph = made.graph
    flops = sum(operator.flops for operator in graph.operators)
    parameter_bytes = sum(tensor.size for tensor in graph.tensors if tensor.kind == "parameter")
    about = {
        "problem": made.digest, "model": graph.name, "topology": made.topology.name, "operators": len(graph.operators),
        "tensors": len(graph.tensors), "parameter_bytes": parameter_bytes, "flops": flops, "files": {"problem": str(output)},
    }  # fmt: skip
    from ..report.units import format_bytes

    out.say(
        f"{graph.name} on {made.topology.name}: {len(graph.operators):,} operators, {flops / 1e9:.3g} Gflop, "
        f"parameters of {format_bytes(parameter_bytes)}"
    )
    out.result(about)


def schedule(
    out: Output,
    sources: ModelsOrProblems,
    topology: OptionalTopology = None,
    scheduler: SchedulerName = "exact",
    option: Options = None,
    input_shape: InputShapes = None,
    shape: TokenShape = None,
    phase: Phase = "full",
    time_limit: TimeLimit = None,
    seed: Seed = None,
    costs: OptionalCosts = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.json", help="Write the schedule.")
    ] = None,
    report: ReportFile = None,
    trace: TraceFile = None,
) -> None:
    """Schedule models or problem files, several of them at once, and say how good the schedule is."""
    check_outputs({"--output": (output, JSON), "--report": (report, HTML), "--trace": (trace, JSON)}, sources)
    options = scheduler_options(out, scheduler, option, time_limit, seed)
    made = load_problem(out, sources, topology, input_shape, shape, phase, costs)
    chosen = _solve(out, made, scheduler, options)
    if output:
        chosen.save(output)
        out.wrote(output, "schedule")
    _show_schedule(out, made, chosen, report, trace, output)


def _solve(out: Output, made: Problem, scheduler: str, options: dict[str, Any]) -> Schedule:
    from ..schedulers import get, solve

    # A scheduler that answers Ctrl-C gives what it has by then; a second one ends the process all the same.
    stopping = nullcontext() if get(scheduler).answers_interrupt else interruptible(out)
    with stopping, out.step(f"Scheduling with {scheduler}") as step:
        return solve(made, scheduler, options, progress=step)


def _show_schedule(
    out: Output, made: Problem, chosen: Schedule, report: Path | None, trace: Path | None, output: Path | None = None
) -> None:
    from ..report.tables import certificate_table, lanes_table
    from ..schedule.simulate import simulate

    predicted = simulate(made, chosen)
    write_views(out, made, chosen, [predicted], report, trace)
    out.show(certificate_table(chosen), lanes_table(made.topology, predicted))
    files = {"schedule": output, "report": report, "trace": trace}
    out.result({**describe(made, chosen, predicted), "files": {k: str(v) for k, v in files.items() if v}})


def write_views(
    out: Output, made: Problem, chosen: Schedule, timelines: list[Timeline], report: Path | None, trace: Path | None
) -> None:
    """Write the report and the trace that were asked for."""
    if report:
        from ..report.html import Entry, write_report

        write_report(report, made, [Entry(chosen.scheduler or "schedule", chosen, timelines)])
        out.wrote(report, "report")
    if trace:
        from ..report.trace import write_trace

        write_trace(trace, timelines, made, chosen)
        out.wrote(trace, "trace")


def describe(made: Problem, chosen: Schedule, predicted: Timeline) -> dict[str, Any]:
    """What ``--json`` says of a schedule."""
    from ..report.figures import lane_figures, ordered_lanes

    certificate = chosen.certificate
    figures = lane_figures(predicted, ordered_lanes(made.topology, [predicted]))
    return {
        "problem": made.digest,
        "model": made.graph.name,
        "topology": made.topology.name,
        "scheduler": chosen.scheduler,
        "options": chosen.options,
        "latency_ns": predicted.latency_ns,
        "lower_bound_ns": certificate.lower_bound_ns if certificate else None,
        "gap": certificate.gap if certificate else None,
        "bound": certificate.bound if certificate else None,
        "seconds": chosen.seconds,
        "lanes": [{"lane": f.lane, "events": f.events, "busy_ns": f.busy_ns, "bytes": f.bytes} for f in figures],
    }


def simulate(
    out: Output,
    problem_file: ProblemFile,
    schedule_file: ScheduleFile,
    timeline: TimelineFile = None,
    trace: TraceFile = None,
    report: ReportFile = None,
    measured: Annotated[
        list[Path] | None,
        typer.Option(
            "--measured", metavar="FILE.json", help="Timeline of `run`, for trace and report. May be repeated."
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option("--samples", metavar="N", help="Spread of the latency over N draws of uncertain times.")
    ] = 0,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the draws.")] = 0,
) -> None:
    """Check a schedule against its problem and price it: when each kernel and copy runs, and the latency."""
    if samples < 0 or seed < 0:
        raise InputError(f"--samples {samples} --seed {seed}: 0 or more is allowed")
    outputs = {"--timeline": (timeline, JSON), "--trace": (trace, JSON), "--report": (report, HTML)}
    check_outputs(outputs, [problem_file, schedule_file, *(measured or ())])
    from ..problem import Problem
    from ..report.tables import certificate_table, lanes_table
    from ..schedule.simulate import simulate as price
    from ..schedule.verify import verify

    made = Problem.load(problem_file)
    chosen = load_schedule(made, schedule_file)
    verify(made, chosen)
    predicted = price(made, chosen)
    chosen = _certified(made, chosen, predicted)
    real = [load_timeline(made, path) for path in measured or ()]
    if timeline:
        predicted.save(timeline)
        out.wrote(timeline, "timeline")
    write_views(out, made, chosen, [predicted, *real], report, trace)
    out.show(certificate_table(chosen, real), lanes_table(made.topology, predicted))
    spread = _show_spread(out, made, chosen, samples, seed) if samples else {}
    _show_useful(out, made, chosen)
    files = {"timeline": timeline, "trace": trace, "report": report}
    said = {**describe(made, chosen, predicted), **spread, "useful_measurements": most_useful_of(made, chosen)}
    out.result({**said, "files": {k: str(v) for k, v in files.items() if v}})


def _show_spread(out: Output, made: Problem, chosen: Schedule, samples: int, seed: int) -> dict[str, Any]:
    """The spread of the latency, for people and for programs."""
    import numpy as np

    from ..cost_model.spread import sample_latencies
    from ..report.tables import table
    from ..report.units import format_ns

    with interruptible(out), out.step("Sampling") as step:
        latencies = sample_latencies(made, chosen, samples, seed, step)
    levels = {"5 %": 5, "25 %": 25, "median": 50, "75 %": 75, "95 %": 95}
    found = {name: int(np.percentile(latencies, level)) for name, level in levels.items()}
    out.show(table(("latency", f"{samples} samples"), [(name, format_ns(ns)) for name, ns in found.items()]))
    return {"spread_ns": found, "samples": samples, "seed": seed}


def most_useful_of(made: Problem, chosen: Schedule) -> list[dict[str, Any]]:
    """The kernels whose measurement would help most, for programs."""
    from dataclasses import asdict

    from ..cost_model.spread import most_useful

    return [asdict(each) for each in most_useful(made, chosen)]


def _show_useful(out: Output, made: Problem, chosen: Schedule) -> None:
    from ..report.tables import table
    from ..report.units import format_ns

    rows = [
        (each["signature"].partition("|")[0], str(len(each["operators"])), each["operators"][0], each["device"],
         format_ns(each["uncertain_ns"]), "far from the data" if each["far"] else "")
        for each in most_useful_of(made, chosen)
    ]  # fmt: skip
    if rows:
        head = ("most useful to measure", "operators", "such as", "on", "uncertain by", "")
        out.show(table(head, rows, text_columns=1))


def _certified(made: Problem, chosen: Schedule, predicted: Timeline) -> Schedule:
    """The schedule with a certificate computed here: what its file says may be wrong, or of an older bound."""
    import msgspec

    from ..schedule import Certificate
    from ..schedule.bounds import lower_bound

    bound = lower_bound(made)
    return msgspec.structs.replace(chosen, certificate=Certificate(predicted.latency_ns, bound.ns, bound.name))


def verify(
    out: Output,
    problem_file: ProblemFile,
    schedule_file: ScheduleFile,
    contiguous: Annotated[bool, typer.Option("--contiguous", help="Ask for contiguous submodels, too.")] = False,
    resident: Annotated[
        float, typer.Option(help="Judge the memory of warm runs, too, in which this part of the parameters remains.")
    ] = 0.0,
) -> None:
    """List every rule of docs/model.md that a schedule breaks; exit status 2 if there is one."""
    from ..problem import Problem
    from ..schedule import Schedule
    from ..schedule.verify import violations

    made = Problem.load(problem_file)
    found = violations(made, Schedule.load(schedule_file), contiguous, resident=resident)
    for violation in found:
        out.show(escape(violation.message))
    if not found:
        out.show(escape(f"{schedule_file} obeys every rule"))
    rows = [{"rule": v.rule, "operator": v.operator, "device": v.device, "message": v.message} for v in found]
    out.result({"feasible": not found, "violations": rows})
    if found:
        raise typer.Exit(BAD_INPUT)


def compare(
    out: Output,
    sources: ModelsOrProblems,
    schedulers: Annotated[
        str, typer.Option("--schedulers", metavar="A,B,C", help="Names; all of them when not given.")
    ] = "",
    topology: OptionalTopology = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="[NAME.]KEY=VALUE", help="Option of one scheduler, or of all that know it."),
    ] = None,
    input_shape: InputShapes = None,
    shape: TokenShape = None,
    phase: Phase = "full",
    time_limit: TimeLimit = None,
    seed: Seed = None,
    costs: OptionalCosts = None,
    report: ReportFile = None,
    ray: Ray = None,
) -> None:
    """Schedule one problem with several schedulers and put them in a table; speed-ups are over `single`.

    The last row is the papers' critical path: what model parallelism alone could reach; no schedule, and no bound.
    """
    check_outputs({"--report": (report, HTML)}, sources)
    names = _names(schedulers)
    options = _own_options(names, option, time_limit, seed)
    made = load_problem(out, sources, topology, input_shape, shape, phase, costs)
    found: dict[str, Schedule] = {}
    failed: dict[str, str] = {}
    with workers_of(ray):
        answers = _solve_all(out, made, [(name, options[name]) for name in names])
    for name, answer in zip(names, answers, strict=True):
        if isinstance(answer, TvmSchedError):
            failed[name] = str(answer)
            out.say(f"error: {name}: {answer}")
        else:
            found[name] = answer
    if report and found:
        from ..report.html import Entry, write_report

        write_report(report, made, [Entry(name, chosen) for name, chosen in found.items()], title="")
        out.wrote(report, "report")
    _show_comparison(out, made, found, failed)
    if failed:
        raise typer.Exit(FAILURE)


def _solve_all(out: Output, made: Problem, asked: list[tuple[str, dict[str, Any]]]) -> list[Schedule | TvmSchedError]:
    """The schedule of each scheduler, or why there is none; all at once where there are workers."""
    from ..spread import have_workers, spread

    if not have_workers():
        return [_answer(partial(_solve, out, made, name, options)) for name, options in asked]
    with interruptible(out), out.step(f"Scheduling with {len(asked)} schedulers"):
        return spread(_solve_elsewhere, [(made, name, options) for name, options in asked])


def _solve_elsewhere(made: Problem, name: str, options: dict[str, Any]) -> Schedule | TvmSchedError:
    from ..schedulers import solve

    return _answer(partial(solve, made, name, options))


def _answer(call: Callable[[], Schedule]) -> Schedule | TvmSchedError:
    try:
        return call()
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


def _own_options(
    names: list[str], texts: list[str] | None, time_limit: float | None, seed: int | None
) -> dict[str, dict[str, Any]]:
    """Options of each scheduler: ``KEY=VALUE`` if it knows the key, ``NAME.KEY=VALUE`` if the name is its.

    Raises
    ------
    InputError
        An option that none of them takes.
    """
    known = {name: known_options(name) for name in names}
    common = {name: common_options(time_limit, seed, known[name]) for name in names}
    options = {name: {key: common[name][key] for key in common[name].keys() & known[name]} for name in names}
    for key, value in parse_options(texts).items():
        owner, _, own = key.rpartition(".")
        takers = [name for name in names if own in known[name] and owner in ("", name)]
        if not takers:
            raise InputError(f"--option {key}: none of the schedulers {', '.join(names)} has it")
        for name in takers:
            options[name][own] = value
    return options


def _show_comparison(out: Output, made: Problem, found: dict[str, Schedule], failed: dict[str, str]) -> None:
    from ..report.tables import table
    from ..report.units import format_ns, format_percent, format_time
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
             "bound": c.bound, "seconds": seconds, "speedup_over_single": speedup}
        )  # fmt: skip
    rows += [(name, "failed", "", "", "", "", "") for name in failed]
    data += [{"scheduler": name, "error": message} for name, message in failed.items()]
    references = {name: latency(made) for name, latency in REFERENCES.items()}
    rows += [
        (f"({name})", format_ns(ns), "", "", "", "no schedule", f"{base / ns:.2f}×" if base and ns else "-")
        for name, ns in references.items()
    ]
    title = f"{made.graph.name} on {made.topology.name}"
    out.show(table(("scheduler", "latency", "lower bound", "gap", "bound by", "found in", "speed-up"), rows, title))
    out.result(
        {"problem": made.digest, "model": made.graph.name, "topology": made.topology.name, "schedulers": data,
         "references": [{"name": name, "latency_ns": ns} for name, ns in references.items()]}
    )  # fmt: skip
