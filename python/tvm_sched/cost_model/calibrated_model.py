"""The cost model `calibrated`: times of kernels measured on this machine's cores.

The compiler measures new kernels (`tvm_sched.relax.profiling.calibration`) and stores their times. For a graph without
kernels, operators that were not measured are predicted from the measured ones.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import FORBIDDEN, Costs, OpGraph, Topology, Uncertainty, load_topology
from tvm_sched_runtime.problem.cpu_presets import MOST_CPU_DEVICES

from .database import CostWarning, Database
from .device_properties import DeviceProperties, properties
from .features import KernelWork
from .learned_model import Prediction, load_learned
from .predicted import Predict, costs_of, database_key, refined
from .profile import Machine, Measurement, Profile, this_machine
from .signature import call_signature, graph_of, signatures

NAME = "calibrated"
CALL_SECONDS = 25e-6
"""Time of a call besides its kernels if it was not measured: that of a model with three small inputs on an AMD EPYC."""
VARIABLE = "TVM_SCHED_COSTS"
"""Environment variable with the default cost model."""


def default_cost_model(topology: Topology, together: bool = False) -> str:
    """Return the default cost model, for every command and function that is not given one.

    It is that of `VARIABLE` if set, `NAME` for this machine's cores, ``"learned"`` for topologies with a GPU, else
    ``"roofline"``. ``together``: whether streams are requested. They need to know how long operators take together, so
    it is ``"occupancy"`` in place of the last two.

    Examples
    --------
    >>> from tvm_sched.cost_model import default_cost_model
    >>> default_cost_model(topology)
    'learned'
    """
    predicted = "learned" if any(device.kind == "cuda" for device in topology.devices) else "roofline"
    return os.environ.get(VARIABLE) or (
        NAME if is_of_this_machine(topology) else "occupancy" if together else predicted
    )


def is_of_this_machine(topology: Topology) -> bool:
    """Return whether a topology is a preset ``cpuN``, perhaps with storage and another name."""
    if len(topology.devices) > MOST_CPU_DEVICES or any(device.kind != "cpu" for device in topology.devices):
        return False
    preset = load_topology(f"cpu{len(topology.devices)}")
    storage = topology.storage
    devices = preset.devices
    if topology.source == preset.source:  # written where a core's speed was measured to be another, or not yet
        speeds = [
            {"memory_bandwidth": each.memory_bandwidth, "peak_flops": each.peak_flops}
            | ({} if each.threads else {"threads": each.threads})  # an older file has none
            for each in topology.devices
        ]
        devices = tuple(msgspec.structs.replace(device, **speed) for device, speed in zip(devices, speeds, strict=True))
    return bool(storage or topology.name == preset.name) and topology == msgspec.structs.replace(
        preset,
        devices=devices,
        storage=storage,
        **({"name": topology.name, "source": topology.source} if storage else {}),
    )


def threads_of(topology: Topology, machine: Machine) -> int:
    """Return how many threads compute a kernel on one of a topology's devices."""
    return max(machine.cores // len(topology.devices), 1)


def calibrated(graph: OpGraph, topology: Topology) -> Costs:
    """Return latencies measured on this machine; kernels that were not measured are predicted from them.

    Here the signature identifies a kernel. The compiler also distinguishes kernels that compute different functions of
    tensors with the same shapes.

    Raises
    ------
    InputError
        The topology has other devices than CPUs.

    Examples
    --------
    >>> from tvm_sched.cost_model import calibrated
    >>> calibrated(graph, topology)
    Traceback (most recent call last):
        ...
    tvm_sched_runtime.errors.InputError: the cost model 'calibrated' measures this machine's cores only, ...
    """
    others = [device.name for device in topology.devices if device.kind != "cpu"]
    if others:
        raise InputError(
            f"the cost model {NAME!r} measures this machine's cores only, and topology {topology.name!r} has "
            f"{', '.join(others)}; use 'learned', 'roofline' or a profile"
        )
    machine, database = this_machine(), Database()
    threads = threads_of(topology, machine)
    rows, calls = (database.read(machine, key) for key in (database_key(threads), calls_key(threads)))
    known = {row.signature: row for row in rows.values() if row.seconds > 0}
    names = signatures(graph)
    missing = len(set(names) - known.keys())
    if missing:
        warnings.warn(
            f"{NAME}: {missing} of {len(set(names))} distinct kernels of {graph.name!r} were not measured on this machine "
            "with this number of threads and are predicted; compiling the model measures them, and `tvm-sched profile "
            "kernels -o FILE` measures many others, which makes predictions better",
            CostWarning,
            stacklevel=2,
        )
    return costs_of_rows(graph, topology, machine, names, known, call_seconds(graph, calls))


def calls_key(threads: int) -> str:
    """Return the key of the measured calls of models in the database; see `call_seconds`."""
    return f"{database_key(threads)}, calls"


def call_seconds(graph: OpGraph, calls: Mapping[str, Measurement]) -> float:
    """Return the seconds of a call of the model besides its kernels.

    If it was not measured, this is the least of the calls with no more tensors, and at most `CALL_SECONDS` and the time for
    the bytes of inputs and outputs: what measured calls took beyond `CALL_SECONDS`, in the median for a byte.
    """
    own = call_signature(graph)
    if own in calls:
        return calls[own].seconds
    fewer = [row.seconds for text, row in calls.items() if text.count("[") <= own.count("[")]
    texts = [text for text in calls if _call_bytes(text)]
    for_byte = [max(calls[text].seconds - CALL_SECONDS, 0.0) / _call_bytes(text) for text in texts]
    copied = float(np.median(for_byte)) * _call_bytes(own) if for_byte else 0.0
    return min([*fewer, CALL_SECONDS + copied])


def _call_bytes(text: str) -> int:
    return sum(tensor.size for tensor in graph_of([text]).tensors)


def costs_of_rows(
    graph: OpGraph,
    topology: Topology,
    machine: Machine,
    names: Sequence[str],
    rows: Mapping[str, Measurement],
    call: float = 0.0,
) -> Costs:
    """Return the costs of measurements on this machine's cores.

    Parameters
    ----------
    names : sequence of str
        Key of each operator's measurement in ``rows``; operators without one are predicted.
    call : float
        Seconds of a call of the model besides its kernels. The first operator takes them, since a schedule has no other
        place for them.
    """
    if all(name in rows for name in names):
        predict: Predict = _unknown
    else:
        model = load_learned()
        device = properties(topology.devices[0])
        profile = Profile(machine, device, tuple(rows.values()))
        predict = refined(model, profile, rows) if rows else model.predict
    exact = {device.name: (list(names), rows) for device in topology.devices}
    return with_call(costs_of(graph, topology, predict, NAME, exact), graph, round(call * 1e9))


def with_call(costs: Costs, graph: OpGraph, call_ns: int) -> Costs:
    """Return the costs with the time of the model's call in the first operator's latencies."""
    if not call_ns or not graph.operators:
        return costs
    more = np.zeros((len(graph.operators), 1), np.int64)
    more[graph.index.order[0]] = call_ns
    sure = costs.uncertainty
    if sure is not None:
        sure = Uncertainty(_longer(sure.low_ns, more), _longer(sure.high_ns, more), sure.shared, sure.far)
    operator_ns, direct_ns = (_longer(matrix, more) for matrix in (costs.operator_ns, costs.direct_ns))
    return costs.replace(operator_ns=operator_ns, direct_ns=direct_ns, uncertainty=sure)


def _longer(matrix: npt.NDArray[np.int64], more: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.where(matrix == FORBIDDEN, matrix, matrix + more)


def _unknown(work: KernelWork, device: DeviceProperties) -> Prediction:
    """Return an empty prediction, which measurements will replace."""
    ones = np.ones(len(work))
    return Prediction(ones, ones, ones, np.zeros(len(work)), np.zeros(len(work), bool))
