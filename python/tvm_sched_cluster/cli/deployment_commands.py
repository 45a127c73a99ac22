"""Commands on deployments: pipelines that run on a Ray cluster."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from tvm_sched.cli.output import FAILURE, Output
from tvm_sched.cli.values import ValueOptions
from tvm_sched.errors import InputError, TvmSchedError

if TYPE_CHECKING:
    from ..serving import Client

Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        help="Of the Ray cluster. Default: RAY_ADDRESS, else one that runs on this machine.",
    ),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the deployment.")]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", help="For placing the stages, and again for starting them.")
]


def serve(
    out: Output,
    plan: Annotated[
        Path,
        typer.Argument(metavar="PLAN", help="Deployment file (.toml), or folder of a pipeline artifact."),
    ],
    address: Address = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Instead of the plan's.")] = None,
    timeout: Timeout = 60.0,
) -> None:
    """Deploy a pipeline on a Ray cluster: an actor for each stage, on the kind of device that the plan names."""
    check_seconds("--timeout", timeout)
    from .. import serving

    deployment = serving.load_deployment(plan)
    if name is not None:
        deployment = msgspec.structs.replace(deployment, name=name)
    with out.step(f"Deploying {deployment.name}") as step:
        status = serving.deploy(deployment, address, timeout, step)
    _show(out, [status])
    out.result(status)


def status(
    out: Output,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Of the deployment; default: all.")] = None,
    address: Address = None,
) -> None:
    """Show deployments: the nodes of their stages, and counts of requests by outcome."""
    from .. import serving
    from ..summaries import Statuses

    found, failed = [], {}
    for each in [name] if name else serving.deployments(address):
        try:
            found.append(serving.status(each, address))
        except InputError:
            raise
        except TvmSchedError as error:
            failed[each] = str(error)
            out.say(f"error: {error}")
    _show(out, found)
    if not found and not failed:
        out.say("there are no deployments")
    out.result(Statuses(deployments=found, failed=failed))
    if failed:
        raise typer.Exit(FAILURE)


def request(
    out: Output,
    name: Name,
    *,
    values: ValueOptions,
    repeat: Annotated[int, typer.Option("--repeat", metavar="N", help="Requests, as many at once as have place.")] = 1,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", help="For each; default: the deployment's.")
    ] = None,
    address: Address = None,
) -> None:
    """Send requests to a deployment."""
    if repeat < 1:
        raise InputError(f"--repeat {repeat}: at least 1 is allowed")
    if timeout is not None:
        check_seconds("--timeout", timeout)
    given = values.read()
    from tvm_sched.runtime.values import choose_inputs

    from .. import serving

    client = serving.Client(name, address)
    tensors = [{"name": t.name, "shape": t.shape, "dtype": t.dtype} for t in client.manifest.inputs]
    chosen = choose_inputs([{"arguments": tensors}], given, values.seed)
    begin, outputs, errors = time.monotonic(), [], []
    with out.step(f"Asking {name}") as step:
        for result in client.stream((chosen for _ in range(repeat)), timeout):
            step("", result.batch + 1, repeat)
            if result.error is None:
                outputs = result.value()
            else:
                errors.append(f"request {result.batch}: {result.error}")
    seconds = time.monotonic() - begin
    for message in errors[:5]:
        out.say(f"error: {message}")
    values.save(out, outputs)
    _show_request(out, client, repeat, len(errors), seconds, outputs)
    if errors:
        raise typer.Exit(FAILURE)


def undeploy(out: Output, name: Name, address: Address = None) -> None:
    """Remove a deployment; its remaining requests fail."""
    from .. import serving
    from ..summaries import Undeployed

    parts = serving.undeploy(name, address)
    out.say(f"undeployed {name}: {len(parts)} actors")
    out.result(Undeployed(name=name, actors=parts))


def check_seconds(option: str, seconds: float) -> None:
    """Refuse an invalid time."""
    if not 0 < seconds < float("inf"):
        raise InputError(f"{option} {seconds}: a number of seconds above 0 is allowed")


def _show(out: Output, deployments: list[dict[str, Any]]) -> None:
    from tvm_sched.report.tables import table
    from tvm_sched.report.units import format_time

    for deployment in deployments:
        counts = ", ".join(f"{deployment[what]} {what.replace('_', ' ')}" for what in _COUNTS)
        rows = []
        for stage in deployment["stages"]:
            mean = format_time(stage["seconds"] / stage["runs"]) if stage.get("runs") else "-"
            needs = ", ".join(f"{name} {amount:g}" for name, amount in stage["resources"].items())
            state = stage["state"] + (", restarted" if stage.get("restarted") else "")
            where = stage["node"][:8] if "node" in stage else stage.get("cause", "-")
            rows.append((str(stage["stage"]), stage["device"], needs, state, where, str(stage.get("runs", "-")), mean))
        title = f"{deployment['name']}: {deployment['model']}, {deployment['places']} places; {counts}"
        out.show(table(("stage", "device", "needs", "state", "node", "runs", "mean time"), rows, title))


_COUNTS = ("in_flight", "waiting", "answered", "failed", "refused", "retried")


def _show_request(out: Output, client: Client, repeat: int, failed: int, seconds: float, outputs: list[Any]) -> None:
    from tvm_sched.report.measurement import OutputType
    from tvm_sched.report.tables import table
    from tvm_sched.report.units import format_time

    from ..summaries import Requested

    rows = [
        ("requests", str(repeat)),
        ("failed", str(failed)),
        ("time", format_time(seconds)),
        ("requests a second", f"{repeat / seconds:.4g}"),
        *((f"output_{n}", f"{list(value.shape)} {value.dtype.name}") for n, value in enumerate(outputs)),
    ]
    out.show(table(("deployment", client.name), rows))
    types = OutputType.of_all(outputs)
    out.result(Requested(name=client.name, requests=repeat, failed=failed, seconds=seconds, outputs=types))
