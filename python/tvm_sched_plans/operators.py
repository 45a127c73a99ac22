"""A graph of operators from a file, as units that run one after another."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tvm_sched.problem import OpGraph

from .unit_model import Phase, UnitModel


@dataclass(frozen=True)
class OperatorModel:
    """A model whose operators are placed separately."""

    kind: str
    path: Path
    graph: OpGraph
    """Operators in an order in which they can run."""
    loaded: Any = field(repr=False)
    """Content of the file, which the writers of plans read."""
    names: tuple[str, ...]
    """Name of each operator of the graph in the file."""
    free: frozenset[int] = frozenset()
    """Operators that move no bytes."""
    external: bool = False
    """Whether weights lie in files beside the model's."""

    def units(self) -> UnitModel:
        """Return a model in which each operator is a unit and runs once."""
        members = tuple((o,) for o in range(len(self.graph.operators)))
        phase = Phase("run", self.graph, self.graph, members, free=self.free)
        return UnitModel(self.graph.name, self.names, (phase,))
