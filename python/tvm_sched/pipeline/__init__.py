"""Pipelines: a model cut into stages on several devices, so that the slowest stage is as fast as possible."""

from . import baselines, portfolio, slicegraph
from .partition_problem import PartitionProblem, StageTensor
from .registry import Partition, get, names, partition, register

__all__ = [
    "Partition",
    "PartitionProblem",
    "StageTensor",
    "baselines",
    "get",
    "names",
    "partition",
    "portfolio",
    "register",
    "slicegraph",
]
