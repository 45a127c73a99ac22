"""Choosing tokens: against probabilities computed directly, and with seeds."""

import numpy as np
import pytest

from tvm_sched_language import Sampling
from tvm_sched_runtime.errors import InputError

LOGITS = np.log(np.array([0.1, 0.4, 0.05, 0.25, 0.2], np.float32))


def drawn(sampling, count=4000):
    random = sampling.generator()
    tokens = [sampling.choose(LOGITS, random) for _ in range(count)]
    return np.bincount(tokens, minlength=LOGITS.size) / count


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(1.0, seed=1), [0.1, 0.4, 0.05, 0.25, 0.2]),
        (Sampling(0.5, seed=1), np.array([0.01, 0.16, 0.0025, 0.0625, 0.04]) / 0.275),
        (Sampling(1.0, top_k=2, seed=1), [0, 0.4 / 0.65, 0, 0.25 / 0.65, 0]),
        (Sampling(1.0, top_p=0.6, seed=1), [0, 0.4 / 0.65, 0, 0.25 / 0.65, 0]),
        (Sampling(1.0, top_p=0.66, seed=1), [0, 0.4 / 0.85, 0, 0.25 / 0.85, 0.2 / 0.85]),
        (Sampling(1.0, top_k=1, seed=1), [0, 1, 0, 0, 0]),
        (Sampling(1.0, top_p=1e-9, seed=1), [0, 1, 0, 0, 0]),
        (Sampling(0.0), [0, 1, 0, 0, 0]),
        (Sampling(1e-320, seed=1), [0, 1, 0, 0, 0]),
    ],
)
def test_tokens_are_drawn_with_their_probabilities(sampling, expected):
    expected = np.asarray(expected, float)
    # Four standard deviations of a share of 4000 draws.
    assert np.all(np.abs(drawn(sampling) - expected) <= 4 * np.sqrt(expected * (1 - expected) / 4000) + 1e-12)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_no_token_is_drawn_where_the_largest_logit_is_no_number(value):
    logits = np.full(5, value, np.float32) if value < 0 else np.array([0.5, value, 1.0], np.float32)
    for sampling in (Sampling(), Sampling(1.0, top_k=2, top_p=0.9, seed=1)):
        assert sampling.choose(logits, sampling.generator()) == -1
    assert Sampling().choose(np.array([-np.inf, 1.0], np.float32), None) == 1, "a forbidden token is no fault"


def test_equal_seeds_draw_equal_tokens():
    random, other = Sampling(1.0, seed=5).generator(), Sampling(1.0, seed=5).generator()
    first, second = ([Sampling(1.0).choose(LOGITS, r) for _ in range(20)] for r in (random, other))
    assert first == second


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0}, "top_p is 0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_wrong_values_are_refused(given, message):
    with pytest.raises(InputError, match=message):
        Sampling(**given)
