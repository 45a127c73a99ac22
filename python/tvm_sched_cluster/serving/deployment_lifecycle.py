"""Deploy a pipeline on a Ray cluster, query its status, and undeploy it."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError, RayError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tvm_sched.progress import Progress
from tvm_sched_runtime.errors import InputError, ServingError
from tvm_sched_runtime.pipeline.pipeline_artifact import Manifest, TensorEntry, check_files

from . import stage_nodes
from .actor_names import NAMESPACE, generation_of, ingress_name, stage_name, store_name
from .artifact_store import PART_BYTES, ArtifactStore
from .deployment import Deployment, Generation
from .deployment_actors import all_actors, end_generation, kill, parts
from .ingress import Ingress
from .ray_connection import connect
from .served_generation import current_generation, forget_generation
from .stage_worker import STATUS, StageWorker

_HEAD = "node:__internal_head__"
"""A resource that only the head node has, one unit of it."""
_PAUSE_SECONDS = 0.05
_ANSWER_SECONDS = 10.0
"""For the ingress to answer when its time limit is over."""


def deploy(
    deployment: Deployment, address: str | None = None, seconds: float = 60.0, progress: Progress | None = None
) -> dict[str, Any]:
    """Reserve devices, and start an actor for each stage and one that takes requests. They outlive this process.

    The artifact is read on this machine and copied to the cluster, so it is not needed afterwards.

    Parameters
    ----------
    address
        As for `connect`.
    seconds : float
        Time limit for reserving devices, and again for starting. After it, or on Ctrl-C, nothing is left on the cluster.

    Returns
    -------
    dict
        As `status`.

    Raises
    ------
    InputError
        The name is taken, the artifact is damaged, or the cluster lacks resources that the stages need.
    ServingError
        Devices are not free, or a stage did not start.
    """
    generation = _generation(deployment, secrets.token_hex(16), 1)
    report = progress or (lambda what, done, total: None)
    connect(address)
    if parts(deployment.name):
        raise InputError(
            f"there is a deployment {deployment.name!r} already; give another name, or undeploy that one first"
        )
    try:
        end = _start_stages(generation, seconds, report)
        report("starting the ingress", len(deployment.processes) + 2, len(deployment.processes) + 3)
        return _started(_start_ingress(generation), f"the ingress of deployment {deployment.name!r}", end)
    except BaseException as error:
        # Ctrl-C may come between the reservation and its assignment.
        if parts(deployment.name) or isinstance(error, KeyboardInterrupt):
            _withdraw(deployment.name, 30.0)
        raise


def rollout(
    name: str,
    artifact: str | os.PathLike[str],
    address: str | None = None,
    seconds: float = 60.0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Serve another artifact under a deployment's name, without a request lost.

    Its stages are started beside the old ones, so the cluster needs room for both. When they are ready, new requests go to
    them; the old stages answer the requests that they have, and then end. If anything fails before new requests go to the
    new stages, the old ones go on serving and the new ones end.

    Parameters
    ----------
    name, address
        As for `status`.
    artifact : path
        A pipeline with the same inputs and outputs, and as many stages.
    seconds : float
        Time limit for reserving devices, for starting, and for the old requests. If a gateway or client still has some
        then, the old stages end when it has none any more or is gone.

    Returns
    -------
    dict
        As `status`.

    Raises
    ------
    InputError
        There is no such deployment, or the artifact does not fit.
    ServingError
        The new stages did not start; or the old ones did not end in time.
    """
    connect(address)
    report = progress or (lambda what, done, total: None)
    try:
        ingress = ray.get_actor(ingress_name(name), NAMESPACE)
        old = ray.get(ingress.describe.remote(), timeout=seconds)[0]
    except ValueError:
        raise unknown(name) from None
    except (RayError, TimeoutError) as error:
        raise ServingError(f"deployment {name!r} does not answer ({type(error).__name__})") from None
    deployment = msgspec.structs.replace(old.deployment, artifact=os.path.abspath(artifact))
    number = 1 + max(map(generation_of, parts(name)))
    new = _generation(deployment, old.token, number)
    named = bool(old.manifest.output_names and new.manifest.output_names)
    for what in ("inputs", "outputs"):
        before, after = (_described(each.manifest, what, named) for each in (old, new))
        if before != after:
            raise InputError(f"{artifact}: its {what} are {after}; deployment {name!r} has {before}")
    try:
        _start_stages(new, seconds, report)
        report("switching", len(deployment.processes) + 2, len(deployment.processes) + 3)
        _switch(ingress, new, seconds)
    except BaseException as error:
        if not _serves(new):
            end_generation(name, number)
            if isinstance(error, ServingError):
                raise ServingError(f"{error}; the old artifact is still served") from None
        raise
    return status(name)


