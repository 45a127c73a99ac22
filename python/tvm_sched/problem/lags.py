"""Lags: a search counts a model as ending later than it does, so that it makes this one of several models faster."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .problem import Problem


def with_lags(problem: Problem, lags_ns: Sequence[int]) -> Problem:
    """The problem in which searches count each of the graph's models as ending later, by its lag.

    What `heft`, `peft` and `anytime` then make least is the latest of these moments. A run knows nothing of it, nor do
    bounds and certificates; digest and files are the same.

    Parameters
    ----------
    problem : Problem
    lags_ns : sequence of int
        For each of ``problem.graph.models``, or for the one model: nanoseconds from 0.

    Raises
    ------
    InputError
        There is not one for each model, or one is below 0.
    """
    models = len(problem.graph.operators_of_models)
    if len(lags_ns) != models or any(lag < 0 for lag in lags_ns):
        raise InputError(f"lags are {list(lags_ns)}; a number from 0 for each of {models} models is allowed")
    made = Problem._unchecked(problem.graph, problem.topology, problem.costs)
    made.variants, made.lags_ns = problem.variants, tuple(lags_ns)
    return made.with_resident(problem.resident)


def operator_lags(problem: Problem) -> npt.NDArray[np.int64]:
    """The lag of each operator's model; empty where there are none."""
    if not any(problem.lags_ns):
        return np.empty(0, dtype=np.int64)
    lags = np.zeros(len(problem.graph.operators), dtype=np.int64)
    for lag, members in zip(problem.lags_ns, problem.graph.operators_of_models, strict=True):
        lags[members] = lag
    return lags
