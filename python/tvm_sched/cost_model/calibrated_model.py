"""The cost model `calibrated`: times of kernels as measured on this machine's cores.

The compiler measures kernels that were never met before (`tvm_sched.relax.profiling.calibration`) and keeps their times;
where there is only a graph, kernels without a time are predicted from those that have one.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from ..errors import InputError
from ..problem import Costs, OpGraph, Topology, load_topology
from ..problem.cpu import cpu_count_of
from .database import CostWarning, Database
from .device_properties import DeviceProperties, properties
from .features import KernelWork
from .learned_model import Prediction, load_learned
from .predicted import Predict, costs_of, database_key, refined
from .profile import Machine, Measurement, Profile, this_machine
from .signature import signatures

NAME = "calibrated"
VARIABLE = "TVM_SCHED_COSTS"
"""Environment variable: the cost model where none is named."""


def default_cost_model(topology: Topology, together: bool = False) -> str:
    """The cost model where none is named: what `VARIABLE` says, else `NAME` for this machine's cores, else the roofline.

    ``together``: whether streams are asked for, which need to know how long operators take together: then occupancy takes
    the roofline's place.
    """
    elsewhere = "occupancy" if together else "roofline"
    return os.environ.get(VARIABLE) or (NAME if is_of_this_machine(topology) else elsewhere)


def is_of_this_machine(topology: Topology) -> bool:
    """Whether a topology is a preset ``cpuN``."""
    return cpu_count_of(topology.name) is not None and topology == load_topology(topology.name)


def threads_of(topology: Topology, machine: Machine) -> int:
    """Threads that compute a kernel on one of a topology's devices."""
    return max(machine.cores // len(topology.devices), 1)


def calibrated(graph: OpGraph, topology: Topology) -> Costs:
    """Latencies as measured on this machine, and predicted from these for kernels that were not measured.

    A kernel is known by its signature here; the compiler, which has the kernels, tells apart those that do other work on
    tensors of the same shapes.

    Raises
    ------
    InputError
        The topology has other devices than CPUs.
    """
    others = [device.name for device in topology.devices if device.kind != "cpu"]
    if others:
        raise InputError(
            f"the cost model {NAME!r} measures this machine's cores only, and topology {topology.name!r} has "
            f"{', '.join(others)}; use 'learned', 'roofline' or a profile"
        )
    machine = this_machine()
    rows = Database().read(machine, database_key(threads_of(topology, machine)))
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
    return costs_of_rows(graph, topology, machine, names, known)


def costs_of_rows(
    graph: OpGraph, topology: Topology, machine: Machine, names: Sequence[str], rows: Mapping[str, Measurement]
) -> Costs:
    """Costs of measurements on this machine's cores.

    Parameters
    ----------
    names : sequence of str
        Key of each operator's measurement in ``rows``; operators without one are predicted.
    """
    if all(name in rows for name in names):
        predict: Predict = _unknown
    else:
        model = load_learned()
        device = properties(topology.devices[0])
        profile = Profile(machine, device, tuple(rows.values()))
        predict = refined(model, profile, rows) if rows else model.predict
    exact = {device.name: (list(names), rows) for device in topology.devices}
    return costs_of(graph, topology, predict, NAME, exact)


def _unknown(work: KernelWork, device: DeviceProperties) -> Prediction:
    """No prediction: a measurement takes the place of each."""
    ones = np.ones(len(work))
    return Prediction(ones, ones, ones, np.zeros(len(work)), np.zeros(len(work), bool))
