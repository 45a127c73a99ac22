"""Compiles a model for OpenVINO's HETERO as tvm-sched planned: `compile_model("model.onnx")`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import openvino

AFFINITY: dict[str, str] = {}
"""Device of the operator that makes each of these tensors."""


def set_affinities(model: Any, devices: Mapping[str, str] | None = None) -> list[str]:
    """Set the affinity of every operator, and return the devices in the order of their first one.

    An operator that the plan does not name (a constant, a step of a node that OpenVINO took apart) goes to its reader.
    """
    table = {name: (devices or {}).get(device, device) for name, device in AFFINITY.items()}
    chosen: dict[str, str] = {}
    ordered = list(model.get_ordered_ops())
    for operator in reversed(ordered):
        names = [name for output in operator.outputs() for name in output.get_names() if name in table]
        readers = [
            chosen[target.get_node().get_friendly_name()]
            for output in operator.outputs()
            for target in output.get_target_inputs()
            if target.get_node().get_friendly_name() in chosen
        ]
        source = None
        if operator.get_type_name() == "Result":
            source = next((table[name] for name in operator.input_value(0).get_names() if name in table), None)
        device = table[names[0]] if names else source or (readers[0] if readers else next(iter(table.values())))
        chosen[operator.get_friendly_name()] = device
        operator.get_rt_info()["affinity"] = device
    return list(dict.fromkeys(chosen[operator.get_friendly_name()] for operator in ordered))


def compile_model(path: str, devices: Mapping[str, str] | None = None, core: Any = None) -> Any:
    """Read, set and compile.

    ``devices`` maps the plan's devices to others, e.g. ``{"GPU.0": "CPU"}`` to try it without GPUs.
    """
    core = core or openvino.Core()
    model = core.read_model(path)
    order = set_affinities(model, devices)
    return core.compile_model(model, "HETERO:" + ",".join(order))
