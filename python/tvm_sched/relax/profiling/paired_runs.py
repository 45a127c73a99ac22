"""Compare two schedules by alternating runs on this machine, robustly against the load of other processes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ...cost_model.profile import QUIET_LOAD
from .other_load import OtherLoad

MARGIN = 0.02
"""A schedule takes the place of another only if it is faster by this share of the time: less can be noise."""
DISTURBED_MARGIN = 0.15
"""The same where other processes kept the machine busy, and then in each pair of turns."""
CLOSE = 1.5
"""What took up to this number of times as long as the fastest is looked at again."""
_PAIRS, _MOST_PAIRS = 6, 12

Turn = Callable[[float], list[float]]
"""Called with the seconds of a turn, returns the seconds of each run. In a turn a schedule follows itself, as in use: run by
run in turns, each would find the caches full of the other's parameters."""


class Comparison(NamedTuple):
    """Result of comparing two schedules.

    Parameters
    ----------
    first, second : float
        Seconds of a run, medians.
    faster : bool
        Whether the second is faster by more than can be noise or another process.
    quiet : bool
        Whether other processes let the machine alone.
    """

    first: float
    second: float
    faster: bool
    quiet: bool = True


def compare(first: Turn, second: Turn, seconds: float) -> Comparison:
    """Two schedules in pairs of turns, so that a change of the machine's speed meets both.

    Pairs during which other processes used more than `QUIET_LOAD` cores are taken again, up to twice as many in all.
    Where there are still fewer than three quiet ones, all count, and the second has to win each of them and by
    `DISTURBED_MARGIN`: beside another process, what uses fewer cores can seem faster than it is.

    Parameters
    ----------
    first, second : callable
    seconds : float
        For all turns, if none is taken again.
    """
    load, turn = OtherLoad(), seconds / (2 * _PAIRS)
    pairs: list[tuple[float, float, bool]] = []
    while len(pairs) < _MOST_PAIRS and sum(quiet for *_, quiet in pairs) < _PAIRS:
        load.share()
        # Which one begins changes, so that neither always meets what the other left behind.
        if len(pairs) % 2:
            after = statistics.median(second(turn))
            before = statistics.median(first(turn))
        else:
            before = statistics.median(first(turn))
            after = statistics.median(second(turn))
        pairs.append((before, after, load.share() <= QUIET_LOAD))
    return conclude(pairs)


def settle(chosen: str, held: str, looks: Mapping[str, tuple[float, float]]) -> str:
    """Choose the fastest after a second measurement of the candidates that were selected by the first.

    Both count alike, by the mean of the logarithms. What is held keeps its place where nothing is faster by `MARGIN`, and so
    does what was chosen among the others.

    Parameters
    ----------
    chosen, held : str
    looks : mapping of str to (float, float)
        Of schedules that were looked at twice: their time over that of what was chosen, each time.
    """
    ratio = {chosen: 1.0} | {name: math.sqrt(first * second) for name, (first, second) in looks.items()}
    best = min(ratio, key=lambda name: ratio[name])
    best = best if ratio[best] < 1 - MARGIN else chosen
    return held if held in ratio and ratio[best] >= ratio[held] * (1 - MARGIN) else best


def conclude(pairs: list[tuple[float, float, bool]]) -> Comparison:
    """Result of pairs of runs: seconds of the first, of the second, and whether the machine was quiet."""
    undisturbed = [pair for pair in pairs if pair[2]]
    quiet = len(undisturbed) >= _PAIRS // 2
    rows = undisturbed if quiet else pairs
    ratio = statistics.median(after / before for before, after, _ in rows)
    held = statistics.median(before for before, *_ in rows)
    if quiet:
        faster = ratio < 1 - MARGIN
    else:
        faster = ratio < 1 - DISTURBED_MARGIN and all(after < before for before, after, _ in rows)
    return Comparison(held, held * ratio, faster, quiet)
