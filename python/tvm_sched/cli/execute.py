"""Commands that compile a model and run an artifact."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from ..errors import InputError
from ..file_cache import compiled_models
from .compile_cache import CompilationResult, compilation_key, keep, restore
from .evidence import EvidenceFolder, check_folder, store_all
from .inputs import HTML, JSON, CostsName, Model, ReportFile, TimelineFile, TopologyName, TraceFile, check_outputs
from .interrupt import interruptible
from .methods import MethodOptions, SchedulerName
from .models import Rows, Variants, model_warnings, packages_for
from .output import Output, names_of
from .residency import resident_of
from .run_options import LaunchOptions, RunOptions
from .run_result import show_run
from .shapes import ShapeOptions
from .values import InputSeed, InputValues, OutputFolder, read_values, save_outputs
from .views import store_trace

if TYPE_CHECKING:
    from ..problem import Problem
    from .progress import Step

Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        metavar="N",
        help="Threads of all CPU devices together. Default: what the environment variable TVM_SCHED_NUM_THREADS says, else "
        "(for `run`) what the artifact was compiled for, else all cores.",
    ),
]

LIBRARY = (".so",)


def _states(texts: list[str] | None) -> dict[str, int] | None:
    """What ``--state`` says."""
    found: dict[str, int] = {}
    for text in texts or ():
        name, _, position = text.rpartition("=")
        if not name or not position.isdecimal() or name in found:
            raise InputError(f"--state {text}: expected an input, each once, and a result's position: --state keys=1")
        found[name] = int(position)
    return found or None


def compile_model(
    out: Output,
    *,
    model: Model,
    topology: TopologyName,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.so", help="Where to write the artifact.")],
    scheduler: SchedulerName = "anytime",
    method: MethodOptions,
    shapes: ShapeOptions,
    parameters: Annotated[
        str, typer.Option("--parameters", metavar="auto|embed|file", help="Parameters: in the artifact or beside it.")
    ] = "auto",
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend",
            metavar="cpu|emulated|cuda",
            help="What runs it. Default: cpu for a topology of CPUs, else emulated; cuda compiles for GPUs with nvcc.",
        ),
    ] = None,
    costs: CostsName = None,
    measure: Annotated[
        bool | None,
        typer.Option(
            "--measure/--no-measure",
            help="Run the schedule and others for the same cores on this machine (one stream, in parallel, logical "
            "devices) and keep the fastest. Default: only for --topology cpu.",
        ),
    ] = None,
    launch: LaunchOptions,
    variants: Variants = True,
    rows: Rows = None,
    runs: RunOptions,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="INPUT=RESULT",
            help="An input that the artifact keeps from run to run on the device that computes it, as a cache of keys, and "
            "the position of the result, from 0, that is its next value. Zero at first; neither given nor returned. "
            "Repeatable.",
        ),
    ] = None,
    threads: Threads = None,
    processor: Annotated[
        str,
        typer.Option(
            "--processor",
            metavar="native|portable|LEVEL[,LEVEL...]",
            help="Which processors run the artifact: those like this one, or any of a level (x86-64-v2, x86-64-v3, "
            "x86-64-v4). Of several levels (portable: all three), each machine runs the kernels of the highest that it has.",
        ),
    ] = "native",
    precision: Annotated[
        str,
        typer.Option(
            "--precision",
            metavar="float32|bfloat16|tf32",
            help="bfloat16: products and convolutions multiply bfloat16 and add float32, weights take half the memory; for "
            "processors that have it (AVX512-BF16, AMX). tf32: cuBLASLt and cuDNN round float32 operands to 11 bits; with "
            "--backend cuda.",
        ),
    ] = "float32",
    report: ReportFile = None,
    evidence: EvidenceFolder = None,
    no_cache: Annotated[
        bool,
        typer.Option(
            "--no-cache", help="Compile and measure anew, also where the cache has the result; see `tvm-sched cache`."
        ),
    ] = False,
) -> None:
    """Compile a model for a machine into an artifact that runs its schedule.

    The same model, options, machine and versions again give the same artifact,
    from the cache.
    """
    if parameters not in ("auto", "embed", "file"):
        raise InputError(f"--parameters {parameters}: allowed are auto, embed and file")
    check_outputs({"--output": (output, LIBRARY), "--report": (report, HTML)}, [model])
    check_folder(evidence)
    sets, constants = shapes.sets(), shapes.constants()
    from ..schedulers import get

    options = method.of(get(scheduler), out)
    from ..relax.options import CompileOptions

    chosen = CompileOptions.of(
        topology,
        scheduler=scheduler, options=options, cost_model=costs, backend=backend, measure=measure,
        streams=launch.streams, launch_order=launch.launch_order, variants=variants, rows=rows, **runs.settings(),
        processor=processor, precision=precision, threads=threads, states=_states(state),
        parameters="external" if parameters == "file" else parameters, cache=not no_cache,
    )  # fmt: skip
    chosen.check_methods()  # a wrong name is said before the long work
    asked = {"topology": chosen, "input_shapes": sets or None, "constants": constants}
    with (
        interruptible(out),
        out.step(f"Compiling {model.name}") as step,
        model_warnings(out),
    ):
        cache = None if no_cache else compiled_models()
        key = compilation_key(model, asked | vars(chosen)) if cache else None
        made = restore(cache, key, output) if cache and key else None
        if made:
            out.say(f"{model} was compiled before: taken from the cache (--no-cache compiles it anew)")
        else:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("default")
                made = _compile(model, output, asked, step)
            for warning in said:
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
            if cache and key:
                keep(cache, key, str(model), made, said)
    _show_results(out, model, made, output, report, parameters, evidence)


def _compile(model: Path, output: Path, asked: dict[str, Any], step: Step) -> CompilationResult:
    with packages_for(model):
        from ..relax import compile as compile_scheduled
    from ..schedule.simulator import simulate
    from .schedule import describe

    compiled = compile_scheduled(model, progress=step, **asked)
    step("writing the artifact", 0, 0)
    written = compiled.export(output)
    pairs = zip(compiled.problems, compiled.schedules, strict=True)
    plans = [describe(problem, schedule, simulate(problem, schedule)) for problem, schedule in pairs]
    slow = [asdict(kernel) for kernel in compiled.slow_kernels]
    return CompilationResult(compiled.problems, compiled.schedules, plans, written, slow)


def _show_results(
    out: Output,
    model: Path,
    made: CompilationResult,
    output: Path,
    report: Path | None,
    parameters: str,
    evidence: Path | None,
) -> None:
    """Print the results of a compilation, and write its report and evidence."""
    for path in made.written:
        out.wrote(path, "artifact" if path == output else "parameters")
    stored = store_all(out, made.problems, made.schedules, evidence)
    if not any(problem.graph.operators for problem in made.problems):
        out.say(f"{model} computes nothing: a run gives back what it is given")
    if report:
        from ..report.html import Entry, write_report

        entries = [Entry(_plan_title(p), s, (), p) for p, s in zip(made.problems, made.schedules, strict=True)]
        options = {"model": str(model), "parameters": parameters}
        write_report(report, made.problems[0], entries, options=options)
        out.wrote(report, "report")
    files = {
        "artifact": str(output),
        "parameters": list(map(str, made.written[1:])),
        "report": str(report or ""),
        **stored,
    }
    _show_compiled(out, made, files)


def _plan_title(problem: Problem) -> str:
    """The model's name with the shapes of its inputs."""
    inputs = [tensor for tensor in problem.graph.tensors if tensor.kind == "input"]
    return f"{problem.graph.name} ({', '.join(f'{t.name} {list(t.shape)}' for t in inputs)})"


