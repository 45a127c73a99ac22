"""Calibrate the cost model when a processor is first met: measure typical layers, once, within some seconds."""

from __future__ import annotations

import time
import warnings

import tvm

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import Topology

from ..cost_model import CostWarning
from ..cost_model.calibrated_model import threads_of
from ..cost_model.database import Database
from ..cost_model.predicted import database_key
from ..cost_model.profile import Measurement, this_machine
from ..progress import Progress
from .codegen.prepare_kernels import PrepareKernels
from .lower.lower_to_kernels import LowerToKernels
from .model_loading import load_model
from .profiling.calibration import calibrated_costs
from .profiling.typical_layers import typical_layers

SECONDS = 10.0
"""No further layers are measured after this time."""
_EACH = 0.4  # seconds of a network's runs


def calibrate_once(topology: Topology, progress: Progress | None = None) -> None:
    """Measure typical layers on one device of a topology ``cpuN``, unless that was done before on this processor.

    The cost model `calibrated` predicts kernels that were not measured from kernels that were. So a processor's first
    prediction needs some measurements: those of `typical_layers`, as many as `SECONDS` allow. They are kept in the
    database of measurements, by processor, threads and versions, as those of models are.
    """
    machine, database = this_machine(), Database()
    threads = threads_of(topology, machine)
    key = f"{database_key(threads)}, typical layers"
    begin = time.monotonic()
    try:
        if database.read(machine, key):
            return
        for name, network in typical_layers():
            if (spent := time.monotonic() - begin) > SECONDS:
                break
            if progress:
                progress(f"calibrating this processor: {name}", round(spent), round(SECONDS))
            imported = load_model(network, None, name).with_parameters()
            mod = tvm.transform.Sequential([LowerToKernels(device_kind="cpu"), PrepareKernels()])(imported)
            calibrated_costs(mod, topology, seconds=_EACH)
            database.write(machine, key, [Measurement(name, in_run=time.monotonic() - begin)])
    except InputError as error:
        warnings.warn(f"{error}; this processor is not calibrated", CostWarning, stacklevel=2)
