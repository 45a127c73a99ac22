"""Pipelines: a model cut into stages on several devices, so that the slowest stage is as fast as possible.

Partitioners and solvers are imported at first use; plans, artifacts and their executor are `tvm_sched_runtime.pipeline`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm_sched_runtime.lazy_names import lazy_names
from tvm_sched_runtime.pipeline import (
    CompiledPipeline,
    Manifest,
    PartitionProblem,
    PipelineCertificate,
    PipelinePlan,
    Stage,
    StageTensor,
    load,
    load_manifest,
    load_stage,
    open_pipeline,
    verify,
    violations,
)

from ..old_names import PIPELINE

if TYPE_CHECKING:
    from . import anytime_partitioner, baselines, slicegraph
    from .least_peak import PeakOrder, order_partition
    from .partitioner_registry import Partition, get, names, partition, register
    from .pipeline_planner import order_plan, plan_pipeline

_WHERE = {
    "Partition": "partitioner_registry",
    "PeakOrder": "least_peak",
    "get": "partitioner_registry",
    "names": "partitioner_registry",
    "order_partition": "least_peak",
    "order_plan": "pipeline_planner",
    "partition": "partitioner_registry",
    "plan_pipeline": "pipeline_planner",
    "register": "partitioner_registry",
}

__all__ = [
    "CompiledPipeline",
    "Manifest",
    "Partition",
    "PartitionProblem",
    "PeakOrder",
    "PipelineCertificate",
    "PipelinePlan",
    "Stage",
    "StageTensor",
    "anytime_partitioner",
    "baselines",
    "get",
    "load",
    "load_manifest",
    "load_stage",
    "names",
    "open_pipeline",
    "order_partition",
    "order_plan",
    "partition",
    "plan_pipeline",
    "register",
    "slicegraph",
    "verify",
    "violations",
]


__getattr__ = lazy_names(
    __name__, {**_WHERE, **dict.fromkeys(("anytime_partitioner", "baselines", "slicegraph", *PIPELINE), "")}
)
