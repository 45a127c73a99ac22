"""Checks of a machine, its GPUs and an artifact on it, for `tvm-sched doctor`. Needs neither TVM nor a compiler."""

from .check import Check, Diagnosis
from .diagnosis import diagnose

__all__ = ["Check", "Diagnosis", "diagnose"]
