"""The right results of quantised operators: exact sums, and float64 or the standard's reference for the rest.

A peer is no truth for products of 8-bit integers. On processors with AVX2 and without VNNI, ONNX Runtime and oneDNN add
pairs of them in 16 bits, which saturate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

Results = list[Any]


def results(operator: str, values: list[Any], attributes: dict[str, Any], outputs: int = 1) -> Results:
    """The outputs of one node; operators without a function of their own are computed by `by_reference`."""
    attributes = {name: value for name, value in attributes.items() if name != "domain"}
    if operator in OPERATORS:
        return OPERATORS[operator](values, attributes)
    return by_reference(operator, values, attributes, outputs)


def evaluate(model: Any, feeds: dict[str, Any]) -> Results:
    """The outputs of a graph, node by node."""
    known = {"": None, **feeds, **{each.name: numpy_helper.to_array(each) for each in model.graph.initializer}}
    for node in model.graph.node:
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        found = results(node.op_type, [known[name] for name in node.input], attributes, len(node.output))
        known.update(zip(node.output, found, strict=True))
    return [known[output.name] for output in model.graph.output]


def by_reference(operator: str, values: list[Any], attributes: dict[str, Any], outputs: int = 1) -> Results:
    """The standard's reference implementation, which sums 8-bit integers in int32."""
    names = ["" if value is None else f"i{k}" for k, value in enumerate(values)]
    node = helper.make_node(operator, names, [f"o{k}" for k in range(outputs)], **attributes)
    given, made = ([helper.make_empty_tensor_value_info(n) for n in each if n] for each in (names, node.output))
    evaluator = ReferenceEvaluator(helper.make_graph([node], "g", given, made), opsets={"": 21})
    return list(evaluator.run(None, {name: value for name, value in zip(names, values, strict=True) if name}))


def _whole(value: Any, zero: Any) -> Any:
    """Integers less their zero point, in int64."""
    return value.astype(np.int64) - (0 if zero is None else zero.astype(np.int64))


def _real(value: Any, scale: Any, zero: Any) -> Any:
    """What a quantised tensor stands for, in float64."""
    return _whole(value, zero) * scale.astype(np.float64)


def _quantized(value: Any, scale: Any, zero: Any) -> Results:
    """Real numbers in units of a scale, rounded half to even, in the type of a zero point."""
    limits = np.iinfo(zero.dtype)
    rounded = np.rint(value / scale.astype(np.float64)) + zero
    return [np.clip(rounded, limits.min, limits.max).astype(zero.dtype)]


def _in_float64(operator: str) -> Callable[..., Results]:
    def found(values: list[Any], attributes: dict[str, Any]) -> Results:
        wide = [None if value is None else value.astype(np.float64) for value in values]
        return [each.astype(np.float32) for each in by_reference(operator, wide, attributes)]

    return found


def _dynamic_quantize(values: list[Any], attributes: dict[str, Any]) -> Results:
    """The standard says nothing of the scale of a tensor of zeros: 1 here, as in ONNX Runtime."""
    found = by_reference("DynamicQuantizeLinear", values, attributes, 3)
    return found if values[0].any() else [found[0], np.ones_like(found[1]), found[2]]


def _qlinear_conv(values: list[Any], attributes: dict[str, Any]) -> Results:
    x, x_scale, x_zero, w, w_scale, w_zero, scale, zero, bias = values
    filters = (-1, *[1] * (w.ndim - 1))
    whole = [_whole(x, x_zero), _whole(w, w_zero.reshape(filters)), bias]
    sums = by_reference("Conv", [each.astype(np.float64) for each in whole], attributes)[0]
    channels = w_scale.astype(np.float64).reshape(filters[:-1])
    return _quantized(sums * x_scale.astype(np.float64) * channels, scale, zero)


def _qlinear_matmul(values: list[Any], attributes: dict[str, Any]) -> Results:
    a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = values
    return _quantized(_float_product(a, b, a_scale, b_scale, a_zero, b_zero), scale, zero)


