"""Commands on problems and schedules: nothing here compiles or runs a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from ..errors import InputError
from .evidence import EvidenceFile, store_evidence
from .inputs import (
    HTML,
    JSON,
    Models,
    ModelsOrProblems,
    OptionalTopology,
    ProblemFile,
    ReportFile,
    ScheduleFile,
    TimelineFile,
    TopologyName,
    TraceFile,
    check_outputs,
    load_schedule,
    load_timeline,
    load_topology,
)
from .methods import MethodOptions, SchedulerName
from .models import ProblemOptions, RequestOptions, load_problem
from .output import BAD_INPUT, Output, names_of
from .residency import ResidentParameters, ResidentRequests, requests_for, resident_of
from .run_options import LaunchOptions
from .several import Alone, Objective, Weights, describe_models, solve_models
from .uncertainty import most_useful_of, show_uncertainty, show_useful
from .views import write_views

if TYPE_CHECKING:
    from ..problem import Problem, Request
    from ..schedule import Schedule, Timeline


def problem(
    out: Output,
    models: Models,
    topology: TopologyName,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.json", help="Where to write the problem.")],
    given: ProblemOptions,
) -> None:
    """Write the scheduling problem of models on a machine: operators, tensors, topology, latencies."""
    check_outputs({"--output": (output, JSON)}, models)
    made = load_problem(out, models, topology, given)
    write_problem(out, made, output)


def write_problem(out: Output, made: Problem, output: Path) -> None:
    """Write a problem's file and say what is in it."""
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
    *,
    sources: ModelsOrProblems,
    topology: OptionalTopology = None,
    scheduler: SchedulerName = "anytime",
    method: MethodOptions,
    given: RequestOptions,
    launch: LaunchOptions,
    alone: Alone = False,
    objective: Objective = "latency",
    weights: Weights = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.json", help="Write the schedule.")
    ] = None,
    report: ReportFile = None,
    trace: TraceFile = None,
    evidence: EvidenceFile = None,
) -> None:
    """Schedule models or problem files, several of them at once, and say how good the schedule is."""
    wanted = {"--output": (output, JSON), "--report": (report, HTML), "--trace": (trace, JSON)}
    check_outputs({**wanted, "--evidence": (evidence, JSON)}, sources)
    if evidence and given.resident:
        raise InputError("--evidence with --resident: evidence is of bounds of cold runs; leave one of the two out")
    from ..schedulers import get

    options = method.of(get(scheduler), out)
    launch.check()  # before the long work
    if launch.streams and given.costs is None and topology is not None:
        from ..cost_model import default_cost_model

        given = replace(given, costs=default_cost_model(load_topology(topology), together=True))
    made = load_problem(out, sources, topology, given)
    from ..schedule import resolved, with_choice

    solved, fairness = solve_models(out, made, scheduler, options, given.requests(made), objective, weights)
    chosen = launch.choose(*resolved(made, solved))  # streams know nothing of variants
    if made.variants:
        chosen = _certified(made, with_choice(made, chosen, solved.choice), _requests(solved))
    if output:
        chosen.save(output)
        out.wrote(output, "schedule")
    if evidence:
        store_evidence(out, made, evidence)
    own = {key: value for key, value in options.items() if key != "weights"}
    models = partial(describe_models, out, made, chosen, _requests(chosen), own, alone, fairness)
    _show_schedule(out, made, chosen, models, report, trace, {"schedule": output, "evidence": evidence})


def _requests(schedule: Schedule) -> tuple[Request, ...]:
    return schedule.certificate.requests if schedule.certificate else ()


def _show_schedule(
    out: Output,
    made: Problem,
    chosen: Schedule,
    models: Callable[[], dict[str, Any]],
    report: Path | None,
    trace: Path | None,
    files: dict[str, Path | None],
) -> None:
    from ..report.tables import certificate_table, lanes_table
    from ..schedule.simulator import simulate

    predicted = [simulate(made, chosen, kind) for kind in _kinds(chosen)]
    say_choice(out, made, chosen)
    _say_decided(out, chosen)
    write_views(out, made, chosen, predicted, report, trace)
    out.show(certificate_table(chosen), *(lanes_table(made.topology, each) for each in predicted))
    files = {**files, "report": report, "trace": trace}
    said = {**describe(made, chosen, predicted[0]), **models()}
    out.result({**said, "files": names_of(files)})


def _kinds(schedule: Schedule) -> list[tuple[str, ...]]:
    """What is resident in the runs that a schedule is for; nothing in a cold one."""
    return [request.resident for request in _requests(schedule)] or [()]


def _say_decided(out: Output, chosen: Schedule) -> None:
    """Say whether a method's program decided, where it tells, and what stands in place of what the method found."""
    notes = chosen.notes
    if "instead" in notes:
        out.say(f"the schedule is not that of {chosen.scheduler}: {notes['instead']}")
    elif "submodels" in notes:
        out.say(
            f"the solver improved {notes['decided_by_solver']} of {len(notes['submodels'])} submodels, and proved "
            f"{notes['proved']}; what decided each is in --json"
        )


