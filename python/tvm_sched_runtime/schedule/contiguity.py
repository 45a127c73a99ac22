"""Check that the operators of a submodel on each device form contiguous subgraphs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ..problem import Problem
from .indexed import ScheduleIndex
from .rules import Violation
from .schedule import Schedule


def contiguity_violations(
    problem: Problem, schedule: Schedule, index: ScheduleIndex, subgraphs: int
) -> Iterator[Violation]:
    """Yield for each device and submodel the operator that needs more than ``subgraphs`` contiguous subgraphs.

    A set of operators is contiguous if no path leaves it and returns. A device runs its subgraphs one after another, so
    they are stretches of its launch order. Maximal stretches are the fewest, since a part of a contiguous stretch is
    contiguous.

    References
    ----------
    SortingHat (ICS 2025), equations 6 to 8; Tarnawski et al., *Efficient algorithms for device placement of DNN graph
    operators* (NeurIPS 2020), section 4.
    """
    sets: dict[tuple[int, int], list[int]] = defaultdict(list)
    for placement, o, d in zip(schedule.placements, index.operator, index.device, strict=True):
        sets[placement.submodel, d].append(o)
    position = [0] * len(problem.graph.operators)
    for k, o in enumerate(problem.graph.index.order):
        position[o] = k
    for (submodel, d), members in sets.items():
        stretch = _Stretch(problem, position)
        count = 1
        for o in members:
            path = stretch.add(o)
            if path and count == subgraphs:
                yield _violation(problem, submodel, d, path, subgraphs)
                break
            if path:
                stretch = _Stretch(problem, position)
                stretch.add(o)
                count += 1


class _Stretch:
    """Operators of one device in launch order, contiguous so far."""

    def __init__(self, problem: Problem, position: list[int]) -> None:
        self.predecessors, self.position = problem.graph.index.predecessors, position
        self.members: set[int] = set()
        self.first = len(position)
        # Operators outside that no member leads to; no later member can: an earlier one would wait for it.
        self.clean: set[int] = set()

    def add(self, o: int) -> list[int]:
        """Add an operator; or, if a path from a member through others leads to it, return that path."""
        after: dict[int, int] = {}  # by outside operator that leads to `o`: the next operator of the path
        stack = [o]
        while stack:
            at = stack.pop()
            for p in self.predecessors[at]:
                if p in self.members:
                    if at != o:
                        return self._path(p, at, after, o)
                elif p not in after and p not in self.clean and self.position[p] > self.first:
                    after[p] = at
                    stack.append(p)
        self.clean.update(after)
        self.members.add(o)
        self.first = min(self.first, self.position[o])
        return []

    @staticmethod
    def _path(member: int, outside: int, after: dict[int, int], o: int) -> list[int]:
        path = [member, outside]
        while path[-1] != o:
            path.append(after[path[-1]])
        return path


def _violation(problem: Problem, submodel: int, d: int, path: list[int], subgraphs: int) -> Violation:
    names = [problem.graph.operators[o].name for o in path]
    shown = names if len(names) <= 8 else [*names[:4], f"({len(names) - 8} more)", *names[-4:]]
    device = problem.topology.devices[d].name
    allowed = "one contiguous subgraph" if subgraphs == 1 else f"{subgraphs} contiguous subgraphs"
    message = (
        f"rule 'contiguity': in submodel {submodel}, the operators of device {device!r} are not {allowed}: "
        f"the path {' -> '.join(shown)} leaves them and comes back"
    )
    return Violation("contiguity", message, names[-1], device)
