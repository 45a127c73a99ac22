"""The scheduler `robust`: the schedule that is best over draws of uncertain latencies, not at the central ones."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import Any, Literal

import msgspec
import numpy as np

from tvm_sched_runtime.checks import require_at_least, require_seed
from tvm_sched_runtime.errors import InfeasibleError
from tvm_sched_runtime.problem import Problem, Workload
from tvm_sched_runtime.schedule import INTERRUPTED, TIME_OVER, Certificate, Schedule, evaluate
from tvm_sched_runtime.search_budget import OutOfTime, SearchLimits, TimedOptions, ending_at, seconds_left

from .cost_model.uncertainty import draws, has_intervals
from .progress import report_progress
from .schedulers import get, register
from .schedulers.anytime import AnytimeOptions

SEARCHED, DRAWN_SHARE, CENTRAL_SHARE = 4, 0.1, 0.4
"""Draws for which `anytime` searches beside the central latencies, and the shares of all in the budget. Others judge."""
FEWEST = 8
"""Fewest draws that judge; if the time limit leaves fewer, the central latencies decide."""
STREAM = 2**32
"""Added to the seed, so that the draws are not those of a report's interval."""
QUICK = ("single", "heft", "peft", "pipelined", "deepplan", "hios-lp")
"""Simple methods whose schedules are candidates, too: they depend on few prices, so wrong prices harm them little."""
QUICK_PLACES = 4000
"""Operators times devices up to which ``hios-lp`` is tried, whose time grows with their square."""


class RobustOptions(TimedOptions, frozen=True, forbid_unknown_fields=True):
    """Options of `robust`.

    Parameters
    ----------
    statistic : "mean" or "p80"
        Statistic to minimise: the mean latency over the draws, or their 80th percentile.
    draws : int
        Draws of latencies that judge the candidates. With 32 of wide intervals the choice is poor (docs/results/regret.md).
    time_limit, work : float, optional
        As of `anytime`, for all searches together. The time limit also holds for the judging.
    seed : int
        Of draws and searches.
    """

    statistic: Literal["mean", "p80"] = "mean"
    draws: int = 256
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

    def scaled(self, places: int) -> RobustOptions:
        """Return the options with the default limits of `anytime` if none is given."""
        limited = AnytimeOptions(self.time_limit, self.work).scaled(places)
        return msgspec.structs.replace(self, time_limit=limited.time_limit, work=limited.work)

    def part(self, count: int) -> RobustOptions:
        """Return the options of one of several searches that share time and work."""
        limited = AnytimeOptions(self.time_limit, self.work).part(count)
        return msgspec.structs.replace(self, time_limit=limited.time_limit, work=limited.work)

    def share(self, share: float) -> dict[str, Any]:
        """Return options of `anytime` for a search with a share of time and work."""
        given = {"time_limit": self.time_limit, "work": self.work}
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
    nanoseconds. The central latencies decide alone if the costs do not estimate their errors (``roofline``), or if the time
    limit or Ctrl-C leaves fewer than `FEWEST` draws.

    Raises
    ------
    InfeasibleError
        No candidate fits into the devices' memory.
    """
    options = options.scaled(problem.places)
    with ending_at(time.monotonic() + options.seconds):
        count = SEARCHED + options.draws if has_intervals(problem) else 0
        drawn = draws(problem, count, options.seed + STREAM) if count else iter(())
        candidates, ended = _candidates(problem, list(islice(drawn, SEARCHED)), workload, options)
        rows, judged = _judged(problem, drawn, workload, candidates, options)
    chosen = min(rows, key=lambda row: (row["value_ns"], row["central_ns"]))
    notes = {"statistic": options.statistic, "draws": judged, "chosen": chosen["candidate"], "candidates": rows}
    schedule = candidates[chosen["candidate"]]
    notes = schedule.notes | {"robust": notes}
    return schedule.replace(problem=problem.digest, certificate=ended or schedule.certificate, notes=notes)


def _candidates(
    problem: Problem, searched: list[Problem], workload: Workload, options: RobustOptions
) -> tuple[dict[str, Schedule], Certificate | None]:
    """Return schedules by the names of their searches, and how these ended if Ctrl-C or the time limit left some out."""
    quick = [(name, name, problem, 0.0) for name in QUICK if name != "hios-lp" or problem.places <= QUICK_PLACES]
    drawn = [(f"anytime, draw {n}", "anytime", each, DRAWN_SHARE) for n, each in enumerate(searched, 1)]
    searches = [*quick, ("anytime, central", "anytime", problem, CENTRAL_SHARE), *drawn]
    found: dict[str, Schedule] = {}
    refused: InfeasibleError | None = None
    ended: Certificate | None = None
    for position, (name, method, sought, share) in enumerate(searches):
        report_progress(f"searching ({name})", position, len(searches))
        scheduler = get(method)
        given = options.share(share) if share else {}
        try:
            found[name] = scheduler.function(sought, workload, scheduler.read_options(given))
        except InfeasibleError as error:  # a simple method may find no schedule where memory is short
            refused = error
        except OutOfTime:
            ended = TIME_OVER
        except KeyboardInterrupt:
            if not found:
                raise
            return found, INTERRUPTED
        else:
            if found[name].certificate == INTERRUPTED:
                return found, INTERRUPTED
    if not found:
        raise refused or InfeasibleError("no schedule was found within the time limit; allow more time")
    return found, ended


def _judged(
    problem: Problem,
    drawn: Iterable[Problem],
    workload: Workload,
    candidates: dict[str, Schedule],
    options: RobustOptions,
) -> tuple[list[dict[str, Any]], int]:
    """Return a row for each candidate, with the statistic over the draws and the central latency (ns), and the draws."""
    latencies: list[list[int]] = []
    with suppress(KeyboardInterrupt):
        for each in drawn:
            if not seconds_left():
                break
            latencies.append([evaluate(each, schedule, workload)[0] for schedule in candidates.values()])
    central = [evaluate(problem, schedule, workload)[0] for schedule in candidates.values()]
    if len(latencies) < min(FEWEST, options.draws):
        latencies, values = [], [float(ns) for ns in central]
    elif options.statistic == "mean":
        values = np.mean(latencies, axis=0).tolist()
    else:
        values = np.quantile(latencies, 0.8, axis=0).tolist()
    rows = [
        {"candidate": name, "value_ns": round(value), "central_ns": ns}
        for name, value, ns in zip(candidates, values, central, strict=True)
    ]
    return rows, len(latencies)
