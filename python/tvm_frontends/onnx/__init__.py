"""Import of ONNX models: read the file, prepare the graph (static shapes, folded constants), convert it to Relax.

`operators` holds the converters that TVM's frontend lacks or has wrong; TVM's own convert all other operators.
"""

from .import_model import from_onnx, load, open_onnx
from .onnx_files import read_onnx

__all__ = ["from_onnx", "load", "open_onnx", "read_onnx"]