def _switch(ingress: Any, new: Generation, seconds: float) -> None:
    """Let the ingress send requests to the new stages, and wait until it has ended the old ones."""
    name, end = new.deployment.name, time.monotonic() + seconds
    while True:
        left = max(end - time.monotonic(), 0.1)
        try:
            late = ray.get(ingress.switch.remote(new, left), timeout=left + _ANSWER_SECONDS)
            break
        except (GetTimeoutError, RayActorError) as error:
            if not _serves(new) or time.monotonic() > end:
                raise ServingError(f"deployment {name!r} did not switch ({type(error).__name__})") from None
            time.sleep(_PAUSE_SECONDS)  # the ingress is being started again
        except RayError as error:
            raise ServingError(f"deployment {name!r} did not switch: {_cause(str(error).splitlines())}") from None
    if late:
        raise ServingError(
            f"deployment {name!r} serves the new artifact, but after {seconds:g} s the old stages have not ended: "
            f"{'; '.join(late)}. They end by themselves when nobody needs them"
        )


def _serves(generation: Generation) -> bool:
    """Return whether a generation is the one that is served."""
    served = current_generation(generation.deployment.name)
    return served is not None and served.number == generation.number


def _described(manifest: Manifest, what: str, named: bool) -> str:
    """Return what clients depend on: inputs, or outputs, by name and in their order.

    Older artifacts have no names of outputs; `named` says that both sides have them.
    """
    tensors: Sequence[TensorEntry] = getattr(manifest, what)
    names = [tensor.name for tensor in tensors]
    if what == "outputs":
        names = list(manifest.output_names) if named else [""] * len(tensors)
    texts = [f"{name} {tensor.dtype} {list(tensor.shape)}".strip() for name, tensor in zip(names, tensors, strict=True)]
    return ", ".join(texts) or "none"


def _generation(deployment: Deployment, token: str, number: int) -> Generation:
    """Return a generation whose artifact was checked."""
    manifest = deployment.manifest()
    files = [name for stage in manifest.stages for name in stage.files]
    check_files(Path(deployment.artifact), manifest, files)
    return Generation(deployment, manifest, token, number)


def _start_stages(generation: Generation, seconds: float, report: Progress) -> float:
    """Reserve devices, and start the stages on them; return when the time is over."""
    deployment = generation.deployment
    processes = deployment.processes
    total = len(processes) + 3
    report("reserving devices", 0, total)
    group = stage_nodes.place(deployment, seconds, generation.number)
    try:
        store = _start_store(generation)
        workers = [_start_stage(generation, n, group) for n in range(len(processes))]
        report("sending the artifact", 1, total)
        end = time.monotonic() + seconds
        _send_artifact(store, deployment, end)
        for n, ((stage, _), worker) in enumerate(zip(processes, workers, strict=True)):
            report(f"loading stage {stage}", 2 + n, total)
            _started(worker, f"deployment {deployment.name!r}, stage {stage}", end)
    except BaseException:
        end_generation(deployment.name, generation.number)
        raise
    return end


def undeploy(name: str, address: str | None = None, seconds: float = 30.0) -> list[str]:
    """Remove a deployment or its remains; its remaining requests fail.

    Returns
    -------
    list of str
        The actors that were there.

    Raises
    ------
    InputError
        There is none of that name.
    ServingError
        Ray still lists actors after ``seconds``.
    """
    connect(address)
    actors, reserved = _withdraw(name, seconds)
    if not actors and not reserved:
        raise unknown(name)
    return actors


def status(name: str, address: str | None = None, seconds: float = 10.0) -> dict[str, Any]:
    """Contents, counters and nodes of a deployment: see `Ingress.status`.

    Raises
    ------
    InputError
        There is none of that name.
    ServingError
        It does not answer.
    """
    connect(address)
    try:
        ingress = ray.get_actor(ingress_name(name), NAMESPACE)
    except ValueError:
        if remaining := parts(name):
            raise ServingError(
                f"deployment {name!r} has lost its ingress, only {', '.join(remaining)} is left: undeploy it and serve it "
                "again"
            ) from None
        raise unknown(name) from None
    end = time.monotonic() + seconds
    while True:
        try:
            return dict(ray.get(ingress.status.remote(), timeout=max(end - time.monotonic(), 0.1)))
        except ActorUnavailableError as error:  # it is being started again
            if time.monotonic() > end:
                raise ServingError(f"deployment {name!r} does not answer ({type(error).__name__})") from None
            time.sleep(_PAUSE_SECONDS)
        except (RayError, TimeoutError) as error:
            raise ServingError(f"deployment {name!r} does not answer ({type(error).__name__})") from None


