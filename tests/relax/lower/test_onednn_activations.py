"""Activations however they are written out: which function they are, and that a product takes them along."""

import numpy as np
import pytest
from scipy import special
from tvm import relax

from relax.lower.onednn_cases import needs_onednn
from relax.onednn_cases import module
from tvm_sched.relax import compile
from tvm_sched.relax.lower.kernel_libraries.onednn.fused_activations import evaluate, recognise

pytestmark = needs_onednn

op = relax.op


def c(value, shape=()):
    return relax.const(np.full(shape, value, "float32"))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


FORMS = {
    # name: the operators, the same in numpy, kinds of the post-operations
    "sigmoid times x": (lambda x: op.multiply(op.sigmoid(x), x), lambda x: x * sigmoid(x), "silu"),
    "x over 1 + exp(-x)": (
        lambda x: op.divide(x, op.add(op.exp(op.negative(x)), c(1, (1, 1)))),
        lambda x: x * sigmoid(x),
        "silu",
    ),
    "quick GELU": (
        lambda x: op.multiply(x, op.sigmoid(op.multiply(c(1.702), x))),
        lambda x: x * sigmoid(1.702 * x),
        "silu",
    ),
    "hard swish by clip": (
        lambda x: op.divide(op.multiply(x, op.clip(op.add(c(3), x), 0, 6)), c(6)),
        lambda x: x * np.clip(x + 3, 0, 6) / 6,
        "hard_swish",
    ),
    "hard swish by relu6": (
        lambda x: op.multiply(x, op.multiply(op.nn.relu6(op.add(x, c(3))), c(1 / 6))),
        lambda x: x * np.clip(x + 3, 0, 6) / 6,
        "hard_swish",
    ),
    "hard swish by hard sigmoid": (
        lambda x: op.multiply(x, op.clip(op.add(op.multiply(x, c(1 / 6)), c(0.5)), 0, 1)),
        lambda x: x * np.clip(x + 3, 0, 6) / 6,
        "hard_swish",
    ),
    "hard sigmoid": (
        lambda x: op.minimum(op.maximum(op.add(op.multiply(x, c(0.2)), c(0.5)), c(0)), c(1)),
        lambda x: np.clip(0.2 * x + 0.5, 0, 1),
        "hard_sigmoid",
    ),
    "hard sigmoid of relu6": (
        lambda x: op.divide(op.nn.relu6(op.add(x, c(3))), c(6)),
        lambda x: np.clip(x + 3, 0, 6) / 6,
        "hard_sigmoid",
    ),
    "GELU of ONNX": (
        lambda x: op.multiply(op.multiply(x, op.add(op.erf(op.divide(x, c(2**0.5))), c(1))), c(0.5)),
        lambda x: 0.5 * x * (1 + special.erf(x / 2**0.5)),
        "gelu",
    ),
    "GELU, half first": (
        lambda x: op.multiply(op.multiply(c(0.5), x), op.add(c(1), op.erf(op.multiply(x, c(0.70710677))))),
        lambda x: 0.5 * x * (1 + special.erf(x / 2**0.5)),
        "gelu",
    ),
    "GELU by tanh and power": (
        lambda x: op.multiply(
            op.multiply(c(0.5), x),
            op.add(
                c(1),
                op.tanh(op.multiply(c(0.7978845608), op.add(x, op.multiply(c(0.044715), op.power(x, c(3)))))),
            ),
        ),
        lambda x: 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3))),
        "gelu_tanh",
    ),
    "GELU by tanh and products": (
        lambda x: op.multiply(
            x,
            op.multiply(
                c(0.5),
                op.add(
                    op.tanh(
                        op.multiply(
                            op.multiply(x, c(0.7978845608)), op.add(op.multiply(op.multiply(x, x), c(0.044715)), c(1))
                        )
                    ),
                    c(1),
                ),
            ),
        ),
        lambda x: 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3))),
        "gelu_tanh",
    ),
    "ELU": (
        lambda x: op.add(op.multiply(c(-0.7), op.nn.relu(op.subtract(c(1), op.exp(x)))), op.nn.relu(x)),
        lambda x: np.where(x > 0, x, 0.7 * np.expm1(x)),
        "elu",
    ),
    "SELU": (
        lambda x: op.nn.selu(x),
        lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
        "elu_linear",
    ),
    "leaky ReLU": (lambda x: op.nn.leakyrelu(x, 0.1), lambda x: np.where(x > 0, x, 0.1 * x), "relu"),
    "leaky ReLU by maximum": (
        lambda x: op.maximum(x, op.multiply(c(0.1), x)),
        lambda x: np.where(x > 0, x, 0.1 * x),
        "relu",
    ),
    "one slope": (lambda x: op.nn.prelu(x, c(0.3, (1,)), 1), lambda x: np.where(x > 0, x, 0.3 * x), "relu"),
    "Mish": (
        lambda x: op.multiply(x, op.tanh(op.log(op.add(c(1), op.exp(x))))),
        lambda x: x * np.tanh(np.logaddexp(0, x)),
        "mish",
    ),
    "softplus": (
        lambda x: op.add(op.nn.relu(x), op.log(op.add(c(1), op.exp(op.negative(op.abs(x)))))),
        lambda x: np.logaddexp(0, x),
        "softplus",
    ),
    "softplus, steep": (lambda x: op.nn.softplus(x, 2.0), lambda x: np.logaddexp(0, 2 * x) / 2, "softplus"),
    "clip": (lambda x: op.minimum(op.maximum(x, c(-0.5)), c(2)), lambda x: np.clip(x, -0.5, 2), "clip"),
    "square": (lambda x: op.multiply(x, x), lambda x: x * x, "square"),
    "abs, then root": (lambda x: op.sqrt(op.abs(x)), lambda x: np.sqrt(np.abs(x)), "abs_sqrt"),
    "not of oneDNN": (lambda x: op.add(x, op.cos(x)), lambda x: x + np.cos(x), ""),
}
ODD = np.array([[0.0, -0.0, 1e-30, -1e-3, 5.0, -5.0, 30.0, -30.0, 90.0, -90.0, 700.0, -700.0, 0.5]], "float32").T
SPECIAL = np.array([[np.inf], [-np.inf], [np.nan]], "float32")


