"""Commands that make services of models, and deploy what an allocation has placed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.markup import escape

from tvm_sched.cli.inputs import Model, Writes
from tvm_sched.cli.interrupt import interruptible
from tvm_sched.cli.model_options import Shapes
from tvm_sched.cli.output import FAILURE, Output
from tvm_sched.cli.registration import command
from tvm_sched_runtime.errors import InputError

from .cluster_options import HOME, RunningOptions, cluster
from .deployment_commands import Address, Timeout, check_seconds

BACKENDS = ("cuda", "cpu", "emulated")
Backend = Annotated[
    str, typer.Option("--backend", metavar="cuda|cpu|emulated", help="What runs the stages; cuda needs nvcc here.")
]


@command(cluster, "service", f"{HOME}:MadeService")
def make_service(
    out: Output,
    model: Model,
    throughput: Annotated[float, typer.Option("--throughput-floor", metavar="N", help="Inputs a second, at least.")],
    latency: Annotated[
        float, typer.Option("--latency-ceiling", metavar="SECONDS", help="From input to output, at most.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.toml", help="Services file to write."), Writes((".toml",))
    ],
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Default: the model's.")] = None,
    shape: Shapes = None,
    backend: Backend = "cuda",
    cluster_name: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="CLUSTER",
            help="Write the parts' times on its kinds of GPU. Default: none are written.",
        ),
    ] = None,
    costs: Annotated[
        str | None,
        typer.Option(
            "--costs",
            metavar="NAME|FILE",
            help="Cost model of these times: roofline, learned, a profile .parquet/.json measured on one of the kinds, a "
            "table .csv or a model .msgpack. Default: learned.",
        ),
    ] = None,
) -> None:
    """Make a service of a model file: its parts that may be stages, with their work, memory and data.

    With `--cluster`, the times of the parts come from a cost model, kernel by kernel. Without it, placements estimate them
    by FLOPs and memory. A file with several services is made by putting their tables together.

    $ tvm-sched cluster service googlenet.onnx --throughput-floor 30 --latency-ceiling 0.1 -o services.toml
    $ tvm-sched cluster service bert.onnx --shape ids:1,128 --throughput-floor 5 --latency-ceiling 0.5 -o bert.toml
    $ tvm-sched cluster service net.onnx --throughput-floor 9 --latency-ceiling 1 --cluster rampa-base -o services.toml
    """
    _check_backend(backend)
    from tvm_sched.cost_model import get_cost_model
    from tvm_sched_runtime.input_shapes import one_shape, parse_shapes

    from .. import load_cluster, write_services
    from ..cluster_summaries import MadeService

    sizes = one_shape(parse_shapes(shape), "a service has one") or {}
    shapes = {
        key: tuple(d for d in dims if isinstance(d, int)) for key, dims in sizes.items() if isinstance(dims, tuple)
    }
    if shapes.keys() != sizes.keys():
        raise InputError("--shape gives a size for a symbol; a service has the shapes of its inputs, NAME:DIMS")
    if costs is not None and cluster_name is None:
        raise InputError(f"--costs {costs} predicts times on kinds of GPU; say which by --cluster CLUSTER")
    if costs:
        get_cost_model(costs)  # report a wrong name before the long work
    kinds = load_cluster(cluster_name).kinds if cluster_name else ()
    with interruptible(out), out.step(f"Importing {model.name}"):
        from ..compiled_placements import service_of_model

        service = service_of_model(
            model, throughput, latency, name or "", input_shapes=shapes, backend=backend, kinds=kinds,
            cost_model=costs or "",
        )  # fmt: skip
    write_services(output, [service])
    out.wrote(output, "services")
    out.show(escape(f"{service.name}: {len(service.operators)} parts, {service.memory / 1e9:.3g} GB"))
    out.result(MadeService(name=service.name, operators=service.operators, memory=service.memory, file=str(output)))


@command(cluster, "deploy", f"{HOME}:Deployed")
def deploy(
    out: Output,
    artifacts: Annotated[
        Path,
        typer.Option("--artifacts", metavar="FOLDER", help="Where compiled pipelines are kept, to be used again."),
        Writes(folder=True),
    ],
    on: RunningOptions,
    backend: Backend = "cuda",
    pin: Annotated[
        bool,
        typer.Option(
            "--pin", help="Only on nodes whose Ray label 'server' is the placement's server, not on any of the kind."
        ),
    ] = False,
    address: Address = None,
    timeout: Timeout = 60.0,
) -> None:
    """Make a Ray cluster run the services of an allocation, each stage on a node that has its kind of GPU.

    Call it again after `fail`, `release` or `place`: moved services are deployed again, removed ones end, others continue.

    $ tvm-sched cluster deploy mine.toml allocation.json --services services.toml --artifacts built/
    $ tvm-sched cluster deploy mine.toml allocation.json --services services.toml --artifacts built/ --pin --json
    """
    _check_backend(backend)
    check_seconds("--timeout", timeout)
    state = on.state(on.allocation)
    from .. import serving
    from ..cluster_summaries import Deployed
    from ..compiled_placements import compiled_artifact

    artifacts.mkdir(exist_ok=True)
    wanted = []
    with interruptible(out), out.step("Compiling") as step:
        for n, placement in enumerate(state.running.values()):
            step(placement.request, n, len(state.running))
            artifact = compiled_artifact(artifacts, state.cluster, state.service(placement.service), placement, backend)
            wanted.append(serving.deployment_of(state.cluster, placement, artifact, pin))
    with out.step("Deploying") as step:
        done = serving.follow(state.cluster, wanted, address, timeout, step)
    for request, message in done.failed.items():
        out.say(f"error: {request}: {message}")
    out.show(escape(f"{len(done.kept)} go on, {len(done.started)} started, {len(done.ended)} ended"))
    out.result(Deployed(cluster=state.cluster.name, **msgspec.to_builtins(done), waiting=list(state.waiting)))
    if done.failed:
        raise typer.Exit(FAILURE)


def _check_backend(backend: str) -> None:
    if backend not in BACKENDS:
        raise InputError(f"--backend {backend}: allowed are {', '.join(BACKENDS)}")
