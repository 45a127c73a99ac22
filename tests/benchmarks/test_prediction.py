"""The benchmark of predictions: what is repeated, and what the page says of the aims."""

import prediction
import pytest


def rounds(*pairs):
    """A measurement whose rounds find these predicted and measured seconds, one after the other."""
    found = [{"predicted": predicted, "measured": measured, "kernels": []} for predicted, measured in pairs]
    made = prediction.Measured(None, [])
    made.once = lambda case, anew: found.pop(0)
    return made


@pytest.mark.parametrize(
    ("pairs", "attempts", "stands"),
    [
        ([(2.0, 9.0), (2.1, 9.1)], 3, (2.0, 9.0)),  # steady at once, however wrong
        ([(1.0, 1.0), (1.0, 1.5), (2.0, 3.0), (2.0, 3.1)], 3, (2.0, 3.0)),
        ([(1.0, 1.0), (1.3, 1.0), (2.0, 2.0), (1.0, 2.0)], 2, (1.0, 1.0)),  # never: the one that changed least
    ],
)
def test_the_steadiest_attempt_stands_whatever_it_says(pairs, attempts, stands):
    found = rounds(*pairs).steady(None, attempts)
    assert (found["predicted"], found["measured"]) == stands


def test_a_failure_ends_the_attempts():
    made = rounds()
    made.once = lambda case, anew: {"failed": "no"}
    assert made.steady(None, 3) == {"failed": "no"}


def test_the_conclusion_counts_models_kernels_and_steady_ones():
    rows = []
    for name, ratio, drift in (("a", 1.05, 1.02), ("b", 0.8, 1.05), ("c", 0.5, 1.6)):
        found = {"predicted": ratio, "measured": 1.0, "drift": drift, "kernels": [["k", 1e-4 * ratio, 1e-4]]}
        rows += prediction.rows_of(name, found | {"graph": {"k": 2.0 * ratio}})
    said = prediction.conclusion(rows)
    assert "2 of 3 models are predicted within 25 %, 1 within 10 %" in said
    assert "Of 3 kernels above 50 us, 100.0% are right within 2 times" in said
    assert "On 2 of the models" in said
    assert "of these 2 are within 25 %, 1 within 10 %" in said
    assert "Not within 25 %: c (0.50)." in said
    assert "From the graph alone, after typical layers were measured, 1 of 3 are within 25 %." in said
