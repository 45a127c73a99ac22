"""Check a placement, and the evidence of a bound."""

from __future__ import annotations

import hashlib
from fractions import Fraction
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from ..document import MALFORMED, Refused, read
from .bound import path_bound
from .instance import Instance
from .placement import latency_of
from .separators import separator_bound


class Verdict(NamedTuple):
    """The latency of the placement, the bound that is proved, and the bound that the evidence claims."""

    latency: Fraction
    proved: Fraction
    claimed: Fraction

    @property
    def all_proved(self) -> bool:
        """Whether the claimed bound is proved; a larger claim is refused."""
        return self.proved >= self.claimed

    @property
    def lines(self) -> list[str]:
        """The result as lines of text."""
        gap = float(1 - self.proved / self.latency) if self.latency else 0.0
        proof = f"the evidence claims {float(self.claimed):.12g} and proves {float(self.proved):.12g}"
        return [f"the placement takes {float(self.latency):.12g}", f"{proof}; gap proved: {gap:.2%}"]


def check(instance_file: str | Path, solution_file: str | Path, evidence_file: str | Path) -> Verdict:
    """Compute the latency of the placement and prove the bound; raise `Refused` if one of the files is wrong."""
    document, _ = read(instance_file, "tvm_sched.placement_problem")
    solution, _ = read(solution_file, "tvm_sched.placement")
    evidence, _ = read(evidence_file, "tvm_sched.placement_evidence")
    try:
        digest = hashlib.sha256(document["instance"].encode()).hexdigest()[:16]
        for name, named in (("placement", solution["instance"]), ("evidence", evidence["instance"])):
            if named != digest:
                raise Refused(f"the {name} is of instance {named}; the digest of this one is {digest}")
        instance = Instance(document["instance"])
        latency = latency_of(instance, solution["subgraph"])
        claimed, proved = evidence["bound"], _proved(instance, evidence)
        if type(claimed) not in (int, float) or not 0 <= claimed <= proved < inf:
            raise Refused(f"the evidence claims {claimed!r} and proves {float(proved)!r}")
        float(latency)  # raises where it is too large to be shown
    except MALFORMED as error:
        raise Refused(f"a file is not as its format says: {type(error).__name__} {error}") from None
    if proved > latency:
        raise Refused(
            f"the evidence proves {float(proved)}, but the placement takes {float(latency)}: please report this"
        )
    return Verdict(latency, Fraction(proved), Fraction(claimed))


def _proved(instance: Instance, evidence: dict[str, Any]) -> Any:
    if "path" in evidence:
        return path_bound(instance, evidence["path"])
    return separator_bound(instance, evidence["operators"], evidence["paths"])
