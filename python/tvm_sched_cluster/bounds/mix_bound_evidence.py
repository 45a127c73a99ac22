"""Write the evidence of a bound on placed requests for ``tvm_sched_check.clusters`` (``docs/formats/evidence.md``)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.files import encode_document, write_atomically

from ..problem.service import Service, ServiceRequest
from ..search.cluster_search import ClusterSearch
from .gpu_cover import any_cover
from .mix_bound import MixProgram, bound_of_requests

FORMAT, VERSION = "tvm_sched.cluster_evidence", 1

_SCALE = 1 << 40
"""Prices are stored as integers up to this one."""


class ClusterEvidence(NamedTuple):
    """The evidence of a bound.

    Attributes
    ----------
    cluster, services
        Texts of the cluster and of each service; allocations name their digests.
    requests
        Name and service of each request, in order.
    bound : int
    prices
        Integer prices of GPUs, cuts and fibres.
    """

    cluster: str
    services: dict[str, str]
    requests: list[tuple[str, str]]
    bound: int
    prices: dict[str, Any]

    def to_json(self) -> bytes:
        """Return the document."""
        return encode_document(self._asdict(), FORMAT, VERSION)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file."""
        write_atomically(path, self.to_json())


def evidence(search: ClusterSearch, services: Sequence[Service], requests: Sequence[ServiceRequest]) -> ClusterEvidence:
    """Return the evidence of `bound_of_requests`: prices at which one more request costs more than the whole cluster.

    Raises
    ------
    InputError
        As `bound_of_requests`; a service whose operators do not each hand data to the next one.
    """
    for service in services:
        if not any_cover(search, service).joined:
            raise InputError(
                f"service {service.name!r} is not a chain of operators; only bounds of chains have evidence"
            )
    bound = bound_of_requests(search, services, requests)
    demand = Counter(request.service for request in requests[: bound + 1])
    program = MixProgram(search, services, any_cover)
    fibres = np.array([link.fibres for link in search.cluster.links], dtype=np.int64)
    prices = program.solve(demand, search.kind_gpus, fibres).prices if demand else [0.0] * program.columns
    scale = _SCALE / (max(prices) or 1.0)
    *of_resources, fibre = (max(0, round(price * scale)) for price in prices)
    kinds = [kind.name for kind in search.cluster.kinds]
    cuts = zip(program.cuts, of_resources[len(kinds) :], strict=True)
    return ClusterEvidence(
        search.cluster.text,
        {service.name: service.text for service in services},
        [(request.name, request.service) for request in requests],
        bound,
        {
            "gpus": dict(zip(kinds, of_resources, strict=False)),
            "cuts": [{"kinds": [kinds[k] for k in cut], "price": price} for cut, price in cuts if price],
            "fibre": fibre,
        },
    )
