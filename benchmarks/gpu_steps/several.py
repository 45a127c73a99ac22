"""Steps about states that stay on a GPU from run to run, and about copies between GPUs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .artifacts import arrays, difference, load, network_tensors, write_parameters
from .cases import STATE_STEPS, state_weight
from .record import Step
from .running import medians
from .weights import numbers

PEER_BYTES = 256 << 20
POLICIES = ("try", "never")
"""Of ``TVM_SCHED_PEERS``: copies go straight where that is right and faster, or all through the host."""


def states(step: Step) -> None:
    """Run a model with a state for some steps, issued and as graphs; read the state, set it, go on."""
    for file, about in step.artifacts("state"):

        def run(file: Path = file, about: Mapping[str, Any] = about) -> dict[str, Any]:
            parameters = write_parameters(step, file, about, lambda _: state_weight())
            expected = arrays(file)
            worst = 0.0
            for graph in (False, True):
                loaded = load(file, parameters, resident=1.0, graph=graph)
                for _ in range(2):  # the second time from a state that was set
                    for k in range(STATE_STEPS):
                        (found,) = loaded.run(numbers(f"x{k}", tuple(about["shape"])))
                        worst = max(worst, apart(found, expected["outputs"][k]))
                    worst = max(worst, apart(loaded.get_state("s"), expected["state"]))
                    loaded.set_state("s", np.zeros(expected["state"].shape, np.float32))
            if worst > about["tolerance"]:
                raise ValueError(f"differs by {worst:.2e} from float64; allowed is {about['tolerance']}")
            return {"error": worst, "tolerance": about["tolerance"], "steps": STATE_STEPS}

        step.measure(about["name"], run, most=20, of=(file,))


def apart(found: Any, expected: Any) -> float:
    """Return the largest difference over the largest expected value; infinite if one is not finite."""
    values = np.asarray(found, np.float64)
    if not np.isfinite(values).all():
        return float("inf")
    return float(np.abs(values - expected).max() / np.abs(expected).max())


def peers(step: Step) -> None:
    """Rates between GPUs by receiver, by sender and through the host; values and times over them, straight and staged.

    With one GPU: what is tried when peers are opened, and the copies through the host, from the GPU to itself.
    """
    from tvm_sched_runtime import core_library

    count = len(json.loads(core_library.function("tvm_sched.cuda_report")())["gpus"])

    def rates(sender: int, receiver: int) -> dict[str, Any]:
        size = 1 << 20 if step.quick else PEER_BYTES
        found = core_library.function("tvm_sched.cuda_peer_rates")(sender, receiver, size)
        rates = {str(name): float(value) for name, value in found.items()}
        if not rates.pop("right"):
            raise ValueError(f"bytes arrive wrong although the driver says that they are peers: {rates}")
        return {"gb_s": {name: value / 1e9 for name, value in rates.items()}}

    step.measure("GPU 0 with itself", lambda: rates(0, 0), 2)
    if count < 2:
        step.write("between GPUs", status="not available", reason="there is one GPU")
        return
    for sender in range(count):
        for receiver in range(count):
            if sender != receiver:
                step.measure(f"from GPU {sender} to GPU {receiver}", lambda s=sender, r=receiver: rates(s, r), 1, 15)
    for file, about in step.artifacts("values"):
        if 2 <= about["devices"] <= count:
            step.measure(about["name"], lambda f=file, a=about: over_gpus(step, f, a), 4, 25, (file,))


def over_gpus(step: Step, file: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """Run a schedule on as many GPUs as it has devices, for each policy of peers."""
    _, tensor, x = network_tensors(about)
    parameters = write_parameters(step, file, about, tensor)
    expected, times, worst = arrays(file)["expected"], dict[str, Any](), 0.0
    before = os.environ.get("TVM_SCHED_PEERS")
    try:
        for policy in POLICIES:
            os.environ["TVM_SCHED_PEERS"] = policy
            for graph in (False, True):
                loaded = load(file, parameters, devices=list(range(about["devices"])), resident=1.0, graph=graph)
                for _ in range(4):
                    (found,) = loaded.run(x)
                    worst = max(worst, difference(found, expected, about["largest"]))
                name = f"{policy}, {'graph' if graph else 'issued'}"
                times |= medians({name: lambda loaded=loaded: loaded.run(x)}, 0.05 if step.quick else 0.3)
    finally:
        if before is None:
            os.environ.pop("TVM_SCHED_PEERS")
        else:
            os.environ["TVM_SCHED_PEERS"] = before
    if worst > about["tolerance"]:
        raise ValueError(f"differs by {worst:.2e} of the largest value from float64; allowed is {about['tolerance']}")
    return {"error": worst, "tolerance": about["tolerance"], "times": times, "devices": about["devices"]}
