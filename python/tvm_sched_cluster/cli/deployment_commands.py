"""Commands on deployments: pipelines that run on a Ray cluster."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tvm_sched.cli.attached_commands import SERVE
from tvm_sched.cli.output import FAILURE, Output
from tvm_sched.cli.registration import command
from tvm_sched.cli.value_files import ValueOptions
from tvm_sched_runtime.errors import InputError, TvmSchedError

from .cluster_options import HOME

deployments = typer.Typer()
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


@command(deployments, "deploy", f"{HOME}:DeploymentStatus", panel=SERVE)
def deploy(
    out: Output,
    plan: Annotated[
        Path,
        typer.Argument(metavar="PLAN", help="Deployment file (.toml), or folder of a pipeline artifact."),
    ],
    address: Address = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Instead of the plan's.")] = None,
    timeout: Timeout = 60.0,
) -> None:
    """Deploy a pipeline on a Ray cluster: an actor for each stage, on the kind of device that the plan names.

    $ tvm-sched deploy googlenet.pipeline
    $ tvm-sched deploy googlenet.toml --address 10.0.0.1:6379 --name googlenet-2
    """
    check_seconds("--timeout", timeout)
    from .. import serving
    from ..cluster_summaries import deployment_table

    deployment = serving.load_deployment(plan)
    if name is not None:
        deployment = msgspec.structs.replace(deployment, name=name)
    with out.step(f"Deploying {deployment.name}") as step:
        status = serving.deploy(deployment, address, timeout, step)
    out.show(deployment_table(status))
    out.result(status)


@command(deployments, "rollout", f"{HOME}:DeploymentStatus", panel=SERVE)
def rollout(
    out: Output,
    name: Name,
    artifact: Annotated[
        Path,
        typer.Option("--artifact", metavar="DIR", help="Folder of the pipeline artifact that takes over."),
    ],
    address: Address = None,
    timeout: Timeout = 60.0,
) -> None:
    """Serve another artifact under a deployment's name, without a lost request.

    The new stages start beside the old ones. When they are ready, new requests go to them, and the old stages end after
    their last request. If the new ones fail, the old ones go on. If a gateway still uses the old stages when the time is
    over, the command names it and ends with status 1; the old stages end when the gateway has switched or is gone.

    $ tvm-sched rollout googlenet --artifact googlenet-2.pipeline
    """
    check_seconds("--timeout", timeout)
    from .. import serving
    from ..cluster_summaries import deployment_table

    with out.step(f"Rolling out {name}") as step:
        status = serving.rollout(name, artifact, address, timeout, step)
    out.show(deployment_table(status))
    out.result(status)


@command(deployments, "status", f"{HOME}:Statuses", panel=SERVE)
def status(
    out: Output,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Of the deployment; default: all.")] = None,
    address: Address = None,
) -> None:
    """Show deployments: the nodes of their stages, and counts of requests by outcome.

    $ tvm-sched status
    $ tvm-sched status googlenet --json
    """
    from .. import serving
    from ..cluster_summaries import DeploymentStatus, Statuses, deployment_table

    statuses, failed = [], {}
    for each in [name] if name else serving.deployments(address):
        try:
            statuses.append(serving.status(each, address))
        except InputError:
            raise
        except TvmSchedError as error:
            failed[each] = str(error)
            out.say(f"error: {error}")
    out.show(*map(deployment_table, statuses))
    if not statuses and not failed:
        out.say("there are no deployments")
    out.result(Statuses(deployments=msgspec.convert(statuses, list[DeploymentStatus]), failed=failed))
    if failed:
        raise typer.Exit(FAILURE)


@command(deployments, "request", f"{HOME}:Requested", panel=SERVE)
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
    store: Annotated[
        Path | None,
        typer.Option(
            "--store",
            metavar="FILE",
            help="Of a controller. NAME is then a service that it keeps; of its replicas, the least busy one is asked.",
        ),
    ] = None,
) -> None:
    """Send requests to a deployment.

    $ tvm-sched request googlenet --input data_0=image.npy -o results/
    $ tvm-sched request googlenet --repeat 1000 --json
    $ tvm-sched request chat --store state.db --input data_0=image.npy
    """
    if repeat < 1:
        raise InputError(f"--repeat {repeat}: at least 1 is allowed")
    if timeout is not None:
        check_seconds("--timeout", timeout)
    named_values = values.read()
    from tvm_sched.report.measurement import OutputType
    from tvm_sched_runtime.runtime.values import choose_inputs

    from .. import serving
    from ..cluster_summaries import Requested

    if store is not None:
        from ..control.replica_choice import least_busy
        from ..control.store import Store

        opened = Store(store)
        name = least_busy(opened, name, lambda each: serving.status(each, address))
        opened.close()
    client = serving.Client(name, address)
    tensors = [{"name": t.name, "shape": t.shape, "dtype": t.dtype} for t in client.manifest.inputs]
    chosen = choose_inputs([{"arguments": tensors}], named_values, values.seed)
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
    types = OutputType.of_all(outputs)
    asked = Requested(name=client.name, requests=repeat, failed=len(errors), seconds=seconds, outputs=types)
    out.show(asked.table())
    out.result(asked)
    if errors:
        raise typer.Exit(FAILURE)


@command(deployments, "undeploy", f"{HOME}:Undeployed", panel=SERVE)
def undeploy(out: Output, name: Name, address: Address = None) -> None:
    """Remove a deployment; its remaining requests fail.

    $ tvm-sched undeploy googlenet
    """
    from .. import serving
    from ..cluster_summaries import Undeployed

    parts = serving.undeploy(name, address)
    out.say(f"undeployed {name}: {len(parts)} actors")
    out.result(Undeployed(name=name, actors=parts))


def check_seconds(option: str, seconds: float) -> None:
    """Refuse an invalid time."""
    if not 0 < seconds < float("inf"):
        raise InputError(f"{option} {seconds}: a number of seconds above 0 is allowed")
