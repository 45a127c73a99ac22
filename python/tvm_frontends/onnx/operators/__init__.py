"""Converters of ONNX operators to Relax, a family a file, which take precedence over those of TVM's frontend.

A converter is a function from a `Node` to the value of its output, or to a list of values where it has several. It is
registered by `converter`, and found by the operator's domain and name; nothing of TVM's frontend is changed.
"""

from .nodes import Node, constant_of, converter, find
from .upstream import is_known

__all__ = ["Node", "constant_of", "converter", "find", "is_known"]
