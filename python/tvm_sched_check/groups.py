"""The rule ``ways``: least times through a group, from the end of the producer of a tensor that it reads to its own end."""

from __future__ import annotations

from typing import Any

from .derivation import bound_of
from .document import Problem, Refused
from .ways import Relaxed, Way


class Groups:
    """Checks lemmas of the rule ``ways``; equal ways, as those of equal layers, are checked once."""

    def __init__(self, relaxed: Relaxed) -> None:
        self.relaxed, self.devices = relaxed, len(relaxed.problem.devices)
        self.ends = dict[str, int]()
        self.known = dict[str, int]()

    def least(self, first: int | None, last: int, lemma: dict[str, Any]) -> int:
        """Least nanoseconds from the end of ``first``, the producer of the tensor, to the end of ``last``, for every way.

        ``last`` can end with the operator of the way that runs it: no other operator of the group follows ``last``. Before
        that, the way runs those of its operators that wait for the tensor and for which that operator waits.
        """
        p, group, tensor = self.relaxed.problem, lemma["group"], lemma["tensor"]
        if first is None or p.maker.get(p.t[tensor]) != first or self.ends.setdefault(group, last) != last:
            raise Refused(f"{tensor!r} is not produced by the first operator, or group {group!r} has two ends")
        if self.relaxed.group_of[last] != group or group in map(self.relaxed.group_of.get, p.after[last]):
            raise Refused(f"the last operator does not stand for the end of group {group!r}")
        runs, name = self.relaxed.runs[group], p.operator_names[last]
        ways = self.relaxed.ways[group].items()
        return min(self._least(way, runs[of][name], tensor, lemma["ways"][of]) for of, way in ways)

    def _least(self, way: Way, end: str, tensor: str, lemmas: list[dict[str, Any]]) -> int:
        """What the lemmas prove for the part of one way after the tensor, less the time of the source."""
        sizes = {t["name"]: t["size"] for t in [*self.relaxed.known, *way.tensors]}
        graph, costs = self._between(way, way.leading(tensor, end, sizes), tensor, sizes)
        if (key := str((graph, costs, lemmas))) not in self.known:
            problem = Problem(self.relaxed.document | {"graph": graph, "costs": costs})
            self.known[key] = max(bound_of(problem, lemmas) - 1, 0)
        return self.known[key]

    def _between(self, way: Way, leading: set[str], tensor: str, sizes: dict[str, int]) -> tuple[dict[str, Any], ...]:
        """Graph and costs of that part: a source of 1 ns, and the operators, named by their positions in the way."""
        rows = [(k, row) for k, (name, row) in enumerate(way.rows.items()) if name in leading]
        made = {t: f"{k}:{j}" for k, (operator, *_) in rows for j, t in enumerate(operator.get("outputs", []))}
        called = {tensor: "source"} | made
        operators: list[dict[str, Any]] = [{"name": "source", "outputs": ["source"]}]
        fastest: list[list[Any]] = [[1] * self.devices]
        for k, (operator, normal, direct) in rows:
            inputs = [called[t] for t in operator.get("inputs", []) if t in called]
            operators.append(
                {"name": str(k), "inputs": inputs, "outputs": [called[t] for t in operator.get("outputs", [])]}
            )
            both = zip(normal, direct, strict=True)
            fastest.append([min((ns for ns in times if ns is not None), default=None) for times in both])
        tensors = [{"name": new, "size": sizes[old]} for old, new in called.items()]
        costs = {"operator_ns": fastest, "direct_ns": [[None] * self.devices] * len(fastest)}
        return {"operators": operators, "tensors": tensors}, costs
