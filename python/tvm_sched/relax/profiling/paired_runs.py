"""Compare two schedules by alternating runs on this machine, robustly against the load of other processes."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ...cost_model.profile import QUIET_LOAD
from .other_load import OtherLoad

MARGIN = 0.02
"""A schedule replaces another only if it is faster by this share of the time; less may be noise."""
DISTURBED_MARGIN = 0.15
"""The margin if other processes kept the machine busy; the schedule must then also win each pair of turns."""
CLOSE = 1.1
"""Schedules that took up to this number of times as long as the fastest are compared again."""
_FEWEST_PAIRS, _PAIRS, _MOST_PAIRS = 3, 6, 12
_PATIENCE = 3.0
"""A comparison that took so many times its planned seconds ends after `_FEWEST_PAIRS` pairs."""

Turn = Callable[[float], list[float]]
"""Runs one schedule for some seconds and returns the seconds of each run. A turn has several runs, as in use; if single runs
alternated, each would find the other schedule's parameters in the caches."""


class Comparison(NamedTuple):
    """Result of comparing two schedules."""

    first: float  # median seconds of a run of the first schedule
    second: float
    faster: bool  # the second is faster by more than noise or other processes explain
    quiet: bool = True  # other processes did not disturb the machine


def compare(
    first: Turn, second: Turn, seconds: float, progress: Callable[[int, int], None] = lambda done, total: None
) -> Comparison:
    """Compare two schedules in pairs of turns, so that a change of the machine's speed affects both.

    The comparison ends before its time if three quiet pairs agree that the second schedule is not faster, or that it is
    faster by more than `DISTURBED_MARGIN`. Pairs during which other processes used more than `QUIET_LOAD` cores are
    repeated, up to twice as many pairs in all. If fewer than three pairs are quiet, all count, and the second schedule must
    win each pair and win by `DISTURBED_MARGIN`: beside another process, a schedule on fewer cores can seem faster than it
    is. If no pair was quiet in the time of all turns, the second schedule gets no further pairs after it lost one. After
    `_PATIENCE` times ``seconds``, three pairs are enough.

    Parameters
    ----------
    seconds : float
        Time of all turns, if none is repeated or left out.
    progress : callable
        Called with the numbers of finished pairs and of all pairs, if none is repeated or left out.
    """
    load, turn, end = OtherLoad(), seconds / (2 * _PAIRS), time.monotonic() + _PATIENCE * seconds
    pairs: list[tuple[float, float, bool]] = []
    while not (_decided(pairs) or (len(pairs) >= _FEWEST_PAIRS and time.monotonic() > end)):
        progress(len(pairs), max(_PAIRS, len(pairs)))
        load.share()
        # They begin in turn, so that neither always runs on caches that the other filled.
        if len(pairs) % 2:
            after = statistics.median(second(turn))
            before = statistics.median(first(turn))
        else:
            before = statistics.median(first(turn))
            after = statistics.median(second(turn))
        pairs.append((before, after, load.share() <= QUIET_LOAD))
    return conclude(pairs)


def _decided(pairs: list[tuple[float, float, bool]]) -> bool:
    """Whether further pairs are not worth their time."""
    ratios = [after / before for before, after, quiet in pairs if quiet]
    if len(ratios) >= _PAIRS or len(pairs) >= _MOST_PAIRS:
        return True
    if len(ratios) >= _FEWEST_PAIRS and (min(ratios) >= 1 or max(ratios) < 1 - DISTURBED_MARGIN):
        return True
    return len(pairs) >= _PAIRS and not ratios and any(after >= before for before, after, _ in pairs)


def settle(chosen: str, held: str, ratios: Mapping[str, tuple[float, float]]) -> str:
    """Choose the fastest schedule after a second comparison of the close ones.

    Both comparisons count alike, by the mean of the logarithms. The schedule ``chosen`` first is replaced only by one that
    is faster by `MARGIN`, and the default schedule ``held`` likewise.

    Parameters
    ----------
    ratios : mapping of str to (float, float)
        For each schedule that was compared twice, both ratios of its time to that of the chosen one.
    """
    ratio = {chosen: 1.0} | {name: math.sqrt(first * second) for name, (first, second) in ratios.items()}
    best = min(ratio, key=lambda name: ratio[name])
    best = best if ratio[best] < 1 - MARGIN else chosen
    return held if held in ratio and ratio[best] >= ratio[held] * (1 - MARGIN) else best


def conclude(pairs: list[tuple[float, float, bool]]) -> Comparison:
    """Conclude from pairs of turns: seconds of the first, of the second, and whether the machine was quiet."""
    undisturbed = [pair for pair in pairs if pair[2]]
    quiet = len(undisturbed) >= _FEWEST_PAIRS
    rows = undisturbed if quiet else pairs
    ratio = statistics.median(after / before for before, after, _ in rows)
    held = statistics.median(before for before, *_ in rows)
    if quiet:
        faster = ratio < 1 - MARGIN
    else:
        faster = ratio < 1 - DISTURBED_MARGIN and all(after < before for before, after, _ in rows)
    return Comparison(held, held * ratio, faster, quiet)
