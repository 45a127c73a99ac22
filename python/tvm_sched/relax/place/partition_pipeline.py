"""PartitionPipeline: partition the module's operators into stages, for throughput instead of latency."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import tvm

from tvm_sched_runtime.pipeline import PipelinePlan

from ...pipeline import plan_pipeline
from ..ir.attributes import PIPELINE, get_problem, leave


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.PartitionPipeline")
class PartitionPipeline:
    """Cut the model into pipeline stages on devices, for the shortest time between batches.

    Reads the attribute ``tvm_sched.problem``; leaves the plan as a JSON document in ``tvm_sched.pipeline``, for
    `EmitPipeline`. It replaces `Place` and later passes, which minimise latency.

    Parameters
    ----------
    stages : int or "auto"
        Largest number of stages; "auto": the number of devices.
    partitioner : str
        Name of a registered partitioner.
    options : mapping, optional
        Its options.
    devices, latency_ceiling, throughput_floor
        As for `tvm_sched.pipeline.plan_pipeline`.
    plan : PipelinePlan, optional
        Plan of the same problem to use instead of calling the partitioner.
    progress : callable, optional
        Called with the current task, the number of finished parts, and the number of parts.

    Examples
    --------
    >>> from tvm_sched.relax import get_pipeline_plan
    >>> from tvm_sched.relax.passes import EstimateLatencies, PartitionPipeline
    >>> cut = PartitionPipeline(stages=1)(EstimateLatencies("cpu2", "roofline")(lowered))
    >>> len(get_pipeline_plan(cut).stages)
    1
    """

    def __init__(
        self,
        stages: int | Literal["auto"] = "auto",
        partitioner: str = "anytime",
        options: Mapping[str, Any] | None = None,
        *,
        devices: Sequence[str] | None = None,
        latency_ceiling: float | None = None,
        throughput_floor: float | None = None,
        plan: PipelinePlan | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self.stages, self.partitioner, self.options, self.progress = stages, partitioner, options, progress
        self.plan = plan
        self.limits = {"devices": devices, "latency_ceiling": latency_ceiling, "throughput_floor": throughput_floor}

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        if self.plan is not None:
            return leave(mod, PIPELINE, self.plan)
        plan = plan_pipeline(
            get_problem(mod),
            self.stages,
            self.partitioner,
            self.options,
            progress=self.progress,
            **self.limits,  # type: ignore[arg-type]
        )
        return leave(mod, PIPELINE, plan)
