"""The command ``tvm-sched``. Only light modules are imported here; commands import what they need when they run."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from tvm_sched_runtime.standard_output import written_out
from tvm_sched_runtime.startup import without_backtraces

from .. import __version__
from . import (  # noqa: F401 - each registers its commands
    auto,
    compare,
    compile_and_run,
    cost_commands,
    doctor,
    evidence,
    generation_command,
    inspect,
    pipeline_command,
    schedule_commands,
    sweep,
)
from .attached_commands import MACHINE, RESEARCH
from .cache import app as cache
from .machine_commands import topology
from .registration import app, command, epilog, own_process
from .schema import schema


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"tvm-sched {__version__}")
        raise typer.Exit


_EXAMPLES = """\
tvm-sched auto model.onnx
tvm-sched inspect model.onnx
tvm-sched schedule model.onnx --topology v100-server --report report.html
tvm-sched compile model.onnx --topology cpu2 -o model.so
tvm-sched run model.so --repeat 20 --trace trace.json"""


_TRY = """\
tvm-sched schedules a neural network over the devices of a machine. Try one of these:

  tvm-sched auto model.onnx
      compile for this machine, measure, say what was gained
  tvm-sched schedule model.onnx -t v100-server --report report.html
      how fast would it be on another machine?
  tvm-sched sweep model.onnx -t v100-server --vary gpus=1..8 --report sweep.html
      which machine is enough?
  tvm-sched doctor
      what works on this machine?

No model at hand? This writes one of 5 MB (it needs the package onnx and tvm-sched-bench):
  python -c 'import onnx, tvm_sched_bench.testing.models as m; onnx.save(m.onnx_model("squeezenet"), "model.onnx")'

All commands: tvm-sched --help"""


@app.callback(invoke_without_command=True, epilog=epilog(_EXAMPLES.splitlines()))
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Schedule a neural network's operators over several devices, and prove how good the schedule is.

    Give it a model and a machine; it gives back a schedule, how far that can be
    from the best one, and an artifact that runs it under TVM.

    [bold]Start here:[/bold] `auto` does everything for this machine and says what was gained.
    Step by step: `inspect` a model, `schedule` it to see what a machine could do with
    it, `compile` it to an artifact, `run` that.
    """
    if context.invoked_subcommand is None:
        typer.echo(_TRY)


command(app, "schema", panel=RESEARCH)(schema)  # registration imports that module, so it cannot use registration
app.add_typer(topology, rich_help_panel=MACHINE)
app.add_typer(cache, rich_help_panel=MACHINE)


def main() -> None:
    """Entry point of the command ``tvm-sched``."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as `>&-` does
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - open as long as the process
    own_process()
    if "--debug" not in sys.argv:
        without_backtraces()
    sys.exit(written_out(lambda: app(prog_name="tvm-sched")))
