"""Kernels of language models against NumPy: products with packed weights in each format, on each instruction set."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tvm_sched_language.generation_options import FORMATS
from tvm_sched_language.packing import GROUP, dequantized, pack
from tvm_sched_runtime.core_library import function as library_function
from tvm_sched_runtime.runtime.tensors import to_numpy, to_tensor


def kernel(kind, **about):
    module = library_function("tvm_sched.make_language_module")(
        json.dumps({"version": 2, "kernels": {"f": {"kind": kind, **about}}})
    )
    return module["f"]


def call(function, inputs, *shapes):
    """Results of a kernel; inputs that are tensors are passed as they are."""
    results = [to_tensor(np.full(shape, np.nan, np.float32)) for shape in shapes]
    function(*(value if hasattr(value, "data_ptr") else to_tensor(value) for value in inputs), *results)
    return [to_numpy(result) for result in results]


def rounded(rows):
    """Rows as integers of 8 bits with a scale for each group stand for them."""
    groups = np.pad(rows, ((0, 0), (0, -rows.shape[1] % GROUP))).reshape(rows.shape[0], -1, GROUP)
    scales = np.abs(groups).max(-1, keepdims=True) / np.float32(127)
    numbers = np.rint(groups * (np.float32(127) / np.abs(groups).max(-1, keepdims=True)))
    return (numbers * scales).reshape(rows.shape[0], -1)[:, : rows.shape[1]]


def halves(values):
    """Numbers rounded to bfloat16."""
    return dequantized(values, "bfloat16")


def check_products(version):
    """With AMX, products of 16 rows and more round rows and weights to bfloat16."""
    used = library_function("tvm_sched.language_integers")()
    if version:
        assert used == version
    random = np.random.default_rng(5)
    for number_format in FORMATS:
        for terms, columns in ((64, 32), (72, 19), (7, 1)):
            weight = random.normal(size=(columns, terms)).astype(np.float32)
            bias = random.normal(size=columns).astype(np.float32)
            function = kernel(
                "linear", format=number_format, terms=terms, columns=columns, bias=True, residual=True, activation="relu",
                cap=0.0,
            )  # fmt: skip
            for count in (1, 2, 3, 5, 13, 16, 26, 40):
                rows = random.normal(size=(count, terms)).astype(np.float32)
                residual = random.normal(size=(count, columns)).astype(np.float32)
                exact = rounded(rows) if number_format.startswith("int") else rows
                numbers = dequantized(weight, number_format)
                if used == "amx" and count >= 16 and number_format != "float32":
                    exact, numbers = halves(rows), halves(numbers)
                sums = exact.astype(np.float64) @ numbers.T.astype(np.float64)
                (found,) = call(function, [rows, *pack(weight, number_format), bias, residual], (count, columns))
                np.testing.assert_allclose(found, np.maximum(sums + bias, 0) + residual, rtol=2e-5, atol=2e-5)


def test_products_are_those_of_numpy():
    check_products(None)


@pytest.mark.parametrize("version", ["vnni", "avx2", "portable"])
def test_products_on_lesser_processors(version):
    needed = {"vnni": " avx512_vnni ", "avx2": " avx2 ", "portable": " "}[version]
    if needed not in Path("/proc/cpuinfo").read_text():
        pytest.skip(f"this processor has no{needed.upper()}".rstrip())
    script = f"import test_kernels; test_kernels.check_products({version!r})"
    paths = os.pathsep.join([os.path.dirname(__file__), *filter(None, sys.path)])
    environment = {**os.environ, "TVM_SCHED_INTEGERS": version, "PYTHONPATH": paths}
    ran = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]


@pytest.mark.parametrize("number_format", FORMATS[1:])
def test_packed_weights_stand_for_nearly_the_same_numbers(number_format):
    weight = np.random.default_rng(1).normal(size=(16, 96)).astype(np.float32)
    error = np.abs(dequantized(weight, number_format) - weight)
    groups = weight.reshape(16, 3, GROUP)
    step = {
        "bfloat16": np.abs(weight).reshape(groups.shape) / 128,
        "int8": np.abs(groups).max(-1, keepdims=True) / 127 * 1.01,
        "int4": np.abs(groups).max(-1, keepdims=True) / 8 * 1.01,
        "int4-zeros": (groups.max(-1, keepdims=True) - groups.min(-1, keepdims=True)) / 15 * 1.01,
    }[number_format]
    # Half a step, and for int4 a whole one at the end of the range that 15 does not reach.
    assert np.all(error.reshape(groups.shape) <= step * (1 if number_format.startswith("int4") else 0.51))
    table = kernel("embedding", format=number_format, hidden=96, vocab=16, scale=2.0, positions=False, offset=0)
    (rows,) = call(table, [np.array([3, 15, 0], np.int32), *pack(weight, number_format)], (3, 96))
    np.testing.assert_array_equal(rows, dequantized(weight, number_format)[[3, 15, 0]] * 2)


def attention(queries, keys, values, window, scale, cap):
    """Of one head, in float64: the query i is at position i."""
    scores = queries.astype(float) @ keys.T.astype(float) * scale
    scores = cap * np.tanh(scores / cap) if cap else scores
    place = np.arange(len(queries))
    hidden = (place[None, :] > place[:, None]) | ((place[None, :] <= place[:, None] - window) if window else False)
    scores[hidden] = -np.inf
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True) @ values


@pytest.mark.parametrize(("heads", "key_heads", "width"), [(2, 2, 16), (6, 2, 24), (8, 1, 40)])
@pytest.mark.parametrize(("window", "cap"), [(0, 0.0), (9, 3.0)])
def test_attention_over_a_cache_is_that_of_numpy(heads, key_heads, width, window, cap):
    """Rows in pieces of two sequences by turns, with padding, and a memory that goes around with a window."""
    length, capacity = 75, 32 if window else 80
    random = np.random.default_rng(heads)
    shape = {"heads": heads, "key_heads": key_heads, "width": width, "capacity": capacity, "window": window}
    store = kernel("store", **shape, rotated=0, norms=False, epsilon=0.0)
    attend = kernel("attention", **shape, scale=0.3, cap=cap)
    keys = to_tensor(np.zeros((2, key_heads, capacity // 16, width, 16), np.float32))
    values = to_tensor(np.zeros((2, key_heads, capacity, width), np.float32))
    given = random.normal(size=(2, length, heads + 2 * key_heads, width)).astype(np.float32)
    found = np.zeros((2, length, heads, width))
    begin = 0
    for count in (1, 3, 16, 2, 21, 1, 1, 10, 20):
        for sequence in (1, 0):
            rows = np.concatenate([given[sequence, begin : begin + count], given[sequence, :1]]).reshape(count + 1, -1)
            positions = np.array([*range(begin, begin + count), -1], np.int32)  # the last row is padding
            places = np.full(count + 1, sequence, np.int32)
            queries = to_tensor(np.zeros((count + 1, heads * width), np.float32))
            store(*map(to_tensor, (rows, positions, places)), keys, values, queries, keys, values)
            (mixed,) = call(attend, [queries, keys, values, positions, places], (count + 1, heads * width))
            assert not mixed[-1].any()
            found[sequence, begin : begin + count] = mixed[:-1].reshape(count, heads, width)
        begin += count
    assert begin == length
    for sequence in (0, 1):
        for head in range(heads):
            own = head // (heads // key_heads)
            expected = attention(
                given[sequence, :, head], given[sequence, :, heads + own], given[sequence, :, heads + key_heads + own],
                window, 0.3, cap,
            )  # fmt: skip
            np.testing.assert_allclose(found[sequence, :, head], expected, rtol=1e-4, atol=1e-5)


def test_wrong_descriptions_are_refused():
    make = library_function("tvm_sched.make_language_module")
    for document, message in (
        ({"version": 5, "kernels": {}}, "described by a newer tvm_sched"),
        ({"version": 3, "kernels": {"f": {"kind": "packed", "bits": 3}}}, "2, 4 or 8"),
        ({"version": 3, "kernels": {"f": {"kind": "packed", "bits": 4, "block": 20}}}, "whole words"),
        ({"version": 1, "kernels": {"f": {"kind": "rows", "format": "bfloat16"}}}, "compile the model again"),
        ({"version": 1, "kernels": {"f": {"kind": "other"}}}, "expected"),
        ({"version": 1, "kernels": {"f": {"kind": "rows", "more": 1}}}, "more"),
        (
            {
                "version": 1,
                "kernels": {
                    "f": {
                        "kind": "attention", "heads": 3, "key_heads": 2, "width": 8, "capacity": 16, "window": 0,
                        "scale": 1.0, "cap": 0.0,
                    }
                },
            },
            "key_heads must divide heads",
        ),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            make(json.dumps(document))
