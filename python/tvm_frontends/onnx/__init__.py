"""Import of ONNX models: a model is read, prepared (static shapes, folded constants), then converted to Relax.

`operators` holds the converters that TVM's frontend lacks or has wrong; all others are TVM's.
"""

from .declared import declared_inputs
from .files import read_onnx
from .frontend import from_onnx
from .source import open_onnx

__all__ = ["declared_inputs", "from_onnx", "open_onnx", "read_onnx"]
