"""Runtimes of others that take plans, each in a file of its own."""

from .base import Case, Request, Runtime, Split
from .registry import RUNTIMES, get_runtime, runtime_names

__all__ = ["RUNTIMES", "Case", "Request", "Runtime", "Split", "get_runtime", "runtime_names"]
