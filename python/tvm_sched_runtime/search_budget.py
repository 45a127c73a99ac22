"""Anytime search: improvers take turns on an incumbent within a budget; the status says how the search ended.

The incumbent has the best answer and the strongest lower bound. Each improver gets a share of the work. A search can stop at
any moment. A limit on work, unlike one by the clock, makes its answer repeatable.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

import msgspec

from .errors import InputError

if TYPE_CHECKING:
    from typing_extensions import Self

Answer = TypeVar("Answer")
StateT = TypeVar("StateT", bound="Incumbent[Any]")
StateT_contra = TypeVar("StateT_contra", bound="Incumbent[Any]", contravariant=True)

Status = Literal["optimal", "no better found", "time limit", "interrupted"]
"""How a search ended.

- ``optimal``: the answer is as good as the lower bound; set where the answer is checked, never taken from a method.
- ``no better found``: the method came to its end by itself.
- ``time limit``: the budget, work or clock, was used up.
- ``interrupted``: by Ctrl-C; the answer is the best so far.
"""


class OutOfTime(Exception):
    """The time limit of a search has passed (`check_time`). Whoever set the limit answers with the best result so far."""


_deadline: ContextVar[float] = ContextVar("tvm_sched_deadline", default=math.inf)


@contextmanager
def ending_at(deadline: float) -> Iterator[None]:
    """Limit all work within the context by the clock, so that each of its stages gets the time that is left.

    Parameters
    ----------
    deadline : float
        `time.monotonic` at which the work ends. An earlier deadline of a context around this one holds, too.
    """
    token = _deadline.set(min(deadline, _deadline.get()))
    try:
        yield
    finally:
        _deadline.reset(token)


def seconds_left() -> float:
    """Return the seconds until the deadline of the contexts around (`ending_at`); infinite without one, 0 past it.

    Examples
    --------
    >>> from tvm_sched_runtime.search_budget import seconds_left
    >>> seconds_left()
    inf
    """
    deadline = _deadline.get()
    return math.inf if deadline == math.inf else max(deadline - time.monotonic(), 0.0)


def check_time() -> None:
    """Raise `OutOfTime` past the deadline of the contexts around; loops whose steps take milliseconds call it.

    Without a deadline it does not look at the clock, so that such a search depends on its work alone.
    """
    if seconds_left() <= 0:
        raise OutOfTime


T = TypeVar("T")


def despite_interrupt(work: Callable[[], T]) -> tuple[T, bool]:
    """Return the result of work, and whether Ctrl-C came meanwhile: then the work is done anew, past its deadline."""
    try:
        return work(), False
    except KeyboardInterrupt:
        with ending_at(time.monotonic()):
            return work(), True


class SearchLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of a method's search.

    Raises
    ------
    InputError
        A limit is below 0, or not a number.

    Examples
    --------
    >>> from tvm_sched.schedulers import SearchLimits
    >>> solve(problem, budget=SearchLimits(time_limit=5.0)).certificate.status
    'optimal'
    """

    time_limit: float | None = None
    """Seconds by the clock."""
    work: float | None = None
    """Seconds of work on an idle core, for methods that count their work."""

    def __post_init__(self) -> None:
        _check_limits(self.time_limit, self.work)


class TimedOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the options of methods whose time is limited."""

    def within(self, limits: SearchLimits) -> Self:
        """Replace limits in the options; raises `InputError` if the method has no such limit."""
        raise NotImplementedError

    def scaled(self, places: int) -> Self:
        """Return the options with default limits for a problem of so many operators times devices."""
        return self

    def part(self, count: int) -> Self:
        """Return the options of one of ``count`` searches that share time and work."""
        raise NotImplementedError

    @property
    def seconds(self) -> float:
        """Time limit of the method with its certificate, in seconds; infinite if none was given."""
        return math.inf


class Budget:
    """Budget of a search: work, and a deadline.

    Parameters
    ----------
    work : float
        Seconds of one idle core of a server. Improvers convert their counts (events, moves, solver's work) at a fixed rate,
        so the same work gives the same answer on every machine.
    deadline : float
        `time.monotonic` at which the search ends in any case.

    Attributes
    ----------
    too_small : bool
        Whether an improver ended early that could use a larger budget.
    """

    def __init__(self, work: float = math.inf, deadline: float = math.inf, _whole: Budget | None = None) -> None:
        self.work, self.deadline, self.spent = work, deadline, 0.0
        self.too_small = False
        self._whole = _whole

    @property
    def left(self) -> float:
        """Work that is left, in seconds."""
        return max(self.work - self.spent, 0.0)

    @property
    def late(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self.deadline

    @property
    def over(self) -> bool:
        """Whether the work or the time is used up."""
        return self.left <= 0 or self.late

    def spend(self, work: float) -> None:
        """Count work, which may exceed the remaining work."""
        self.spent += work
        if self._whole is not None:
            self._whole.spend(work)

    def part(self, work: float) -> Budget:
        """Return a part of this budget with its own limit; work spent there counts here, too."""
        return Budget(work, self.deadline, self)

    @property
    def seconds(self) -> float:
        """Limit by the clock: the least of the remaining work and the time until the deadline, in seconds."""
        return max(min(self.left, self.deadline - time.monotonic()), 0.0)

    @contextmanager
    def clocked(self) -> Iterator[None]:
        """Spend the time of the block, for work that cannot be counted."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self.spend(time.monotonic() - begin)


def budget_of(time_limit: float | None, work: float | None, default: float, share: float) -> Budget:
    """Make the budget of two options.

    Parameters
    ----------
    time_limit : float or None
        Seconds by the clock; None: ``default``, or no limit with ``work``.
    work : float or None
        Seconds of work on an idle core; None: a ``share`` of the time limit, so that the clock seldom ends the search.

    Raises
    ------
    InputError
        One of them is less than 0 or not a number, or the work is infinite, so that the search has no end.
    """
    _check_limits(time_limit, work)
    if work == math.inf or (work is None and time_limit == math.inf):
        name = "work" if work is not None else "time_limit"
        raise InputError(f"{name} is infinite; give a finite work, with which time_limit may be infinite")
    if time_limit is None:
        time_limit = default if work is None else math.inf
    deadline = min(time.monotonic() + time_limit, _deadline.get())
    return Budget(share * time_limit if work is None else work, deadline)


def _check_limits(time_limit: float | None, work: float | None) -> None:
    for name, value in (("time_limit", time_limit), ("work", work)):
        if value is not None and not value >= 0:
            raise InputError(f"{name} is {value}; a number of seconds from 0 is allowed")


class Incumbent(Generic[Answer]):
    """The best answer so far and the strongest bound, of a search for the least cost.

    Parameters
    ----------
    margin : float
        A cost above the bound by at most this fraction of it counts as proved: tolerance for rounding.

    Attributes
    ----------
    best : Answer or None
    cost, bound : float
        A bound above the cost is an error; the check of the answer detects it.
    bound_name : str
        Name of the bound's argument.
    tried : dict of str to float or str
        Best cost after each improver; cost of each method that an improver tried, or why it has no answer.
    """

    def __init__(self, margin: float = 0.0) -> None:
        self.best: Answer | None = None
        self.cost = math.inf
        self.bound, self.bound_name = 0.0, ""
        self.tried: dict[str, float | str] = {}
        self._margin = margin
        self._lock = threading.Lock()

    def offer(self, answer: Answer, cost: float) -> bool:
        """Keep an answer if it is better; return whether it is."""
        with self._lock:
            better = cost < self.cost
            if better:
                self.best, self.cost = answer, cost
            return better

    def raise_bound(self, bound: float, name: str) -> None:
        """Keep a bound if it is stronger."""
        with self._lock:
            if bound > self.bound:
                self.bound, self.bound_name = bound, name

    @property
    def goal(self) -> float:
        """The cost that counts as proved."""
        return self.bound * (1 + self._margin)

    @property
    def proved(self) -> bool:
        """Whether the best answer is proved optimal."""
        return self.best is not None and self.cost <= self.goal


class Improver(Protocol[StateT_contra]):
    """A method that finds a better answer or a stronger bound."""

    name: str
    """Name in notes, progress and the ablation; empty for an improver of bounds, which notes leave out."""

    def step(self, state: StateT_contra, budget: Budget) -> bool:
        """Work on the incumbent within the budget, and count the work; return whether another step is useful.

        If only a larger budget would be useful, set `Budget.too_small`.
        """
        ...


@dataclass(frozen=True)
class Turn(Generic[StateT]):
    """An improver and its share of the work."""

    improver: Improver[StateT]
    share: float = math.inf
    """Share of the remaining work, relative to the shares of later turns. Infinite: its work is not counted, and it
    continues past the deadline until there is an answer."""


def improve(state: StateT, turns: Sequence[Turn[StateT]], budget: Budget) -> Status:
    """Let improvers take turns until the answer is proved, the budget is used up, or no improver is useful.

    Work that an improver does not use goes to later ones.

    Raises
    ------
    KeyboardInterrupt
        Ctrl-C came before the first answer.
    """
    cut_off = False
    try:
        for i, turn in enumerate(turns):
            if state.proved:
                break
            part = _part(budget, turn.share, (later.share for later in turns[i:]))
            useful = True
            first = math.isinf(turn.share)
            while useful and not state.proved and (not part.over or (first and state.best is None)):
                try:
                    useful = turn.improver.step(state, part)
                except OutOfTime:
                    cut_off, useful = True, False
            cut_off |= useful or part.too_small
            if state.best is not None and turn.improver.name:
                state.tried[turn.improver.name] = state.cost
    except KeyboardInterrupt:
        if state.best is None:
            raise
        return "interrupted"
    return "time limit" if cut_off and not state.proved else "no better found"


def _part(budget: Budget, share: float, shares: Iterable[float]) -> Budget:
    if math.isinf(share):
        return Budget(deadline=budget.deadline)
    total = sum(each for each in shares if not math.isinf(each))
    return budget.part(budget.left * share / total if total else 0.0)
