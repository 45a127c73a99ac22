"""The rule ``alternatives``: least time through a group (``docs/proofs/variants.md``, Lemma 2)."""

from __future__ import annotations

from typing import Any

from .alternative_bound import Alternative, Relaxed
from .derivation import Derivation, bound_of
from .document import Problem, Refused


class Groups:
    """Check lemmas of the rule ``alternatives``; equal alternatives are checked once."""

    def __init__(self, relaxed: Relaxed) -> None:
        self.relaxed, self.devices = relaxed, len(relaxed.problem.devices)
        self.ends = dict[str, int]()
        self.known = dict[str, int]()

    def least(self, _: Derivation, first: int | None, last: int, lemma: dict[str, Any]) -> int:
        """Return the least nanoseconds from the end of ``first``, which makes the tensor, to the end of ``last``.

        Without a tensor, from the start of the run.
        """
        p, group, tensor = self.relaxed.problem, lemma["group"], lemma.get("tensor")
        maker = None if tensor is None else p.maker.get(p.t[tensor], -1)
        if first != maker or self.ends.setdefault(group, last) != last:
            raise Refused(f"{tensor!r} is not produced by the first operator, or group {group!r} has two ends")
        if self.relaxed.group_of[last] != group or group in map(self.relaxed.group_of.get, p.after[last]):
            raise Refused(f"the last operator does not stand for the end of group {group!r}")
        runs, name = self.relaxed.runs[group], p.operator_names[last]
        alternatives = self.relaxed.alternatives[group].items()
        return min(
            self._least(alternative, runs[of][name], tensor, lemma["alternatives"][of])
            for of, alternative in alternatives
        )

    def _least(self, alternative: Alternative, end: str, tensor: str | None, lemmas: list[dict[str, Any]]) -> int:
        """Return what the lemmas prove for one alternative, less the time of the source."""
        sizes = {t["name"]: t["size"] for t in [*self.relaxed.known, *alternative.tensors]}
        leading = alternative.leading_to(end) if tensor is None else alternative.leading(tensor, end, sizes)
        graph, costs = self._between(alternative, leading, tensor, sizes)
        if (key := str((graph, costs, lemmas))) not in self.known:
            problem = Problem(self.relaxed.document | {"graph": graph, "costs": costs})
            self.known[key] = max(bound_of(problem, lemmas) - (tensor is not None), 0)
        return self.known[key]

    def _between(
        self, alternative: Alternative, leading: set[str], tensor: str | None, sizes: dict[str, int]
    ) -> tuple[dict[str, Any], ...]:
        """Return graph and costs of a source of 1 ns, if there is a tensor, and the operators, named by their positions."""
        rows = [(k, row) for k, (name, row) in enumerate(alternative.rows.items()) if name in leading]
        produced = {t: f"{k}:{j}" for k, (operator, *_) in rows for j, t in enumerate(operator.get("outputs", []))}
        called = ({} if tensor is None else {tensor: "source"}) | produced
        operators: list[dict[str, Any]] = [] if tensor is None else [{"name": "source", "outputs": ["source"]}]
        fastest: list[list[Any]] = [[1] * self.devices] * len(operators)
        for k, (operator, normal, direct, _) in rows:
            inputs = [called[t] for t in operator.get("inputs", []) if t in called]
            operators.append(
                {"name": str(k), "inputs": inputs, "outputs": [called[t] for t in operator.get("outputs", [])]}
            )
            both = zip(normal, direct, strict=True)
            fastest.append([min((ns for ns in times if ns is not None), default=None) for times in both])
        tensors = [{"name": new, "size": sizes[old]} for old, new in called.items()]
        costs = {"operator_ns": fastest, "direct_ns": [[None] * self.devices] * len(fastest)}
        return {"operators": operators, "tensors": tensors}, costs
