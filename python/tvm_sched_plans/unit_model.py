"""`UnitModel`: a model as units that run one after another, with an operator graph for each phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from tvm_sched_runtime.problem import OpGraph

CACHE = "cache."
"""How names of keys and values begin: parameters of the graphs that are no weights."""


@dataclass(frozen=True)
class Phase:
    """A phase of a model's work, such as processing the prompt or generating a token."""

    name: str
    graph: OpGraph
    """The phase's graph; sizes of tensors are those in memory."""
    timed: OpGraph
    """The same operators and tensors, with the bytes that an operator moves: of a table it reads some rows, of the
    cache the part of the sequences that it works on."""
    members: tuple[tuple[int, ...], ...]
    """Operators of each unit."""
    repeats: int = 1
    """How many times the phase runs in the workload."""
    free: frozenset[int] = frozenset()
    """Operators that take no time."""
    work: str = "graph"
    """What it is to `program_errors`: ``token`` (of one sequence), ``tokens`` (of several), ``prompt``, ``encoder`` or
    ``graph``."""
    engine: str = ""
    """`Serving.engine`."""


@dataclass(frozen=True)
class UnitModel:
    """A model as units in the order in which they run."""

    name: str
    units: tuple[str, ...]
    phases: tuple[Phase, ...]
    """All with the same units and the same parameters."""

    def merged(self, groups: Sequence[Sequence[int]], names: Sequence[str]) -> UnitModel:
        """Merge neighbouring units: ``groups`` are units of this model in order, ``names`` those of the merged units."""
        assert [u for group in groups for u in group] == list(range(len(self.units)))
        phases = tuple(
            replace(phase, members=tuple(tuple(chain.from_iterable(phase.members[u] for u in g)) for g in groups))
            for phase in self.phases
        )
        return UnitModel(self.name, tuple(names), phases)
