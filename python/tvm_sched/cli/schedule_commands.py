"""Commands on problems and schedules: nothing here compiles or runs a model."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from tvm_sched_runtime.errors import GraphError, InputError

from .attached_commands import PLAN, START
from .evidence import store_evidence
from .inputs import (
    JSON,
    Models,
    ModelsOrProblems,
    OptionalTopology,
    ProblemFile,
    ScheduleFile,
    TimelineFile,
    TopologyName,
    load_schedule,
    load_timeline,
)
from .interrupt import interruptible, stoppable
from .methods import SchedulerOptions, solve_with_progress
from .model_options import (
    COMPILE_OPTIONS,
    ModelOptions,
    OfferedVariants,
    RequestOptions,
    ResidentParameters,
    ResidentRequests,
    load_problem,
    model_warnings,
    resident_of,
)
from .option_groups import FromApi
from .output import BAD_INPUT, Output
from .registration import app, command
from .view_files import PlanFiles, ViewOptions

if TYPE_CHECKING:
    from tvm_sched_runtime.problem import Problem, Request
    from tvm_sched_runtime.schedule import ModelLatency, Schedule, Timeline

    from ..problem_sources import SourceOptions
    from ..progress import Progress
    from ..report.summaries import LatencySample
    from ..schedulers.fairness import Fairness
    from ..size_ranges import RangeSchedules

LaunchSettings = Annotated[dict[str, Any], FromApi(COMPILE_OPTIONS, ("streams", "launch_order"))]


@command(app, "problem", ".report.summaries:ProblemSummary", panel=PLAN, apart=True)
def problem(
    out: Output,
    models: Models,
    topology: TopologyName,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.json", help="Where to write the problem."), JSON
    ],
    model_options: ModelOptions,
    offered: OfferedVariants,
) -> None:
    """Write the scheduling problem of models on a machine: operators, tensors, topology, latencies.

    $ tvm-sched problem googlenet.onnx --topology v100-server -o problem.json
    $ tvm-sched problem bert.onnx -t h200x8 --shape ids:1,128 --costs learned -o problem.json
    $ tvm-sched problem openllama-7b --shape 1x512 --phase decode -t h200x8 -o decode.json
    """
    write_problem(out, load_problem(out, models, topology, replace(model_options, **offered)), output)


def write_problem(out: Output, problem: Problem, output: Path) -> None:
    """Write a problem file and print a summary of it."""
    from ..report.summaries import ProblemSummary
    from ..report.units import format_bytes

    problem.save(output)
    out.wrote(output, "problem")
    summary = ProblemSummary.of(problem)
    out.say(
        f"{summary.model} on {summary.topology}: {summary.operators:,} operators, {summary.flops / 1e9:.3g} Gflop, "
        f"parameters of {format_bytes(summary.parameter_bytes)}"
    )
    out.result(summary)


@dataclass(frozen=True)
class SeveralModels:
    """Objective and weights of several models that run at once."""

    alone: Annotated[
        bool,
        typer.Option(
            "--alone", help="Several models: also schedule each alone, and show its slowdown among the others."
        ),
    ] = False
    objective: Annotated[
        str,
        typer.Option(
            "--objective",
            metavar="latency|slowdown",
            help="Several models: minimise the end of the last one (latency), or the largest weighted slowdown: a model's "
            "latency among the others, divided by its latency alone (anytime, heft, peft).",
        ),
    ] = "latency"
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights", metavar="W,W,...", help="How much each model's slowdown counts, for --objective slowdown."
        ),
    ] = None

    def solve(
        self, out: Output, problem: Problem, scheduler: str, options: dict[str, Any], requests: tuple[Request, ...]
    ) -> tuple[Schedule, Fairness | None]:
        """Schedule a problem; for the objective ``slowdown`` also return how its models share the machine.

        Raises
        ------
        InputError
            The objective is unknown, weights are not numbers, or the objective takes no weights.
        """
        if self.objective == "slowdown":
            from tvm_sched_runtime.problem import Workload

            from ..schedulers import get
            from ..schedulers.fairness import solve_fairly

            workload = Workload(requests, objective="slowdown", model_weights=tuple(_numbers(self.weights)))
            with stoppable(out, get(scheduler).answers_interrupt), out.step(f"Scheduling with {scheduler}") as step:
                return solve_fairly(problem, workload, scheduler, options, progress=step)
        if self.objective != "latency":
            raise InputError(f"--objective {self.objective!r}: latency and slowdown are allowed")
        if self.weights is not None:
            raise InputError(
                "--weights is for --objective slowdown; --scheduler sortinghat has an option weights of its own"
            )
        return solve_with_progress(out, problem, scheduler, options, requests), None

    def describe(
        self, out: Output, problem: Problem, chosen: Schedule, options: dict[str, Any], fairness: Fairness | None
    ) -> dict[str, Any]:
        """Show the ends of several models; return them as fields of `ScheduledModels`."""
        from tvm_sched_runtime.problem import Workload
        from tvm_sched_runtime.schedule import model_latencies

        from ..report.summaries import ModelEnd
        from ..report.tables import models_table

        known = model_latencies(problem, chosen, Workload(_requests(chosen)))
        if not known:
            return {}
        if fairness is not None:
            known = [each._replace(alone_ns=ns) for each, ns in zip(known, fairness.alone_ns, strict=True)]
        elif self.alone:
            known = _compare_with_alone(out, problem, chosen, known, options)
        in_turn = problem.graph.models_in_turn
        models = ModelEnd.of_all(known, in_turn)
        out.show(models_table(models, in_turn))
        if in_turn:
            return {"models": models}
        slowdowns = [each.slowdown for each in known if each.slowdown is not None]
        shown = {"models": models, "largest_slowdown": max(slowdowns, default=None)}
        return shown | ({} if fairness is None else _fairness(out, fairness, known))


def _numbers(weights: str | None) -> list[float]:
    try:
        return [float(weight) for weight in weights.split(",")] if weights else []
    except ValueError:
        raise InputError(f"--weights {weights}: numbers separated by commas are allowed, such as 2,1") from None


def _fairness(out: Output, fairness: Fairness, known: list[ModelLatency]) -> dict[str, Any]:
    """Print and return the largest slowdown of the final schedule, whose streams may differ from the solver's."""
    final = replace(fairness, latency_ns=[each.latency_ns for each in known])
    what = "slowdown" if set(final.weights) == {1.0} else "weighted slowdown"
    out.say(
        f"largest {what} {final.largest:.3f}; no schedule has less than {final.lower_bound:.3f} by these latencies alone"
    )
    return {"weights": final.weights, "objective": final.largest, "objective_lower_bound": final.lower_bound}


