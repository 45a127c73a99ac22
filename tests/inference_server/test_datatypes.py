"""Numbers of JSON documents as tensors: exact, or refused with the value."""

import msgspec
import numpy as np
import pytest

pytest.importorskip("starlette")

from tvm_sched_serve.datatypes import TensorType
from tvm_sched_serve.failures import RequestError
from tvm_sched_serve.http_server import json_numbers
from tvm_sched_serve.inference import Answer


def read(dtype, text, shape=(2,)):
    return TensorType("x", dtype, shape).of_document(msgspec.Raw(text.encode()), shape)


@pytest.mark.parametrize(
    ("dtype", "text", "value"),
    [
        ("int64", "[9007199254740993, -9223372036854775808]", [2**53 + 1, -(2**63)]),
        ("int64", "[9223372036854775807, 0]", [2**63 - 1, 0]),
        ("uint64", "[18446744073709551615, 1]", [2**64 - 1, 1]),
        ("int8", "[-128, 127]", [-128, 127]),
        ("bool", "[true, false]", [True, False]),
        ("float32", "[3.4028234663852886e38, -1e-46]", [np.finfo(np.float32).max, 0]),
        ("float32", "[1, 36893488147419103232]", [1, 2**65]),
        ("float64", "[1.7976931348623157e308, 9007199254740992]", [np.finfo(np.float64).max, 2**53]),
        ("float16", "[65504, 0.5]", [65504, 0.5]),
        ("bfloat16", "[3e38, -2]", [np.float64(np.float32(3e38)), -2]),
        ("float32", " [ [1.5] ,\n[2] ] ", [1.5, 2]),
    ],
)
def test_values(dtype, text, value):
    found = read(dtype, text)
    if dtype == "bfloat16":
        np.testing.assert_allclose(found.astype(np.float64), value, rtol=2**-8)
    else:
        assert found.tolist() == value


@pytest.mark.parametrize(
    ("dtype", "text", "value", "position"),
    [
        ("float32", "[1, 1e40]", "1e40", 1),
        ("float32", "[-3.5e38, 1]", "-3.5e38", 0),
        ("float16", "[0, 65520]", "65520", 1),
        ("bfloat16", "[3.4e38, 1]", "3.4e38", 0),
        ("float32", "[1e400, 1]", "1e400", 0),
        ("float64", "[1, 1e400]", "1e400", 1),
        ("float32", "[null, 1]", "null", 0),
        ("float32", "[true, 1.0]", "true", 0),
        ("float32", '["1", 1]', '"1"', 0),
        ("float32", '[1, {"a": 1}]', '{"a": 1}', 1),
        ("int8", "[1, 300]", "300", 1),
        ("int8", "[-129, 1]", "-129", 0),
        ("int64", "[9223372036854775808, 1]", "9223372036854775808", 0),
        ("int64", "[1, 1e3]", "1e3", 1),
        ("int64", "[1.5, 1]", "1.5", 0),
        ("int64", "[2, true]", "true", 1),
        ("uint64", "[9223372036854775808, -1]", "-1", 1),
        ("uint8", "[[1], [256]]", "256", 1),
        ("bool", "[true, 1]", "1", 1),
    ],
)
def test_values_that_do_not_fit_are_told(dtype, text, value, position):
    with pytest.raises(RequestError) as refused:
        read(dtype, text)
    assert f"input 'x': value {value} at position {position} does not fit" in str(refused.value)


@pytest.mark.parametrize("text", ["[1]", "[1, 2, 3]", "[[1], [2, 3]]", "[]", "[1, [2]]", "[" * 40 + "1, 2" + "]" * 40])
def test_another_number_of_values_is_told(text):
    with pytest.raises(RequestError, match="input 'x': expected 2 values of the type FP32"):
        read("float32", text)


def test_values_of_grpc_keep_their_infinities():
    kind = TensorType("x", "float32", (3,))
    np.testing.assert_array_equal(kind.of_values([np.inf, np.nan, 1.0], (3,)), np.float32([np.inf, np.nan, 1]))
    with pytest.raises(RequestError, match=r"value 1e\+40 at position 1"):
        kind.of_values([np.inf, 1e40, 1.0], (3,))


@pytest.mark.parametrize(("value", "told"), [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")])
def test_json_carries_no_nan_and_no_infinity(value, told):
    """null would be read as 0 by some clients, and other words are no JSON."""
    array = np.float32([[1, 2], [value, 3]])
    with pytest.raises(RequestError, match=f"output 'y' has the value {told} at position 2.*ask for binary_data"):
        json_numbers(Answer(TensorType("y", "float32", (2, 2)), array, {}))
    assert json_numbers(Answer(TensorType("y", "int64", (1,)), np.int64([2**53 + 1]), {})) == [2**53 + 1]
