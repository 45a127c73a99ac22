"""Check allocation and evidence together."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ..document import MALFORMED, Refused, count, read
from .allocation_rules import check_allocation
from .bound import bound_of
from .document import Cluster, Service


class Verdict(NamedTuple):
    """The number of services placed, and the largest number that any allocator places: proved, and claimed.

    ``requests`` is the length of the sequence of requests.
    """

    placed: int
    proved: int
    claimed: int
    requests: int

    @property
    def all_proved(self) -> bool:
        """Whether the claimed bound is proved."""
        return self.proved <= self.claimed

    @property
    def lines(self) -> list[str]:
        """The result as lines of text."""
        claim = f"claimed is a bound of {self.claimed}, the evidence proves {self.proved} of {self.requests} requests"
        gap = 1 - self.placed / self.proved if self.proved else 0.0
        return [f"{self.placed} services are placed, by every rule", claim, f"gap proved: {gap:.2%}"]


def check(allocation_file: str | Path, evidence_file: str | Path) -> Verdict:
    """Check the allocation and prove the bound; raise `Refused` if one of the files is wrong."""
    allocation, _ = read(allocation_file, "tvm_sched.allocation")
    evidence, _ = read(evidence_file, "tvm_sched.cluster_evidence")
    try:
        cluster = Cluster(evidence["cluster"])
        services = {name: Service(text, cluster) for name, text in evidence["services"].items()}
        placed = check_allocation(cluster, services, allocation)
        requests = [(name, service) for name, service in evidence["requests"]]
        if dict(placed) != dict(requests[: len(placed)]):
            raise Refused(
                f"the {len(placed)} services that are placed are not the first ones of the evidence's requests"
            )
        proved = bound_of(cluster, services, [service for _, service in requests], evidence["prices"])
        claimed = count(evidence["bound"])
    except MALFORMED as error:
        raise Refused(f"a file is not as its format says: {type(error).__name__} {error}") from None
    if len(placed) > min(proved, claimed):
        raise Refused(
            f"{len(placed)} services are placed, more than the bound, {min(proved, claimed)}: please report this"
        )
    return Verdict(len(placed), proved, claimed, len(requests))
