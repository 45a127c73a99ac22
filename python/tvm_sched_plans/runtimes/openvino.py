"""OpenVINO: affinities of all operators for the device HETERO, set by a script when the model is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .base import GB, Case, PlanRequest, Split
from .onnx_base import OnnxBase
from .torch import with_tables


class OpenVino(OnnxBase):
    """`rt_info["affinity"]` and `HETERO:...`."""

    name = "openvino"
    title = "OpenVINO"
    tried = (
        "openvino 2026.4.1 on the CPU: affinities are set, the model is compiled for HETERO and gives the same results"
    )
    cannot = (
        "the order in which weights are loaded, and reads from host memory by a kernel",
        "streams and order: HETERO runs its subgraphs one after another",
    )
    overhead = int(0.5 * GB)
    overhead_is = "the driver's context and compiled kernels (0.5 GB)"
    file = "openvino_plan.py"

    def environment(self, request: PlanRequest) -> dict[str, str]:
        """Return no variables: OpenVINO counts its GPUs without CUDA."""
        return {}

    def defaults(self, request: PlanRequest, cases: Sequence[Case]) -> list[Split]:
        """Return the default: everything on the first device of the list; if that does not fit, also all on the CPU."""
        case = cases[0]
        units = len(case.chain.model.units)
        last = len(case.chain.machine.places) - 1
        splits = [Split("HETERO, by priority", case, (0,) * units)]
        if not case.chain.fits(splits[0].placement):
            splits.append(Split("CPU", case, (last,) * units))
        return splits

    def settings(self, request: PlanRequest, split: Split) -> dict[str, Any]:
        """Return the device of each operator, by the first tensor that it makes."""
        names = {device.name: f"GPU.{n}" for n, device in enumerate(self.gpus(request))}
        places = split.case.chain.machine.places
        device = [names.get(place.name, "CPU") for place in places]
        graph = request.operators.graph
        table = {
            operator.outputs[0]: device[p]
            for operator, p in zip(graph.operators, split.placement, strict=True)
            if operator.outputs
        }
        return {"affinity": table}

    def write(self, request: PlanRequest, split: Split) -> dict[str, str | bytes]:
        """Return a Python module with functions ``set_affinities`` and ``compile_model``."""
        return {self.file: with_tables("_openvino_script.py", {"AFFINITY": self.settings(request, split)["affinity"]})}
