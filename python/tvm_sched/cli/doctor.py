"""The command ``doctor``: check what works on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from ..errors import InputError
from .output import FAILURE, Output
from .values import InputSeed

if TYPE_CHECKING:
    from ..doctor import Diagnosis

_COLOURS = {"ok": "green", "warning": "yellow", "failure": "red", "absent": "dim"}


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
        Path | None, typer.Option("--parameters", metavar="FILE", help="Safetensors file of the artifact's parameters.")
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
    """
    from ..doctor import diagnose
    from ..problem import load_topology

    machine = load_topology(topology) if topology else None
    with out.step("doctor") as step:
        found = diagnose(artifact, parameters, against, machine, cuda, _numbers(gpus), seed, step)
    _show(out, found)
    out.result(found)
    if not found.healthy:
        out.finish()
        raise typer.Exit(FAILURE)


def _numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--gpus {text}: numbers of GPUs are expected, such as 0,1,0,1") from None


def _show(out: Output, found: Diagnosis) -> None:
    part = ""
    for check in found.checks:
        if check.part != part:
            part = check.part
            out.show(f"[bold]{part}[/bold]")
        colour = _COLOURS[check.status]
        out.show(f"  [{colour}]{check.status:8}[/{colour}] {escape(f'{check.name}: {check.text}')}")
    failed = sum(check.status == "failure" for check in found.checks)
    warned = sum(check.status == "warning" for check in found.checks)
    out.show(f"{len(found.checks)} checks, {failed} failed, {warned} with a warning")
