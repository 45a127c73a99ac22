"""`Workload`: the runs and the objective that a schedule is for; `Scenario`: a problem in one run of a workload."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from ..checks import require_positive
from ..errors import InputError
from ..files import Document, content_digest
from .costs import Costs
from .graph import OpGraph
from .problem import Problem
from .topology import Route, Topology
from .variants import Variants

FORMAT, VERSION = "tvm_sched.workload", 1

Objective = Literal["latency", "slowdown"]
"""``latency``: the mean latency of the requests. ``slowdown``: the largest slowdown of any model against its run alone."""


def _check_lags(lags_ns: Sequence[int], problem: Problem | None = None) -> None:
    """Check lags, and with a problem, that there is one for each of its models."""
    if any(lag < 0 for lag in lags_ns):
        raise InputError(f"lags_ns are {list(lags_ns)}; whole numbers from 0 are allowed")
    models = len(problem.graph.operators_of_models) if problem is not None and lags_ns else len(lags_ns)
    if len(lags_ns) != models:
        raise InputError(f"lags_ns are {list(lags_ns)}; a number from 0 for each of {models} models is allowed")


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of run.

    Raises
    ------
    InputError
        The weight is not a finite number above 0.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import Request
    >>> Request(resident=("w",), weight=3.0)
    Request(resident=('w',), weight=3.0)
    """

    resident: tuple[str, ...]
    """Parameters that are on the devices when the run begins (``docs/model.md``, "Cold and warm"); none: a cold run."""
    weight: float = 1.0
    """Frequency of this kind of run, relative to the weights of the other requests."""

    def __post_init__(self) -> None:
        require_positive("the weight of a request", self.weight)


