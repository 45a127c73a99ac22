"""Bounds over time: services that can run at an instant, and requests with lifetimes that can be accepted.

Both are linear programs over mixes, for any policy, even one that knows all requests and failures in advance: what runs at
one instant satisfies the inequalities of `MixProgram`, by Lemmas 1 to 3 of ``docs/proofs/cluster_mixes.md``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvm_sched_runtime.errors import SchedulerError

from ..problem.service import Service, ServiceRequest
from ..search.cluster_search import ClusterSearch, Integers
from .gpu_cover import any_cover
from .mix_bound import MixProgram

_ACCURACY = 1e-6
"""Relative accuracy of the solver, which is added to its optimum."""


class TimeBound:
    """The linear programs over mixes without a fixed demand.

    Parameters
    ----------
    search : ClusterSearch
    services : sequence of Service
    """

    def __init__(self, search: ClusterSearch, services: Sequence[Service]) -> None:
        self._mixes = MixProgram(search, services, any_cover)

    def running(self, alive: Mapping[str, int], kind_gpus: Integers, fibres: Integers) -> float:
        """Return how many of the services that were asked for can run at once on these GPUs and fibres."""
        from ortools.math_opt.python import mathopt

        model = mathopt.Model()
        served = {name: model.add_variable(lb=0, ub=count) for name, count in alive.items() if count}
        self._add_instant(model, served, kind_gpus, fibres)
        return _maximum(model, sum(served.values()))

    def accepted(self, requests: Sequence[ServiceRequest], instants: Sequence[float]) -> float:
        """Return how many requests can be accepted on the whole cluster, where an accepted one runs for its lifetime.

        Only the given instants are looked at; more of them make the bound smaller, and the program larger.
        """
        from ortools.math_opt.python import mathopt

        search, times = self._mixes.search, np.sort(np.asarray(instants, dtype=float))
        groups: Counter[tuple[str, int, int]] = Counter()
        for request in requests:
            end = request.time + request.lifetime if request.lifetime else np.inf
            first, after = np.searchsorted(times, [request.time, end], side="left")
            groups[request.service, int(first), int(after)] += 1
        model = mathopt.Model()
        parts = {key: model.add_variable(lb=0, ub=count) for key, count in groups.items()}
        fibres = np.array([link.fibres for link in search.cluster.links], dtype=np.int64)
        for t in range(len(times)):
            alive: dict[str, Any] = {}
            for (service, first, after), part in parts.items():
                if first <= t < after:
                    alive[service] = alive.get(service, 0) + part
            self._add_instant(model, alive, search.kind_gpus, fibres)
        return _maximum(model, sum(parts.values()))

    def _add_instant(self, model: Any, served: Mapping[str, Any], kind_gpus: Integers, fibres: Integers) -> None:
        """Constrain services that run at once by the mixes that they hold."""
        amounts: list[Any] = [0.0] * self._mixes.columns
        for name, count in served.items():
            held = self._mixes.covers[name]
            uses = [model.add_variable(lb=0) for _ in held.gpus]
            for coefficients, need in held.needs:
                model.add_linear_constraint(
                    sum(float(c) / need * use for c, use in zip(coefficients, uses, strict=True)) >= count
                )
            for use, row in zip(uses, self._mixes.table[name], strict=True):
                for column in np.flatnonzero(row):
                    amounts[column] = amounts[column] + float(row[column]) * use
        for amount, free in zip(amounts, self._mixes.free(kind_gpus, fibres), strict=True):
            if not isinstance(amount, float):
                model.add_linear_constraint(amount <= free)


def _maximum(model: Any, objective: Any) -> float:
    from ortools.math_opt.python import mathopt

    if isinstance(objective, int):
        return 0.0
    model.maximize(objective)
    result = mathopt.solve(model, mathopt.SolverType.GLOP)
    if result.termination.reason is not mathopt.TerminationReason.OPTIMAL:
        raise SchedulerError(f"the linear program over time was not solved: {result.termination}; please report this")
    return float(result.objective_value()) * (1 + _ACCURACY) + _ACCURACY
