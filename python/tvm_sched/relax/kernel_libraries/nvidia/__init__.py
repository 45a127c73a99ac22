"""cuBLASLt and cuDNN: products and convolutions on GPUs, with bias and activation."""

from .library import NVIDIA

__all__ = ["NVIDIA"]