def _compare_with_alone(
    out: Output, problem: Problem, chosen: Schedule, known: list[ModelLatency], options: dict[str, Any]
) -> list[ModelLatency]:
    """Schedule each model alone as well; return the latencies with the times alone."""
    from tvm_sched_runtime.problem import problems_of_models
    from tvm_sched_runtime.schedule import requests_of_part

    latencies = []
    for each, part in zip(known, problems_of_models(problem), strict=True):
        solved = solve_with_progress(out, part, chosen.scheduler, options, requests_of_part(part, _requests(chosen)))
        assert solved.certificate is not None
        latencies.append(each._replace(alone_ns=solved.certificate.latency_ns))
    return latencies


@dataclass(frozen=True)
class RangeOptions:
    """How a range of sizes is scheduled."""

    factor: Annotated[
        float | None,
        typer.Option(
            "--factor",
            metavar="X",
            help="With a range of sizes (--shape tokens=16..512): schedules at more sizes until each size has a schedule "
            "of at most X times the least latency. Default: 1.3.",
        ),
    ] = None
    anchors: Annotated[
        int | None,
        typer.Option("--anchors", metavar="N", help="With a range of sizes: at most N schedules. Default: 16."),
    ] = None

    def asked(self, source_options: SourceOptions) -> bool:
        """Return whether ``--shape`` has a range; raise `InputError` for options of a range without one."""
        from tvm_sched_runtime.input_shapes import split_ranges

        limits, _ = split_ranges(source_options.shape)
        if not limits and (self.factor is not None or self.anchors is not None):
            raise InputError("--factor and --anchors are for a range of sizes, such as --shape tokens=16..512")
        return bool(limits)

    def schedule(
        self,
        out: Output,
        sources: list[Path],
        topology: str | None,
        source_options: SourceOptions,
        method: str,
        options: dict[str, Any],
    ) -> RangeSchedules:
        """Schedule all sizes of the ranges in ``--shape``."""
        from tvm_sched_runtime.input_shapes import split_ranges
        from tvm_sched_runtime.problem import Workload

        from ..problem_sources import ProblemWarning, load_problem, problems_of_range
        from ..size_ranges import FACTOR, MOST, schedule_range

        limits, texts_at = split_ranges(source_options.shape)

        def scheduled(chosen: SourceOptions, progress: Progress) -> RangeSchedules:
            made: dict[tuple[int, ...], Problem] = {}
            of_sizes = problems_of_range(sources, topology, chosen, limits)
            if of_sizes and chosen.variants:
                text = "a range for CPUs is certified without alternatives for kernels, as by --no-variants"
                warnings.warn(text, ProblemWarning, stacklevel=2)

            def problem_at(sizes: dict[str, int]) -> Problem:
                if (key := tuple(sizes.values())) not in made:
                    own = replace(chosen, shape=texts_at(sizes))
                    made[key] = of_sizes(sizes) if of_sizes else load_problem(sources, topology, own, progress)
                return made[key]

            least = problem_at({name: low for name, (low, _) in limits.items()})
            workload = Workload(chosen.requests(least))
            return schedule_range(
                problem_at, limits, workload, method, options, factor=FACTOR if self.factor is None else self.factor,
                most=MOST if self.anchors is None else self.anchors,
                progress=progress,
            )  # fmt: skip

        with interruptible(out), out.step(f"Scheduling with {method}") as step, model_warnings(out):
            try:
                return scheduled(source_options, step)
            except GraphError:
                if not source_options.variants or source_options.rows:
                    raise
                text = "alternatives that only some of the sizes have are left out, as by --no-variants"
                warnings.warn(text, ProblemWarning, stacklevel=2)
                return scheduled(replace(source_options, variants=False), step)


