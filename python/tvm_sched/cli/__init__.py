"""The command ``tvm-sched``. Only light modules are imported here; commands import what they need when they run."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from .. import __version__
from . import (
    bench,
    cache,
    compare,
    costs,
    doctor,
    evidence,
    execute,
    generation,
    inspect,
    machine,
    pipeline,
    plan,
    schedule,
    schema,
)
from .attached_commands import DEPLOY, MACHINE, PLAN, RESEARCH, AttachedCommands
from .registration import command, epilog, own_process

app = typer.Typer(
    cls=AttachedCommands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"tvm-sched {__version__}")
        raise typer.Exit


@app.callback(
    epilog=epilog(
        (
            "tvm-sched doctor",
            "tvm-sched inspect model.onnx",
            "tvm-sched schedule model.onnx --topology v100-server --report report.html",
            "tvm-sched compile model.onnx --topology cpu2 -o model.so",
            "tvm-sched run model.so --repeat 20 --trace trace.json",
        )
    )
)
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Schedule a neural network's operators over several devices, and prove how good the schedule is.

    Give it a model and a machine; it gives back a schedule, how far that can be
    from the best one, and an artifact that runs it under TVM.

    [bold]Start here:[/bold] `doctor` checks this machine, `inspect` a model, `schedule` it
    to see what a machine could do with it, `compile` it to an artifact, `run` that.
    """


