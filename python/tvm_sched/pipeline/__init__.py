"""Pipelines: a model cut into stages on several devices, so that the slowest stage is as fast as possible.

Partitioners and solvers are imported at first use: loading and running an artifact needs neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_names import lazy_names
from ..problem.partition_problem import PartitionProblem, StageTensor
from .compiled_pipeline import CompiledPipeline, open_pipeline
from .pipeline_artifact import Manifest, load, load_manifest, load_stage
from .pipeline_plan import PipelineCertificate, PipelinePlan, Stage
from .pipeline_verifier import verify, violations

if TYPE_CHECKING:
    from . import anytime_partitioner, baselines, slicegraph
    from .partitioner_registry import Partition, get, names, partition, register
    from .pipeline_planner import plan_pipeline

_WHERE = {
    "Partition": "partitioner_registry",
    "get": "partitioner_registry",
    "names": "partitioner_registry",
    "partition": "partitioner_registry",
    "plan_pipeline": "pipeline_planner",
    "register": "partitioner_registry",
}

__all__ = [
    "CompiledPipeline",
    "Manifest",
    "Partition",
    "PartitionProblem",
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
    "partition",
    "plan_pipeline",
    "register",
    "slicegraph",
    "verify",
    "violations",
]


__getattr__ = lazy_names(__name__, {**_WHERE, "anytime_partitioner": "", "baselines": "", "slicegraph": ""})
