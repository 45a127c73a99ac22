"""Results of the benchmark's commands: instances, runs, scored solutions, checked and proved bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from .best_known import BestKnown, Known
from .run_files import Result
from .standings import Summary
from .suite import Case


class InstanceSummary(msgspec.Struct, frozen=True):
    """An instance with its best known solution and bound; its digest if it was written to a file."""

    instance: str
    kind: str
    unit: str
    best_known: float | None
    bound: float | None
    checked_by: str
    digest: str

    @classmethod
    def of(cls, case: Case, known: Known | None, digest: str) -> InstanceSummary:
        """Summarise an instance."""
        value, bound, checked_by = (known.value, known.bound, known.checked) if known else (None, None, "")
        return cls(case.name, case.kind.name, case.kind.unit, value, bound, checked_by, digest)

    @property
    def cells(self) -> list[str]:
        """The fields as texts."""
        values = (getattr(self, name) for name in self.__struct_fields__)
        return [f"{value:.10g}" if isinstance(value, float) else str(value or "") for value in values]


class Instances(msgspec.Struct, frozen=True):
    """The instances of a suite."""

    instances: list[InstanceSummary]


class RunCounts(msgspec.Struct, frozen=True):
    """Numbers of all results and of new results in a folder."""

    folder: str
    new: int
    results: int


class ScoredSolution(msgspec.Struct, frozen=True):
    """A scored solution: its value, or the ``error`` of a wrong one."""

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

    @classmethod
    def of(cls, case: Case, result: Result, best: float | None, kept: bool) -> ScoredSolution:
        """Compare a result with the best known solution."""
        over = case.kind.ratio(result.value, best) if result.value is not None and best is not None else None
        return cls(
            case.name, result.method, result.value, case.kind.unit, best, result.bound, result.bound_by, over, kept,
            result.error,
        )  # fmt: skip

    @property
    def cells(self) -> list[str]:
        """The fields as texts."""
        worth = self.error or f"{self.value:.10g} {self.unit}"
        over = "" if self.over_best is None else f"{self.over_best:.4f}"
        return [self.instance, self.method, worth, over, f"{self.bound:.10g}", "kept" if self.kept else ""]


class Scores(msgspec.Struct, frozen=True):
    """Scored solutions."""

    solutions: list[ScoredSolution]


class CheckedSolutions(msgspec.Struct, frozen=True):
    """The other implementation that checked the best known solution of each instance; empty: none.

    ``unproved`` has a line for each bound that claims more than its evidence proves.
    """

    checked: dict[str, str]
    unproved: list[str]

    def rows(self) -> list[list[str]]:
        """Count the checked instances of each family and implementation."""
        counts = Counter((name.partition("/")[0], by) for name, by in self.checked.items())
        return [[family, by or "not covered", str(count)] for (family, by), count in sorted(counts.items())]


class ProvedBound(msgspec.Struct, frozen=True):
    """A new bound with evidence: the bound ``before``, the new one, and the name of its argument."""

    before: float
    bound: float
    by: str


class ProvedBounds(msgspec.Struct, frozen=True):
    """Bounds that changed or have new evidence, by instance.

    ``refused`` has the reason for each refused solution or evidence that nothing has replaced.
    """

    changed: dict[str, ProvedBound]
    refused: dict[str, str]


class MethodSummaries(msgspec.Struct, frozen=True):
    """Methods on the instances of each kind, and results that were left out."""

    methods: Sequence[Summary]
    left_out: list[str]


def list_instances(best: BestKnown, cases: Iterable[Case], with_digests: bool) -> Instances:
    """Summarise instances of a suite."""
    return Instances(
        [InstanceSummary.of(case, best.instances.get(case.name), case.digest if with_digests else "") for case in cases]
    )
