"""Check a partition, and the evidence of a bound."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from ..document import MALFORMED, Refused, read
from .bound import bound_of
from .cost import cost_of, number, places_of
from .graph import graph_of


class Verdict(NamedTuple):
    """The cost of the bottleneck stage, the bound that is proved, and the bound that the evidence claims.

    ``claimed`` is None without evidence.
    """

    cost: Fraction
    proved: Fraction
    claimed: Fraction | None

    @property
    def all_proved(self) -> bool:
        """Whether the bound of the evidence is proved; without evidence, whether the partition is proved optimal."""
        return self.proved >= (self.cost if self.claimed is None else self.claimed)

    @property
    def lines(self) -> list[str]:
        """The result as lines of text."""
        gap = float(1 - self.proved / self.cost) if self.cost else 0.0
        proof = f"the simple bound proves {float(self.proved):.12g}"
        if self.claimed is not None:
            proof = f"the evidence claims {float(self.claimed):.12g} and proves {float(self.proved):.12g}"
        return [f"the bottleneck stage costs {float(self.cost):.12g}", f"{proof}; gap proved: {gap:.2%}"]


def check(instance_file: str | Path, solution_file: str | Path, evidence_file: str | Path | None = None) -> Verdict:
    """Price the partition and prove the bound; raise `Refused` if one of the files is wrong.

    Without evidence the bound is the simple one: the work of the largest node, or the average work of a stage.
    """
    document, digest = read(instance_file, "tvm_sched.partition_problem")
    solution, _ = read(solution_file, "tvm_sched.partition")
    evidence = read(evidence_file, "tvm_sched.partition_evidence")[0] if evidence_file is not None else None
    try:
        for name, named in (("partition", solution), ("evidence", evidence or {"instance": digest})):
            if named["instance"] != digest:
                raise Refused(f"the {name} is of instance {named['instance']}; the digest of this one is {digest}")
        place = places_of(document, solution)
        cost = max((cost_of(document, s, place) for s in range(len(solution["stages"]))), default=Fraction(0))
        float(cost)  # raises where it is too large to be shown
        graph, stages = graph_of(document), document["stages"]
        average = Fraction(sum(graph.work), stages)
        proved, claimed = max([*map(Fraction, graph.work), average]) * graph.unit, None
        if evidence is not None:
            claimed = number(evidence["bound"])
            proved = max(proved, bound_of(graph, stages, evidence, claimed))
    except MALFORMED as error:
        raise Refused(f"a file is not as its format says: {type(error).__name__} {error}") from None
    if proved > cost:
        raise Refused(f"the evidence proves {float(proved)}, but the partition costs {float(cost)}: please report this")
    return Verdict(cost, proved, claimed)
