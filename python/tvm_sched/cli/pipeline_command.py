"""The command ``pipeline``: cut a model, or a graph without devices, into stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tvm_sched_runtime.errors import InputError

from ..worker_pool import workers_of
from .attached_commands import PLAN
from .evidence import store_pipeline_evidence
from .inputs import ModelsOrProblems, OptionalTopology, Workers
from .interrupt import interruptible, stoppable
from .methods import MethodOptions
from .model_options import COMPILE_OPTIONS, ModelOptions, load_problem, model_warnings, number_or_auto
from .option_groups import FromApi
from .output import Output
from .registration import app, command
from .view_files import PlanFiles, store_trace

if TYPE_CHECKING:
    from tvm_sched_runtime.pipeline import PipelinePlan
    from tvm_sched_runtime.problem import Problem

    from ..problem_sources import SourceOptions
    from .value_files import ValueOptions


@dataclass(frozen=True)
class PartitionerOptions(MethodOptions):
    """A partitioner and its options."""

    partitioner: Annotated[
        str,
        typer.Option(
            "--partitioner",
            metavar="NAME",
            help="anytime, slicegraph, exact, bottleneck, bottleneck-guess, tarnawski-dp, pipedream or equal-split.",
        ),
    ] = "anytime"


Throughput = Annotated[
    dict[str, Any],
    FromApi(
        COMPILE_OPTIONS,
        ("stages", "latency_ceiling", "throughput_floor"),
        own={
            "stages": Annotated[
                str | None,
                typer.Option(
                    "--stages", "-k", metavar="K|auto", help="Most stages. Default: auto, one for each device."
                ),
            ],
            "latency_ceiling": Annotated[
                float | None,
                typer.Option("--latency-ceiling", metavar="SECONDS", help="Best throughput with this latency at most."),
            ],
            "throughput_floor": Annotated[
                float | None,
                typer.Option(
                    "--throughput-floor", metavar="BATCHES/S", help="Least latency with this throughput at least."
                ),
            ],
        },
        read={"stages": number_or_auto("--stages")},
    ),
]


StageOrder = Literal["given", "least-peak"]


@dataclass(frozen=True)
class PipelineFiles(PlanFiles):
    """Files that `pipeline` writes."""

    artifact: Annotated[
        Path | None,
        typer.Option(
            "--artifact",
            metavar="FOLDER",
            help="Compile each stage, too, for `tvm-sched run`, `gateway` and `deploy`.",
        ),
    ] = None


@command(app, "pipeline", (".report.stages:PipelineSummary", ".report.stages:PartitionSummary"), panel=PLAN, apart=True)
def pipeline(
    out: Output,
    *,
    sources: ModelsOrProblems,
    topology: OptionalTopology = None,
    method: PartitionerOptions,
    model_options: ModelOptions,
    limits: Throughput,
    stage_order: Annotated[
        StageOrder,
        typer.Option(
            "--stage-order",
            metavar="given|least-peak",
            help="Order of the operators in each stage: the partitioner's, or one with the least peak of activations.",
        ),
    ] = "given",
    files: PipelineFiles,
    workers: Workers = None,
) -> None:
    """Cut a model into pipeline stages on several devices, and say how far from the best throughput that can be.

    A graph in a file of `nodes` (id, work, size_param, size_out) and `edges` (source, target) has no devices: its
    partition is shown. With `--evidence` the search for multipliers takes as long again as `--time-limit` at most, and with
    `--option work=W` as much work. With `--stage-order least-peak` a table shows the peak of each stage before and after,
    and a bound on all orders.

    $ tvm-sched pipeline googlenet.onnx --topology v100-server --stages 4 -o pipeline.json
    $ tvm-sched pipeline problem.json --stages auto --time-limit 20 --seed 1 --json
    $ tvm-sched pipeline openllama-3b --shape 1x1024 --topology h200x8 --costs learned --report report.html
    $ tvm-sched pipeline problem.json --partitioner slicegraph --option order=mla-weighted --trace trace.json
    $ tvm-sched pipeline problem.json --stages 4 --stage-order least-peak
    $ tvm-sched pipeline googlenet.onnx --topology cpu2 --artifact googlenet.pipeline
    """
    from ..pipeline import get
    from ..pipeline.graph_files import is_graph

    options = method.of(get(method.partitioner), out)
    count = limits.pop("stages", "auto")
    if is_graph(sources[0]):
        of_models = {
            "topology": topology,
            "shape": model_options.shape,
            "constant": model_options.constant,
            "costs": model_options.costs,
        }
        with workers_of(workers):
            misplaced = of_models | limits | vars(files)
            _partition_graph(out, sources, count, (method.partitioner, options), stage_order, misplaced)
        return
    if files.artifact:
        _check_artifact(files.artifact, sources)
    problem = load_problem(out, sources, topology, model_options)
    from tvm_sched_runtime.pipeline.pipeline_simulator import simulate

    from ..cost_model.uncertainty import pipeline_intervals
    from ..pipeline import order_plan, plan_pipeline
    from ..report.stages import PipelineSummary, StagePeak, certificate_sentence, peak_table, stage_table
    from ..schedulers.common.solver_runs import stdout_aside

    stopping = stoppable(out, get(method.partitioner).answers_interrupt)
    with workers_of(workers), stopping, stdout_aside(), out.step(f"Partitioning with {method.partitioner}") as step:
        plan = plan_pipeline(problem, count, method.partitioner, options, progress=step, **limits)
    peaks = None
    if stage_order == "least-peak":
        with interruptible(out), out.step("Ordering the operators of each stage"):
            plan, orders = order_plan(problem, plan)
        peaks = [StagePeak.of(order) for order in orders]
    if files.output:  # before the evidence, which may take long
        plan.save(files.output)
        out.wrote(files.output, "plan")
    proved = None
    if files.evidence:
        plan, proved = store_pipeline_evidence(out, problem, plan, count, files.evidence)
        if files.output:
            plan.save(files.output)
    if files.artifact:
        _compile(out, sources[0], problem, plan, model_options, files.artifact)
    run = simulate(problem, plan)
    if files.report:
        from ..report.pipeline_report import write_pipeline_report

        write_pipeline_report(files.report, problem, plan, run)
        out.wrote(files.report, "report")
    store_trace(out, files.trace, [run.timeline])
    intervals = pipeline_intervals(problem, plan)
    said = certificate_sentence(plan, run.steady_ns, intervals)
    out.show(stage_table(plan), *([peak_table(peaks)] if peaks else []), said)
    out.result(PipelineSummary.of(plan, run.steady_ns, proved, peaks, intervals))


def _check_artifact(artifact: Path, sources: Sequence[Path]) -> None:
    """Refuse, before the long work, a model that cannot be compiled or a folder that cannot be written."""
    from tvm_sched_runtime.pipeline.pipeline_artifact import check_target

    check_target(artifact)
    from ..problem_sources import decoder_config, is_problem

    if len(sources) > 1 or is_problem(sources[0]) or decoder_config(sources[0]) is not None:
        raise InputError(
            "--artifact compiles one model file with its weights; problem files and language models by name or "
            "config.json have none"
        )


def _compile(
    out: Output, model: Path, problem: Problem, plan: PipelinePlan, options: SourceOptions, artifact: Path
) -> None:
    with interruptible(out), out.step(f"Compiling {len(plan.stages)} stages"), model_warnings(out):
        from ..relax import compile_pipeline

        compiled = compile_pipeline(
            model,
            problem.topology,
            plan=plan,
            input_shapes=options.one_shape("a pipeline has one"),
            constants=options.constants(),
            cost_model=options.costs,
        )
    compiled.export(artifact)
    out.wrote(artifact, "artifact")


def run_artifact(
    out: Output,
    folder: Path,
    inputs: dict[str, Any],
    values: ValueOptions,
    counts: tuple[int, int],
    trace: Path | None,
) -> None:
    """Run a pipeline artifact on this machine: batches follow each other without a pause.

    Parameters
    ----------
    inputs : dict
        Values of inputs, by name.
    counts : (int, int)
        Batches to warm up, and measured batches.
    """
    from tvm_sched_runtime.pipeline import load
    from tvm_sched_runtime.runtime.values import choose_inputs

    from ..report.measurement import OutputType
    from ..report.stages import PipelineRunSummary

    warm_up, repeat = counts
    with out.step("Loading the artifact"):
        ready = load(folder)
    batch = choose_inputs([{"arguments": ready.arguments()}], inputs, values.seed)
    with interruptible(out), out.step(f"Running {repeat} batches"):
        if warm_up:
            ready.run([batch] * warm_up)
        results, measured = ready.trace([batch] * repeat)
    outputs = results[-1].value()
    values.save(out, outputs)
    predicted = ready.predict(repeat)
    store_trace(out, trace, [predicted.timeline, measured.timeline])
    summary = PipelineRunSummary(
        source=measured.timeline.source, batches=repeat, steady_ns=measured.steady_ns, predicted_ns=predicted.steady_ns,
        outputs=OutputType.of_all(outputs),
    )  # fmt: skip
    out.show(summary.table(ready.problem.graph.name, len(ready.stages)))
    out.result(summary)


def _partition_graph(
    out: Output,
    sources: Sequence[Path],
    stages: int | str,
    method: tuple[str, dict[str, Any]],
    stage_order: StageOrder,
    misplaced: Mapping[str, Any],
) -> None:
    """Cut a graph without devices (docs/formats/pipeline.md, Graphs), and show its stages and the bound.

    Parameters
    ----------
    method : (str, dict)
        The partitioner and its options.
    misplaced : mapping
        Values of the options that only models and problems take.

    Raises
    ------
    InputError
        The command has one of these options or a second file, or the number of stages is missing.
    """
    path = sources[0]
    if len(sources) > 1:
        raise InputError(f"{path} is a graph of nodes and edges: one at a time is allowed")
    if wrong := [f"--{name.replace('_', '-')}" for name, value in misplaced.items() if value is not None]:
        raise InputError(f"{path} is a graph of nodes and edges, without devices and tensors: {wrong[0]} is for models")
    if not isinstance(stages, int):
        raise InputError(f"{path} is a graph of nodes and edges, which names no devices: give --stages a number from 1")
    from ..pipeline import get, order_partition, partition
    from ..pipeline.graph_files import load_graph
    from ..report.stages import PartitionSummary, StagePeak, peak_table
    from ..schedulers.common.solver_runs import stdout_aside

    partitioner, options = method
    graph = load_graph(path)
    stopping = stoppable(out, get(partitioner).answers_interrupt)
    with stopping, stdout_aside(), out.step(f"Partitioning with {partitioner}") as step:
        found = partition(graph, stages, partitioner, options, step)
    peaks = None
    if stage_order == "least-peak":
        with interruptible(out), out.step("Ordering the nodes of each stage"):
            found, orders = order_partition(graph, found)
        peaks = [StagePeak.of(order) for order in orders]
    summary = PartitionSummary.of(graph, found, partitioner, options, peaks)
    out.show(summary.table(), *([peak_table(peaks)] if peaks else []), summary.sentence())
    out.result(summary)
