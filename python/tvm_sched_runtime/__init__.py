"""Load and run compiled models; problems, schedules, their simulator and verifier.

The package needs neither the compiler nor a solver: the distribution ``tvm-sched-runtime`` holds it, with the C++ libraries.
Public names are loaded at first use; `tvm_sched` offers the same, and what compiles and schedules.
"""

from __future__ import annotations

from ._version import __version__
from .lazy_names import lazy_names

TYPE_CHECKING = False  # importing `typing` takes longer than the rest, and Ctrl-C is handled only after it (`starting`)
if TYPE_CHECKING:
    from .problem import Problem, Topology, load_topology
    from .runtime import load
    from .schedule import Schedule, Timeline, simulate, verify

__all__ = [
    "Problem",
    "Schedule",
    "Timeline",
    "Topology",
    "__version__",
    "load",
    "load_problem",
    "load_schedule",
    "load_topology",
    "simulate",
    "verify",
]

_HOMES = {
    "Problem": "problem",
    "Topology": "problem",
    "load_topology": "problem",
    "load": "runtime",
    "Schedule": "schedule",
    "Timeline": "schedule",
    "simulate": "schedule",
    "verify": "schedule",
}


def load_problem(path: str) -> Problem:
    """Read a problem file (``docs/formats/problem.md``).

    Examples
    --------
    >>> from tvm_sched import load_problem
    >>> problem.save("fork.json")
    >>> load_problem("fork.json").digest == problem.digest
    True
    """
    from .problem import Problem

    return Problem.load(path)


def load_schedule(path: str) -> Schedule:
    """Read a schedule file (``docs/formats/schedule.md``).

    Examples
    --------
    >>> from tvm_sched import load_schedule
    >>> schedule.save("fork.schedule.json")
    >>> load_schedule("fork.schedule.json").scheduler
    'heft'
    """
    from .schedule import Schedule

    return Schedule.load(path)


__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
