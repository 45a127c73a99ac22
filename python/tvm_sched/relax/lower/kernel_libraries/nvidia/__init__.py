"""cuBLASLt and cuDNN: products and convolutions on GPUs, with bias and activation."""

from .library import LIBRARY

__all__ = ["LIBRARY"]