def _float_product(a: Any, b: Any, a_scale: Any, b_scale: Any, a_zero: Any, b_zero: Any, bias: Any = 0.0) -> Any:
    sums = _whole(a, a_zero) @ _whole(b, b_zero)
    return sums * (a_scale.astype(np.float64) * b_scale.astype(np.float64)) + (0.0 if bias is None else bias)


def _matmul_integer_to_float(values: list[Any], attributes: dict[str, Any]) -> Results:
    return [_float_product(*values).astype(np.float32)]


def _dynamic_quantize_matmul(values: list[Any], attributes: dict[str, Any]) -> Results:
    a, b, b_scale, b_zero, bias = values
    whole, scale, zero = _dynamic_quantize([a], {})
    return [_float_product(whole, b, scale, b_scale, zero, b_zero, bias).astype(np.float32)]


def _qgemm(values: list[Any], attributes: dict[str, Any]) -> Results:
    a, a_scale, a_zero, b, b_scale, b_zero, c, scale, zero = values
    a, b = (each.T if attributes.get(f"trans{name}") else each for name, each in zip("AB", (a, b), strict=True))
    factor = attributes.get("alpha", 1.0) * a_scale.astype(np.float64) * b_scale.astype(np.float64)
    return _quantized((_whole(a, a_zero) @ _whole(b, b_zero) + c) * factor, scale, zero)


def _qlinear_binary(operation: Any) -> Callable[..., Results]:
    return lambda values, attributes: _quantized(operation(_real(*values[:3]), _real(*values[3:6])), *values[6:])


def _qlinear_unary(operation: Callable[..., Any]) -> Callable[..., Results]:
    return lambda values, attributes: _quantized(operation(_real(*values[:3]), **attributes), *values[3:])


def _sigmoid(value: Any) -> Any:
    return 1 / (1 + np.exp(-value))


def _leaky_relu(value: Any, alpha: float = 0.01) -> Any:
    return np.where(value < 0, alpha * value, value)


def _global_mean(value: Any, channels_last: int = 0) -> Any:
    return value.mean(tuple(range(1, value.ndim - 1) if channels_last else range(2, value.ndim)), keepdims=True)


def _qlinear_concat(values: list[Any], attributes: dict[str, Any]) -> Results:
    scale, zero, *parts = values
    joined = np.concatenate([_real(*parts[k : k + 3]) for k in range(0, len(parts), 3)], attributes["axis"])
    return _quantized(joined, scale, zero)


