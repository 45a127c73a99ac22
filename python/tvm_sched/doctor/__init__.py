"""What works here and what does not: the machine, its GPUs, an artifact on it. Neither TVM nor a compiler is needed."""

from .check import Check, Diagnosis
from .diagnosis import diagnose

__all__ = ["Check", "Diagnosis", "diagnose"]
