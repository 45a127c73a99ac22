"""Training data: published latencies from installed packages, and latencies measured on this machine."""

from .samples import Samples

__all__ = ["Samples"]
