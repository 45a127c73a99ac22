"""`Schedule`: the complete input of the executor, and its file format."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal

import msgspec

from ..errors import ScheduleError
from ..files import Document
from ..problem import Request
from ..search_budget import Status

FORMAT, VERSION = "tvm_sched.schedule", 1

_MOST = (1 << 31) - 1
"""Largest number of a stream or stage."""

TransferKind = Literal["load", "copy", "host_read"]


class Placement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The device, stream and stage of an operator.

    Examples
    --------
    >>> schedule.placements[0]
    Placement(operator='right', device='gpu1', stream=0, direct_host_access=False, submodel=0, stage=0)
    """

    operator: str
    device: str
    stream: int = 0
    """Stream of the device. Operators of one stream run one after another. Operators of several streams overlap if the
    problem's costs have `Concurrency`; otherwise a device runs one operator at a time."""
    direct_host_access: bool = False
    """The kernel reads graph inputs and parameters from host memory through the bus instead of from the device. Then
    the schedule's transfers have a ``host_read`` of the operator."""
    submodel: int = 0
    """Submodel in which a scheduler that splits the graph placed it; for reports."""
    stage: int = 0
    """Operators of one device with the same stage above 0 start together and end together; within it, operators of one
    stream run one after another. A stage is contiguous in the launch order. 0: in no stage."""

    def __post_init__(self) -> None:
        for name in ("stream", "stage"):
            if not 0 <= getattr(self, name) <= _MOST:
                raise ScheduleError(
                    f"the placement of operator {self.operator!r} has {name} {getattr(self, name)}; 0 to {_MOST} is allowed"
                )


class Transfer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A transfer of bytes.

    Examples
    --------
    >>> schedule.transfers[0]
    Transfer(kind='load', device='gpu0', tensor='x', source='', operator='', evict=False)
    """

    kind: TransferKind
    """``load``: ``tensor`` (a graph input or parameter) from host memory into ``device`` through its bus. ``copy``:
    ``tensor`` from device ``source`` to ``device``: an activation, or a parameter that was loaded through a neighbour
    (parallel transmission). ``host_read``: the bus time of ``operator``, which runs on ``device`` with direct host
    access."""
    device: str
    tensor: str = ""
    source: str = ""
    operator: str = ""
    evict: bool = False
    """For a load or copy of a parameter: whether it leaves ``device`` after the last kernel or copy that reads it there,
    instead of staying to the end of the run."""

    def __post_init__(self) -> None:
        needed = {"load": ("tensor",), "copy": ("tensor", "source"), "host_read": ("operator",)}[self.kind]
        for name in ("tensor", "source", "operator"):
            if bool(getattr(self, name)) != (name in needed):
                raise ScheduleError(
                    f"a {self.kind} has the fields {', '.join(('kind', 'device', *needed))}; {name} is wrong"
                )
        if self.evict and self.kind == "host_read":
            raise ScheduleError("a host_read brings nothing to its device that could be evicted; evict is wrong")


class RequestLatency(Request, frozen=True, forbid_unknown_fields=True):
    """Latency and lower bound of a schedule in the runs of one request.

    Parameters
    ----------
    resident, weight
        As in `Request`.
    latency_ns, lower_bound_ns : int
        As in the certificate, for this kind of run alone.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import Request, Workload
    >>> from tvm_sched_runtime.schedule import evaluate
    >>> evaluate(problem, schedule, Workload(requests=(Request(resident=("w",)),)))
    (3250, (RequestLatency(resident=('w',), weight=1.0, latency_ns=3250, lower_bound_ns=0),))
    """

    latency_ns: int = 0
    lower_bound_ns: int = 0


class Certificate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Latency, lower bound and status of a schedule.

    Examples
    --------
    >>> schedule.certificate
    Certificate(latency_ns=3750, lower_bound_ns=3750, bound='critical path', status='optimal', requests=())
    >>> schedule.certificate.gap
    0.0
    """

    latency_ns: int
    """Simulated latency of a cold run, or the weighted mean over the ``requests``."""
    lower_bound_ns: int
    """Lower bound of the latency of all feasible schedules; for requests, the weighted mean of their bounds."""
    bound: str = ""
    """Name of the lower bound's argument."""
    status: Status = "no better found"
    """How the search for the schedule ended, see `tvm_sched_runtime.search_budget.Status`."""
    requests: tuple[RequestLatency, ...] = ()
    """The runs of latency and bound; none: cold runs alone."""

    @staticmethod
    def unchecked(status: Status) -> Certificate:
        """Return a method's certificate: how its search ended; `solve` computes latency and bound."""
        return Certificate(0, 0, status=status)

    @property
    def latency(self) -> float:
        """Seconds."""
        return self.latency_ns / 1e9

    @property
    def lower_bound(self) -> float:
        """Seconds."""
        return self.lower_bound_ns / 1e9

    @property
    def gap(self) -> float:
        """Largest possible distance from the best schedule, as a fraction of the latency."""
        return 0.0 if self.latency_ns == 0 else 1 - self.lower_bound_ns / self.latency_ns


