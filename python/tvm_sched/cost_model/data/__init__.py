"""Training data: published latencies, read where they are installed, and latencies measured on this machine."""

from .samples import Samples

__all__ = ["Samples"]
