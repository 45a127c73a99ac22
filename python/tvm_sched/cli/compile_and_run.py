"""Commands that compile a model and run an artifact."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.input_shapes import one_shape, parse_shapes

from ..file_cache import compiled_models
from ..progress import searches_run_in
from .attached_commands import COMPILERS, START, Compiled, CompilerOptions
from .evidence import EvidenceFolder, store_all
from .inputs import CostsName, Model, ReportFile, StoredParameters, TimelineFile, TopologyName, TraceFile, Writes
from .interrupt import answered, interruptible, was_interrupted
from .methods import SchedulerOptions
from .model_options import (
    COMPILE_OPTIONS,
    READ_ROW_PARTS,
    ResidentParameters,
    RowParts,
    ShapeOptions,
    model_warnings,
    resident_of,
)
from .option_groups import Attached, FromApi
from .output import INTERRUPTED, Output
from .registration import app, command
from .value_files import ValueOptions
from .view_files import store_trace

if TYPE_CHECKING:
    from ..relax.compiled_results import CompilationResult
    from ..relax.options import CompileOptions
    from .progress_bar import Step


def _states(texts: list[str]) -> dict[str, int]:
    """Return the result's position of each input in ``--state``."""
    states: dict[str, int] = {}
    for text in texts:
        name, _, position = text.rpartition("=")
        if not name or not position.isdecimal() or name in states:
            raise InputError(f"--state {text}: expected an input, each once, and a result's position: --state keys=1")
        states[name] = int(position)
    return states


CompileSettings = Annotated[
    dict[str, Any],
    FromApi(
        COMPILE_OPTIONS,
        (
            "cost_model", "backend", "measure", "streams", "launch_order", "variants", "rows", "row_parts", "anchors",
            "graph", "resident", "instances", "states", "threads", "processor", "precision", "tuned",
            "parameters",
        ),
        own={
            "cost_model": CostsName,
            "resident": ResidentParameters,
            "row_parts": RowParts,
            "states": Annotated[
                list[str] | None,
                typer.Option(
                    "--state",
                    metavar="INPUT=RESULT",
                    help="An input that the artifact keeps from run to run on the device that computes it, as a cache of "
                    "keys, and the position of the result, from 0, that is its next value. May be repeated.",
                ),
            ],
        },
        read={"resident": resident_of, "states": _states, **READ_ROW_PARTS},
    ),
]  # fmt: skip
RunSettings = Annotated[
    dict[str, Any],
    FromApi(
        COMPILE_OPTIONS,
        ("graph", "resident", "instances", "threads"),
        own={"resident": ResidentParameters},
        read={"resident": resident_of},
    ),
]


@dataclass(frozen=True)
class ArtifactFiles:
    """Files that `compile` writes."""

    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE.so", help="Where to write the artifact."),
        Writes((".so", ".txt")),
    ]
    report: ReportFile = None
    evidence: EvidenceFolder = None
    also: Annotated[
        list[str] | None,
        typer.Option(
            "--also",
            metavar="MODEL=FILE.so",
            help="Another model to compile with the same options in the same process, which has loaded the compiler and "
            "knows the kernels of the models before; several times faster for a similar model. May be repeated.",
        ),
    ] = None

    def others(self) -> list[tuple[Path, Path]]:
        """Return the models of ``--also``, each with its artifact."""
        pairs = []
        for text in self.also or ():
            model, _, file = text.rpartition("=")
            if not model or not file.endswith(".so"):
                raise InputError(
                    f"--also {text}: expected a model and its artifact, such as --also other.onnx=other.so"
                )
            if not Path(model).exists():
                raise InputError(f"--also {text}: there is no file {model}")
            if not Path(file).parent.is_dir():
                raise InputError(f"--also {text}: there is no folder {Path(file).parent}")
            pairs.append((Path(model), Path(file)))
        files = [file.resolve() for file in (self.output, *(file for _, file in pairs))]
        if len(set(files)) < len(files):
            raise InputError("-o and --also name the same artifact twice; each model needs a file of its own")
        return pairs


