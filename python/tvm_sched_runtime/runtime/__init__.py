"""The Python interface to the executor: load a compiled artifact, run it, read when each step ran.

It needs neither the compiler nor a solver: the distribution ``tvm-sched-runtime`` is enough.
"""

from .loading import load, open_library
from .machine import EmulationWarning, MachineWarning
from .module import ScheduledModule, find_scheduled_module, make_module, scheduled_modules
from .parameters import write_parameters
from .statistics import LatencyStatistics
from .tensors import to_numpy, to_tensor

__all__ = [
    "EmulationWarning",
    "LatencyStatistics",
    "MachineWarning",
    "ScheduledModule",
    "find_scheduled_module",
    "load",
    "make_module",
    "open_library",
    "scheduled_modules",
    "to_numpy",
    "to_tensor",
    "write_parameters",
]
