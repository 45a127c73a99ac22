"""The command ``pipeline``: cut a model into stages."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InputError
from .command import Output
from .inputs import (
    InputShapes,
    ModelsOrProblems,
    Options,
    Phase,
    Seed,
    TimeLimit,
    TokenShape,
    TraceFile,
    check_outputs,
    common_options,
    decoder_config,
    is_problem,
    load_problem,
    parse_options,
    parse_shapes,
)
from .interrupt import interruptible
from .plan import JSON, OptionalTopology

if TYPE_CHECKING:
    from ..pipeline import PipelinePlan
    from ..problem import Problem


def pipeline(
    out: Output,
    sources: ModelsOrProblems,
    topology: OptionalTopology = None,
    stages: Annotated[
        str, typer.Option("--stages", "-k", metavar="K|auto", help="Most stages; auto: one for each device.")
    ] = "auto",
    partitioner: Annotated[
        str,
        typer.Option("--partitioner", help="pipeline-exact, slicegraph, tarnawski-dp, pipedream or equal-split."),
    ] = "pipeline-exact",
    option: Options = None,
    input_shape: InputShapes = None,
    shape: TokenShape = None,
    phase: Phase = "full",
    time_limit: TimeLimit = None,
    seed: Seed = None,
    latency_ceiling: Annotated[
        float | None,
        typer.Option("--latency-ceiling", metavar="SECONDS", help="Best throughput with this latency at most."),
    ] = None,
    throughput_floor: Annotated[
        float | None,
        typer.Option("--throughput-floor", metavar="BATCHES/S", help="Least latency with this throughput at least."),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE.json", help="Write the plan.")] = None,
    artifact: Annotated[
        Path | None,
        typer.Option(
            "--artifact", metavar="FOLDER", help="Compile each stage, too; `tvm-sched run` and `serve` take the folder."
        ),
    ] = None,
    trace: TraceFile = None,
) -> None:
    """Cut a model into pipeline stages on several devices, and say how far from the best throughput that can be."""
    check_outputs({"--output": (output, JSON), "--trace": (trace, JSON)}, sources)
    if artifact:
        _check_artifact(artifact, sources)
    count = _stages(stages)
    options = _options(out, partitioner, option, time_limit, seed)
    limits = {"latency_ceiling": latency_ceiling, "throughput_floor": throughput_floor}
    made = load_problem(out, sources, topology, input_shape, shape, phase)
    from ..pipeline import plan_pipeline
    from ..pipeline.simulate import simulate
    from ..report.stages import certificate_sentence, stage_table

    with interruptible(out), _solvers_aside(), out.step(f"Partitioning with {partitioner}") as step:
        plan = plan_pipeline(made, count, partitioner, options, progress=step, **limits)  # type: ignore[arg-type]
    if output:
        plan.save(output)
        out.wrote(output, "plan")
    if artifact:
        _compile(out, sources[0], made, plan, input_shape, artifact)
    run = simulate(made, plan)
    if trace:
        from ..report.trace import write_trace

        write_trace(trace, [run.timeline])
        out.wrote(trace, "trace")
    out.show(stage_table(plan), certificate_sentence(plan, run.steady_ns))
    out.result(_about(plan, run.steady_ns, {"plan": output, "artifact": artifact, "trace": trace}))


def _check_artifact(artifact: Path, sources: Sequence[Path]) -> None:
    """Refuse, before the long work, what cannot be compiled or written."""
    from ..pipeline.artifact import check_target

    check_target(artifact)
    if len(sources) > 1 or is_problem(sources[0]) or decoder_config(sources[0]) is not None:
        raise InputError(
            "--artifact compiles one model file with its weights; problem files and language models given by name or "
            "config.json have none"
        )


def _compile(
    out: Output, model: Path, made: Problem, plan: PipelinePlan, shapes: list[str] | None, artifact: Path
) -> None:
    with interruptible(out), out.step(f"Compiling {len(plan.stages)} stages"):
        from ..relax import compile_pipeline

        sets = parse_shapes(shapes)
        compiled = compile_pipeline(model, made.topology, plan=plan, input_shapes=sets[0] if sets else None)
    compiled.export(artifact)
    out.wrote(artifact, "artifact")


@contextmanager
def _solvers_aside() -> Iterator[None]:
    """What solvers write to standard output by themselves goes to standard error; results stay alone there."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _stages(text: str) -> int | str:
    if text == "auto":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"--stages {text}: a number from 1, or auto, is allowed")
    return int(text)


def _options(
    out: Output, name: str, texts: list[str] | None, time_limit: float | None, seed: int | None
) -> dict[str, Any]:
    """Options of ``--option``, ``--time-limit`` and ``--seed``; the last two are dropped where unknown."""
    from ..pipeline import get

    known = set(get(name).options.__struct_fields__)
    common = common_options(time_limit, seed, known)
    for key in common.keys() - known:
        out.say(f"partitioner {name!r} has no option {key}; --{key.replace('_', '-')} is ignored")
    return {**{key: value for key, value in common.items() if key in known}, **parse_options(texts)}


def _about(plan: PipelinePlan, steady_ns: float, files: dict[str, Path | None]) -> dict[str, Any]:
    import msgspec

    certificate = plan.certificate
    return {
        "problem": plan.problem,
        "partitioner": plan.partitioner,
        "options": plan.options,
        "seconds": plan.seconds,
        "stages": [{**msgspec.to_builtins(stage), "cost_ns": stage.cost_ns} for stage in plan.stages],
        "cost_ns": plan.cost_ns,
        "latency_ns": plan.latency_ns,
        "steady_ns": steady_ns,
        "certificate": msgspec.to_builtins(certificate),
        "gap": certificate.gap if certificate else None,
        "files": {what: str(path) for what, path in files.items() if path},
    }
