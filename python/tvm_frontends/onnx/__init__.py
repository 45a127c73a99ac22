"""Import of ONNX models: a model is read, prepared (static shapes, folded constants), then converted to Relax.

`operators` holds the converters that TVM's front end lacks or has wrong; all others are TVM's.
"""

from .import_model import from_onnx, load, open_onnx
from .onnx_files import read_onnx

__all__ = ["from_onnx", "load", "open_onnx", "read_onnx"]
