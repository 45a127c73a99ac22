"""A pipeline plan: stages with their devices, operators and costs, its certificate, and its file format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ..files import Document
from ..search_budget import Status

FORMAT, VERSION = "tvm_sched.pipeline", 1


class Stage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stage: the work of one device on each batch.

    Examples
    --------
    >>> from tvm_sched.pipeline import plan_pipeline
    >>> first = plan_pipeline(problem, stages=2).stages[0]
    >>> first.input_ns, first.work_ns, first.output_ns, first.cost_ns
    (250, 2000, 100, 2350)
    """

    device: str
    operators: tuple[str, ...]
    """In launch order."""
    input_ns: int = 0
    work_ns: int = 0
    overflow_ns: int = 0
    output_ns: int = 0
    """Time to get its inputs, to run its operators, to stream the parameters that do not fit beside its activations,
    and to send the tensors that others read: equation (3) of Archer et al. (ICML 2024)."""
    parameter_bytes: int = 0
    peak_bytes: int = 0
    """Bytes of its parameters, and the peak of its activations."""

    @property
    def cost_ns(self) -> int:
        """Time of the stage for one batch."""
        return self.input_ns + self.work_ns + self.overflow_ns + self.output_ns


class Priced:
    """What has priced stages."""

    __slots__ = ()
    if TYPE_CHECKING:

        @property
        def stages(self) -> Sequence[Stage]:  # noqa: D102 - a field of those that inherit
            ...

    @property
    def cost_ns(self) -> int:
        """Cost of the bottleneck stage."""
        return max((stage.cost_ns for stage in self.stages), default=0)

    @property
    def latency_ns(self) -> int:
        """Time of a batch alone in the pipeline: all stages in sequence."""
        return sum(stage.cost_ns for stage in self.stages)


class PipelineCertificate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cost of a plan, and its lower bound.

    Examples
    --------
    >>> from tvm_sched.pipeline import PipelineCertificate
    >>> PipelineCertificate(cost_ns=2000, lower_bound_ns=1500).gap
    0.25
    """

    cost_ns: int
    """Cost of the bottleneck stage: the time between batches if stages get, compute and send in turn."""
    lower_bound_ns: int
    """No plan for these devices, with as many stages or fewer, has a cheaper bottleneck."""
    bound: str = ""
    """Name of the lower bound's argument."""
    status: Status = "no better found"
    """How the search for the plan ended, see `tvm_sched_runtime.search_budget.Status`."""

    @property
    def gap(self) -> float:
        """Largest possible distance of the cost from the best one, as a fraction of the cost."""
        return 0.0 if self.cost_ns == 0 else 1 - self.lower_bound_ns / self.cost_ns


class PipelinePlan(Priced, Document, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model cut into stages on devices; tensors go only from earlier to later stages.

    ``docs/formats/pipeline.md`` describes its document, whose form `from_json` checks; `verify` checks the plan itself.

    Examples
    --------
    >>> from tvm_sched.pipeline import plan_pipeline
    >>> plan = plan_pipeline(problem, stages=2)
    >>> plan.cost_ns, plan.latency_ns
    (2600, 4950)
    """

    kept_as = ("pipeline plan", FORMAT, VERSION)

    problem: str
    """`Problem.digest` of its problem."""
    stages: tuple[Stage, ...]
    """In the order in which a batch passes them."""
    partitioner: str = ""
    options: dict[str, Any] = {}
    seconds: float = 0.0
    """Partitioner, its options, and the wall-clock time of the search."""
    certificate: PipelineCertificate | None = None
