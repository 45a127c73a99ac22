"""Base of runtimes for ONNX files: operators run one after another on GPUs and the CPU, with copies through host memory."""

from __future__ import annotations

from collections.abc import Sequence

from ..places import Machine, Place, device_place, host_place
from ..unit_chain import Chain
from .base import Case, PlanRequest, Runtime


class OnnxBase(Runtime):
    """A runtime of ONNX files whose operators may be on GPUs in any order, and on the CPU."""

    takes = ("onnx",)

    def cases(self, request: PlanRequest) -> list[Case]:
        """Return the case of GPUs in any order, and the CPU."""
        return [self._case(request, [host_place(request.topology)])]

    def on_gpus(self, request: PlanRequest) -> list[Case]:
        """Without the CPU."""
        return [self._case(request, [])]

    def _case(self, request: PlanRequest, more: Sequence[Place]) -> Case:
        places = [device_place(device, self.room(request, device)) for device in self.gpus(request)]
        machine = Machine(request.topology, (*places, *more), staged=True, in_order=True)
        return Case(Chain.of(request.operators.units(), machine, request.costs))
