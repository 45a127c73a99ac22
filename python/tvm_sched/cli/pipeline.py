"""The command ``pipeline``: cut a model into stages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InputError
from .evidence import EvidenceFile, store_pipeline_evidence
from .inputs import (
    HTML,
    JSON,
    ModelsOrProblems,
    OptionalTopology,
    ReportFile,
    TraceFile,
    Workers,
    check_outputs,
    is_problem,
    workers_of,
)
from .interrupt import interruptible, stoppable
from .methods import MethodOptions
from .models import ModelOptions, decoder_config, load_problem, model_warnings
from .output import Output, names_of
from .partition import is_instance, partition_graph
from .shapes import one_shape
from .views import store_trace

if TYPE_CHECKING:
    from ..pipeline import PipelinePlan
    from ..problem import Problem


def pipeline(
    out: Output,
    *,
    sources: ModelsOrProblems,
    topology: OptionalTopology = None,
    stages: Annotated[
        str, typer.Option("--stages", "-k", metavar="K|auto", help="Most stages; auto: one for each device.")
    ] = "auto",
    partitioner: Annotated[
        str,
        typer.Option("--partitioner", help="anytime, slicegraph, tarnawski-dp, pipedream or equal-split."),
    ] = "anytime",
    method: MethodOptions,
    given: ModelOptions,
    latency_ceiling: Annotated[
        float | None,
        typer.Option("--latency-ceiling", metavar="SECONDS", help="Best throughput with this latency at most."),
    ] = None,
    throughput_floor: Annotated[
        float | None,
        typer.Option("--throughput-floor", metavar="BATCHES/S", help="Least latency with this throughput at least."),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE.json", help="Write the plan.")] = None,
    evidence: EvidenceFile = None,
    artifact: Annotated[
        Path | None,
        typer.Option(
            "--artifact", metavar="FOLDER", help="Compile each stage, too; `tvm-sched run` and `serve` take the folder."
        ),
    ] = None,
    report: ReportFile = None,
    trace: TraceFile = None,
    workers: Workers = None,
) -> None:
    """Cut a model into pipeline stages on several devices, and say how far from the best throughput that can be.

    A graph in a file of `nodes` (id, work, size_param, size_out) and `edges` (source, target) has no devices: its
    partition is shown. With `--evidence` the search for multipliers takes as long again as `--time-limit` at most, and with
    `--option work=W` as much work.
    """
    limits = {"latency_ceiling": latency_ceiling, "throughput_floor": throughput_floor}
    from ..pipeline import get

    options = method.of(get(partitioner), out)
    if is_instance(sources[0]):
        of_models = {"--topology": topology, "--input-shape": given.input_shape, "--shape": given.shape,
                     "--constant": given.constant, "--costs": given.costs,
                     "--latency-ceiling": latency_ceiling, "--throughput-floor": throughput_floor, "--output": output,
                     "--artifact": artifact, "--evidence": evidence, "--report": report, "--trace": trace}  # fmt: skip
        with workers_of(workers):
            partition_graph(out, sources, stages, partitioner, options, of_models)
        return
    check_outputs(
        {
            "--output": (output, JSON),
            "--evidence": (evidence, JSON),
            "--report": (report, HTML),
            "--trace": (trace, JSON),
        },
        sources,
    )
    if artifact:
        _check_artifact(artifact, sources)
    count = _stages(stages)
    made = load_problem(out, sources, topology, given)
    from ..pipeline import plan_pipeline
    from ..pipeline.simulator import simulate
    from ..report.stages import certificate_sentence, stage_table
    from ..schedulers.common.console import stdout_aside

    stopping = stoppable(out, get(partitioner).answers_interrupt)
    with workers_of(workers), stopping, stdout_aside(), out.step(f"Partitioning with {partitioner}") as step:
        plan = plan_pipeline(made, count, partitioner, options, progress=step, **limits)  # type: ignore[arg-type]
    if output:  # before the evidence, which may take long
        plan.save(output)
        out.wrote(output, "plan")
    proved = None
    if evidence:
        plan, proved = store_pipeline_evidence(out, made, plan, count, evidence)
        if output:
            plan.save(output)
    if artifact:
        _compile(out, sources[0], made, plan, given, artifact)
    run = simulate(made, plan)
    if report:
        from ..report.pipeline import write_pipeline_report

        write_pipeline_report(report, made, plan, run)
        out.wrote(report, "report")
    store_trace(out, trace, [run.timeline])
    out.show(stage_table(plan), certificate_sentence(plan, run.steady_ns))
    out.result(
        _plan_json(
            plan,
            run.steady_ns,
            proved,
            {"plan": output, "evidence": evidence, "artifact": artifact, "report": report, "trace": trace},
        )
    )


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
    out: Output, model: Path, made: Problem, plan: PipelinePlan, options: ModelOptions, artifact: Path
) -> None:
    with interruptible(out), out.step(f"Compiling {len(plan.stages)} stages"), model_warnings(out):
        from ..relax import compile_pipeline

        compiled = compile_pipeline(
            model,
            made.topology,
            plan=plan,
            input_shapes=one_shape(options.sets(), "a pipeline has one"),
            constants=options.constants(),
            cost_model=options.costs,
        )
    compiled.export(artifact)
    out.wrote(artifact, "artifact")


def _stages(text: str) -> int | str:
    if text == "auto":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"--stages {text}: a number from 1, or auto, is allowed")
    return int(text)


def _plan_json(
    plan: PipelinePlan, steady_ns: float, proved_ns: int | None, files: dict[str, Path | None]
) -> dict[str, Any]:
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
        "proved_ns": proved_ns,
        "files": names_of(files),
    }


def run_artifact(
    out: Output,
    folder: Path,
    given: dict[str, Any],
    seed: int,
    warm_up: int,
    repeat: int,
    output: Path | None,
    trace: Path | None,
) -> None:
    """Run an artifact's pipeline here: batches that follow each other without a pause."""
    from ..pipeline import load
    from ..report.tables import table
    from ..report.units import format_ns
    from ..runtime.values import choose_inputs
    from .values import save_outputs

    with out.step("Loading the artifact"):
        ready = load(folder)
    batch = choose_inputs([{"arguments": ready.arguments()}], given, seed)
    with interruptible(out), out.step(f"Running {repeat} batches"):
        if warm_up:
            ready.run([batch] * warm_up)
        results, ran = ready.trace([batch] * repeat)
    outputs = results[-1].value()
    save_outputs(out, output, outputs)
    predicted = ready.predict(repeat)
    store_trace(out, trace, [predicted.timeline, ran.timeline])
    rows = [
        (what, format_ns(round(run.steady_ns))) for what, run in ((ran.timeline.source, ran), ("predicted", predicted))
    ]
    rows += [("stages", str(len(ready.stages))), ("batches", str(repeat))]
    out.show(table(("time between batches", ready.problem.graph.name), rows))
    out.result(
        {"source": ran.timeline.source, "batches": repeat, "steady_ns": ran.steady_ns, "predicted_ns": predicted.steady_ns,
         "outputs": [{"shape": value.shape, "dtype": value.dtype.name} for value in outputs],
         "files": names_of({"output": output, "trace": trace})}
    )  # fmt: skip
