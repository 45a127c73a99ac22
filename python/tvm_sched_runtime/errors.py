"""All errors that tvm_sched raises on purpose.

``InputError`` and its subclasses mean wrong input (the command line ends with status 2); the other errors mean that the work
failed (status 1).
"""

from __future__ import annotations

from collections.abc import Iterable


class TvmSchedError(Exception):
    """Base of all errors of tvm_sched."""


class InputError(TvmSchedError, ValueError):
    """Wrong input of the user; the message says the value, its place, and what is allowed."""


class FormatError(InputError):
    """A file does not follow its format (``docs/formats``)."""


class GraphError(InputError):
    """An operator graph breaks a rule: a cycle, a name twice, a tensor without a producer, ..."""


class TopologyError(InputError):
    """A topology breaks a rule: a bandwidth of zero, a name twice, a missing device, ..."""


class CostsError(InputError):
    """Latencies do not fit their graph and topology, or are impossible."""


class ProblemError(InputError):
    """Graph, topology and costs do not fit together: an operator that fits into no device's memory, ..."""


class ScheduleError(InputError):
    """A schedule breaks a rule of ``docs/model.md``; ``verify`` says which operator, device and rule."""


class UnsupportedModelError(InputError):
    """TVM cannot compile a model; the message names the part of it and quotes TVM."""


class UnsplittableError(InputError):
    """A model cannot be computed in this number of parts by rows."""


class InfeasibleError(TvmSchedError):
    """No schedule obeys the limits, as far as a scheduler can tell; the message says what is short."""


class TooLargeError(TvmSchedError):
    """A problem is too large for a method with these options; the message says which option makes it smaller."""


class SchedulerError(TvmSchedError):
    """A scheduler's answer breaks a rule, or is not a schedule: an error of the scheduler, not of the input."""


class ExecutionError(TvmSchedError):
    """A run of a schedule failed; the message names the operator and the device."""


class ServingError(TvmSchedError):
    """A deployment failed, or could not answer a request; the message names the stage and the cause."""


class BusyError(ServingError):
    """A deployment has no room for another request now; try again later."""


class FatalRequestError(ServingError):
    """A request ended the process that computed it, more than once, and is not tried again."""


_LIKENESS = 0.5


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'this' or 'that'?"`` with known names similar to an unknown one; empty without any."""
    import difflib  # an artifact is loaded without

    close = difflib.get_close_matches(name.lower(), list(known), cutoff=_LIKENESS)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