def _matmul_nbits(values: list[Any], attributes: dict[str, Any]) -> Results:
    """Weights (N, blocks, bytes), several to a byte, the lowest bits first; so are the zero points of a row's blocks."""
    a, packed, scales, zeros, *order = values
    size, rows, block, bits = (attributes[name] for name in ("K", "N", "block_size", "bits"))
    count, mask = 8 // bits, (1 << bits) - 1
    k = np.arange(size)
    blocks, places = k // block, k % block
    whole = (packed[:, blocks, places // count] >> (bits * (places % count))) & mask
    groups = order[0] if order else blocks
    points = (zeros.reshape(rows, -1)[:, groups // count] >> (bits * (groups % count))) & mask
    weights = _real(whole, scales.reshape(rows, -1)[:, groups], points)
    return [(a.astype(np.float64) @ weights.T).astype(np.float32)]


def _qmoe(values: list[Any], attributes: dict[str, Any]) -> Results:
    """Each token by its k experts; layers of packed weights with one scale for each row or each of its blocks, and SiLU."""
    tokens, logits, first, first_scales, first_bias, second, second_scales, second_bias, *_, zeros, more_zeros = values
    bits = attributes["expert_weight_bits"]

    def unpacked(data: Any) -> Any:
        return (data[..., None] >> np.arange(0, 8, bits)).reshape(*data.shape[:-1], -1) & ((1 << bits) - 1)

    def weights(data: Any, scales: Any, points: Any) -> Any:
        whole = unpacked(data)
        shape = (*whole.shape[:2], -1)
        middles = np.full(scales.shape, 1 << (bits - 1)) if points is None else unpacked(points).reshape(scales.shape)
        size = whole.shape[2] // scales.reshape(shape).shape[2]
        scales, middles = (each.reshape(shape).repeat(size, axis=2) for each in (scales, middles))
        return scales.astype(np.float64) * (whole.astype(np.float64) - middles)

    layers = (weights(first, first_scales, zeros), weights(second, second_scales, more_zeros))
    results = np.zeros(tokens.shape)
    for token, scores, result in zip(tokens.astype(np.float64), logits.astype(np.float64), results, strict=True):
        chosen = np.argsort(-scores)[: attributes["k"]]
        shares = np.exp(scores[chosen]) / np.exp(scores[chosen]).sum()
        for expert, share in zip(chosen, shares, strict=True):
            hidden = layers[0][expert] @ token + first_bias[expert]
            result += share * (layers[1][expert] @ (hidden / (1 + np.exp(-hidden))) + second_bias[expert])
    return [results.astype(np.float32)]


def _qattention(values: list[Any], attributes: dict[str, Any]) -> Results:
    """``mask`` is the number of keys of each sequence that are seen."""
    x, weights, bias, x_scale, scale, mask, x_zero, zero = values
    product = _float_product(x, weights, x_scale, scale, x_zero, zero, bias)
    batch, tokens, width = x.shape
    heads = attributes["num_heads"]
    q, k, v = (part.reshape(batch, tokens, heads, -1).transpose(0, 2, 1, 3) for part in np.split(product, 3, axis=-1))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(width // heads)
    if mask is not None:
        scores = np.where(np.arange(tokens) < mask[:, None, None, None], scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    return [(shares @ v).transpose(0, 2, 1, 3).reshape(batch, tokens, -1).astype(np.float32)]


def _dynamic_quantize_lstm(values: list[Any], attributes: dict[str, Any]) -> Results:
    """All of X, and each sequence's state before each step, are rounded to 8 bits of their range."""
    x, w, r, bias, lengths, first_h, first_c, peepholes, w_scale, w_zero, r_scale, r_zero = values
    assert lengths is None
    assert peepholes is None
    rounded = _rounded(x)
    every, last = [], []
    for d in range(len(w)):
        weights, recurrent = _real(w[d], w_scale[d], w_zero[d]), _real(r[d], r_scale[d], r_zero[d])
        backwards = attributes["direction"] == "reverse" or d == 1
        h, c, states = first_h[d], first_c[d], {}
        for step in range(len(x))[:: -1 if backwards else 1]:
            state = np.stack([_rounded(row.astype(np.float32)) for row in h])
            gates = rounded[step] @ weights + state @ recurrent + bias[d].reshape(2, -1).sum(0)
            i, o, f, g = np.split(gates, 4, axis=-1)
            c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
            h = states[step] = _sigmoid(o) * np.tanh(c)
        every.append([states[step] for step in range(len(x))])
        last.append((h, c))
    found = [np.array(every).swapaxes(0, 1), *(np.array([pair[k] for pair in last]) for k in range(2))]
    return [each.astype(np.float32) for each in found]


def _rounded(value: Any) -> Any:
    """What float32 numbers stand for once they are rounded to 8 bits of their range."""
    return _real(*_dynamic_quantize([value], {}))


OPERATORS: dict[str, Callable[[list[Any], dict[str, Any]], Results]] = {
    "Conv": _in_float64("Conv"),
    "MatMul": _in_float64("MatMul"),
    "DynamicQuantizeLinear": _dynamic_quantize,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "MatMulIntegerToFloat": _matmul_integer_to_float,
    "DynamicQuantizeMatMul": _dynamic_quantize_matmul,
    "QGemm": _qgemm,
    "QLinearAdd": _qlinear_binary(np.add),
    "QLinearMul": _qlinear_binary(np.multiply),
    "QLinearSigmoid": _qlinear_unary(_sigmoid),
    "QLinearLeakyRelu": _qlinear_unary(_leaky_relu),
    "QLinearGlobalAveragePool": _qlinear_unary(_global_mean),
    "QLinearConcat": _qlinear_concat,
    "MatMulNBits": _matmul_nbits,
    "QMoE": _qmoe,
    "QAttention": _qattention,
    "DynamicQuantizeLSTM": _dynamic_quantize_lstm,
}
"""Operators that the standard's reference lacks, or computes with more roundings than one."""