def weighted_mean(requests: Sequence[Request], times_ns: Sequence[int]) -> int:
    """Return the weighted mean of a time over the requests, rounded down to nanoseconds."""
    if len(times_ns) == 1:  # a cold run has no request
        return times_ns[0]
    weights = [Fraction(request.weight) for request in requests]
    return math.floor(sum(w * ns for w, ns in zip(weights, times_ns, strict=True)) / sum(weights))


ENDED, INTERRUPTED = Certificate.unchecked("no better found"), Certificate.unchecked("interrupted")
TIME_OVER = Certificate.unchecked("time limit")
"""Certificates of a method that ended by itself, by Ctrl-C or at its time limit, before `solve` completes them."""


class Schedule(Document, msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """A schedule of a problem.

    ``docs/formats/schedule.md`` describes its document, whose form `from_json` checks; `verify` checks the schedule itself.

    Examples
    --------
    >>> from tvm_sched_runtime.schedule import Placement, Schedule, Transfer, simulate
    >>> on_one = Schedule(
    ...     problem.digest,
    ...     placements=tuple(Placement(name, "gpu0") for name in ("left", "right", "join")),
    ...     transfers=(Transfer("load", "gpu0", tensor="x"), Transfer("load", "gpu0", tensor="w")),
    ... )
    >>> simulate(problem, on_one).latency_ns
    4750
    >>> schedule.certificate.latency_ns
    3750
    """

    kept_as = ("schedule", FORMAT, VERSION)

    problem: str
    """`Problem.digest` of its problem."""
    placements: tuple[Placement, ...]
    """One for each operator, in launch order: operators of one device start in this order."""
    transfers: tuple[Transfer, ...] = ()
    """Transfers that share a channel (a bus, a direction of a link, a switch port) travel in this order."""
    scheduler: str = ""
    options: dict[str, Any] = {}
    seconds: float = 0.0
    """The scheduler, its options, and the wall-clock time that it took."""
    certificate: Certificate | None = None
    notes: dict[str, Any] = {}
    """Further information from the scheduler, for people: `anytime` gives the latency that each improver reached."""
    choice: dict[str, str] = {}
    """For a problem with variants: the alternative of each group that is not computed as in the graph. Placements and
    transfers are then of the problem that `tvm_sched_runtime.schedule.resolved` returns."""
    joined: tuple[tuple[str, ...], ...] = ()
    """For a problem that is `Problem.joinable`: sets of parameters that travel together as one tensor. Transfers name the
    first of a set."""
    workload: str = ""
    """`Workload.digest` of its workload; empty without one."""

    def _repr_html_(self) -> str:
        """Return the table that notebooks show."""
        from .notebook_views import schedule_html

        return schedule_html(self)

    def replace(self, **changes: Any) -> Schedule:
        """Replace fields of a schedule; its index (`ScheduleIndex.of`) stays if placements and transfers stay."""
        changed = msgspec.structs.replace(self, **changes)
        if not changes.keys() & {"placements", "transfers"}:
            changed.__dict__.update(self.__dict__)
        return changed

    def document_fields(self) -> dict[str, Any]:
        """Return the document's fields without empty ones."""
        body: dict[str, Any] = msgspec.to_builtins(self)
        for name in ("choice", "joined", "workload"):
            if not body[name]:
                del body[name]
        if self.certificate is not None and not self.certificate.requests:
            del body["certificate"]["requests"]
        return body
