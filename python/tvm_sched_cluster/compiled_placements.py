"""Make cluster services of models, and compile pipelines of service placements."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tvm_sched.relax.api import make_problem
from tvm_sched.relax.pipeline_api import ExportablePipeline, compile_pipeline
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.files import content_digest, read_bytes
from tvm_sched_runtime.problem.cpu_presets import cpu_topology

from . import Cluster, Service, ServicePlacement
from .placement_pipelines import plan_of_placement, service_of_graph, stage_topology
from .problem.cluster import GpuKind


def service_of_model(
    model: str | os.PathLike[str],
    throughput: float,
    latency: float,
    name: str = "",
    *,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    backend: str = "cuda",
    kinds: Sequence[GpuKind] = (),
    cost_model: str = "",
) -> Service:
    """Return a service made of a model file; see `service_of_graph`.

    Parameters
    ----------
    backend : {"cuda", "cpu", "emulated"}
        What will run it: the same model is lowered to other operators for GPUs than for CPUs.
    """
    graph = make_problem(model, cpu_topology(1), input_shapes=input_shapes or None, backend=backend).graph
    return service_of_graph(graph, throughput, latency, name, os.fspath(model), input_shapes, kinds, cost_model)


def compile_placement(
    cluster: Cluster, service: Service, placement: ServicePlacement, backend: str
) -> ExportablePipeline:
    """Compile a service's model into the stages that it has been placed in.

    Parameters
    ----------
    backend
        As for `service_of_model`; one that was made for another backend has other parts.

    Raises
    ------
    InputError
        The service names no model, or was made of another one.
    """
    if not service.model_file:
        raise InputError(
            f"service {service.name!r} names no model_file, so there is nothing to deploy; make it with "
            "`tvm-sched cluster service MODEL`"
        )
    topology, shapes = stage_topology(cluster, placement, backend), service.input_shapes or None
    plan = plan_of_placement(
        make_problem(service.model_file, topology, input_shapes=shapes, backend=backend), placement
    )
    return compile_pipeline(service.model_file, topology, plan=plan, input_shapes=shapes, backend=backend)


def compiled_artifact(
    folder: Path, cluster: Cluster, service: Service, placement: ServicePlacement, backend: str
) -> Path:
    """Return the compiled pipeline of a placement, an existing one if it is of the same model, parts and kinds of GPUs."""
    kinds = [cluster.kinds[cluster.gpus[cluster.gpu_id[stage.gpu]].kind] for stage in placement.stages]
    parts = [stage.operators for stage in placement.stages]
    about = msgspec.json.encode([_checksum(service), service.input_shapes, backend, parts, kinds])
    path = folder / f"{service.name}-{content_digest(about)}.pipeline"
    if not path.is_dir():
        compile_placement(cluster, service, placement, backend).export(path)
    return path


def _checksum(service: Service) -> str:
    """Checksum of the model's file."""
    return hashlib.sha256(read_bytes(service.model_file)).hexdigest() if service.model_file else ""
