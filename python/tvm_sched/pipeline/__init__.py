"""Pipelines: a model cut into stages on several devices, so that the slowest stage is as fast as possible."""

from . import baselines, portfolio, slicegraph
from .artifact import Manifest, load, load_manifest, load_stage
from .compiled import CompiledPipeline
from .partition_problem import PartitionProblem, StageTensor
from .plan import PipelineCertificate, PipelinePlan, Stage
from .registry import Partition, get, names, partition, register
from .solve import plan_pipeline
from .verify import verify, violations

__all__ = [
    "CompiledPipeline",
    "Manifest",
    "Partition",
    "PartitionProblem",
    "PipelineCertificate",
    "PipelinePlan",
    "Stage",
    "StageTensor",
    "baselines",
    "get",
    "load",
    "load_manifest",
    "load_stage",
    "names",
    "partition",
    "plan_pipeline",
    "portfolio",
    "register",
    "slicegraph",
    "verify",
    "violations",
]