SCHEDULED = (".report.summaries:ScheduledModels", ".report.size_ranges:ScheduledRange")


@command(app, "schedule", SCHEDULED, panel=START, apart=True)
def schedule(
    out: Output,
    *,
    sources: ModelsOrProblems,
    topology: OptionalTopology = None,
    method: SchedulerOptions,
    model_options: RequestOptions,
    offered: OfferedVariants,
    launch: LaunchSettings,
    several: SeveralModels,
    ranges: RangeOptions,
    files: PlanFiles,
) -> None:
    """Schedule models or problem files, several of them at once, and say how good the schedule is.

    A range of sizes is scheduled at a few of them, and the certificate holds for all.

    $ tvm-sched schedule googlenet.onnx --topology v100-server --report report.html
    $ tvm-sched schedule problem.json --scheduler anytime --time-limit 30 --seed 1 -o schedule.json
    $ tvm-sched schedule problem.json --topology p4d --trace trace.json --json
    $ tvm-sched schedule problem.json -o schedule.json --evidence evidence.json
    $ tvm-sched schedule openllama-3b --shape 1x1024 --topology v100-server
    $ tvm-sched schedule gpt2-large gpt2-xl --shape 1x32 --topology p4d
    $ tvm-sched schedule bert.onnx --shape 'tokens=16..512' -t v100-server -o range.json
    """
    model_options = replace(model_options, **offered)
    from tvm_sched_runtime.schedule import resolved, with_choice

    from ..schedulers import get
    from ..streams import check_methods, choose_launch_order, choose_streams

    options = method.of(get(method.scheduler), out)
    streams, launch_order = launch.get("streams"), launch.get("launch_order")
    check_methods(streams, launch_order)  # before the long work
    if ranges.asked(model_options):
        own: dict[str, Any] = {
            "--evidence": files.evidence,
            "--report": files.report,
            "--trace": files.trace,
            "--alone": several.alone,
        }
        own |= {"--weights": several.weights, "--streams": streams, "--launch-order": launch_order}
        own |= {"--objective": several.objective != "latency"}
        if given := [name for name, value in own.items() if value]:
            raise InputError(
                f"{given[0]} is for one size; with a range of sizes, -o writes schedules and evidence of all sizes"
            )
        return _show_range(
            out, ranges.schedule(out, sources, topology, model_options, method.scheduler, options), files
        )
    if streams and model_options.costs is None and topology is not None:
        from tvm_sched_runtime.problem import load_topology

        from ..cost_model import default_cost_model

        model_options = replace(model_options, costs=default_cost_model(load_topology(topology), together=True))
    problem = load_problem(out, sources, topology, model_options)
    solved, fairness = several.solve(out, problem, method.scheduler, options, model_options.requests(problem))
    plain, inner = resolved(problem, solved)  # stream assignment takes problems without variants
    chosen = choose_launch_order(plain, choose_streams(plain, inner, streams), launch_order)
    if problem.variants or solved.joined:
        unresolved = with_choice(problem, chosen, solved.choice, solved.joined)
        chosen = _certified(problem, unresolved, _requests(solved))
    if files.output:
        chosen.save(files.output)
        out.wrote(files.output, "schedule")
    if files.evidence:
        store_evidence(out, problem, chosen, files.evidence)
    own = {key: value for key, value in options.items() if key != "weights"}
    predicted, interval = _show_schedule(out, problem, chosen, files)
    models = several.describe(out, problem, chosen, own, fairness)
    from ..report.summaries import ScheduledModels

    out.result(ScheduledModels.of(problem, chosen, predicted, interval_ns=interval, **models))


