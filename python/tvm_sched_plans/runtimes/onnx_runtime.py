"""ONNX Runtime: layer annotations for one GPU and the CPU; for several GPUs a model file each, since a session has one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..onnx_parts import annotated, parts_of
from ..unit_chain import Chain, Placement, segments
from .base import GB, Case, PlanRequest, Split
from .onnx_base import OnnxBase

MULTIPLIER = 1.5
"""Factor by which ONNX Runtime multiplies its estimate of a node's memory if it has no statistics of a run."""


class OnnxRuntime(OnnxBase):
    """`layer_ann` of nodes with `session.layer_assignment_settings`; or parts of the model."""

    name = "onnxruntime"
    title = "ONNX Runtime"
    tried = "onnxruntime 1.31.1 on the CPU: annotated models and parts load, and give the same results"
    cannot = (
        "the order in which weights are loaded, and reads from host memory by a kernel",
        "several GPUs in a session: parts are sessions of their own, run one after another",
        "streams: a session runs nodes in order",
    )
    overhead = int(0.8 * GB)
    overhead_is = "CUDA context, cuBLAS and cuDNN workspaces (0.6 GB), what its arena takes beyond need (0.2 GB)"
    file = "onnxruntime_plan.json"

    def defaults(self, request: PlanRequest, cases: Sequence[Case]) -> list[Split]:
        """Return the split with all nodes on the first GPU, or as many as capacity-aware partitioning puts there."""
        case = cases[0]
        every = Split("all nodes on one GPU", case, (0,) * len(case.chain.model.units))
        if case.chain.fits(every.placement):
            return [every]
        return [every, Split("greedily in order", case, greedily(case.chain))]

    def settings(self, request: PlanRequest, split: Split) -> dict[str, Any]:
        """Session options and runs of nodes."""
        places = split.case.chain.machine.places
        numbers = {device.name: n for n, device in enumerate(self.gpus(request))}
        runs = [
            {"device": "cpu" if places[p].name not in numbers else f"cuda:{numbers[places[p].name]}", "nodes": [a, b]}
            for p, a, b in segments(split.placement)
        ]
        used = {str(run["device"]) for run in runs} - {"cpu"}
        if len(used) <= 1:
            return {"runs": runs, "model": f"{request.operators.path.stem}.annotated.onnx", **_session(used)}
        names = [f"{request.operators.path.stem}.part{n}.onnx" for n in range(len(runs))]
        return {
            "runs": [
                {**run, "model": name, **_providers(str(run["device"]))} for run, name in zip(runs, names, strict=True)
            ]
        }

    def write(self, request: PlanRequest, split: Split) -> dict[str, str | bytes]:
        """Return a JSON document with the settings of the sessions, the models, and a script that runs them."""
        settings = self.settings(request, split)
        models: dict[str, str | bytes] = {}
        if "model" in settings:
            models[settings["model"]] = annotated(
                request.operators, [(run["device"].split(":")[0], *run["nodes"]) for run in settings["runs"]]
            )
        else:
            for run, part in zip(
                settings["runs"],
                parts_of(request.operators, [tuple(run["nodes"]) for run in settings["runs"]]),
                strict=True,
            ):
                models[run["model"]] = part
        script = (Path(__file__).parent / "_onnxruntime_script.py").read_text()
        plan = json.dumps({**settings, "environment": self.environment(request)}, indent=2) + "\n"
        return {self.file: plan, "run_onnxruntime.py": script, **models}


def _session(used: set[str]) -> dict[str, Any]:
    rules = [
        f"{'cuda' if device != 'cpu' else 'cpu'}(=tvm_sched.{device.split(':')[0]})"
        for device in sorted(used | {"cpu"}, reverse=True)
    ]
    device = next(iter(used), "cpu")
    return {
        "session_options": {"session.layer_assignment_settings": "; ".join(sorted(rules, reverse=True))},
        **_providers(device),
    }


def _providers(device: str) -> dict[str, Any]:
    if device == "cpu":
        return {"providers": [["CPUExecutionProvider", {}]]}
    return {
        "providers": [["CUDAExecutionProvider", {"device_id": device.partition(":")[2]}], ["CPUExecutionProvider", {}]]
    }


def greedily(chain: Chain) -> Placement:
    """Nodes in order on the GPU until the next would exceed the limit by ONNX Runtime's estimate; all others on the CPU.

    The estimate is the bytes of a node's initializers and outputs, times `MULTIPLIER` (its capacity-aware partitioning).
    """
    phase = chain.model.phases[0]
    index, tensors = phase.graph.index, phase.graph.tensors
    seen: set[int] = set()
    used, count = 0.0, 0
    for members in phase.members:
        for o in members:
            weights = {t for t in index.inputs[o] if tensors[t].kind == "parameter"} - seen
            seen |= weights
            used += MULTIPLIER * sum(index.size[t] for t in (*weights, *index.outputs[o]))
        if used > chain.room[0]:
            break
        count += 1
    return (0,) * count + (len(chain.machine.places) - 1,) * (len(phase.members) - count)
