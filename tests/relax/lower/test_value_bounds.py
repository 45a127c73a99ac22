"""Kernels of several threads keep NaN, though they look at their inputs only where bounds do not rule NaN out."""

import json
import math

import numpy as np
import pytest
import tvm
from tvm import relax

from relax.onednn_cases import module
from tvm_sched.relax import run_passes
from tvm_sched.relax.emit.runtime_module import number_values
from tvm_sched.relax.lower.kernel_libraries import claimed_functions, kernel_document
from tvm_sched.relax.lower.kernel_libraries.onednn.describe import dense
from tvm_sched.relax.lower.kernel_libraries.onednn.products import VERSION
from tvm_sched.relax.problem.operator_graph import extract
from tvm_sched_runtime.core_library import function as library_function

SIZE = 32
RELU = {"name": "relu"}


@pytest.fixture(autouse=True)
def _needs_onednn():
    if library_function("tvm_sched.why_not_onednn")():
        pytest.skip("oneDNN is not installed")


def chain(posts, second=None, threads=2):
    """Products with one matrix each, of which the next reads what the last made; ``second`` adds an operand to the last."""
    square = dense((SIZE, SIZE))
    kernels = {}
    for k, post in enumerate(posts):
        source = {**square, **({"value": k - 1} if k else {})}
        operands = [source, dense((SIZE, SIZE), parameter=True)]
        if second is not None and k == len(posts) - 1:
            post = [{"name": "add", "input": 2}, *post]
            operands.append({**square, "value": second})
        kernels[f"k{k}"] = {"primitive": "matmul", "post": post, "operands": [*operands, {**square, "value": k}]}
    module = library_function("tvm_sched.make_onednn_module")(
        json.dumps({"version": VERSION, "kernels": kernels, "threads": threads})
    )

    def run(x, matrices):
        values = [x]
        for k, matrix in enumerate(matrices):
            result = tvm.runtime.tensor(np.zeros((SIZE, SIZE), "float32"))
            further = [tvm.runtime.tensor(values[second + 1])] if second is not None and k == len(posts) - 1 else []
            module[f"k{k}"](tvm.runtime.tensor(values[-1]), matrix, *further, result)
            values.append(result.numpy())
        return values[1:]

    return run


def matrices(*values):
    """Kept by the caller: a kernel remembers a parameter by its address."""
    return [tvm.runtime.tensor(np.asarray(value, "float32")) for value in values]


def exact(x, weights):
    """Products of float32 that are exact, each with a ReLU that keeps NaN."""
    values = []
    for weight in weights:
        with np.errstate(all="ignore"):
            # One term after the other: float32 overflows where it would in the kernel.
            x = np.sum(x[:, :, None] * weight.numpy()[None], axis=1, dtype="float32")
        x = np.where(x < 0, np.float32(0), x)
        values.append(x)
    return values


def whole_numbers(rng, low=-3, high=4):
    return rng.integers(low, high, (SIZE, SIZE)).astype("float32")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("special", [[np.nan], [np.inf, -np.inf], [-np.inf], [3e38, -3e38, 3e38]])
def test_nan_remains_in_a_run_after_runs_without_one(threads, special):
    rng = np.random.default_rng(0)
    weights = matrices(*(whole_numbers(rng) for _ in range(3)))
    run = chain([[RELU]] * 3, threads=threads)
    for values in ([], special, [], special):
        x = whole_numbers(rng)
        for value in values:
            x[4, rng.integers(0, SIZE)] = value
        for found, right in zip(run(x, weights), exact(x, weights), strict=True):
            if 3e38 not in values:  # whether such a sum overflows depends on its order
                np.testing.assert_array_equal(found, right)
            np.testing.assert_array_equal(np.delete(found, 4, 0), np.delete(right, 4, 0))


def test_sums_that_overflow_after_many_products():
    """Each product enlarges its bound until float32 ends: infinities come from finite numbers, and NaN from these."""
    weights = matrices(*[np.eye(SIZE) * 2.0**40] * 5)
    run = chain([[RELU]] * 5)
    for scale in (1.0, 2.0**-60, 1.0):
        x = np.full((SIZE, SIZE), scale, "float32")
        results = run(x, weights)
        for found, right in zip(results, exact(x, weights), strict=True):
            np.testing.assert_array_equal(found, right)
        assert np.isnan(results[-1]).all() == (scale == 1.0)


def test_other_weights_have_other_bounds():
    rng = np.random.default_rng(1)
    x = whole_numbers(rng, 1)
    one, other, nan = matrices(np.eye(SIZE), np.eye(SIZE), np.full((SIZE, SIZE), np.nan))
    run = chain([[], [RELU]])
    for first, second in ((one, other), (nan, other), (one, other), (one, nan)):
        last = run(x, [first, second])[-1]
        assert np.isnan(last).all() if any(each is nan for each in (first, second)) else (last == x).all()


CLIP = {"name": "clip", "alpha": -2.0, "beta": 6.0}
LOSE_NAN = [
    RELU,
    CLIP,
    {"name": "exp"},
    {"name": "hard_sigmoid", "alpha": 0.5, "beta": 0.5},
    {"name": "maximum"},
    {"name": "minimum"},
]
FUNCTIONS = {
    "relu": lambda x, post: np.maximum(x, 0),
    "clip": lambda x, post: np.clip(x, post["alpha"], post["beta"]),
    "linear": lambda x, post: post["alpha"] * x + post["beta"],
    "sigmoid": lambda x, post: 1 / (1 + np.exp(-x)),
    "silu": lambda x, post: x / (1 + np.exp(-x)),
    "hard_sigmoid": lambda x, post: np.clip(post["alpha"] * x + post["beta"], 0, 1),
    "gelu": lambda x, post: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
    "softplus": lambda x, post: np.logaddexp(0, x),
}
"""Those that NumPy has not under the same name."""
BINARY = {"multiply", "divide", "maximum", "minimum"}