class Workload(Document, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The runs, the objective and the submodels of a schedule: all that a method takes besides the problem. Immutable.

    Raises
    ------
    InputError
        A lag is below 0, the objective is unknown, or there are weights of models without the objective ``slowdown``.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import Request, Workload
    >>> warm = Workload(requests=(Request(resident=()), Request(resident=("w",), weight=3.0)))
    >>> solve(problem, warm).certificate.latency_ns
    3375
    """

    kept_as = ("workload", FORMAT, VERSION)

    requests: tuple[Request, ...] = ()
    """The kinds of runs. The latency of a schedule is the mean over them by their weights. None: one cold run."""
    lags_ns: tuple[int, ...] = ()
    """For each of the graph's models (or for the one model), nanoseconds by which searches count it as ending later.
    The methods ``heft``, ``peft`` and ``anytime`` minimise the latest of these moments. Latencies, bounds and
    certificates do not include lags. None: no lags."""
    objective: Objective = "latency"
    """The objective to minimise."""
    model_weights: tuple[float, ...] = ()
    """With objective ``slowdown``: the weight of each model's slowdown. None: equal weights."""
    submodels: tuple[tuple[str, ...], ...] | None = None
    """Operators of each submodel, in order, for methods that solve submodels. Without it they split the graph at its
    dominators. If the problem has variants, a method that chooses among them splits the graph which its choice gives.
    """

    def __post_init__(self) -> None:
        plain = tuple(Request(tuple(sorted(set(r.resident))), float(r.weight)) for r in self.requests)
        fields = {
            "requests": plain,
            "lags_ns": tuple(self.lags_ns) if any(self.lags_ns) else (),
            "model_weights": tuple(map(float, self.model_weights)),
            "submodels": None if self.submodels is None else tuple(map(tuple, self.submodels)),
        }
        for name, value in fields.items():
            msgspec.structs.force_setattr(self, name, value)
        _check_lags(self.lags_ns)
        if self.objective not in get_args(Objective):
            raise InputError(f"objective is {self.objective!r}; {', '.join(get_args(Objective))} are allowed")
        if self.model_weights and self.objective != "slowdown":
            raise InputError(
                f"model_weights are {list(self.model_weights)}; they are allowed with objective 'slowdown' alone"
            )

    def check(self, problem: Problem) -> None:
        """Check that the workload fits a problem.

        Raises
        ------
        InputError
            A request names something that is not a parameter, there is not one lag for each model, or ``submodels`` is not
            a topological partition of the operators.
        """
        for request in self.requests:
            check_resident(problem, request.resident)
        _check_lags(self.lags_ns, problem)
        if self.submodels is not None:
            _numbered_submodels(problem, self.submodels)

    def scenarios(self, problem: Problem) -> list[Scenario]:
        """Return the problem in the run of each request, or in the cold run if there is no request."""
        return [
            Scenario(problem, frozenset(request.resident), self.lags_ns, self.submodels)
            for request in self.requests or (Request(()),)
        ]

    def scenario(self, problem: Problem) -> Scenario:
        """Return the problem in the run of the first request, for methods that look at one run."""
        return self.scenarios(problem)[0]

    @property
    def digest(self) -> str:
        """Identifier of the workload: the digest of its document."""
        return content_digest(self.to_json())


COLD = Workload()
"""One cold run."""


@dataclass(frozen=True)
class Scenario:
    """A problem in one run: with resident parameters, lags of its models and submodels.

    Methods, the simulator and bounds work on scenarios. A resident parameter is already on each device to which a schedule
    brings it: its loads and copies take no time and no channel. Only its memory counts, and evicted parameters are loaded
    again. All other properties are the problem's.

    Raises
    ------
    InputError
        As `Workload.check`.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import Scenario
    >>> Scenario(problem, resident=frozenset({"w"})).is_resident(1)
    True
    """

    problem: Problem
    resident: frozenset[str] = frozenset()
    """Parameters of the graph, or of an alternative."""
    lags_ns: tuple[int, ...] = ()
    """As in `Workload`."""
    submodels: tuple[tuple[str, ...], ...] | None = field(default=None, compare=False)
    """As in `Workload`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "resident", check_resident(self.problem, self.resident))
        _check_lags(self.lags_ns, self.problem)

    @property
    def graph(self) -> OpGraph:
        """The problem's."""
        return self.problem.graph

    @property
    def topology(self) -> Topology:
        """The problem's."""
        return self.problem.topology

    @property
    def costs(self) -> Costs:
        """The problem's."""
        return self.problem.costs

    @property
    def variants(self) -> Variants | None:
        """The problem's."""
        return self.problem.variants

    @property
    def workload(self) -> Workload:
        """The workload of this run alone."""
        requests = (Request(tuple(self.resident)),) if self.resident else ()
        return Workload(requests, self.lags_ns, submodels=self.submodels)

    def resolve(self, choice: Mapping[str, str] | None = None, joined: Sequence[Sequence[str]] = ()) -> Scenario:
        """Return the same run of `Problem.resolve`'s problem; submodels remain only if the problem has no variants.

        Joined parameters are resident if all of them are.
        """
        chosen = self.problem.resolve(choice, joined)
        if chosen is self.problem:
            return self
        there = self.resident & chosen.graph.index.tensor_id.keys()
        partly = {members[0] for members in joined if not there.issuperset(members)}
        return Scenario(chosen, there - partly, self.lags_ns, None if self.variants else self.submodels)

    def with_problem(self, problem: Problem) -> Scenario:
        """Return the same run of another problem of the same operators and tensors, such as one with other costs."""
        return replace(self, problem=problem)

    def with_resident(self, names: Collection[str]) -> Scenario:
        """Return a run of the same problem in which other parameters are resident."""
        return replace(self, resident=frozenset(names))

    def runs_on(self, o: int, d: int) -> bool:
        """Return `Problem.runs_on`."""
        return self.problem.runs_on(o, d)

    def reads_host_in_place(self, d: int) -> bool:
        """Return `Problem.reads_host_in_place`."""
        return self.problem.reads_host_in_place(d)

    def host_bytes(self, o: int) -> int:
        """Return `Problem.host_bytes`."""
        return self.problem.host_bytes(o)

    def host_read_ns(self, o: int, d: int) -> int:
        """Return `Problem.host_read_ns`."""
        return self.problem.host_read_ns(o, d)

    @property
    def host_reads_ns(self) -> npt.NDArray[np.int64]:
        """`Problem.host_reads_ns`."""
        return self.problem.host_reads_ns

    def route(self, source: int, target: int) -> Route:
        """Return `Problem.route`."""
        return self.problem.route(source, target)

    def is_resident(self, t: int) -> bool:
        """Return whether tensor ``t`` is on the devices when a run begins."""
        return bool(self.resident) and self.graph.tensors[t].name in self.resident

    def load_ns(self, t: int, d: int) -> int:
        """Return `Problem.load_ns`; 0 if tensor ``t`` is resident."""
        return 0 if self.is_resident(t) else self.problem.load_ns(t, d)

    def copy_ns(self, t: int, source: int, target: int) -> int:
        """Return `Problem.copy_ns`; 0 if tensor ``t`` is resident."""
        copy_ns = self.problem.copy_ns(t, source, target)  # raises if nothing joins the two devices
        return 0 if self.is_resident(t) else copy_ns

    @property
    def operator_lags_ns(self) -> npt.NDArray[np.int64]:
        """The lag of each operator's model; empty if there are no lags."""
        if not any(self.lags_ns):
            return np.empty(0, dtype=np.int64)
        lags = np.zeros(len(self.graph.operators), dtype=np.int64)
        for lag, members in zip(self.lags_ns, self.graph.operators_of_models, strict=True):
            lags[members] = lag
        return lags

    @property
    def submodel_operators(self) -> list[list[int]] | None:
        """Numbers of the operators of each submodel; None without submodels."""
        return None if self.submodels is None else _numbered_submodels(self.problem, self.submodels)


def as_scenario(problem: Problem | Scenario) -> Scenario:
    """Return the scenario itself, or the cold run of a problem.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import as_scenario
    >>> as_scenario(problem).resident
    frozenset()
    """
    return problem if isinstance(problem, Scenario) else Scenario(problem)


def check_resident(problem: Problem, names: Collection[str]) -> frozenset[str]:
    """Check the names of resident parameters; raises `InputError` if one is not a parameter of the problem.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import check_resident
    >>> check_resident(problem, ["w"])
    frozenset({'w'})
    """
    if isinstance(names, str):
        raise InputError(f"resident names {names!r}; a list of the graph's parameters is allowed")
    resident = frozenset(names)
    if unknown := sorted(resident - problem.parameters if resident else ()):
        raise InputError(
            f"resident names {unknown}; a list of the graph's parameters is allowed, or a part of them from 0 to 1"
        )
    return resident


def _numbered_submodels(problem: Problem, submodels: Sequence[Sequence[str]]) -> list[list[int]]:
    """Check the submodels; return the numbers of the operators of each."""
    number = problem.graph.index.operator_id
    unknown = [name for group in submodels for name in group if name not in number]
    if unknown:
        raise InputError(
            f"a submodel has the operator {unknown[0]!r}, which the problem does not have; split its graph again"
        )
    groups = [[number[name] for name in group] for group in submodels]
    place = {o: i for i, o in enumerate(o for group in groups for o in group)}
    if sum(map(len, groups)) != len(number) or len(place) != len(number):
        raise InputError("submodels must hold each operator of the problem once; split its graph again")
    for o, before in enumerate(problem.graph.index.predecessors):
        if any(place[p] > place[o] for p in before):
            name = problem.graph.operators[o].name
            raise InputError(f"operator {name!r} stands in the submodels before one that it reads from")
    return groups