def _measured_table(notes: dict[str, Any]) -> Any:
    """What was measured to choose a schedule for this machine's cores."""
    from ..report.tables import table
    from ..report.units import format_time

    rows = [(row["schedule"], format_time(row["seconds"]), row.get("beside", "")) for row in notes["measured"]]
    return table(("schedule", "measured latency", "in turns with"), [*rows, (f"chosen: {notes['chosen']}", "", "")])


def _show_compiled(out: Output, made: CompilationResult, files: dict[str, Any]) -> None:
    from ..report.tables import certificate_table

    for problem, schedule in zip(made.problems, made.schedules, strict=True):
        out.show(escape(f"{_plan_title(problem)} on {problem.topology.name}"), certificate_table(schedule))
        if "measured" in schedule.notes:
            out.show(_measured_table(schedule.notes["measured"]))
    if made.slow_kernels:
        slow = made.slow_kernels
        names = ", ".join(f"{kernel['name']} ({kernel['reason']})" for kernel in slow[:3])
        more = f" and {len(slow) - 3} more (--json lists all)" if len(slow) > 3 else ""
        out.say(f"Generated kernels far from their roofline: {names}{more}")
    written = {name: value for name, value in files.items() if value}
    out.result({"plans": made.plans, "files": written, "slow_kernels": made.slow_kernels})


