"""The command ``doctor``: check what works on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tvm_sched_runtime.errors import InputError

from .attached_commands import MACHINE
from .output import FAILURE, Output
from .registration import app, command
from .value_files import InputSeed


@command(app, "doctor", ".doctor:Diagnosis", panel=MACHINE)
def doctor(
    out: Output,
    artifact: Annotated[
        Path | None,
        typer.Argument(
            metavar="[ARTIFACT]", help="Artifact (.so) to load and run, on random inputs.", show_default=False
        ),
    ] = None,
    cuda: Annotated[
        bool, typer.Option("--cuda", help="GPUs are needed: where there are none, that is a failure.")
    ] = False,
    topology: Annotated[
        str | None,
        typer.Option("--topology", "-t", metavar="NAME|FILE", help="Topology that the machine is compared with."),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            metavar="ARTIFACT",
            help="Artifact of the same model for CPUs (`compile --backend emulated`): outputs and kernels are compared.",
        ),
    ] = None,
    parameters: Annotated[
        Path | None,
        typer.Option("--parameter-file", metavar="FILE", help="Safetensors file of the artifact's parameters."),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus", metavar="N,N,...", help="GPU of each of the artifact's devices. Default: in their order."
        ),
    ] = None,
    seed: InputSeed = 0,
) -> None:
    """Check what works on this machine: processor, GPUs, copies, an artifact's values and times.

    One page to read, or to send in with a report of a fault (--json). Status 0: nothing failed; 1: something did.

    $ tvm-sched doctor
    $ tvm-sched doctor --cuda -t my-machine.toml --json
    $ tvm-sched doctor model-cuda.so --against model-emulated.so
    """
    from tvm_sched_runtime.problem import load_topology

    from ..doctor import diagnose

    machine = load_topology(topology) if topology else None
    with out.step("doctor") as step:
        diagnosis = diagnose(artifact, parameters, against, machine, cuda, _numbers(gpus), seed, step)
    out.show(*diagnosis.lines())
    out.result(diagnosis)
    if not diagnosis.healthy:
        out.finish()
        raise typer.Exit(FAILURE)


def _numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--gpus {text}: numbers of GPUs are expected, such as 0,1,0,1") from None
