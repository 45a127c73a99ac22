"""oneDNN: convolutions, matrix products, pooling, normalisations, softmax and concatenation on CPUs, in float32."""

from .library import LIBRARY

__all__ = ["LIBRARY"]
