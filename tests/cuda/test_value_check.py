"""What kernels of cuBLASLt and cuDNN are compared with before their first use; whether wrong ones are left out is tested
on the emulated GPU."""

import json

import numpy as np
import pytest

from tvm_sched_runtime.core_library import function


def checked(description):
    """Inputs of a kernel's check, the elements of the result that are compared, and their values."""
    *inputs, elements, values = map(np.array, function("tvm_sched.nvidia_checked_numbers")(json.dumps(description)))
    assert len(elements) > 90
    assert np.ptp(values) > 1
    return inputs, elements.astype(int), values


@pytest.mark.parametrize("transposed", ["", "a", "b"])
@pytest.mark.parametrize("activation", ["", "relu", "gelu_tanh"])
def test_a_product(transposed, activation):
    batch, m, n, k = 2, 9, 7, 11
    shapes = {"a": (batch, m, k), "b": (batch, k, n)}
    layouts = {
        name: {
            "transposed": name in transposed,
            "stride": shape[1] if name in transposed else shape[2],
            "batch_stride": m * k,
        }
        for name, shape in shapes.items()
    }
    layouts["b"]["batch_stride"] = 0
    (a, b, bias), elements, values = checked(
        {"kind": "matmul", "dtype": "float16", "result_dtype": "float16", "tf32": False, "batch": batch, "m": m, "n": n,
         "k": k, **layouts, "bias": True, "activation": activation}
    )  # fmt: skip
    a = a.reshape(batch, k, m).swapaxes(1, 2) if transposed == "a" else a.reshape(batch, m, k)
    b = b.reshape(n, k).T if transposed == "b" else b.reshape(k, n)
    wanted = a @ b + bias
    if activation == "relu":
        wanted = np.maximum(wanted, 0)
    if activation == "gelu_tanh":
        wanted = wanted / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (wanted + 0.044715 * wanted**3)))
    assert list(elements) == list(range(wanted.size))
    np.testing.assert_allclose(values, wanted.ravel(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("groups", [1, 3])
def test_a_convolution(layout, groups):
    extents = {"input": [2, 6, 9, 8], "weights": [9, 6 // groups, 3, 2], "output": [2, 9, 4, 8]}
    (x, w, bias, summand), elements, values = checked(
        {"kind": "conv2d", "dtype": "float32", "tf32": False, "layout": layout, **extents, "padding": [1, 2],
         "strides": [2, 1], "dilation": [2, 4], "groups": groups, "residual": True, "bias": True, "activation": "relu"}
    )  # fmt: skip

    def tensor(array, name):
        n, c, h, w = extents[name]
        return array.reshape(n, h, w, c).transpose(0, 3, 1, 2) if layout == "NHWC" else array.reshape(n, c, h, w)

    padded = np.pad(tensor(x, "input"), [(0, 0), (0, 0), (1, 1), (2, 2)])
    w = tensor(w, "weights")
    sums = tensor(summand, "output") + bias[:, None, None]
    for o, group in enumerate(np.repeat(range(groups), 9 // groups)):
        channels = slice(group * w.shape[1], (group + 1) * w.shape[1])
        for i in range(3):
            for j in range(2):
                window = padded[:, channels, 2 * i : 2 * i + 7 : 2, 4 * j : 4 * j + 8]
                sums[:, o] += np.einsum("nchw,c->nhw", window, w[o, :, i, j])
    wanted = np.maximum(sums, 0)
    wanted = (wanted.transpose(0, 2, 3, 1) if layout == "NHWC" else wanted).ravel()
    np.testing.assert_allclose(values, wanted[elements], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal):
    batch, heads, shared, rows, keys, width, out, shift = 2, 4, 2, 5, 8, 6, 3, 2

    def place(offset, count, length, size):
        """Rows of all heads side by side, behind an offset."""
        return [offset, length * count * size, size, count * size]

    (q, k, v), elements, values = checked(
        {"dtype": "float16", "batch": batch, "heads": heads, "shared_heads": shared, "rows": rows, "keys": keys,
         "width": width, "out": out, "scale": 0.5, "causal": causal, "shift": shift, "query": place(7, heads, rows, width),
         "key": place(0, shared, keys, width), "value": place(3, shared, keys, out), "result": place(0, heads, rows, out)}
    )  # fmt: skip
    q = q[7:].reshape(batch, rows, heads, width).swapaxes(1, 2)
    k = k.reshape(batch, keys, shared, width).swapaxes(1, 2).repeat(heads // shared, 1)
    v = v[3:].reshape(batch, keys, shared, out).swapaxes(1, 2).repeat(heads // shared, 1)
    weights = np.exp(0.5 * q @ k.swapaxes(2, 3))
    if causal:
        weights *= np.arange(keys) <= np.arange(rows)[:, None] + shift
    wanted = (weights / weights.sum(-1, keepdims=True) @ v).swapaxes(1, 2).ravel()
    np.testing.assert_allclose(values, wanted[elements], rtol=1e-6, atol=1e-6)