def say_choice(out: Output, made: Problem, chosen: Schedule) -> None:
    """Say in which ways the groups of a problem with variants are computed."""
    if made.variants is None:
        return
    from collections import Counter

    ways = Counter(chosen.choice.get(group.name, group.graph_way) for group in made.variants.groups)
    said = ", ".join(f"{count} {way}" for way, count in ways.items())
    out.say(f"{len(made.variants.groups)} groups of operators can be computed in several ways; chosen: {said}")


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
        "choice": chosen.choice or chosen.notes.get("choice", {}),
        "latency_ns": certificate.latency_ns if certificate else predicted.latency_ns,
        "requests": [
            {
                "resident": list(r.resident),
                "weight": r.weight,
                "latency_ns": r.latency_ns,
                "lower_bound_ns": r.lower_bound_ns,
            }
            for r in (certificate.requests if certificate else ())
        ],
        "lower_bound_ns": certificate.lower_bound_ns if certificate else None,
        "gap": certificate.gap if certificate else None,
        "bound": certificate.bound if certificate else None,
        "status": certificate.status if certificate else None,
        "seconds": chosen.seconds,
        "notes": chosen.notes,
        "lanes": [{"lane": f.lane, "events": f.events, "busy_ns": f.busy_ns, "bytes": f.bytes} for f in figures],
    }


_DEVICE_MODELS = ("operators", "blocks")


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
        int,
        typer.Option(
            "--samples", metavar="N", help="Uncertainty of the latency, from N draws of the operators' times."
        ),
    ] = 0,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the draws.")] = 0,
    resident: ResidentRequests = None,
    device_model: Annotated[
        str,
        typer.Option(
            "--device-model",
            metavar="operators|blocks",
            help="What runs on a GPU: whole operators, which share it, or the blocks of their kernels.",
        ),
    ] = "operators",
) -> None:
    """Check a schedule against its problem and price it: when each kernel and copy runs, and the latency.

    Without --resident it is priced for the runs that it was made for. --device-model blocks
    prices one run on one GPU.
    """
    if device_model not in _DEVICE_MODELS:
        raise InputError(f"--device-model {device_model!r}: {' and '.join(_DEVICE_MODELS)} are allowed")
    if samples < 0 or seed < 0:
        raise InputError(f"--samples {samples} --seed {seed}: 0 or more is allowed")
    outputs = {"--timeline": (timeline, JSON), "--trace": (trace, JSON), "--report": (report, HTML)}
    check_outputs(outputs, [problem_file, schedule_file, *(measured or ())])
    from ..problem import Problem
    from ..report.tables import certificate_table, lanes_table
    from ..report.units import format_ns
    from ..schedule import resolved
    from ..schedule.blocks import simulate_blocks
    from ..schedule.simulator import simulate as simulate_operators
    from ..schedule.verifier import verify

    made = Problem.load(problem_file)
    chosen = load_schedule(made, schedule_file)
    verify(made, chosen)
    chosen = _certified(made, chosen, requests_for(made, chosen, resident))
    verify(made, chosen)  # in the runs that are asked for, too
    price = simulate_blocks if device_model == "blocks" else simulate_operators
    runs = [price(made, chosen, kind) for kind in _kinds(chosen)]
    predicted = runs[0]
    say_choice(out, made, chosen)
    without, inner = resolved(made, chosen)  # timelines are of what was chosen
    real = [load_timeline(without, path) for path in measured or ()]
    if timeline:
        predicted.save(timeline)
        out.wrote(timeline, "timeline")
    write_views(out, made, chosen, [*runs, *real], report, trace)
    if device_model == "blocks":
        for each in runs:
            out.say(f"latency by the blocks of kernels: {format_ns(each.latency_ns)}")
    out.show(certificate_table(chosen, real), *(lanes_table(made.topology, each) for each in runs))
    uncertainty = show_uncertainty(out, without, inner, samples, seed) if samples else {}
    show_useful(out, without, inner)
    files = {"timeline": timeline, "trace": trace, "report": report}
    blocks = {"blocks_latency_ns": predicted.latency_ns} if device_model == "blocks" else {}
    said = {
        **describe(made, chosen, predicted),
        **blocks,
        **uncertainty,
        "useful_measurements": most_useful_of(without, inner),
    }
    out.result({**said, "files": names_of(files)})


def _certified(made: Problem, chosen: Schedule, requests: tuple[Request, ...]) -> Schedule:
    """The schedule with a certificate computed here: what its file says may be wrong, or of an older bound."""
    import msgspec

    from ..problem import Workload
    from ..schedulers.latency import certificate

    return msgspec.structs.replace(chosen, certificate=certificate(made, chosen, Workload(requests)))


def verify(
    out: Output,
    problem_file: ProblemFile,
    schedule_file: ScheduleFile,
    contiguous: Annotated[bool, typer.Option("--contiguous", help="Ask for contiguous submodels, too.")] = False,
    resident: ResidentParameters = None,
) -> None:
    """List every rule of docs/model.md that a schedule breaks; exit status 2 if there is one.

    With --resident the memory of such warm runs is judged, too.
    """
    from ..problem import Problem
    from ..schedule import Schedule
    from ..schedule.verifier import violations

    made = Problem.load(problem_file)
    found = violations(made, Schedule.load(schedule_file), contiguous, resident=resident_of(resident) or 0.0)
    for violation in found:
        out.show(escape(violation.message))
    if not found:
        out.show(escape(f"{schedule_file} obeys every rule"))
    rows = [{"rule": v.rule, "operator": v.operator, "device": v.device, "message": v.message} for v in found]
    out.result({"feasible": not found, "violations": rows})
    if found:
        raise typer.Exit(BAD_INPUT)
