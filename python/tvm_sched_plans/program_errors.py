"""How far published times of programs lie beyond the intervals of their kernels, by kind of program.

What a program does beside its kernels is not in kernels' errors: its scheduling, the clocks that a card keeps up, kernels
that no library has. The factors are conformal (Romano, Patterson, Candes: Conformalized Quantile Regression, 2019), for each
end by itself: with n measurements, the ceil(0.9 (n + 1))-th smallest of measured / upper end, and of lower end / measured.
They were fitted to the tuned half of ``benchmarks/data/foreign_measurements.toml`` by its program beside it,
whose page (``docs/results/foreign_measurements.md``) reports how many other measurements the intervals contain.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

LEAST = 9
"""Measurements of a kind that are needed: with fewer, no factor has 90 % of further measurements below it."""


class Kind(NamedTuple):
    """A kind of programs."""

    engine: str
    """Runtime with errors of its own, or ""."""
    work: str
    """Work of the phase (`Phase.work`)."""
    shared: bool
    """Whether devices share operators (tensor parallelism)."""

    @property
    def shown(self) -> str:
        """Name for people."""
        return f"{self.engine or 'other runtimes'}, {self.work}{', tensor parallel' if self.shared else ''}"


Factors = tuple[float, float]
"""Factors on the lower and on the upper end."""

FITTED: Mapping[Kind, Factors] = MappingProxyType(
    {
        Kind("", "token", False): (0.868, 1.331),
        Kind("", "tokens", False): (0.921, 1.029),
        Kind("", "tokens", True): (0.683, 1.021),
        Kind("", "encoder", False): (1.0, 1.656),
        Kind("llama.cpp", "token", False): (1.0, 1.0),
        Kind("llama.cpp", "prompt", False): (0.949, 1.0),
        Kind("framework", "encoder", False): (1.0, 3.57),
        Kind("framework", "graph", False): (0.39, 1.501),
    }
)


def program_errors(kind: Kind) -> Factors:
    """Return the factors on the ends of a phase's interval: those of its kind, or where it has none, the widest."""
    widest = min(low for low, _ in FITTED.values()), max(high for _, high in FITTED.values())
    return FITTED.get(kind, widest)


def fit(points: Iterable[tuple[Kind, float, tuple[float, float]]]) -> dict[Kind, Factors]:
    """Return the factors of all kinds with at least `LEAST` points of kind, measured time, and interval of kernels.

    No factor makes an interval narrower: measurements of one source err alike, so they do not tell that others would not.
    Factors have three decimals, rounded away from 1: a measurement that decides one lies in its interval.
    """
    groups: dict[Kind, list[Factors]] = {}
    for kind, measured, (low, high) in points:
        groups.setdefault(kind, []).append((low / measured, measured / high))
    found = {}
    for kind, members in groups.items():
        if len(members) >= LEAST:
            rank = math.ceil(0.9 * (len(members) + 1))
            low, high = (max(sorted(each)[rank - 1], 1) for each in zip(*members, strict=True))
            found[kind] = math.floor(1000 / low) / 1000, math.ceil(1000 * high) / 1000
    return found
