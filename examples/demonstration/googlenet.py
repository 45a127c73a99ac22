"""The demonstration: GoogLeNet on two machines, from the model file to a report, and text read from a picture.

One machine is this one, its cores as two devices; the other is a server with four V100 GPUs, emulated.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from reading import Line, read_picture
from rich.markup import escape

from tvm_sched.cli.output import Output
from tvm_sched_runtime.errors import ExecutionError, TvmSchedError

if TYPE_CHECKING:
    from tvm_sched.relax import CompiledModel
    from tvm_sched.report.measurement import Measured
    from tvm_sched_runtime.problem import Problem, Topology
    from tvm_sched_runtime.schedule import Schedule

MODEL = "light_inception_v1.onnx"
TOPOLOGIES = ("cpu2", "v100-server")
SCHEDULERS = ("single", "anytime")
OPTIONS: dict[str, dict[str, Any]] = {"single": {}, "anytime": {"time_limit": 5.0, "seed": 0}}
REPEAT = 5
TOLERANCE = 1e-4
"""Largest difference from ONNX Runtime that is allowed, relative to the largest output."""


@dataclass(frozen=True)
class Case:
    """One scheduler on one topology, compiled and run."""

    topology: str
    scheduler: str
    problem: Problem
    schedule: Schedule
    measured: Measured
    quiet: bool  # other processes left the machine alone while it ran
    difference: float

    @property
    def title(self) -> str:
        """Its name in the report."""
        return f"{self.scheduler} on {self.topology}"


def run_demo(out: Output, folder: Path) -> None:
    """Run the demonstration and write its files into ``folder``.

    Raises
    ------
    TvmSchedError
        A package is missing, or the outputs differ from ONNX Runtime's.
    """
    from tvm_sched.report.page import require_plotly
    from tvm_sched_runtime.problem import load_topology

    require_plotly()
    folder.mkdir(parents=True, exist_ok=True)
    model = write_model(folder / "googlenet.onnx")
    out.wrote(model, "model: GoogLeNet of the package onnx with random weights")
    values = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
    expected = reference(model, values)
    with out.step("Importing the model"):
        from tvm_sched.relax import load_model

        imported = load_model(model, name="googlenet")
    cases = [
        run_case(out, folder, imported, load_topology(topology), scheduler, values, expected)
        for topology in TOPOLOGIES
        for scheduler in SCHEDULERS
    ]
    write_files(out, folder, cases)
    lines = read_picture(out, folder)
    show(out, cases, lines)
    worst = max(case.difference for case in cases)
    if not worst <= TOLERANCE:
        raise ExecutionError(f"the outputs differ from ONNX Runtime's by {worst:.1e}; {TOLERANCE:.0e} is allowed")


def write_model(path: Path) -> Path:
    """GoogLeNet with seeded random weights: the package carries its structure only."""
    try:
        import onnx
    except ImportError:
        raise TvmSchedError("the demonstration needs the package onnx: pip install 'tvm-sched[onnx]'") from None
    from tvm_sched_bench.testing.random_weights import randomise_initializers
    from tvm_sched_runtime.files import write_atomically

    source = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / MODEL
    write_atomically(path, randomise_initializers(onnx.load(source), seed=0).SerializeToString())
    return path


def reference(model: Path, values: npt.NDArray[np.float32]) -> Sequence[npt.NDArray[Any]]:
    """What ONNX Runtime computes."""
    try:
        import onnxruntime
    except ImportError:
        raise TvmSchedError("the demonstration compares with ONNX Runtime: pip install onnxruntime") from None
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return list(session.run(None, {session.get_inputs()[0].name: values}))


def run_case(
    out: Output,
    folder: Path,
    imported: Any,
    topology: Topology,
    scheduler: str,
    values: npt.NDArray[np.float32],
    expected: Sequence[npt.NDArray[Any]],
) -> Case:
    """Schedule, compile, write, load, run and compare."""
    from tvm_sched.cost_model.profile import QUIET_LOAD
    from tvm_sched.relax.profiling.other_load import OtherLoad
    from tvm_sched.report.measurement import measure
    from tvm_sched_runtime.runtime import load

    name = f"{scheduler} on {topology.name}"
    with out.step(f"Scheduling and compiling, {name}") as step:
        from tvm_sched.relax import compile as compile_scheduled

        here = all(device.kind == "cpu" for device in topology.devices)
        compiled: CompiledModel = compile_scheduled(
            imported,
            topology,
            scheduler,
            OPTIONS[scheduler],
            backend="cpu" if here else "emulated",
            progress=step,
        )
    stem = f"googlenet-{topology.name}-{scheduler}"
    compiled.schedule.save(folder / f"{stem}.schedule.json")
    compiled.problem.save(folder / f"googlenet-{topology.name}.problem.json")
    artifact, *_ = compiled.export(folder / f"{stem}.so")
    module = load(artifact)
    with out.step(f"Running, {name}") as step:
        module.configure(trace=True)
        load_of_others = OtherLoad()
        measured = measure(module, [values], warm_up=1, repeat=REPEAT, progress=step)
        quiet = load_of_others.share() <= QUIET_LOAD
    worst = max(difference(mine, theirs) for mine, theirs in zip(measured.outputs, expected, strict=True))
    out.say(f"{name}: outputs differ from ONNX Runtime's by {worst:.1e} at most")
    return Case(topology.name, scheduler, compiled.problem, compiled.schedule, measured, quiet, worst)


def difference(mine: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> float:
    """Largest difference, relative to the largest value expected."""
    return float(np.abs(mine - theirs).max() / np.abs(theirs).max())


def write_files(out: Output, folder: Path, cases: Sequence[Case]) -> None:
    """Write the report of all schedules, and the trace of those that are not the baseline."""
    from tvm_sched.report.html import Entry, write_report
    from tvm_sched.report.trace import TracePart, write_parts

    entries = [Entry(case.title, case.schedule, [case.measured.timeline], case.problem) for case in cases]
    options = {"model": f"{MODEL} of the package onnx, random weights"}
    report, trace = folder / "report.html", folder / "trace.json"
    write_report(report, cases[0].problem, entries, title="GoogLeNet on two machines", options=options)
    shown = [case for case in cases if case.scheduler != SCHEDULERS[0]]
    parts = [
        TracePart(timeline, case.problem, case.schedule, case.topology)
        for case in shown
        for timeline in (case.measured.predicted, case.measured.timeline)
    ]
    write_parts(trace, parts)
    out.wrote(report, "report")
    out.wrote(trace, "trace, for https://ui.perfetto.dev")


def show(out: Output, cases: Sequence[Case], lines: Sequence[Line]) -> None:
    """The table: a row for each topology."""
    from tvm_sched.relax.profiling.paired_runs import MARGIN
    from tvm_sched.report.compilation import BesideOneDevice
    from tvm_sched.report.tables import table
    from tvm_sched.report.units import format_ns, format_percent, format_time

    rows, beside = [], {}
    for topology in TOPOLOGIES:
        one, best = (next(c for c in cases if c.topology == topology and c.scheduler == s) for s in SCHEDULERS)
        certificate = best.schedule.certificate
        assert certificate is not None
        if all(device.kind == "cpu" for device in best.problem.topology.devices):
            alone, together = one.measured.statistics.median, best.measured.statistics.median
            quiet = one.quiet and best.quiet
            beside[topology] = BesideOneDevice(together, alone, quiet and together < alone * (1 - MARGIN), quiet)
        rows.append(
            (
                topology,
                format_ns(one.measured.predicted.latency_ns),
                format_time(one.measured.statistics.median),
                format_ns(best.measured.predicted.latency_ns),
                format_time(best.measured.statistics.median),
                format_ns(certificate.lower_bound_ns),
                format_percent(certificate.gap),
            )
        )
    head = ("topology", "one device", "measured", "schedule", "measured", "lower bound", "gap")
    out.show(f"\nLatencies of GoogLeNet, predicted and measured (median of {REPEAT} runs; v100-server is emulated)")
    out.show(table(head, rows))
    for topology, comparison in beside.items():
        out.show(f"{topology}: {comparison}")
    out.show(f"Largest difference from ONNX Runtime, relative: {max(case.difference for case in cases):.1e}")
    for path in out.saved[-3 if lines else -2 :]:
        out.show(escape(f"Wrote {path}"))


def main() -> None:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("out"), metavar="FOLDER", help="where files go")
    try:
        run_demo(Output(), parser.parse_args().output)
    except TvmSchedError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
