"""Measured latencies to learn from: published ones, read where they are installed, and those of this machine."""

from .samples import Samples

__all__ = ["Samples"]
