"""Import of ONNX models: a model is read, prepared (static shapes, folded constants), then converted to Relax.

`operators` holds the converters that TVM's frontend lacks or has wrong; all others are TVM's.
"""

from .files import read_onnx
from .frontend import from_onnx

__all__ = ["from_onnx", "read_onnx"]
