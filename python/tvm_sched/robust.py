"""The scheduler `robust`: the schedule that is best over draws of uncertain latencies, not at the central ones."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice
from typing import Any, Literal

import msgspec
import numpy as np

from .checks import require_at_least, require_seed
from .cost_model.uncertainty import draws, has_intervals
from .errors import InfeasibleError, TvmSchedError
from .problem import Problem, Workload
from .progress import report_progress
from .schedule import INTERRUPTED, TIME_OVER, Certificate, Schedule, evaluate
from .schedulers import get, register
from .schedulers.anytime import AnytimeOptions
from .search_budget import OutOfTime, SearchLimits, TimedOptions, seconds_left

SEARCHED, DRAWN_SHARE, CENTRAL_SHARE = 4, 0.1, 0.4
"""Draws for which `anytime` searches beside the central latencies, and the shares of all in the budget. Others judge."""
QUICK = ("single", "heft", "peft", "pipelined", "deepplan", "hios-lp")
"""Methods whose schedules are candidates, too: what depends on few prices errs little."""
QUICK_PLACES = 4000
"""Operators times devices up to which ``hios-lp`` is tried, whose time grows with their square."""


class RobustOptions(TimedOptions, frozen=True, forbid_unknown_fields=True):
    """Options of `robust`.

    Parameters
    ----------
    statistic : "mean" or "p80"
        What is least over the draws: the mean latency, or that which 80 % of the draws do not exceed.
    draws : int
        Draws of latencies that judge the candidates.
    time_limit : float, optional
        Seconds by the clock, for all searches. Default: 20, or no limit with ``work``.
    work : float, optional
        Seconds of work on an idle core for all searches, as of `anytime`.
    seed : int
        Of draws and searches.
    """

    statistic: Literal["mean", "p80"] = "mean"
    draws: int = 32
    time_limit: float | None = None
    work: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require_at_least(self, draws=1)
        require_seed(self.seed)
        SearchLimits(self.time_limit, self.work)

    def within(self, limits: SearchLimits) -> RobustOptions:
        """Return the options with these limits."""
        return msgspec.structs.replace(self, time_limit=limits.time_limit, work=limits.work)

    def part(self, count: int) -> RobustOptions:
        """Return the options of one of several searches that share time and work."""
        given = {"time_limit": self.time_limit, "work": self.work}
        return msgspec.structs.replace(
            self, **{key: value / count for key, value in given.items() if value is not None}
        )

    def within_share(self, places: int, share: float) -> dict[str, Any]:
        """Return options of `anytime` for a search with a share of time and work."""
        limited = AnytimeOptions(self.time_limit, self.work).scaled(places)
        given = {"time_limit": limited.time_limit, "work": limited.work}
        return {key: value * share for key, value in given.items() if value is not None} | {"seed": self.seed}

    @property
    def seconds(self) -> float:
        """Time limit in seconds; infinite if none was given."""
        return math.inf if self.time_limit is None else self.time_limit


@register("robust", options=RobustOptions, answers_interrupt=True)
def robust(problem: Problem, workload: Workload, options: RobustOptions) -> Schedule:
    """The schedule that is best over draws of the latencies from their intervals (``--robust``).

    Candidates are the schedules of `anytime` at the central latencies and at those of a few draws, and the schedules of
    quick methods. The one with the least mean (or 80th percentile) over other draws is the answer. The certificate is that
    of the central latencies. The notes hold under ``"robust"`` the statistic of each candidate and its central latency, in
    nanoseconds. If the costs do not estimate their errors (``roofline``), the central latencies count as certain.

    Raises
    ------
    InfeasibleError
        No candidate fits into the devices' memory.
    """
    known = has_intervals(problem)
    drawn = draws(problem, SEARCHED + options.draws, options.seed) if known else iter([problem])
    searched = list(islice(drawn, SEARCHED)) if known else []
    candidates, ended = _candidates(problem, searched, workload, options)
    rows, count = _judged(problem, drawn, workload, candidates, options.statistic)
    chosen = min(rows, key=lambda row: (row["value_ns"], row["central_ns"]))
    judged = {
        "statistic": options.statistic, "draws": count if known else 0, "chosen": chosen["candidate"],
        "candidates": rows,
    }  # fmt: skip
    schedule = candidates[chosen["candidate"]]
    notes = schedule.notes | {"robust": judged}
    return schedule.replace(problem=problem.digest, certificate=ended or schedule.certificate, notes=notes)


def _candidates(
    problem: Problem, searched: list[Problem], workload: Workload, options: RobustOptions
) -> tuple[dict[str, Schedule], Certificate | None]:
    """Return schedules by the names of their searches, and how these ended if Ctrl-C or the time limit left some out."""
    quick = [(name, name, problem, 0.0) for name in QUICK if name != "hios-lp" or problem.places <= QUICK_PLACES]
    drawn = [(f"anytime, draw {n}", "anytime", each, DRAWN_SHARE) for n, each in enumerate(searched, 1)]
    searches = [*quick, ("anytime, central", "anytime", problem, CENTRAL_SHARE), *drawn]
    found: dict[str, Schedule] = {}
    refused: TvmSchedError | None = None
    ended: Certificate | None = None
    for position, (name, method, sought, share) in enumerate(searches):
        report_progress(f"searching ({name})", position, len(searches))
        scheduler = get(method)
        given = options.within_share(problem.places, share) if share else {}
        try:
            found[name] = scheduler.function(sought, workload, scheduler.read_options(given))
        except TvmSchedError as error:  # a simple method may find no schedule where memory is short
            refused = error
        except OutOfTime:
            ended = TIME_OVER
        else:
            if found[name].certificate == INTERRUPTED:
                return found, INTERRUPTED
    if not found:
        raise refused or InfeasibleError("no schedule was found within the time limit; allow more time")
    return found, ended


def _judged(
    problem: Problem, drawn: Iterable[Problem], workload: Workload, candidates: dict[str, Schedule], statistic: str
) -> tuple[list[dict[str, Any]], int]:
    """Return a row for each candidate, with the statistic over the draws and the central latency (ns), and the draws."""
    latencies: list[list[int]] = []
    for each in drawn:
        if latencies and not seconds_left():
            break
        latencies.append([evaluate(each, schedule, workload)[0] for schedule in candidates.values()])
    values = np.mean(latencies, axis=0) if statistic == "mean" else np.quantile(latencies, 0.8, axis=0)
    rows = [
        {"candidate": name, "value_ns": round(value), "central_ns": evaluate(problem, schedule, workload)[0]}
        for (name, schedule), value in zip(candidates.items(), values.tolist(), strict=True)
    ]
    return rows, len(latencies)
