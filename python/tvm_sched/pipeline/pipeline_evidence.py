"""Write the evidence of a pipeline's lower bound for ``tvm_sched_check.pipelines`` (``docs/formats/evidence.md``)."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.files import encode_document, write_atomically
from tvm_sched_runtime.pipeline.pipeline_plan import PipelinePlan
from tvm_sched_runtime.problem import Problem

from ..bounds.partitions.partition_evidence import partition_evidence
from ..bounds.partitions.semidefinite_evidence import DEFAULT, Effort
from .bound_steps import ITERATION_SECONDS
from .partition_relaxation import relax

FORMAT, VERSION = "tvm_sched.pipeline_evidence", 1

_WITHOUT_MULTIPLIERS = ("simple", "node", "ideals")
"""Bounds whose argument needs no multipliers."""


class PipelineEvidence(NamedTuple):
    """An argument for the lower bound `ns` with at most `stages` stages on `devices`; `fields` are those of its rule."""

    problem: str
    stages: int
    devices: tuple[str, ...]
    rule: str
    ns: int
    certified_ns: int
    certified_by: str
    fields: Mapping[str, Any] = {}

    def to_json(self) -> bytes:
        """Return the document."""
        body = {**self._asdict(), **self.fields}
        return encode_document({key: value for key, value in body.items() if key != "fields"}, FORMAT, VERSION)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file."""
        write_atomically(path, self.to_json())


def evidence(
    problem: Problem,
    plan: PipelinePlan,
    stages: int,
    devices: Sequence[str] | None = None,
    *,
    effort: Effort = DEFAULT,
    work: float = math.inf,
) -> PipelineEvidence:
    """Return the evidence of the bound in a plan's certificate, or the strongest evidence that can be stored.

    A bound from multipliers needs a new search for them, and the stored multipliers' bound is certified (`certified`).
    Bounds from prices or from a solver have no evidence; the search for multipliers may then prove less.

    Parameters
    ----------
    plan : PipelinePlan
        A plan with its certificate.
    stages : int
        Largest allowed number of stages.
    devices : sequence of str, optional
        Allowed devices; default: all.
    effort : Effort
        Effort of the search for multipliers.
    work : float
        Work of the search in seconds of an idle core of a server, counted in iterations: the same on every machine.

    Raises
    ------
    InputError
        The plan has no certificate.
    """
    if plan.certificate is None:
        raise InputError("the plan has no certificate, so that there is nothing to give evidence of")
    known = tuple(device.name for device in problem.topology.devices) if devices is None else tuple(devices)
    relaxed = relax(problem, [problem.topology.device_id[name] for name in known])
    claim, by = plan.certificate.lower_bound_ns, plan.certificate.bound
    stages = min(stages, len(known))  # each stage has a separate device
    claimed = float(claim) if by == "ideals" else 0.0
    most = work / (ITERATION_SECONDS * max(relaxed.size, 1) ** 3)
    argument = partition_evidence(
        relaxed,
        stages,
        float(plan.cost_ns),
        ideals=claimed,
        multipliers=None if by in _WITHOUT_MULTIPLIERS else effort.at_most(most),
    )
    fields = dict(argument.fields)
    if "operator" in fields:
        fields["operator"] = relaxed.names[fields["operator"]]
    proved = math.ceil(argument.bound)
    if argument.rule == by == "semidefinite":
        claim = proved
    return PipelineEvidence(problem.digest, stages, known, argument.rule, proved, claim, by, fields)


def certified(plan: PipelinePlan, evidence: PipelineEvidence) -> PipelinePlan:
    """Return the plan with the bound of its evidence: new multipliers prove more or less than the old ones."""
    old, ns = plan.certificate, evidence.certified_ns
    if old is None or old.lower_bound_ns == ns:
        return plan
    status = "no better found" if old.status == "optimal" else old.status
    certificate = replace(old, lower_bound_ns=ns, status="optimal" if ns == old.cost_ns else status)
    return replace(plan, certificate=certificate)
