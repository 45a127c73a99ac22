"""Other runtimes that plans can be written for, a file each."""

from .base import Case, PlanRequest, Runtime, Split
from .runtime_registry import RUNTIMES, get_runtime, runtime_names

__all__ = ["RUNTIMES", "Case", "PlanRequest", "Runtime", "Split", "get_runtime", "runtime_names"]