def in_numpy(post, x, other):
    if post["name"] in BINARY:
        return getattr(np, post["name"])(x, other)
    return FUNCTIONS[post["name"]](x, post) if post["name"] in FUNCTIONS else getattr(np, post["name"])(x)


def named(*names):
    return [{"name": name} for name in names]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("post", "value", "other"),
    [
        *[([{"name": "log"}, loses], -1.0, 1.0) for loses in LOSE_NAN],
        *[([{"name": "sqrt"}, loses], -1.0, 1.0) for loses in LOSE_NAN],
        *[([{"name": "divide"}, loses], 0.0, 0.0) for loses in LOSE_NAN],
        (named("exp", "multiply", "relu"), 1000.0, 0.0),  # infinity times 0
        (named("divide", "multiply", "relu"), 1.0, 0.0),
        (named("square", "multiply", "relu"), 1e30, 0.0),
        ([*named("log"), {"name": "linear", "alpha": 0.0, "beta": 1.0}, RELU], 0.0, 1.0),  # 0 times infinity
        ([{"name": "softplus", "alpha": 1.0}, RELU], 1000.0, 1.0),
        (named("exp", "relu"), 1000.0, 1.0),
        (named("relu", "sqrt"), -1.0, 1.0),  # no NaN, as relu comes first
        (named("relu", "log", "sigmoid"), -1.0, 1.0),
        (named("log", "sigmoid"), -1.0, 1.0),
        (named("square", "gelu"), 1e30, 1.0),  # infinity, of which oneDNN makes NaN
        ([*named("square"), {"name": "linear", "alpha": -1.0, "beta": 0.0}, *named("gelu")], 1e30, 1.0),
        (named("gelu", "square"), -40.0, 1.0),
        (named("gelu"), np.nan, 1.0),
        ([CLIP], np.nan, 1.0),
        (named("sigmoid"), np.nan, 1.0),
        ([{"name": "silu", "alpha": 1.0}], np.nan, 1.0),
    ],
    ids=lambda each: "-".join(post["name"] for post in each) if isinstance(each, list) else str(each),
)
def test_nan_remains_in_a_chain_and_in_the_next_kernel(post, value, other, threads):
    """A chain makes NaN or infinity, or is given them, before operations that lose or make NaN: as in NumPy."""
    square = dense((SIZE, SIZE))
    parameter = dense((SIZE, SIZE), parameter=True)
    post = [{**each, "input": 2} if each["name"] in BINARY else each for each in post]
    result = {**square, "value": 0}
    kernels = {
        "first": {"primitive": "matmul", "post": post, "operands": [square, parameter, square, result]},
        "last": {"primitive": "matmul", "post": [RELU], "operands": [result, parameter, {**square, "value": 1}]},
    }
    module = library_function("tvm_sched.make_onednn_module")(
        json.dumps({"version": VERSION, "kernels": kernels, "threads": threads})
    )
    (eye,) = matrices(np.eye(SIZE))
    for special in (1.0, value, 1.0, value):
        x, y = np.ones((2, SIZE, SIZE), "float32")
        x[3, 5], y[3, 5] = special, other if special == value else 1
        first, last = matrices(np.zeros_like(x), np.zeros_like(x))
        module["first"](*matrices(x), eye, *matrices(y), first)
        module["last"](first, eye, last)
        # NaN and infinity times the zeros of the matrix make the row NaN.
        right = x if np.isfinite(special) else np.where(np.arange(SIZE)[:, None] == 3, np.float32(special), x)
        with np.errstate(all="ignore"):
            for each in post:
                right = in_numpy(each, right, y)
        np.testing.assert_allclose(first.numpy(), right, rtol=1e-4, atol=1e-6)
        (after,) = exact(right.astype("float32"), [eye])
        np.testing.assert_allclose(last.numpy(), after, rtol=1e-4, atol=1e-6)


def test_an_operand_that_is_added_counts():
    """The second product's result is added to the third's; its NaN is not in the third's source, whose column is 0."""
    weights = matrices(np.eye(SIZE), np.eye(SIZE), np.zeros((SIZE, SIZE)))
    run = chain([[RELU]] * 3, second=0)
    x = np.ones((SIZE, SIZE), "float32")
    np.testing.assert_array_equal(run(x, weights)[-1], x)
    x[2, 7] = np.nan
    assert np.isnan(run(x, weights)[-1][2]).all()


def test_the_compiler_numbers_what_kernels_hand_on():
    weight = relax.const(np.eye(SIZE, dtype="float32"))

    def make(b, x):
        for _ in range(2):
            x = b.emit(relax.op.nn.relu(b.emit(relax.op.matmul(x, weight))))
        return x

    placed = run_passes(module(make, [(SIZE, SIZE)]), "cpu2", "Place")
    numbered = number_values(placed, extract(placed))
    described = {function: kernel_document(numbered, function)[1] for function in claimed_functions(numbered)}
    numbers = sorted([[operand.get("value") for operand in each["operands"]] for each in described.values()], key=str)
    assert numbers == [[0, None, None], [None, None, 0]]
