"""The command `auto`: compile a model for the machine it runs on, measure it, and say what was gained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvm_sched_runtime.errors import InputError

from .attached_commands import START
from .inputs import Model, Writes
from .interrupt import interruptible
from .model_options import ShapeOptions, model_warnings
from .output import Output
from .registration import app, command

if TYPE_CHECKING:
    from ..auto import Plan
    from ..relax import CompiledModel
    from ..report.gains import Gains

ARTIFACT, REPORT = "model.so", "report.html"


@command(app, "auto", ".report.gains:Gains", panel=START, apart=True)
def auto(
    out: Output,
    model: Model,
    shapes: ShapeOptions,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Where to write model.so and report.html. Default: NAME-auto."
        ),
        Writes(folder=True),
    ] = None,
) -> None:
    """Compile a model for this machine, without questions: the artifact, a report, and what was gained.

    First comes an artifact for one device. It is replaced if a schedule over several
    devices or streams runs faster, so Ctrl-C leaves the best one so far. Three lines say
    the latency, and how much faster that is than one device and than ONNX Runtime, where
    that is installed.

    $ tvm-sched auto model.onnx
    $ tvm-sched auto bert.onnx --shape batch=1 --shape tokens=128 -o bert/
    """
    sets, constants = shapes.sets(), shapes.constants()
    if len(sets) > 1 or "{" in "".join(shapes.shape or ()):
        raise InputError("auto measures one set of shapes; give each --shape one size, or use `compile` for several")
    folder = output or Path(f"{model.stem}-auto")
    with interruptible(out), out.step("Detecting the machine"):
        from ..cost_model.recording import record
        from ..problem_sources import packages_for

        with packages_for(model):
            from .. import auto as work
        name, plans = work.plans_for(record())
    inputs = {"input_shapes": sets or None, "constants": constants}
    best, schedule = _compile(out, model, plans[0], inputs), plans[0].name
    one = best
    _write(out, folder, best, str(model))
    gain, tried = None, list[str]()
    for plan in plans[1:]:
        challenger = _compile(out, model, plan, inputs)
        label, tried = _label(challenger, plan)
        if label is None:
            continue  # it is the schedule of one device again
        with interruptible(out), out.step(f"Comparing {label} with {plans[0].name}"):
            gain = work.against(challenger.module, plans[0].name, one.module)
        if gain.ours < gain.seconds:
            best, schedule = challenger, label
            _write(out, folder, best, str(model))
        else:
            gain, tried = None, [*tried, label]
    fields = {"schedule": schedule, "one_device": gain, "others": sorted(set(tried)), "machine": name}
    with interruptible(out), out.step("Measuring"):
        gains = _gains(model, best, constants, fields)
    if not out.json:
        out.text("".join(f"{line}\n" for line in gains.lines()))  # three lines, however narrow the terminal
    out.result(gains)


def _compile(out: Output, model: Path, plan: Plan, inputs: dict[str, Any]) -> CompiledModel:
    with interruptible(out), out.step(f"Compiling {model.name} for {plan.name}") as step, model_warnings(out):
        from ..relax import compile as compile_scheduled

        return compile_scheduled(model, plan.options, progress=step, **inputs)


def _label(model: CompiledModel, plan: Plan) -> tuple[str | None, list[str]]:
    """Return the name of a schedule, None if it is one device's, and of the schedules that were measured beside it."""
    notes = model.schedule.notes.get("measured")
    if notes is None:
        return plan.name, []
    tried = [row["schedule"] for row in notes["measured"] if row["schedule"] not in (notes["chosen"], "one stream")]
    return None if notes["chosen"] == "one stream" else notes["chosen"], tried


def _write(out: Output, folder: Path, compiled: CompiledModel, model: str) -> None:
    """Write the artifact and the report in place of those before; each file is replaced as a whole."""
    folder.mkdir(exist_ok=True)
    again = bool(out.files)
    written = compiled.export(folder / ARTIFACT)
    if again:
        out.say(f"replaced by a faster one: {folder / ARTIFACT}")
    else:
        for path in written:
            out.wrote(path, "artifact" if path == written[0] else "parameters")
    from tvm_sched_runtime.errors import TvmSchedError

    from ..relax.compiled_results import CompilationResult
    from ..report.compilation import write_compilation_report

    try:
        result = CompilationResult(compiled.problems, compiled.schedules, written, compiled.slow_kernels)
        write_compilation_report(folder / REPORT, result, {"model": model})
    except TvmSchedError as error:  # plotly is missing: the artifact is what counts
        out.say(f"no report: {error}")
    else:
        if not again:
            out.wrote(folder / REPORT, "report")


def _gains(model: Path, best: CompiledModel, constants: dict[str, Any], fields: dict[str, Any]) -> Gains:
    """Measure the best artifact, in turns with ONNX Runtime if that can run the model; ``fields``: the other fields."""
    from .. import auto as work
    from ..report.gains import Gains

    absent, rival = work.why_not_onnxruntime(model, best.module), None
    if not absent:
        try:
            rival = work.against_onnxruntime(model, best.module, constants)
        except InputError as error:
            absent = str(error)
    seconds = rival.ours if rival else work.latency(best.module)
    return Gains(model=model.name, seconds=seconds, onnxruntime=rival, onnxruntime_absent=absent, **fields)