@command(app, "compile", ".report.compilation:CompilationSummary", panel=START, apart=True)
def compile_model(
    out: Output,
    *,
    model: Model,
    topology: TopologyName,
    files: ArtifactFiles,
    method: SchedulerOptions,
    shapes: ShapeOptions,
    settings: CompileSettings,
    compilers: Annotated[dict[str, CompilerOptions], Attached(COMPILERS)],
    no_cache: Annotated[
        bool,
        typer.Option(
            "--no-cache", help="Compile and measure anew, also where the cache has the result; see `tvm-sched cache`."
        ),
    ] = False,
    stop_after: Annotated[
        str | None,
        typer.Option(
            "--stop-after",
            metavar="PASS",
            help="Run the compiler's passes up to this one only, such as FuseOperators or Place, and write the module "
            "there as text: -o FILE.txt. WriteVDevices writes the schedule as a plain Relax module with TVM's virtual "
            "devices.",
        ),
    ] = None,
) -> None:
    """Compile a model for a machine into an artifact that runs its schedule.

    The same model, options, machine and versions again give the same artifact,
    from the cache. Ctrl-C during the search compiles the best schedule so far.
    At other times it ends the command, and the same command goes on with the
    kernels that were compiled and measured before.

    $ tvm-sched compile googlenet.onnx --topology cpu2 -o googlenet.so
    $ tvm-sched compile bert.onnx -t cpu4 --shape ids:1,128 --time-limit 60 -o bert.so
    $ tvm-sched compile model.onnx -t cpu2 --shape 'batch={1,8}' --constant sr=16000 -o model.so
    $ tvm-sched compile minilm/ -t cpu2 --shape 1x128 -o minilm.so
    $ tvm-sched compile qwen/ --generate --weights int4 -t cpu1 -o qwen.so
    $ tvm-sched compile a.onnx -t cpu2 -o a.so --also b.onnx=b.so
    $ tvm-sched compile model.onnx -t my-machine.toml --scheduler anytime --option work=30 --seed 7 -o model.so
    """
    output = files.output
    if (output.suffix == ".txt") != (stop_after is not None):
        raise InputError(f"-o {output}: an artifact is a file .so, and the module of --stop-after a file .txt")
    sets, constants = shapes.sets(), shapes.constants()
    compiler, own_options = _compiler(model, compilers, sets or constants or settings.get("states") or stop_after)
    others = files.others()
    if others and (files.report or files.evidence or stop_after or compiler):
        raise InputError("--also goes with one model each: leave --report, --evidence, --stop-after and --generate out")
    from ..relax.options import CompileOptions
    from ..report.compilation import CompilationSummary
    from ..schedulers import get

    options = method.of(get(method.scheduler), out)
    chosen = CompileOptions.of(topology, scheduler=method.scheduler, options=options, cache=not no_cache, **settings)
    inputs = {"input_shapes": sets or None, "constants": constants}
    if stop_after is not None:
        return _store_module(out, model, output, chosen, stop_after, inputs)
    out.kept_in_cache = _counting_kept()
    results = [_cached_or_compiled(out, model, output, compiler, chosen, inputs, own_options)]
    _show_compiled(out, model, results[0], files, chosen.parameters)
    for other, artifact in others:
        results.append(_cached_or_compiled(out, other, artifact, None, chosen, inputs, {}))
        _show_compiled(out, other, results[-1], ArtifactFiles(artifact), chosen.parameters)
    out.result(CompilationSummary.of(*results))


def _cached_or_compiled(
    out: Output,
    model: Path,
    output: Path,
    compiler: CompilerOptions | None,
    chosen: CompileOptions,
    inputs: dict[str, Any],
    own_options: dict[str, Any],
) -> CompilationResult:
    """Return the artifact from the cache, or compile the model."""
    from ..relax.compiled_results import compilation_key, keep, restore

    searches = searches_run_in(partial(answered, out))
    with interruptible(out), searches, out.step(f"Compiling {model.name}") as step, model_warnings(out):
        cache = compiled_models() if chosen.cache else None
        key = compilation_key(model, inputs | vars(chosen) | own_options, type(compiler).__module__) if cache else None
        result = restore(cache, key, output) if cache and key else None
        if result:
            out.say(f"{model} was compiled before: taken from the cache (--no-cache compiles it anew)")
        else:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("default")
                result = _compile(model, output, compiler, chosen, inputs, step)
            for warning in caught:
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
            if cache and key and not was_interrupted():
                keep(cache, key, str(model), result, caught)
    return result


