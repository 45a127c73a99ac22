"""Converters of ONNX operators to Relax, a family a file; they take precedence over those of TVM's frontend.

A converter takes a `Node` and returns the value of its output, or a list if it has several. `converter` registers it by
domain and operator. `prepare` converts older models to opset 13 first: a converter meets older nodes only if that fails.
"""

from .nodes import Node, constant_of, converter, find
from .upstream import is_known

__all__ = ["Node", "constant_of", "converter", "find", "is_known"]
