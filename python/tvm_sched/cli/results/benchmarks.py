"""What ``tvm-sched bench`` prints with ``--json``."""

from __future__ import annotations

from ...bench.standings import Summary
from .base import Result


class ListedInstance(Result, frozen=True):
    """An instance, and what is best known of it; its digest where files were written."""

    instance: str
    kind: str
    unit: str
    best_known: float | None
    bound: float | None
    checked_by: str
    digest: str


class Instances(Result, frozen=True):
    """``bench list``."""

    instances: list[ListedInstance]


class Checked(Result, frozen=True):
    """``bench check``: by instance, which other implementation has checked its best known solution; empty: none has.

    ``unproved``: a line for each bound that claims more than its evidence proves.
    """

    checked: dict[str, str]
    unproved: list[str]


class ProvedBound(Result, frozen=True):
    """A bound that was kept with evidence: what was known ``before``, and by which argument the new one holds."""

    before: float
    bound: float
    by: str


class Proved(Result, frozen=True):
    """``bench prove``: by instance, the bounds that have changed or have new evidence.

    ``refused``: by instance, why a kept solution or evidence is refused that nothing has replaced.
    """

    changed: dict[str, ProvedBound]
    refused: dict[str, str]


class Benchmarked(Result, frozen=True):
    """``bench run``: how many results there are, and how many are new."""

    folder: str
    new: int
    results: int


class ScoredSolution(Result, frozen=True):
    """A solution that was handed in: what it is worth, or ``error``, why it is none."""

    instance: str
    method: str
    value: float | None
    unit: str
    best_known: float | None
    bound: float
    bound_by: str
    over_best: float | None
    kept: bool
    error: str


class Scored(Result, frozen=True):
    """``bench score``."""

    solutions: list[ScoredSolution]


class Standing(Result, frozen=True):
    """``bench table``."""

    methods: list[Summary]
    left_out: list[str]