def _show_range(out: Output, ranged: RangeSchedules, files: PlanFiles) -> None:
    """Write the range file and print its anchors and its factor."""
    from ..report.size_ranges import ScheduledRange

    if files.output:
        with interruptible(out), out.step("Finding evidence"):
            ranged.save(files.output)
        out.wrote(files.output, "range")
    summary = ScheduledRange.of(ranged)
    out.show(summary.table(), summary.sentence)
    out.result(summary)


def _requests(schedule: Schedule) -> tuple[Request, ...]:
    return schedule.certificate.requests if schedule.certificate else ()


def _show_schedule(
    out: Output, problem: Problem, chosen: Schedule, files: ViewOptions
) -> tuple[Timeline, tuple[int, int] | None]:
    """Show a schedule, write its files and return its first simulated run, and the interval of its latency."""
    from tvm_sched_runtime.schedule.simulator import simulate

    from ..cost_model.uncertainty import latency_interval
    from ..report.summaries import remarks
    from ..report.tables import certificate_table, lanes_table

    predicted = [simulate(problem, chosen, kind) for kind in _kinds(chosen)]
    for sentence in remarks(problem, chosen):
        out.say(sentence)
    files.write(out, problem, chosen, predicted)
    interval = latency_interval(problem, chosen)
    lanes = (lanes_table(problem.topology, each) for each in predicted)
    out.show(certificate_table(chosen, interval=interval), *lanes)
    _say_outside(out, chosen, interval)
    return predicted[0], interval


def _say_outside(out: Output, schedule: Schedule, interval: tuple[int, int] | None) -> None:
    from ..report.units import why_outside

    sentence = why_outside(schedule.certificate.latency_ns, interval) if schedule.certificate else None
    if sentence:
        out.say(sentence)


def _kinds(schedule: Schedule) -> list[tuple[str, ...]]:
    """Return the resident parameters of each kind of run that a schedule is for; none in a cold run."""
    return [request.resident for request in _requests(schedule)] or [()]


_DEVICE_MODELS = ("operators", "blocks")