@pytest.fixture(scope="module")
def model():
    """Each form after a product with the identity, so that its argument is the input."""
    import tvm

    one = relax.const(tvm.runtime.tensor(np.ones((1, 1), "float32")))

    def make(b, x):
        results = []
        for form, _, _ in FORMS.values():
            results.append(b.emit(form(b.emit(op.matmul(x, one)))))
        return relax.Tuple(results)

    return make


def test_products_take_activations_along(model):
    compiled = compile(module(model, [ODD.shape]), "cpu1", "single")
    kinds = [operator.kind for operator in compiled.problem.graph.operators if operator.kind.startswith("onednn")]
    assert sorted(kinds) == sorted(
        f"onednn.matmul_{kind}" if kind else "onednn.matmul" for _, _, kind in FORMS.values()
    )
    for found, (name, (_, function, _)) in zip(compiled.run(ODD), FORMS.items(), strict=True):
        with np.errstate(all="ignore"):
            expected = function(ODD.astype("float64"))
        known = np.abs(expected) < 1e30  # float32 holds them, and what they are made of
        np.testing.assert_allclose(found[known], expected[known], rtol=3e-6, atol=1e-6, err_msg=name)


def test_infinities_and_nan(model):
    """What a function gives there, products give, too, but for GELU (docs/formats/kernels.md)."""
    compiled = compile(module(model, [SPECIAL.shape]), "cpu1", "single")
    by_name = dict(zip(FORMS, compiled.run(SPECIAL), strict=True))
    for name in ("sigmoid times x", "GELU by tanh and power", "hard swish by clip", "ELU", "Mish"):
        assert by_name[name][0] == np.inf, name
        assert np.isnan(by_name[name][2]), name
    assert by_name["ELU"][1] == pytest.approx(-0.7)


@pytest.mark.parametrize(
    "function", [np.cos, lambda x: x**3, lambda x: np.where(x > 5, x, 0), lambda x: x * sigmoid(x) + 1e-4 * x]
)
def test_other_functions_are_not_taken_for_one(function):
    assert recognise(function) is None


@pytest.mark.parametrize(
    ("low", "high"), [(1e-7, None), (1e-10, None), (None, 3.0), (-100, 100), (None, 500), (0, 90), (2, None)]
)
def test_a_clip_keeps_its_bounds(low, high):
    """Also where one is open, lies beyond where functions bend, or is nearly 0, of which a logarithm may follow."""
    steps = recognise(lambda x: np.clip(x, low, high))
    assert [name for name, _, _ in steps] == ["clip"]
    x = np.array([-1e20, -300, -90, -1, 0, 1e-9, 1, 90, 300, 1e20])
    np.testing.assert_array_equal(evaluate(steps[0], x), np.clip(x, low, high))


def test_a_bound_within_an_activation_is_not_lost():
    assert recognise(lambda x: np.minimum(x, 100) / (1 + np.exp(-x))) is None
    assert recognise(lambda x: np.maximum(x, 0)) == [("relu", 0.0, 0.0)]


def test_the_identity_is_no_step():
    assert recognise(lambda x: x + 0.0) == []
