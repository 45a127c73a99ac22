"""Run a method and certify its answer: a schedule, partition, pipeline plan or placement of services."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from tvm_sched_runtime.errors import ScheduleError, SchedulerError
from tvm_sched_runtime.search_budget import Status

from .progress import Progress, report_to
from .registry import Method

Raw = TypeVar("Raw")


@dataclass(frozen=True)
class MethodResult(Generic[Raw]):
    """Answer of a method before it is priced."""

    answer: Raw
    """As the method returned it."""
    method: str
    options: msgspec.Struct
    seconds: float
    """Wall-clock time that it took."""


class Proof(NamedTuple):
    """Lower bound on the cost of an answer, and the cost that counts as optimal."""

    bound: float
    """No answer costs less."""
    name: str
    """The argument that gave the bound."""
    optimal: float
    """An answer that costs no more counts as optimal: the bound plus rounding or a solver's tolerance."""
    rounding: float = 0.0
    """Fraction of the cost by which rounding may lift the bound above it."""


def run_method(
    method: Method[Any],
    options: Mapping[str, Any] | msgspec.Struct | None,
    kind: type[Raw] | tuple[type[Raw], ...],
    run: Callable[[Callable[..., Any], Any], Raw],
    progress: Progress | None = None,
) -> MethodResult[Raw]:
    """Run a method; the caller prices and verifies its answer within `answer_of`.

    Parameters
    ----------
    method : Method
    options : mapping or options struct, optional
    kind : type, or a tuple of them
        Type of the method's answer.
    run : callable
        Calls the method's function, its first argument, with the options, its second.

    Raises
    ------
    InputError
        An option is unknown, or its value is not allowed.
    SchedulerError
        The answer is of another kind.
    """
    chosen = method.read_options(options)
    begin = time.monotonic()
    with report_to(progress):
        answer = run(method.function, chosen)
    seconds = time.monotonic() - begin
    if not isinstance(answer, kind):
        expected = " or ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
        raise SchedulerError(
            f"{method.what} {method.name!r} returned a {type(answer).__name__}; a {expected} is expected"
        )
    return MethodResult(answer, method.name, chosen, seconds)


@contextmanager
def answer_of(method: Method[Any]) -> Iterator[None]:
    """Raise a `ScheduleError` of the block, which prices and verifies an answer, as a `SchedulerError` of the method."""
    try:
        yield
    except ScheduleError as error:
        raise SchedulerError(f"the answer of {method.what} {method.name!r} breaks a rule: {error}") from error


def reported_status(claimed: str) -> Status:
    """Return the status of a search as reported by the method, except for optimality."""
    return claimed if claimed in ("time limit", "interrupted") else "no better found"  # type: ignore[return-value]


def final_status(claimed: str, cost: float, proof: Proof) -> Status:
    """Return the status of a search with this cost: ``optimal`` if the bound proves it, else the method's status.

    Raises
    ------
    SchedulerError
        The bound is above the cost: a fault of a bound or of the pricing.
    """
    if proof.bound > cost * (1 + proof.rounding):
        raise SchedulerError(
            f"bound {proof.name!r} ({proof.bound:.15g}) exceeds a cost of {cost:.15g}: please report this"
        )
    if cost <= proof.optimal:
        return "optimal"
    return reported_status(claimed)