def run(
    out: Output,
    *,
    artifact: Annotated[
        Path, typer.Argument(metavar="ARTIFACT", help="What `compile` (.so) or `pipeline --artifact` (a folder) wrote.")
    ],
    input: InputValues = None,
    seed: InputSeed = 0,
    repeat: Annotated[int, typer.Option("--repeat", metavar="N", help="Runs that are measured.")] = 10,
    warm_up: Annotated[int, typer.Option("--warm-up", metavar="N", help="Runs before them.")] = 2,
    parameters: Annotated[
        Path | None, typer.Option("--parameters", metavar="FILE", help="Safetensors file of the parameters.")
    ] = None,
    threads: Threads = None,
    output: OutputFolder = None,
    timeline: TimelineFile = None,
    trace: TraceFile = None,
    times_only: Annotated[
        bool, typer.Option("--times-only", help="Emulated devices: compute no values, so that there are no outputs.")
    ] = False,
    runs: RunOptions,
    emulation_scale: Annotated[
        float | None,
        typer.Option("--emulation-scale", metavar="X", help="Emulated devices: run X times slower than planned."),
    ] = None,
) -> None:
    """Run an artifact, measure it, and hold the result against its plan."""
    if repeat < 1 or warm_up < 0:
        raise InputError(f"--repeat {repeat} --warm-up {warm_up}: at least 1 and at least 0 are allowed")
    check_outputs({"--timeline": (timeline, JSON), "--trace": (trace, JSON)}, [artifact])
    if times_only and output:
        raise InputError("--times-only computes no values, so that there are no outputs for --output: give one of them")
    given = read_values(input, seed, output)
    if artifact.is_dir():
        from .pipeline import run_artifact

        own = {"--parameters": parameters, "--threads": threads, "--timeline": timeline, "--graph": runs.graph,
               "--resident": runs.resident, "--instances": runs.instances, "--times-only": times_only or None,
               "--emulation-scale": emulation_scale}  # fmt: skip
        if given_here := [option for option, value in own.items() if value is not None]:
            raise InputError(f"{artifact} is a pipeline; {given_here[0]} is for artifacts of one schedule")
        run_artifact(out, artifact, given, seed, warm_up, repeat, output, trace)
        return
    from .. import runtime
    from ..runtime.parameters import require_parameters
    from ..runtime.values import choose_inputs
    from .measure import measure

    with out.step("Loading the artifact"):
        module = runtime.load(artifact, parameters, threads=threads)
    if not times_only:
        require_parameters(artifact, module.parameters())
    if runs.graph and any(plan["backend"] != "cuda" for plan in module.plans()):
        raise InputError(f"--graph is for the backend cuda, and {artifact} is compiled for another: leave it out")
    module.configure(times_only=times_only, emulation_scale=emulation_scale)
    module.configure(**runs.settings())
    replays = module.info().get("run", {}).get("graph", False) if runs.graph is None else runs.graph
    values = choose_inputs(module.plans(), given, seed)
    with out.step("Running") as step:
        measured = measure(module, values, warm_up, repeat, step, trace_apart=replays, times_only=times_only)
    save_outputs(out, output, measured.outputs)
    if timeline:
        measured.timeline.save(timeline)
        out.wrote(timeline, "timeline")
    store_trace(out, trace, [measured.predicted, measured.timeline])
    files = {"timeline": timeline, "trace": trace, "output": output}
    remains = module.info().get("run", {}).get("resident") if runs.resident is None else resident_of(runs.resident)
    show_run(out, module, measured, names_of(files), warm=bool(remains))


def demo(
    out: Output,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Where files go.")] = Path("out"),
) -> None:
    """GoogLeNet on two machines: schedule, compile, run, compare with ONNX Runtime, report (a minute or two)."""
    from .demonstration.googlenet import run_demo

    run_demo(out, output)