command(
    app,
    "compile",
    (
        "tvm-sched compile googlenet.onnx --topology cpu2 -o googlenet.so",
        "tvm-sched compile bert.onnx -t cpu4 --shape ids:1,128 --time-limit 60 -o bert.so",
        "tvm-sched compile model.onnx -t cpu2 --shape 'batch={1,8}' --constant sr=16000 -o model.so",
        "tvm-sched compile minilm/ -t cpu2 --shape 1x128 -o minilm.so",
        "tvm-sched compile model.onnx -t my-machine.toml --scheduler anytime --option work=30 --seed 7 -o model.so",
    ),
    ".report.compilation:CompilationSummary",
    DEPLOY,
    apart=True,
)(execute.compile_model)
command(
    app,
    "run",
    (
        "tvm-sched run googlenet.so",
        "tvm-sched run googlenet.so --input data_0=image.npy --output results/",
        "tvm-sched run googlenet.so --seed 1 --warm-up 5 --repeat 100 --trace trace.json --json",
    ),
    (".report.measurement:RunSummary", ".report.stages:PipelineRunSummary"),
    DEPLOY,
)(execute.run)
command(
    app,
    "inspect",
    (
        "tvm-sched inspect model.onnx",
        "tvm-sched inspect bert.onnx --shape batch=1 --shape tokens=128 --json",
        "tvm-sched inspect model.so",
    ),
    ".relax.inspection:Inspection",
    DEPLOY,
    apart=True,
)(inspect.inspect)
command(
    app,
    "schedule",
    (
        "tvm-sched schedule googlenet.onnx --topology v100-server --report report.html",
        "tvm-sched schedule problem.json --scheduler anytime --time-limit 30 --seed 1 -o schedule.json",
        "tvm-sched schedule problem.json --topology p4d --trace trace.json --json",
        "tvm-sched schedule problem.json -o schedule.json --evidence evidence.json",
        "tvm-sched schedule openllama-3b --shape 1x1024 --topology v100-server",
        "tvm-sched schedule gpt2-large gpt2-xl --shape 1x32 --topology p4d",
    ),
    ".report.summaries:ScheduledModels",
    PLAN,
    apart=True,
)(schedule.schedule)
command(
    app,
    "simulate",
    (
        "tvm-sched simulate problem.json schedule.json",
        "tvm-sched simulate problem.json schedule.json --trace trace.json --report report.html",
        "tvm-sched simulate problem.json schedule.json --measured timeline.json --report report.html",
        "tvm-sched simulate problem.json schedule.json --samples 200",
    ),
    ".report.summaries:SimulatedSchedule",
    PLAN,
)(schedule.simulate)
command(app, "verify", ("tvm-sched verify problem.json schedule.json --json",), ".report.summaries:Verdict", PLAN)(
    schedule.verify
)
command(app, "explain", ("tvm-sched explain problem.json schedule.json",), ".report.summaries:Explanation", PLAN)(
    evidence.explain
)
command(
    app,
    "check",
    ("tvm-sched check problem.json schedule.json evidence.json",),
    (
        "tvm_sched_check.verdict:Verdict",
        "tvm_sched_check.pipelines.verdict:Verdict",
        "tvm_sched_check.partitions.verdict:Verdict",
    ),
    PLAN,
)(evidence.check)
command(
    app,
    "pipeline",
    (
        "tvm-sched pipeline googlenet.onnx --topology v100-server --stages 4 -o pipeline.json",
        "tvm-sched pipeline problem.json --stages auto --time-limit 20 --seed 1 --json",
        "tvm-sched pipeline openllama-3b --shape 1x1024 --topology h200x8 --costs learned --report report.html",
        "tvm-sched pipeline problem.json --partitioner slicegraph --option order=mla-weighted --trace trace.json",
        "tvm-sched pipeline googlenet.onnx --topology cpu2 --artifact googlenet.pipeline",
    ),
    (".report.stages:PipelineSummary", ".report.stages:PartitionSummary"),
    PLAN,
    apart=True,
)(pipeline.pipeline)
command(
    app,
    "plan",
    (
        "tvm-sched plan llama-3-70b -t p4d --for vllm --context 8192 --batch 16 -o vllm.sh",
        "tvm-sched plan llama-2-13b/config.json -t my-machine.toml --for llama.cpp --dtype q4_0 -o llama.sh",
        "tvm-sched plan mistral-7b -t a6000-server --for accelerate -o device_map.json --json",
        "tvm-sched plan model.onnx -t a40x2 --for onnxruntime --shape batch=8 -o plan/onnxruntime_plan.json",
    ),
    ".report.runtime_plans:PlanSummary",
    PLAN,
    apart=True,
)(plan.plan)
command(
    app,
    "problem",
    (
        "tvm-sched problem googlenet.onnx --topology v100-server -o problem.json",
        "tvm-sched problem bert.onnx -t h200x8 --shape ids:1,128 --costs learned -o problem.json",
        "tvm-sched problem openllama-7b --shape 1x512 --phase decode -t h200x8 -o decode.json",
    ),
    ".report.summaries:ProblemSummary",
    PLAN,
    apart=True,
)(schedule.problem)
command(
    app,
    "generation",
    (
        "tvm-sched generation gpt2-large --shape 1x512 -t v100-server --steps 8 -o generation.json",
        "tvm-sched generation prefill.json decode.json --steps 4 --decode-on gpu2,gpu3 -o generation.json",
        "tvm-sched schedule generation.json --time-limit 30 --report report.html",
    ),
    ".report.summaries:ProblemSummary",
    PLAN,
    apart=True,
)(generation.generation)
command(
    app,
    "compare",
    (
        "tvm-sched compare googlenet.onnx --topology v100-server --schedulers single,anytime",
        "tvm-sched compare problem.json --option anytime.work=10 --time-limit 20 --report report.html",
        "tvm-sched compare problems/*.json --each --schedulers single,sortinghat,anytime --json",
    ),
    (".report.comparison:Comparison", ".report.comparison:Comparisons"),
    RESEARCH,
    apart=True,
)(compare.compare)
command(
    app,
    "schedulers",
    ("tvm-sched schedulers", "tvm-sched schedulers --json"),
    ".docstrings:MethodDescription[]",
    RESEARCH,
)(machine.list_schedulers)
command(app, "schema", ("tvm-sched schema", "tvm-sched schema run", "tvm-sched schema topology show"), (), RESEARCH)(
    schema.schema
)
command(
    app,
    "doctor",
    (
        "tvm-sched doctor",
        "tvm-sched doctor --cuda -t my-machine.toml --json",
        "tvm-sched doctor model-cuda.so --against model-emulated.so",
    ),
    ".doctor:Diagnosis",
    MACHINE,
)(doctor.doctor)
command(
    app,
    "profile",
    (
        "tvm-sched profile googlenet.onnx -o profile.parquet",
        "tvm-sched profile bert.onnx kernels --device cpu2 --shape ids:1,128 -o profile.json",
    ),
    ".report.profiles:ProfileSummary",
    MACHINE,
    apart=True,
)(costs.profile)
command(
    app,
    "learn",
    (
        "tvm-sched learn -o model.msgpack",
        "tvm-sched learn profile.parquet --vidur vidur/data/profiling/compute --seed 1 -o model.msgpack",
    ),
    ".report.profiles:LearnedSummary",
    MACHINE,
)(costs.learn)
app.add_typer(machine.topology, name="topology", rich_help_panel=MACHINE)
app.add_typer(cache.app, name="cache", rich_help_panel=MACHINE)
app.add_typer(bench.app, name="bench", rich_help_panel=RESEARCH)


def main() -> None:
    """Entry point of the command ``tvm-sched``."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as `>&-` does
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - open as long as the process
    own_process()
    app(prog_name="tvm-sched")
