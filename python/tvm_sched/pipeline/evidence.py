"""What the lower bound of a pipeline rests on, for ``tvm_sched_check.pipelines`` (``docs/formats/evidence.md``)."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..errors import InputError
from ..files import encode_document, write_atomically
from ..problem import Problem
from .node_bound import dearest_node
from .plan import PipelinePlan
from .relaxation import relax

FORMAT, VERSION = "tvm_sched.pipeline_evidence", 1


class PipelineEvidence(NamedTuple):
    """An argument for a lower bound: `ns`, for at most `stages` stages on `devices`; `operator` for rule ``"operator"``."""

    problem: str
    stages: int
    devices: tuple[str, ...]
    rule: str
    ns: int
    certified_ns: int
    certified_by: str
    operator: str = ""

    def to_json(self) -> bytes:
        """The document."""
        body: dict[str, Any] = self._asdict()
        return encode_document({k: v for k, v in body.items() if k != "operator" or v}, FORMAT, VERSION)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file."""
        write_atomically(path, self.to_json())


def evidence(
    problem: Problem, plan: PipelinePlan, stages: int, devices: Sequence[str] | None = None
) -> PipelineEvidence:
    """What the bound of a plan's certificate rests on, or the strongest argument that can be stored.

    Parameters
    ----------
    problem : Problem
    plan : PipelinePlan
        With its certificate.
    stages : int
        As many were allowed.
    devices : sequence of str, optional
        Those that were allowed; default: all.

    Raises
    ------
    InputError
        The plan has no certificate, or parameters are resident.
    """
    if problem.resident:
        raise InputError(
            "parameters are resident: evidence of pipelines is of problems in which all lies in host memory"
        )
    if plan.certificate is None:
        raise InputError("the plan has no certificate, so that there is nothing to give evidence of")
    known = tuple(device.name for device in problem.topology.devices) if devices is None else tuple(devices)
    relaxed = relax(problem, [problem.topology.device_id[name] for name in known])
    claim, by = plan.certificate.lower_bound_ns, plan.certificate.bound
    stages = min(stages, len(known))  # each has a device of its own
    whole = problem.digest, stages, known
    if by == "ideals":
        return PipelineEvidence(*whole, "ideals", claim, claim, by)
    average = -(-sum(map(int, relaxed.work)) // stages)
    cost, node = dearest_node(relaxed)
    around = math.ceil(cost * (1 - 1e-9))
    if average >= around or not relaxed.size:
        return PipelineEvidence(*whole, "average", average, claim, by)
    return PipelineEvidence(*whole, "operator", around, claim, by, relaxed.names[node])
