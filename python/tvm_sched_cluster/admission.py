"""Admission by class: quotas of the GPUs, and equal parts of the accepted requests."""

from __future__ import annotations

from collections import Counter

import msgspec

from tvm_sched_runtime.errors import InputError

from .problem.service import Service
from .search.cluster_state import ClusterState

_LEAST_SEEN = 20
"""Requests of a service before its part of accepted ones counts."""


class AdmissionRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rules by which requests are refused although there is room.

    Parameters
    ----------
    quotas : dict of str to float
        Most GPUs that services of a category, or one service, may hold, as a part of all GPUs that work.
    slack : float, optional
        A request is refused while its service has been accepted more often than the service that was accepted least often,
        by more than this part of its requests. Default: no such rule.
    """

    quotas: dict[str, float] = {}
    slack: float | None = None

    def __post_init__(self) -> None:
        for name, quota in self.quotas.items():
            if not 0 <= quota <= 1:
                raise InputError(f"the quota of {name!r} is {quota}; a part from 0 to 1 is allowed")
        if self.slack is not None and not 0 <= self.slack <= 1:
            raise InputError(f"slack is {self.slack}; a number from 0 to 1 is allowed")


class Admission:
    """Decides about requests by rules, and counts what became of them."""

    def __init__(self, rules: AdmissionRules) -> None:
        self.rules = rules
        self.asked: Counter[str] = Counter()
        self.accepted: Counter[str] = Counter()

    def refusal(self, state: ClusterState, service: Service) -> str:
        """Return why a request is refused, or an empty string."""
        for name in {service.category, service.name} & self.rules.quotas.keys():
            held = sum(
                len(placement.stages)
                for placement in state.running.values()
                if name in (placement.service, state.service(placement.service).category)
            )
            mixes = state.search.mixes(service).gpus
            needed = held + (int(mixes.sum(axis=1).min()) if len(mixes) else 1)
            works = len(state.cluster.gpus) - len(set(state.failed) & state.cluster.gpu_id.keys())
            if needed > self.rules.quotas[name] * works:
                return f"{name} would hold {needed} of {works} GPUs; its quota is {self.rules.quotas[name]:.0%}"
        if self.rules.slack is not None and self.asked[service.name] >= _LEAST_SEEN:
            parts = {name: self.accepted[name] / count for name, count in self.asked.items() if count >= _LEAST_SEEN}
            own, least = parts[service.name], min(parts.values())
            if own > least + self.rules.slack:
                return f"{own:.0%} of the requests for {service.name} were accepted, of those for another {least:.0%}"
        return ""

    def count(self, service: str, accepted: bool) -> None:
        """Count a request and whether it runs."""
        self.asked[service] += 1
        self.accepted[service] += accepted
