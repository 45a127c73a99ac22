"""Pipelines: the plan that cuts a model into stages on several devices, its simulator, verifier and executor."""

from ..problem.partition_problem import PartitionProblem, StageTensor
from .compiled_pipeline import CompiledPipeline, open_pipeline
from .pipeline_artifact import Manifest, load, load_manifest, load_stage
from .pipeline_plan import PipelineCertificate, PipelinePlan, Stage
from .pipeline_verifier import verify, violations

__all__ = [
    "CompiledPipeline",
    "Manifest",
    "PartitionProblem",
    "PipelineCertificate",
    "PipelinePlan",
    "Stage",
    "StageTensor",
    "load",
    "load_manifest",
    "load_stage",
    "open_pipeline",
    "verify",
    "violations",
]
