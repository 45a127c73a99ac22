"""The commands `check`, `explain` and `prove`, and the evidence that `schedule` and `compile` write."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.files import read_bytes

from .attached_commands import PLAN
from .inputs import ProblemFile, ScheduleFile, Writes, load_schedule
from .interrupt import interruptible
from .output import FAILURE, Output
from .registration import app, command

if TYPE_CHECKING:
    from tvm_sched_runtime.pipeline import PipelinePlan
    from tvm_sched_runtime.problem import Problem, Scenario
    from tvm_sched_runtime.schedule import Schedule

EvidenceFolder = Annotated[
    Path | None,
    typer.Option(
        "--evidence",
        metavar="FOLDER",
        help="Write problem.json, schedule.json and evidence.json there, for `tvm-sched check`; with several sets of input "
        "shapes into folders 0, 1, ... of it.",
    ),
    Writes(folder=True),
]


VERDICTS = (
    *(f"tvm_sched_check.{of}verdict:Verdict" for of in ("", "pipelines.", "partitions.", "placements.")),
    "tvm_sched_check.ranges:Verdict",
)


def store_evidence(out: Output, problem: Problem, schedule: Schedule, path: Path) -> None:
    """Write the evidence of the lower bound of a schedule's run, and print how much of the bound it proves."""
    from ..bounds.schedule_evidence import evidence

    with interruptible(out), out.step("Finding evidence"):
        proof = evidence(_run(problem, schedule))
    proof.save(path)
    out.wrote(path, "evidence")
    of = "" if problem.variants is None else ", for every choice among the variants"
    out.say(f"the certificate claims {proof.certified.ns} ns, this evidence proves {proof.proved_ns} ns{of}")


def _run(problem: Problem, schedule: Schedule) -> Scenario:
    """Return the run of which a schedule's certificate is."""
    from tvm_sched_runtime.problem import Scenario

    requests = schedule.certificate.requests if schedule.certificate else ()
    if len(requests) > 1:
        raise InputError(
            f"--evidence with {len(requests)} kinds of requests: evidence is of one kind of run; name one with --resident"
        )
    return Scenario(problem, frozenset(requests[0].resident) if requests else frozenset())


def store_pipeline_evidence(
    out: Output, problem: Problem, plan: PipelinePlan, stages: int | str, path: Path
) -> tuple[PipelinePlan, int]:
    """Write the evidence of a pipeline's bound; return the plan with its certificate and the proved bound in nanoseconds.

    ``stages`` is the largest number of stages; ``"auto"``: one for each device. The search for multipliers ends by the
    partitioner's time limit and work. A bound from multipliers is certified by the stored ones.
    """
    from ..bounds.partitions.semidefinite_evidence import Effort
    from ..pipeline.pipeline_evidence import certified, evidence

    count = stages if isinstance(stages, int) else len(problem.topology.devices)
    with interruptible(out), out.step("Finding evidence"):
        seconds, work = (_limit(plan.options.get(name)) for name in ("time_limit", "work"))
        proof = evidence(problem, plan, count, effort=Effort(seconds=seconds), work=work)
    proof.save(path)
    out.wrote(path, "evidence")
    out.say(
        f"the certificate claims {proof.certified_ns} ns ({proof.certified_by}), this evidence proves {proof.ns} ns"
    )
    return certified(plan, proof), proof.ns


def _limit(value: float | None) -> float:
    return math.inf if value is None else float(value)


def store_all(out: Output, problems: tuple[Problem, ...], schedules: tuple[Schedule, ...], folder: Path | None) -> None:
    """Write problem, schedule and evidence of each set of input shapes."""
    if folder is None:
        return
    for position, (problem, schedule) in enumerate(zip(problems, schedules, strict=True)):
        own = folder if len(problems) == 1 else folder / str(position)
        try:
            own.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--evidence {own}: cannot be created ({error.strerror})") from None
        problem.save(own / "problem.json")
        schedule.save(own / "schedule.json")
        store_evidence(out, problem, schedule, own / "evidence.json")
    out.files["evidence"] = str(folder)


@command(app, "explain", ".report.summaries:Explanation", panel=PLAN)
def explain(out: Output, problem_file: ProblemFile, schedule_file: ScheduleFile) -> None:
    """Explain in words why no schedule can be much faster: the argument, and the path, buses or operators it rests on.

    $ tvm-sched explain problem.json schedule.json
    """
    from tvm_sched_runtime.problem import Problem

    from ..report.explanation import explain as sentences
    from ..report.summaries import Explanation

    problem = Problem.load(problem_file)
    chosen = load_schedule(problem, schedule_file)
    if chosen.certificate and chosen.certificate.requests:
        raise InputError(
            f"{schedule_file}: the schedule is for warm runs (--resident); only bounds of cold ones are explained"
        )
    with interruptible(out), out.step(f"Explaining {schedule_file.name}"):
        lines = sentences(problem, chosen)
    out.show(*map(escape, lines))
    out.result(Explanation(lines))


@command(app, "check", VERDICTS, panel=PLAN)
def check(
    out: Output,
    problem_file: Annotated[
        Path,
        typer.Argument(
            metavar="PROBLEM|RANGE",
            help="Problem file, or instance of `bench list`; or, alone, what `schedule` wrote for a range of sizes.",
        ),
    ],
    schedule_file: Annotated[
        Path | None,
        typer.Argument(
            metavar="SCHEDULE|PLAN", help="What `schedule` or `pipeline` wrote; or a partition or placement."
        ),
    ] = None,
    evidence_file: Annotated[Path | None, typer.Argument(metavar="EVIDENCE", help="File of `--evidence`.")] = None,
) -> None:
    """Verify a schedule, or a plan of a pipeline, and its lower bound by an implementation that shares nothing with ours.

    Status 0: the latency, or the cost of the bottleneck stage, is true and the certificate's bound is proved;
    1: the evidence proves a lower bound than the certificate claims, or there is no certificate;
    2: a file is wrong. Alone: python -m tvm_sched_check, with ranges, pipelines, partitions or placements first.

    $ tvm-sched check problem.json schedule.json evidence.json
    $ tvm-sched check range.json
    """
    import tvm_sched_check.partitions
    import tvm_sched_check.pipelines
    import tvm_sched_check.placements
    import tvm_sched_check.ranges

    if schedule_file is None:
        return show_verdict(out, tvm_sched_check.ranges.check, problem_file)
    if evidence_file is None:
        raise InputError("give problem, schedule and evidence; or, of a range of sizes, the one file of `schedule -o`")
    head = read_bytes(evidence_file)[:200]
    verified: Callable[..., Any] = tvm_sched_check.check
    if b"tvm_sched.pipeline_evidence" in head:
        verified = tvm_sched_check.pipelines.check
    elif b"tvm_sched.partition_evidence" in head:
        verified = tvm_sched_check.partitions.check
    elif b"tvm_sched.placement_evidence" in head:
        verified = tvm_sched_check.placements.check
    show_verdict(out, verified, problem_file, schedule_file, evidence_file)


def show_verdict(out: Output, check: Callable[..., Any], *files: Path) -> None:
    """Show the verdict of an independent check of files; status 1 if less is proved than claimed, 2 if a file is refused."""
    from tvm_sched_check import Refused

    try:
        with out.step(f"Checking {files[-1].name}"):
            verdict = check(*files)
    except Refused as error:
        raise InputError(str(error)) from None
    out.show(*(escape(line) for line in verdict.lines))
    out.result(verdict)
    if not verdict.all_proved:
        raise typer.Exit(FAILURE)