@command(app, "simulate", ".report.summaries:SimulatedSchedule", panel=PLAN)
def simulate(
    out: Output,
    *,
    problem_file: ProblemFile,
    schedule_file: ScheduleFile,
    timeline: TimelineFile = None,
    views: ViewOptions,
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

    Without --resident it is priced for the runs that it was scheduled for. --device-model blocks
    prices one run on one GPU.

    $ tvm-sched simulate problem.json schedule.json
    $ tvm-sched simulate problem.json schedule.json --trace trace.json --report report.html
    $ tvm-sched simulate problem.json schedule.json --measured timeline.json --report report.html
    $ tvm-sched simulate problem.json schedule.json --samples 200
    """
    if device_model not in _DEVICE_MODELS:
        raise InputError(f"--device-model {device_model!r}: {' and '.join(_DEVICE_MODELS)} are allowed")
    if samples < 0 or seed < 0:
        raise InputError(f"--samples {samples} --seed {seed}: 0 or more is allowed")
    import msgspec

    from tvm_sched_runtime.problem import Problem
    from tvm_sched_runtime.schedule import resolved
    from tvm_sched_runtime.schedule.simulator import simulate as simulate_operators
    from tvm_sched_runtime.schedule.thread_blocks import simulate_blocks
    from tvm_sched_runtime.schedule.verifier import verify

    from ..cost_model.uncertainty import latency_interval, most_useful
    from ..report.summaries import SimulatedSchedule, remarks
    from ..report.tables import certificate_table, lanes_table, useful_table
    from ..report.units import format_ns
    from ..resident_texts import requests_for

    problem = Problem.load(problem_file)
    chosen = load_schedule(problem, schedule_file)
    verify(problem, chosen)
    chosen = _certified(problem, chosen, requests_for(problem, chosen, resident))
    verify(problem, chosen)  # also in the runs of --resident
    price = simulate_blocks if device_model == "blocks" else simulate_operators
    runs = [price(problem, chosen, kind) for kind in _kinds(chosen)]
    predicted = runs[0]
    for sentence in remarks(problem, chosen):
        out.say(sentence)
    plain, inner = resolved(problem, chosen)  # timelines are of the chosen variants
    real = [load_timeline(plain, path) for path in measured or ()]
    if timeline:
        predicted.save(timeline)
        out.wrote(timeline, "timeline")
    views.write(out, problem, chosen, [*runs, *real])
    if device_model == "blocks":
        for each in runs:
            out.say(f"latency by the blocks of kernels: {format_ns(each.latency_ns)}")
    interval = latency_interval(plain, inner)
    out.show(certificate_table(chosen, real, interval), *(lanes_table(problem.topology, each) for each in runs))
    _say_outside(out, chosen, interval)
    sampled = _sample(out, plain, inner, samples, seed) if samples else None
    if useful := most_useful(plain, inner):
        out.show(useful_table(useful))
    more = {} if sampled is None else msgspec.structs.asdict(sampled)
    if device_model == "blocks":
        more["blocks_latency_ns"] = predicted.latency_ns
    out.result(
        SimulatedSchedule.of(problem, chosen, predicted, useful_measurements=useful, interval_ns=interval, **more)
    )


def _sample(out: Output, problem: Problem, chosen: Schedule, samples: int, seed: int) -> LatencySample:
    """Print and return percentiles of the latency over draws of the operators' times."""
    from ..cost_model.uncertainty import sample_latencies
    from ..report.summaries import LatencySample
    from ..report.tables import sample_table

    with interruptible(out), out.step("Sampling") as step:
        percentiles = LatencySample.of(sample_latencies(problem, chosen, samples, seed, step), seed)
    out.show(sample_table(percentiles))
    return percentiles


def _certified(problem: Problem, chosen: Schedule, requests: tuple[Request, ...]) -> Schedule:
    """Return the schedule with a new certificate: that of its file may be wrong, or use an older bound."""
    import msgspec

    from tvm_sched_runtime.problem import Workload

    from ..schedulers.solve_latency import certificate

    return msgspec.structs.replace(chosen, certificate=certificate(problem, chosen, Workload(requests)))


@command(app, "verify", ".report.summaries:Verdict", panel=PLAN)
def verify(
    out: Output,
    problem_file: ProblemFile,
    schedule_file: ScheduleFile,
    contiguous: Annotated[bool, typer.Option("--contiguous", help="Ask for contiguous submodels, too.")] = False,
    resident: ResidentParameters = None,
) -> None:
    """List every rule of docs/model.md that a schedule breaks; exit status 2 if there is one.

    With --resident the memory of such warm runs is judged, too.

    $ tvm-sched verify problem.json schedule.json --json
    """
    from tvm_sched_runtime.problem import Problem
    from tvm_sched_runtime.schedule import Schedule
    from tvm_sched_runtime.schedule.verifier import violations

    from ..report.summaries import Verdict

    problem = Problem.load(problem_file)
    broken = violations(problem, Schedule.load(schedule_file), contiguous, resident=resident_of(resident) or 0.0)
    out.show(*(escape(violation.message) for violation in broken))
    if not broken:
        out.show(escape(f"{schedule_file} obeys every rule"))
    out.result(Verdict(not broken, broken))
    if broken:
        raise typer.Exit(BAD_INPUT)