def _counting_kept() -> Callable[[], str]:
    """Return a function that says what has come into the caches since now, and how to go on."""
    from ..blob_cache import kernel_cache
    from ..cost_model.database import Database

    def counts() -> tuple[int, int]:
        try:
            return kernel_cache().contents()[0], Database().count()
        except InputError:
            return 0, 0

    before = counts()

    def kept() -> str:
        kernels, measurements = (max(now - then, 0) for now, then in zip(counts(), before, strict=True))
        if not kernels and not measurements:
            return ""
        return (
            f"kept in the cache: compiled kernels ({kernels}), measurements ({measurements}); the same command goes on "
            "from there"
        )

    return kept


def _compiler(
    model: Path, offered: dict[str, CompilerOptions], others: Any
) -> tuple[CompilerOptions | None, dict[str, Any]]:
    """Return the attached compiler that the options ask for, if any, and its options by its name."""
    for name, options in offered.items():
        if (asked := options.options_for(model)) is not None:
            if others:
                raise InputError(
                    f"--{name} gives the plans and states itself: leave --shape, --constant, --state, --stop-after out"
                )
            return options, {name: asked}
    return None, {}


def _store_module(
    out: Output, model: Path, path: Path, options: CompileOptions, stop_after: str, inputs: dict[str, Any]
) -> None:
    """Write the module after one of the compiler's passes."""
    sets = inputs["input_shapes"] or []
    if len(sets) > 1:
        raise InputError(f"--stop-after takes one set of shapes, not {len(sets)}")
    from ..problem_sources import packages_for

    with packages_for(model):
        from ..relax import run_passes
    with interruptible(out), out.step(f"Compiling {model.name}") as step, model_warnings(out):
        inputs = {**inputs, "input_shapes": sets[0] if sets else None}
        module = run_passes(model, options, stop_after, progress=step, **inputs)
    path.write_text(module.script())
    out.wrote(path, f"module behind {stop_after}")


def _compile(
    model: Path,
    output: Path,
    compiler: CompilerOptions | None,
    chosen: CompileOptions,
    inputs: dict[str, Any],
    step: Step,
) -> CompilationResult:
    step("loading the compiler", 0, 0)
    from ..problem_sources import packages_for

    with packages_for(model):
        from ..relax import compile as compile_scheduled
    from ..relax.compiled_results import CompilationResult

    compiled: Compiled
    if compiler is not None:
        compiled = compiler.compile(model, chosen, step)
    else:
        compiled = compile_scheduled(model, chosen, progress=step, compare=True, **inputs)
    step("writing the artifact", 0, 0)
    written = compiled.export(output)
    return CompilationResult(
        compiled.problems, compiled.schedules, written, compiled.slow_kernels, getattr(compiled, "comparisons", ())
    )


def _show_compiled(out: Output, model: Path, result: CompilationResult, files: ArtifactFiles, parameters: str) -> None:
    """Write report and evidence, and print the tables."""
    from ..report.compilation import compilation_views, slow_sentence, write_compilation_report

    for path in result.written:
        out.wrote(path, "artifact" if path.suffix == ".so" else "parameters")
    if not any(problem.graph.operators for problem in result.problems):
        out.say(f"{model} computes nothing: a run returns its inputs")
    if files.report:
        write_compilation_report(files.report, result, {"model": str(model), "parameters": parameters})
        out.wrote(files.report, "report")
    store_all(out, result.problems, result.schedules, files.evidence)
    out.show(*compilation_views(result))
    if result.slow_kernels:
        out.say(slow_sentence(result.slow_kernels))


RunShapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME:DIMS|SYMBOL=SIZE",
        help="Shape of an input that gets random values, or size of an open dimension of an artifact that takes any size, "
        "e.g. ids:1,40 or tokens=40. May be repeated.",
    ),
]


