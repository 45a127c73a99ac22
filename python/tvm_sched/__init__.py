"""Schedule the operators of a neural network over several devices, and prove how good the schedules are.

Public names are loaded at first use, so ``import tvm_sched`` imports neither TVM nor a solver. What needs neither, such as
problem files, the simulator and artifacts, is the package `tvm_sched_runtime`, whose public names are here too.
"""

from __future__ import annotations

import tvm_sched_runtime
from tvm_sched_runtime import __version__, load_problem, load_schedule
from tvm_sched_runtime.lazy_names import lazy_names

from . import old_names

TYPE_CHECKING = False  # as in `tvm_sched_runtime`
if TYPE_CHECKING:
    from typing import Any

    from tvm_sched_runtime import Problem, Schedule, Timeline, Topology, load, load_topology, simulate, verify

    from .relax import compile, target
    from .schedulers import solve

__all__ = [
    "Problem",
    "Schedule",
    "Timeline",
    "Topology",
    "__version__",
    "compile",
    "load",
    "load_problem",
    "load_schedule",
    "load_topology",
    "simulate",
    "solve",
    "target",
    "verify",
]

_own = lazy_names(
    __name__,
    {"compile": "relax", "target": "relax", "solve": "schedulers", **dict.fromkeys(old_names.MODULES, "")},
)


def __getattr__(name: str) -> Any:
    return getattr(tvm_sched_runtime, name) if name in tvm_sched_runtime.__all__ else _own(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


old_names.install()