def deployments(address: str | None = None) -> list[str]:
    """Return the names of all deployments, whole or in parts."""
    connect(address)
    return sorted({name.rpartition("/")[0] for name in all_actors()})


def unknown(name: str) -> InputError:
    """Return the error for a deployment that is not there."""
    return InputError(f"there is no deployment {name!r}; there are {', '.join(deployments()) or 'none'}")


def _withdraw(name: str, seconds: float) -> tuple[list[str], bool]:
    """End the actors of a deployment and release its reservation; return the actors, and whether there was a reservation."""
    actors = parts(name)
    for part in sorted(actors):  # the ingress comes first: no new requests
        kill(part)
    released = [stage_nodes.remove(name, number) for number in {1, *map(generation_of, actors)}]
    reserved = any(released)
    forget_generation(name)
    end = time.monotonic() + seconds
    while left := parts(name):
        if time.monotonic() > end:
            raise ServingError(f"deployment {name!r}: after {seconds:g} s Ray still lists {', '.join(left)}; try again")
        time.sleep(_PAUSE_SECONDS)
    return actors, reserved


def _start_stage(generation: Generation, process: int, group: PlacementGroup) -> Any:
    deployment = generation.deployment
    stage, replica = deployment.processes[process]
    others = dict(deployment.stages[stage].resources)
    cpus, gpus = others.pop("CPU", 0), others.pop("GPU", 0)
    actor = ray.remote(concurrency_groups={STATUS: 1})(StageWorker)
    return actor.options(
        name=stage_name(deployment.name, stage, generation.number, replica),
        namespace=NAMESPACE,
        lifetime="detached",
        max_restarts=-1,
        num_cpus=cpus,
        num_gpus=gpus,
        resources=others,
        scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=process),
    ).remote(deployment.name, generation.manifest, stage, generation.number, generation.stage_token(stage))


def _start_store(generation: Generation) -> Any:
    concurrent_calls = {"max_concurrency": len(generation.deployment.processes) + 1, "max_task_retries": -1}
    name = store_name(generation.deployment.name, generation.number)
    return _start_at_head(ArtifactStore, name, {}, concurrent_calls, generation.manifest)


def _send_artifact(store: Any, deployment: Deployment, end: float) -> None:
    """Send the stages' files that the cluster does not have yet."""
    what = f"the artifact store of deployment {deployment.name!r}"
    for name in _answer(store.missing.remote(), what, end):
        with (Path(deployment.artifact) / name).open("rb") as file:
            while part := file.read(PART_BYTES):
                _answer(store.write.remote(name, part), what, end)


def _start_ingress(generation: Generation) -> Any:
    return _start_at_head(Ingress, ingress_name(generation.deployment.name), {STATUS: 16}, {}, generation)


def _start_at_head(kind: type, name: str, groups: dict[str, int], options: dict[str, Any], *arguments: Any) -> Any:
    """Start an actor on the head node: when that dies, the cluster is gone in any case."""
    return (
        ray.remote(concurrency_groups=groups)(kind)
        .options(
            name=name,
            namespace=NAMESPACE,
            lifetime="detached",
            max_restarts=-1,
            num_cpus=0,
            resources={_HEAD: 0.001},
            **options,
        )
        .remote(*arguments)
    )


def _started(actor: Any, what: str, end: float) -> dict[str, Any]:
    return dict(_answer(actor.status.remote(), what, end))


def _answer(reference: Any, what: str, end: float) -> Any:
    """Return the answer of an actor that is being started; raise `ServingError` if it does not answer before ``end``."""
    try:
        return ray.get(reference, timeout=max(end - time.monotonic(), 0.1))
    except GetTimeoutError:
        raise ServingError(f"{what} did not start in time; see Ray's logs, or give it longer (--timeout)") from None
    except RayError as error:
        raise ServingError(f"{what} did not start: {_cause(str(error).splitlines())}") from None


def _cause(lines: Sequence[str]) -> str:
    """Return the message of our exception in a traceback from Ray, or else the first line."""
    stripped = [line.strip() for line in lines if line.strip()]
    errors = [line for line in stripped if ".errors." in line.partition(":")[0]]
    return errors[-1].partition(": ")[2] if errors else stripped[0]
