"""ONNX models written in the standard's text form."""

import numpy as np
import pytest


def onnx_model(text, weights=None, opset=17, ir_version=8):
    """Return a model: ``text`` is "(inputs) => (outputs) { nodes }"; ``weights`` are its initializers by name."""
    onnx = pytest.importorskip("onnx")
    model = onnx.parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["": {opset}]> g {text}')
    values = {name: np.asarray(value) for name, value in (weights or {}).items()}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in values.items())
    return model
