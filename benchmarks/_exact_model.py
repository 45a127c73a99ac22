"""The exact outputs of a quantised ONNX model: sums of integers in 64 bits, all other arithmetic in float64, node by node.

Only the standard's own roundings are left: those of QuantizeLinear and its relatives.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnx import ModelProto, NodeProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "frontends" / "onnx"))
import exact

_INPUTS = {"QLinearConv": 9, "QGemm": 9, "DynamicQuantizeMatMul": 5, "DynamicQuantizeLSTM": 12}
"""Operators whose last inputs may be missing."""


def exact_outputs(model: ModelProto, feeds: dict[str, Any]) -> list[Any]:
    """Return the outputs of a model."""
    opset = next(each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))
    constants = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    known = {name: _wide(value) for name, value in {"": None, **feeds, **constants}.items()}
    for node in model.graph.node:
        results = _node(node, [known[name] for name in node.input], opset)
        known.update({name: _wide(np.asarray(each)) for name, each in zip(node.output, results, strict=False) if name})
    return [known[output.name] for output in model.graph.output]


def _wide(value: Any) -> Any:
    return value.astype(np.float64) if value is not None and value.dtype == np.float32 else value


def _node(node: NodeProto, values: list[Any], opset: int) -> list[Any]:
    attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    if node.op_type.startswith("QLinear"):  # zero points that are left out
        values = [np.uint8(0) if value is None else value for value in values]
    if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        return _linear(node.op_type, values, attributes)
    if node.op_type in ("Conv", "ConvInteger") and values[0].ndim == 4 and "auto_pad" not in attributes:
        return [_convolution(node.op_type, values, attributes)]
    if node.op_type == "QLinearSoftmax":
        x, x_scale, x_zero, scale, zero = values
        power = np.exp((x.astype(np.int64) - x_zero) * x_scale)
        share = power / power.sum(attributes.get("axis", -1), keepdims=True)
        return _quantised(share / scale, zero)
    if node.op_type == "QLinearConv" and len(values) == _INPUTS[node.op_type] - 1:
        values.append(np.zeros(len(values[3]), "int32"))
    if node.op_type == "BatchNormalization":  # onnx.reference mixes in the data's own moments before version 14
        x, *moments = values
        scale, bias, mean, variance = (each.reshape(-1, *[1] * (x.ndim - 2)) for each in moments)
        return [(x - mean) / np.sqrt(variance + attributes.get("epsilon", 1e-5)) * scale + bias]
    if node.op_type == "GlobalMaxPool":  # onnx.reference takes images of other than two dimensions for flat
        return [values[0].max(tuple(range(2, values[0].ndim)), keepdims=True)]
    if node.op_type in exact.OPERATORS and node.op_type not in ("Conv", "MatMul"):
        padded = values + [None] * (_INPUTS.get(node.op_type, 0) - len(values))
        return exact.OPERATORS[node.op_type](padded, attributes)
    names = ["" if value is None else f"i{k}" for k, value in enumerate(values)]
    results = [f"o{k}" if name else "" for k, name in enumerate(node.output)]
    single = helper.make_node(node.op_type, names, results)
    single.attribute.extend(node.attribute)
    given, made = ([helper.make_empty_tensor_value_info(n) for n in each if n] for each in (names, results))
    evaluator = ReferenceEvaluator(helper.make_graph([single], "g", given, made), opsets={"": opset})
    return list(evaluator.run(None, {name: value for name, value in zip(names, values, strict=True) if name}))


def _linear(kind: str, values: list[Any], attributes: dict[str, Any]) -> list[Any]:
    x, scale = values[:2]
    zero = values[2] if len(values) > 2 and values[2] is not None else np.uint8(0)
    axis = attributes.get("axis", 1)
    scale, zero = (
        each.reshape([-1 if k == axis % x.ndim else 1 for k in range(x.ndim)]) if each.size > 1 else each.reshape(())
        for each in (scale, np.asarray(zero))
    )
    if kind == "QuantizeLinear":
        return _quantised(x / scale, zero)
    return [(x.astype(np.int64) - zero.astype(np.int64)) * scale]


def _quantised(value: Any, zero: Any) -> list[Any]:
    limits = np.iinfo(zero.dtype)
    return [np.clip(np.rint(value) + zero, limits.min, limits.max).astype(zero.dtype)]


def _convolution(kind: str, values: list[Any], attributes: dict[str, Any]) -> Any:
    """Convolve in float64, which holds every sum of 8-bit products; onnx.reference does so a hundred times slower."""
    x, weights, *more = values
    x, weights = x.astype(np.float64), weights.astype(np.float64)
    bias = None
    if kind == "ConvInteger":
        x_zero, zero = [*more, None, None][:2]
        x = x - (0 if x_zero is None else x_zero.astype(np.float64))
        weights = weights - (0 if zero is None else zero.astype(np.float64).reshape(-1, 1, 1, 1))
    elif more and more[0] is not None:
        bias = torch.from_numpy(more[0].astype(np.float64))
    top, left, bottom, right = attributes.get("pads", (0, 0, 0, 0))
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    strides, dilations = (attributes.get(name, (1, 1)) for name in ("strides", "dilations"))
    made = torch.nn.functional.conv2d(
        torch.from_numpy(x), torch.from_numpy(weights), bias, strides, 0, dilations, attributes.get("group", 1)
    ).numpy()
    return made.astype(np.int32) if kind == "ConvInteger" else made
