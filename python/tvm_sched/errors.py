"""Every error that tvm_sched raises on purpose.

``InputError`` and its children mean that what the user gave is wrong (the command line ends with status 2); the other
errors mean that the work itself failed (status 1).
"""

from __future__ import annotations

from collections.abc import Iterable


class TvmSchedError(Exception):
    """Base of all errors of tvm_sched."""


class InputError(TvmSchedError, ValueError):
    """Something that the user gave is wrong: the message says what was found, where, and what is allowed."""


class FormatError(InputError):
    """A file is not what its format's page in ``docs/formats`` says."""


class GraphError(InputError):
    """An operator graph breaks a rule: a cycle, a name twice, a tensor without a producer, ..."""


class TopologyError(InputError):
    """A topology breaks a rule: a bandwidth of zero, a name twice, a missing device, ..."""


class CostsError(InputError):
    """Latencies that do not fit their graph and topology, or make no sense."""


class ProblemError(InputError):
    """Graph, topology and costs do not fit together: an operator that fits into no device's memory, ..."""


class ScheduleError(InputError):
    """A schedule breaks a rule of ``docs/model.md``; ``verify`` says which operator, device and rule."""


class UnsupportedModelError(InputError):
    """TVM cannot compile a model that was read: the message says which part of it, and TVM's own words."""


class InfeasibleError(TvmSchedError):
    """A scheduler found, or proved, that no schedule obeys the limits; the message says what is short."""


class TooLargeError(TvmSchedError):
    """A problem is too large for a method with these options; the message says which option makes it smaller."""


class SchedulerError(TvmSchedError):
    """A scheduler's answer breaks a rule, or is no schedule: a fault of the scheduler, not of what the user gave."""


class ExecutionError(TvmSchedError):
    """A run of a schedule failed; the message names the operator and the device."""


class ServingError(TvmSchedError):
    """A deployment could not be made, or could not answer a request; the message names the stage and the cause."""


class BusyError(ServingError):
    """A deployment has no room for another request now; try again later."""


_LIKENESS = 0.5


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'this' or 'that'?"`` with known names similar to an unknown one; empty without any."""
    import difflib  # an artifact is loaded without

    close = difflib.get_close_matches(name.lower(), list(known), cutoff=_LIKENESS)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
