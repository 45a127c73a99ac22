"""Results of replays: the runs of each policy, with means and spread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from rich.table import Table

from tvm_sched.report.tables import table

from .simulation import Replayed


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Mean, standard deviation, least and most of a figure over the runs."""

    mean: float
    deviation: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise values; the deviation is that of a sample, 0 for one value."""
        sample = np.asarray(values, dtype=float)
        deviation = float(sample.std(ddof=1)) if len(sample) > 1 else 0.0
        return cls(mean=float(sample.mean()), deviation=deviation, least=float(sample.min()), most=float(sample.max()))

    def text(self, scale: float = 1.0, digits: int = 1) -> str:
        """Return the mean, and the deviation if there is one."""
        mean = f"{self.mean * scale:.{digits}f}"
        return mean + (f" ± {self.deviation * scale:.{digits}f}" if self.least < self.most else "")


def spreads(runs: Sequence[Any], *names: str) -> dict[str, Spread]:
    """Return the spread of each attribute of runs."""
    return {name: Spread.of([getattr(run, name) for run in runs]) for name in names}


FIGURES = (
    "accepted, %", "bound, %", "running, % of bound", "GPUs used, %", "fragmented, %", "moves", "unavailable, s",
    "decision, ms",
)  # fmt: skip
"""Names of `PolicyRuns.cells`."""


class PolicyRuns(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of a policy.

    Attributes
    ----------
    acceptance, used, fragmentation, unavailable, moves, decision_ms : Spread
        Of the runs: parts of 1; seconds; number; mean processor time of a decision.
    bound : Spread or None
        `Replayed.accepted_bound` as a part of the requests; None: not known for every run.
    running_to_bound : Spread or None
    runs : list of Replayed
    """

    policy: str
    acceptance: Spread
    bound: Spread | None
    running_to_bound: Spread | None
    used: Spread
    fragmentation: Spread
    unavailable: Spread
    moves: Spread
    decision_ms: Spread
    runs: list[Replayed]

    @classmethod
    def of(cls, policy: str, runs: Sequence[Replayed]) -> PolicyRuns:
        """Summarise runs."""
        bounds = [run.accepted_bound / run.requests for run in runs if run.accepted_bound is not None and run.requests]
        parts = [run.running_to_bound for run in runs if run.running_to_bound is not None]
        return cls(
            policy=policy,
            bound=Spread.of(bounds) if len(bounds) == len(runs) else None,
            running_to_bound=Spread.of(parts) if len(parts) == len(runs) else None,
            decision_ms=Spread.of([run.decision_ms["mean"] for run in runs]),
            runs=list(runs),
            **spreads(runs, "acceptance", "used", "fragmentation", "unavailable", "moves"),
        )

    def cells(self, none: str) -> list[str]:
        """Return the cells of a table's row, as `FIGURES` names them; ``none`` stands for what is not known."""
        parts = (self.acceptance, self.bound, self.running_to_bound, self.used, self.fragmentation)
        shares = [part.text(100) if part else none for part in parts]
        return [*shares, self.moves.text(1, 0), self.unavailable.text(1, 0), self.decision_ms.text(1, 2)]


class Replays(msgspec.Struct, frozen=True, kw_only=True):
    """Replays of the same requests and failures by several policies."""

    cluster: str
    gpus: int
    requests: str
    policies: list[PolicyRuns]

    @property
    def sentence(self) -> str:
        """Say what the bounds are, and whether a run was cut short."""
        bounds = [each.bound for each in self.policies if each.bound]
        said = f"Any policy accepts at most {bounds[0].text(100)} % of the requests. " if bounds else ""
        cut = any(run.interrupted for each in self.policies for run in each.runs)
        return said + ("Interrupted: the figures are of the time until then." if cut else "")


def replays_table(replays: Replays) -> Table:
    """Return a table with a row for each policy."""
    rows = [(each.policy, accepted, *others) for each in replays.policies for accepted, _, *others in [each.cells("-")]]
    head = ("policy", FIGURES[0], *FIGURES[2:])
    return table(head, rows, text_columns=1)


class PodRun(msgspec.Struct, frozen=True, kw_only=True):
    """Pods on nodes, one run.

    Attributes
    ----------
    allocated_at_100, allocated : float
        GPUs allocated, as a part of all, when the GPUs of the pods that came are all GPUs of the cluster, and at the end.
    bound_at_100, bound : float or None
        The most that any policy can allocate of the pods that came until then.
    curve : list of (float, float)
        GPUs of the pods that came, and GPUs allocated, as parts of all.
    """

    seed: int
    interrupted: bool
    pods: int
    placed: int
    allocated_at_100: float
    allocated: float
    bound_at_100: float | None
    bound: float | None
    decision_ms: float
    curve: list[tuple[float, float]]


class PodPolicyRuns(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of a policy on pods."""

    policy: str
    allocated_at_100: Spread
    allocated: Spread
    bound: Spread | None
    decision_ms: Spread
    runs: list[PodRun]

    @classmethod
    def of(cls, policy: str, runs: Sequence[PodRun]) -> PodPolicyRuns:
        """Summarise runs."""
        bounds = [run.bound for run in runs if run.bound is not None]
        return cls(
            policy=policy,
            bound=Spread.of(bounds) if len(bounds) == len(runs) else None,
            runs=list(runs),
            **spreads(runs, "allocated_at_100", "allocated", "decision_ms"),
        )


class PodReplays(msgspec.Struct, frozen=True, kw_only=True):
    """Replays of pods by several policies."""

    nodes: int
    gpus: int
    requests: str
    policies: list[PodPolicyRuns]


def pods_table(replays: PodReplays) -> Table:
    """Return a table with a row for each policy."""
    rows = [
        (
            each.policy,
            each.allocated_at_100.text(100, 2),
            each.allocated.text(100, 2),
            each.bound.text(100, 2) if each.bound else "-",
            each.decision_ms.text(1, 2),
        )
        for each in replays.policies
    ]
    head = ("policy", "GPUs allocated at 100 %, %", "at the end, %", "bound, %", "decision, ms")
    return table(head, rows, text_columns=1)
