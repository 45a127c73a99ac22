"""Products of one row by our own kernel, beside the sums in float64."""

import json

import ml_dtypes
import numpy as np
import pytest
import tvm
from scipy import special

from relax.lower.onednn_cases import needs_onednn
from tvm_sched.relax.lower.kernel_libraries.onednn.products import VERSION, implementation
from tvm_sched_runtime.core_library import function

pytestmark = needs_onednn

RNG = np.random.default_rng(3)


def dense(*shape, **others):
    strides = [int(np.prod(shape[k + 1 :])) for k in range(len(shape))]
    return {"dims": list(shape), "strides": strides, **others}


def product(terms, columns, kind="float32", bias=False, post=(), others=()):
    """The description of a kernel; ``others`` are the shapes of the operands of ``post``."""
    weights = dense(terms, columns, parameter=True, **({} if kind == "float32" else {"type": kind}))
    operands = [dense(1, terms), weights, *([dense(1, columns, parameter=True)] if bias else [])]
    entries = []
    for entry in post:
        if entry.get("input") is not None:
            entry = {**entry, "input": len(operands)}
            operands.append(dense(1, others[0]))
        entries.append(entry)
    kernel = {"primitive": "matmul", "post": entries, "operands": [*operands, dense(1, columns)]}
    return {**kernel, "bias": 2} if bias else kernel


def run(kernel, *arguments):
    module = function("tvm_sched.make_onednn_module")(json.dumps({"version": VERSION, "kernels": {"k": kernel}}))
    tensors = [tvm.runtime.tensor(value) for value in arguments]
    result = tvm.runtime.tensor(np.full((1, kernel["operands"][-1]["dims"][1]), np.nan, "float32"))
    module["k"](*tensors, result)
    return result.numpy()[0]


def values(*shape):
    return RNG.standard_normal(shape).astype("float32")


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize(("terms", "columns"), [(1, 1), (15, 3), (16, 1), (63, 7), (64, 5), (100, 33), (1029, 517)])
def test_any_number_of_terms_and_columns(terms, columns, kind):
    kernel = product(terms, columns, kind, bias=True)
    assert implementation(kernel).startswith("tvm_sched")
    x, w, b = values(1, terms), values(terms, columns).astype(kind), values(1, columns)
    wide = w.astype("float64")
    # Sums in another order: the error is that of as many terms at most.
    bound = 2e-7 * np.sqrt(terms) * (np.abs(x) @ np.abs(wide) + np.abs(b))
    assert (np.abs(run(kernel, x, w, b) - (x @ wide + b)) <= bound).all()


def test_on_several_tasks():
    """More weights than one task computes."""
    kernel = product(600, 1000)
    x, w = values(1, 600), values(600, 1000)
    np.testing.assert_allclose(run(kernel, x, w), (x.astype("float64") @ w)[0], rtol=1e-4, atol=1e-4)


FUNCTIONS = {
    "relu": (0.0, 0.0, lambda x: np.where(x < 0, 0, x)),
    "leaky relu": (0.1, 0.0, lambda x: np.where(x < 0, 0.1 * x, x)),
    "clip": (-0.5, 2.0, lambda x: np.clip(x, -0.5, 2)),
    "linear": (3.0, -1.0, lambda x: 3 * x - 1),
    "sigmoid": (0.0, 0.0, special.expit),
    "silu": (1.7, 0.0, lambda x: np.where(np.isneginf(x), -0.0, x * special.expit(1.7 * x))),
    "gelu_tanh": (0.0, 0.0, lambda x: x * special.expit(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "hard_sigmoid": (0.2, 0.5, lambda x: np.clip(0.2 * x + 0.5, 0, 1)),
    "hard_swish": (1 / 6, 0.5, lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "gelu": (0.0, 0.0, lambda x: 0.5 * x * (1 + special.erf(x / np.sqrt(2)))),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_the_result(name):
    alpha, beta, wanted = FUNCTIONS[name]
    kernel = product(1, 2000, post=[{"name": name.removeprefix("leaky "), "alpha": alpha, "beta": beta}])
    assert implementation(kernel) == "tvm_sched"
    w = np.linspace(-30, 30, 2000, dtype="float32")[None]
    found = run(kernel, np.ones((1, 1), "float32"), w)
    np.testing.assert_allclose(found, wanted(w[0].astype("float64")), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", ["relu", "clip", "sigmoid"])
def test_nan_remains_and_infinities_have_their_limits(name):
    alpha, beta, wanted = FUNCTIONS[name]
    w = np.array([[np.nan, np.inf, -np.inf, 0, 1]], "float32")
    found = run(product(1, 5, post=[{"name": name, "alpha": alpha, "beta": beta}]), np.ones((1, 1), "float32"), w)
    np.testing.assert_allclose(found, wanted(w[0]), rtol=1e-6)


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide"])
@pytest.mark.parametrize("width", [1, 300])
def test_another_operand(name, width):
    kernel = product(40, 300, bias=True, post=[{"name": name, "input": 0}], others=[width])
    assert implementation(kernel) == "tvm_sched"
    x, w, b, y = values(1, 40), values(40, 300), values(1, 300), values(1, width) + 4
    wanted = getattr(np, name)(x.astype("float64") @ w + b, y)
    np.testing.assert_allclose(run(kernel, x, w, b, y), wanted[0], rtol=1e-5, atol=1e-5)


def test_what_it_does_not_know_is_onednns():
    for kernel in (
        product(40, 300, post=[{"name": "mish", "alpha": 0.0, "beta": 0.0}]),
        {**product(40, 300), "operands": [dense(2, 40), dense(40, 300, parameter=True), dense(2, 300)]},
        {**product(40, 300), "operands": [dense(1, 40), dense(40, 300), dense(1, 300)]},
    ):
        assert "tvm_sched" not in implementation(kernel)


def test_bfloat16_rounds_weights_alone():
    x, w = values(1, 64), values(64, 8)
    found = run(product(64, 8, "bfloat16"), x, w.astype(ml_dtypes.bfloat16))
    exact = x.astype("float64") @ w.astype(ml_dtypes.bfloat16).astype("float64")
    np.testing.assert_allclose(found, exact[0], rtol=1e-5, atol=1e-6)
