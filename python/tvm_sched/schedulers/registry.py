"""Schedulers by name: how they join, are found and are called."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any

import msgspec

from ..errors import InputError, ScheduleError, SchedulerError
from ..problem import Problem
from ..schedule import Certificate, Schedule
from ..schedule.bounds import lower_bound
from ..schedule.critical_path import critical_path
from ..schedule.simulate import simulate
from ..schedule.verify import verify

ENTRY_POINTS = "tvm_sched.schedulers"

REFERENCES: Mapping[str, Callable[[Problem], int]] = {"critical-path": critical_path}
"""Latencies in nanoseconds to draw beside those of schedulers, by name: no schedule stands behind them."""

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many parts are done and how many there are."""


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a scheduler that has none."""


@dataclass(frozen=True)
class Scheduler:
    """A scheduler as registered.

    Attributes
    ----------
    name : str
    function : callable
        ``(problem, options) -> Schedule``; the certificate is added by `solve`.
    options : type
        A frozen `msgspec.Struct` with defaults.
    summary : str
        First line of the function's docstring.
    answers_interrupt : bool
        On Ctrl-C it returns the best schedule that it has, soon, if it has one.
    """

    name: str
    function: Callable[[Problem, Any], Schedule]
    options: type[msgspec.Struct]
    summary: str
    answers_interrupt: bool = False


_registry: dict[str, Scheduler] = {}
_progress: ContextVar[Progress | None] = ContextVar("tvm_sched_progress", default=None)


def register(
    name: str, options: type[msgspec.Struct] = NoOptions, answers_interrupt: bool = False
) -> Callable[[Callable[[Problem, Any], Schedule]], Any]:
    """Decorator that makes a function a scheduler.

    Parameters
    ----------
    name : str
        How it is called on the command line and in `solve`.
    options : type of msgspec.Struct
        Frozen, every field with a default.
    answers_interrupt : bool
        See `Scheduler`.

    Raises
    ------
    InputError
        The name is taken by another function.
    """

    def add(function: Callable[[Problem, Any], Schedule]) -> Callable[[Problem, Any], Schedule]:
        taken = _registry.get(name)
        if taken is not None and taken.function.__qualname__ != function.__qualname__:
            raise InputError(f"scheduler {name!r} is registered already, by {taken.function.__module__}")
        summary = (function.__doc__ or "").strip().split("\n")[0]
        _registry[name] = Scheduler(name, function, options, summary, answers_interrupt)
        return function

    return add


@cache
def _load_entry_points() -> None:
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            entry.load()
        except Exception as error:  # somebody else's package must not stop the schedulers that work
            warnings.warn(
                f"scheduler {entry.name!r} of entry point {entry.value!r} cannot be loaded ({error}); repair or remove "
                "the package that brings it",
                RuntimeWarning,
                stacklevel=2,
            )


def names() -> list[str]:
    """Names of all schedulers, those of installed packages included."""
    _load_entry_points()
    return sorted(_registry)


def get(name: str) -> Scheduler:
    """The scheduler of that name; raises `InputError` that lists those there are."""
    _load_entry_points()
    if name in REFERENCES:
        raise InputError(
            f"{name!r} is a latency to compare with, no scheduler: `tvm-sched compare` shows it; there are the "
            f"schedulers {', '.join(sorted(_registry))}"
        )
    if name not in _registry:
        raise InputError(f"there is no scheduler {name!r}; there are {', '.join(sorted(_registry))}")
    return _registry[name]


def solve(
    problem: Problem,
    name: str = "exact",
    options: Mapping[str, Any] | msgspec.Struct | None = None,
    progress: Progress | None = None,
) -> Schedule:
    """Schedule a problem, check the answer and add its certificate.

    Parameters
    ----------
    problem : Problem
    name : str
    options : mapping or options struct, optional
        Strings are converted, so that command-line values can be given as they are.
    progress : callable, optional

    Raises
    ------
    InputError
        No such scheduler or option.
    InfeasibleError
        No schedule obeys the memory limits, as far as the scheduler can tell.
    SchedulerError
        The scheduler's answer breaks a rule of ``docs/model.md``, or is no schedule.
    """
    scheduler = get(name)
    chosen = read_options("scheduler", name, scheduler.options, options)
    begin = time.monotonic()
    with report_to(progress):
        schedule = scheduler.function(problem, chosen)
    seconds = time.monotonic() - begin
    if not isinstance(schedule, Schedule):
        raise SchedulerError(f"scheduler {name!r} returned a {type(schedule).__name__}; a Schedule is expected")
    try:
        schedule = msgspec.structs.replace(
            schedule,
            scheduler=name,
            options=msgspec.to_builtins(chosen),
            seconds=seconds,
            certificate=_certificate(problem, schedule),
        )
        verify(problem, schedule)
    except ScheduleError as error:
        raise SchedulerError(f"the answer of scheduler {name!r} breaks a rule: {error}") from error
    return schedule


def _certificate(problem: Problem, schedule: Schedule) -> Certificate:
    latency, bound = simulate(problem, schedule).latency_ns, lower_bound(problem)
    if bound.ns > latency:
        raise ScheduleError(
            f"bound {bound.name!r} ({bound.ns} ns) exceeds a latency of {latency} ns: please report this"
        )
    return Certificate(latency, bound.ns, bound.name)


def read_options(
    what: str, name: str, kind: type[msgspec.Struct], options: Mapping[str, Any] | msgspec.Struct | None
) -> msgspec.Struct:
    """Options as the struct of ``kind``; texts of the command line are converted.

    Parameters
    ----------
    what, name : str
        Whose options they are, for errors: "scheduler", "exact".

    Raises
    ------
    InputError
        There is no such option, or it does not allow the value.
    """
    if isinstance(options, kind):
        return options
    given = dict(options) if isinstance(options, Mapping) else {}
    known = [field.name for field in msgspec.structs.fields(kind)]
    for key in given:
        if key not in known:
            raise InputError(f"{what} {name!r} has no option {key!r}; it has {', '.join(known) or 'none'}")
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InputError(f"options of {what} {name!r}: {error}") from None


@contextmanager
def report_to(progress: Progress | None) -> Iterator[None]:
    """Within it, `report_progress` calls ``progress``."""
    token = _progress.set(progress)
    try:
        yield
    finally:
        _progress.reset(token)


def report_progress(what: str, done: int, total: int) -> None:
    """For schedulers: say how far the work has come; costs nothing when nobody listens."""
    listener = _progress.get()
    if listener is not None:
        listener(what, done, total)
