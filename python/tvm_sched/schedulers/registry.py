"""Schedulers by name: each maps a Problem to a Schedule; `solve` calls one, checks its answer and certifies it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ..certify import Found, Proof, certify, final_status
from ..errors import InputError
from ..problem import Problem
from ..progress import Progress
from ..registry import Method, Methods
from ..schedule import Certificate, Schedule, ScheduleIndex, resolved
from ..schedule._compiled import compiled
from ..schedule.bounds import lower_bound, provable
from ..schedule.critical_path import critical_path
from ..schedule.verifier import verify
from .common.submodels import use_submodels

REFERENCES: Mapping[str, Callable[[Problem], int]] = {"critical-path": critical_path}
"""Latencies in nanoseconds to draw beside those of schedulers, by name: no schedule stands behind them."""

SchedulerFunction = Callable[[Problem, Any], Schedule]
"""`solve` makes the certificate; its status is that of the method's own one, if there is any (`Certificate.unchecked`)."""

SCHEDULERS: Methods[SchedulerFunction] = Methods("scheduler", "tvm_sched.schedulers")
register = SCHEDULERS.register
names = SCHEDULERS.names


def get(name: str) -> Method[SchedulerFunction]:
    """The scheduler of that name; raises `InputError` that lists those there are."""
    if name in REFERENCES:
        raise InputError(
            f"{name!r} is a latency to compare with, no scheduler: `tvm-sched compare` shows it; there are the "
            f"schedulers {', '.join(names())}"
        )
    return SCHEDULERS.get(name)


def solve(
    problem: Problem,
    name: str = "anytime",
    options: Mapping[str, Any] | msgspec.Struct | None = None,
    progress: Progress | None = None,
    submodels: Sequence[Sequence[str]] | None = None,
) -> Schedule:
    """Schedule a problem, check the answer and add its certificate.

    Parameters
    ----------
    problem : Problem
    name : str
    options : mapping or options struct, optional
        Strings are converted, so that command-line values can be given as they are.
    progress : callable, optional
    submodels : sequence of sequences of str, optional
        Operators of each submodel, in order, for schedulers that solve submodels; without it they split the graph at its
        dominators.

    Raises
    ------
    InputError
        No such scheduler or option, or ``submodels`` do not hold each operator once, after what it reads.
    InfeasibleError
        No schedule obeys the memory limits, as far as the scheduler can tell.
    SchedulerError
        The scheduler's answer breaks a rule of ``docs/model.md``, or is no schedule.
    """
    scheduler = get(name)
    compiled(problem)  # loads the library, and PyTorch with it where that is installed: seconds that are no method's

    def run(function: SchedulerFunction, chosen: msgspec.Struct) -> Schedule:
        with use_submodels(problem, submodels):
            return function(problem, chosen)

    def price(found: Found[Schedule]) -> Schedule:
        return found.answer.replace(
            scheduler=found.method,
            options=msgspec.to_builtins(found.options),
            seconds=found.seconds,
            certificate=certificate(problem, found.answer),
        )

    return certify(scheduler, options, Schedule, run, price, lambda schedule: verify(problem, schedule), progress)


def certificate(problem: Problem, schedule: Schedule) -> Certificate:
    """What is known of a schedule's quality, computed anew; only how its search ended is taken from its own certificate.

    Raises
    ------
    ScheduleError
        The schedule breaks a rule.
    SchedulerError
        A lower bound is above its latency, which would be a fault of ours.
    """
    latency, bound = ScheduleIndex.of(*resolved(problem, schedule)).times.latency_ns, lower_bound(problem)
    claimed = schedule.certificate.status if schedule.certificate else ""
    status = final_status(claimed, latency, Proof(bound.ns, bound.name, provable(bound.ns)))
    return Certificate(latency, bound.ns, bound.name, status)