@dataclass(frozen=True)
class EmulationOptions:
    """How emulated devices run."""

    times_only: Annotated[
        bool, typer.Option("--times-only", help="Emulated devices: compute no values, so that there are no outputs.")
    ] = False
    emulation_scale: Annotated[
        float | None,
        typer.Option("--emulation-scale", metavar="X", help="Emulated devices: run X times slower than planned."),
    ] = None


@dataclass(frozen=True)
class RunValues(ValueOptions):
    """Values of the inputs, or their shapes alone."""

    shape: RunShapes = None


@command(app, "run", (".report.measurement:RunSummary", ".report.stages:PipelineRunSummary"), panel=START)
def run(
    out: Output,
    *,
    artifact: Annotated[
        Path, typer.Argument(metavar="ARTIFACT", help="What `compile` (.so) or `pipeline --artifact` (a folder) wrote.")
    ],
    values: RunValues,
    repeat: Annotated[int, typer.Option("--repeat", metavar="N", help="Runs that are measured.")] = 10,
    warm_up: Annotated[int, typer.Option("--warm-up", metavar="N", help="Runs before them.")] = 2,
    stored: StoredParameters,
    timeline: TimelineFile = None,
    trace: TraceFile = None,
    emulation: EmulationOptions,
    settings: RunSettings,
) -> None:
    """Run an artifact, measure it, and hold the result against its plan.

    $ tvm-sched run googlenet.so
    $ tvm-sched run googlenet.so --input data_0=image.npy --output results/
    $ tvm-sched run bert.so --shape batch=1 --shape tokens=40
    $ tvm-sched run googlenet.so --seed 1 --warm-up 5 --repeat 100 --trace trace.json --json
    """
    if repeat < 1 or warm_up < 0:
        raise InputError(f"--repeat {repeat} --warm-up {warm_up}: at least 1 and at least 0 are allowed")
    if emulation.times_only and values.output:
        raise InputError("--times-only computes no values, so that there are no outputs for --output: give one of them")
    inputs, shapes = values.read(), one_shape(parse_shapes(values.shape), "a run has one")
    if artifact.is_dir():
        from .pipeline_command import run_artifact

        own = {"shape": values.shape, **vars(stored), "timeline": timeline, **settings, **vars(emulation)}
        if given_here := [name for name, value in own.items() if value not in (None, False)]:
            option = f"--{given_here[0].replace('_', '-')}"
            raise InputError(f"{artifact} is a pipeline; {option} is for artifacts of one schedule")
        run_artifact(out, artifact, inputs, values, (warm_up, repeat), trace)
        return
    from tvm_sched_runtime import runtime
    from tvm_sched_runtime.runtime.parameters import require_parameters
    from tvm_sched_runtime.runtime.values import choose_inputs

    from ..report.measurement import RunSummary, measure

    with out.step("Loading the artifact"):
        module = runtime.load(
            artifact, stored.parameter_file, threads=settings.pop("threads", None), verify=stored.verify or None
        )
    if not emulation.times_only:
        require_parameters(artifact, module.parameters())
    if settings.get("graph") and any(plan["backend"] != "cuda" for plan in module.plans()):
        raise InputError(f"--graph is for the backend cuda, and {artifact} is compiled for another: leave it out")
    module.configure(**vars(emulation))
    module.configure(**settings)
    configured = module.info().get("run", {}) | settings
    chosen = choose_inputs(module.plans(), inputs, values.seed, module.template, shapes)
    with out.step("Running") as step:
        measured = measure(
            module, chosen, warm_up, repeat, step, trace_apart=configured.get("graph", False),
            times_only=emulation.times_only,
        )  # fmt: skip
    values.save(out, measured.outputs)
    if timeline:
        measured.timeline.save(timeline)
        out.wrote(timeline, "timeline")
    summary = RunSummary.of(module, measured)
    store_trace(out, trace, [measured.predicted, measured.timeline], start=summary.stages)
    out.show(*summary.tables(module, measured.plan, warm=bool(configured.get("resident"))))
    out.result(summary)
    if was_interrupted():
        out.say(f"interrupted; fewer than {repeat} runs were measured")
        raise typer.Exit(INTERRUPTED)
