"""Errors of programs beyond those of their kernels, against ends worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_sched_plans import export_plan, program_errors
from tvm_sched_plans.program_errors import FITTED, LEAST, Kind, fit

KIND = Kind("", "token", False)


def test_factors_are_conformal_quantiles_of_each_end():
    # Nine measurements 1 to 9 of an interval 4 to 5: the ninth smallest of measured / 5 is 9 / 5, of 4 / measured 4 / 1.
    points = [(KIND, float(measured), (4.0, 5.0)) for measured in range(1, 10)]
    assert fit(points) == {KIND: (0.25, 1.8)}
    assert fit(points[:-1]) == {}  # with eight, not even the largest has 90 % of further ones below it
    # With 19, the 18th smallest: the largest and the smallest do not count.
    assert fit([(KIND, float(measured), (4.0, 5.0)) for measured in range(1, 20)]) == {KIND: (0.5, 3.6)}


def test_measurements_that_decide_a_factor_lie_inside():
    # 3.0 / 7.0 and 7.0 / 3.0, which three decimals cannot hold, are rounded away from 1.
    assert fit([(KIND, 7.0, (3.0, 3.0))] * LEAST) == {KIND: (1.0, 2.334)}
    assert fit([(KIND, 3.0, (7.0, 7.0))] * LEAST) == {KIND: (0.428, 1.0)}


def test_no_factor_narrows_an_interval():
    assert fit([(KIND, 5.0, (1.0, 10.0))] * 20) == {KIND: (1.0, 1.0)}


def test_further_measurements_are_inside_at_least_as_often_as_said():
    draws = np.random.default_rng(0).lognormal(0.2, 0.5, (300, 2 * LEAST))
    inside = []
    for drawn in draws:
        (low, high), *_ = fit((KIND, each, (1.0, 1.0)) for each in drawn[: LEAST + 5]).values()
        inside += [low <= each <= high for each in drawn[LEAST + 5 :]]
    assert np.mean(inside) >= 0.8


def test_a_kind_without_measurements_gets_the_widest_factors():
    lows, highs = zip(*FITTED.values(), strict=True)
    assert program_errors.program_errors(Kind("never", "measured", True)) == (min(lows), max(highs))
    assert all(low <= 1 <= high for low, high in FITTED.values())


def test_the_factors_move_the_ends_of_a_plan_and_of_all_of_it(monkeypatch):
    def ends(low, high):
        monkeypatch.setattr(
            program_errors, "FITTED", {Kind("llama.cpp", "token", False): (1.0, 1.0), KIND: (low, high)}
        )
        return export_plan("gpt2-xl", "a6000-server", "llama.cpp", costs="learned").ours

    plain, wide = ends(1.0, 1.0), ends(0.5, 3.0)
    low, high = plain.intervals_ns["prefill"]
    assert wide.intervals_ns["prefill"] == pytest.approx((low * 0.5, high * 3.0), abs=1)
    assert wide.intervals_ns["decode"] == plain.intervals_ns["decode"]
    assert (
        wide.intervals_ns[""][0]
        < plain.intervals_ns[""][0]
        < plain.total_ns
        < plain.intervals_ns[""][1]
        < wide.intervals_ns[""][1]
    )
