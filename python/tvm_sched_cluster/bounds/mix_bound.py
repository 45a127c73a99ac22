"""The bound ``mixes``: how many services any allocator can place, by prices of GPUs and fibres.

The lemmas named here are those of ``docs/proofs/cluster_mixes.md``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.errors import InputError, SchedulerError

from ..problem.service import Service, ServiceRequest, by_name
from ..search.cluster_search import ClusterSearch, Integers
from .gpu_cover import Cover, any_cover, mixes_cover

Floats = npt.NDArray[np.float64]

_MOST_KINDS_CUT = 8
"""With more kinds of GPUs, only the cuts around single kinds are used."""


@dataclass(frozen=True)
class Future:
    """An optimal solution of the linear program, with its duals.

    Attributes
    ----------
    count : float
        Services that fit at most when they are asked for as the demand says.
    shares : dict of str to array
        How often each mix of each service is used in it.
    worth : dict of str to array
        Price of each mix, in services: its GPUs and the fibres between racks, at the duals.
    prices : list of float
        Duals of the free resources: GPUs of each kind, fibres over each cut, all fibres.
    needs : dict of str to list of float
        Duals of the inequalities of each service (`Cover.needs`).
    """

    count: float
    shares: dict[str, Floats]
    worth: dict[str, Floats]
    prices: list[float]
    needs: dict[str, list[float]]

    @property
    def fibre(self) -> float:
        """Price of a fibre that a placement holds beyond the ones that its mix needs."""
        return self.prices[-1]


class MixProgram:
    """The linear program over mixes, whose duals are the prices of Theorem 4.

    Variables say how often each mix of each service is used. The objective is the largest ``n`` for which each service is
    placed ``demand * n`` times. The constraints keep to the free GPUs of each kind, the free fibres over each cut between
    kinds, and the free fibres in all (Lemma 3).

    Parameters
    ----------
    search : ClusterSearch
    services : sequence of Service
    cover : callable, optional
        Returns the inequalities that every placement of a service satisfies. `mixes_cover`, the default, covers placements
        that cut a service between its blocks, as the searches do; `any_cover` covers every placement that `verify` accepts.
    """

    def __init__(
        self,
        search: ClusterSearch,
        services: Sequence[Service],
        cover: Callable[[ClusterSearch, Service], Cover] = mixes_cover,
    ) -> None:
        from ortools.math_opt.python import mathopt

        self.search = search
        self.services = by_name(services)
        self.covers = {name: cover(search, service) for name, service in self.services.items()}
        self._model = mathopt.Model()
        self._count = self._model.add_variable(lb=0)
        self._model.maximize(self._count)
        self._uses = {
            name: [self._model.add_variable(lb=0) for _ in range(len(held.gpus))] for name, held in self.covers.items()
        }
        self._rows = [self._model.add_linear_constraint(ub=0) for _ in range(self.table[self._names[0]].shape[1])]
        self._served = {
            name: [self._model.add_linear_constraint(ub=0) for _ in held.needs] for name, held in self.covers.items()
        }
        for name, uses in self._uses.items():
            for constraint, (coefficients, need) in zip(self._served[name], self.covers[name].needs, strict=True):
                for use, coefficient in zip(uses, coefficients.tolist(), strict=True):
                    constraint.set_coefficient(use, -coefficient / need)
            for use, row in zip(uses, self.table[name], strict=True):
                for constraint, amount in zip(self._rows, row, strict=True):
                    if amount:
                        constraint.set_coefficient(use, float(amount))

    @cached_property
    def _names(self) -> list[str]:
        return list(self.services)

    @cached_property
    def table(self) -> dict[str, Integers]:
        """A row for each mix: GPUs of each kind, fibres over each cut, fibres in all."""
        hops = self.kind_hops
        tables = {}
        for name, (mixes, _, joined) in self.covers.items():
            rows = [
                [*mix, *self._crossed(mix), least_tree(mix, hops)] if joined else [*mix, *(0 for _ in self.cuts), 0]
                for mix in mixes
            ]
            tables[name] = np.array(rows, dtype=np.int64).reshape(-1, self.columns)
        return tables

    def _crossed(self, mix: Integers) -> list[int]:
        """Return, for each cut, 1 if a mix has kinds on both sides, else 0."""
        return [int(0 < mix[list(cut)].sum() < mix.sum()) for cut in self.cuts]

    @cached_property
    def _switches(self) -> list[set[int]]:
        """Switches at which there are GPUs of each kind."""
        cluster = self.search.cluster
        at: list[set[int]] = [set() for _ in cluster.kinds]
        for pool in cluster.pools:
            at[pool.kind].add(cluster.switch_id[cluster.racks[pool.rack].switch])
        return at

    @cached_property
    def cuts(self) -> list[tuple[int, ...]]:
        """Sets of kinds that share no switch with the other kinds."""
        kinds = [k for k, at in enumerate(self._switches) if at]
        largest = len(kinds) // 2 if len(kinds) <= _MOST_KINDS_CUT else 1
        sets = [cut for size in range(1, largest + 1) for cut in combinations(kinds, size)]
        return [
            cut
            for cut in sets
            if not set.union(*(self._switches[k] for k in cut))
            & set.union(set(), *(self._switches[k] for k in kinds if k not in cut))
        ]

    @property
    def columns(self) -> int:
        """Number of prices: one for each kind of GPU, one for each cut, and one for all fibres."""
        return len(self.search.kind_gpus) + len(self.cuts) + 1

    @cached_property
    def kind_hops(self) -> Integers:
        """Fewest links between GPUs of each two kinds; as many as there are links where none lead there."""
        import rustworkx as rx

        cluster = self.search.cluster
        graph: rx.PyGraph = rx.PyGraph()
        graph.add_nodes_from(range(len(cluster.switches)))
        for link in cluster.links:
            a, b = (cluster.switch_id[name] for name in link.switches)
            graph.add_edge(a, b, 1.0)
        distance = rx.graph_distance_matrix(graph, null_value=float(len(cluster.links)))
        hops = np.zeros((len(cluster.kinds), len(cluster.kinds)), dtype=np.int64)
        for a, at in enumerate(self._switches):
            for b, other in enumerate(self._switches):
                if at and other:
                    hops[a, b] = int(distance[np.ix_(sorted(at), sorted(other))].min())
        return hops

    def proved(self, demand: Mapping[str, float], kind_gpus: Integers, fibres: Integers) -> Fraction:
        """Return the bound of Theorem 4 at the solver's prices, in exact fractions: `Future.count` or slightly more.

        Theorem 4 holds for any prices, so the bound does not depend on the solver's accuracy.

        Raises
        ------
        InputError
            As `solve`.
        """
        future = self.solve(demand, kind_gpus, fibres)
        prices = [max(Fraction(0), Fraction(price)) for price in future.prices]
        total = sum(map(Fraction, demand.values()))
        worth = Fraction(0)
        for name, asked in demand.items():
            if asked > 0:
                if not len(self.covers[name].gpus):
                    return Fraction(0)
                worth += Fraction(asked) / total * self._worth(name, prices, future.needs[name])
        if worth <= 0:
            raise SchedulerError("the duals of the linear program over mixes prove no bound; please report this")
        return sum(p * free for p, free in zip(prices, self.free(kind_gpus, fibres), strict=True)) / worth

    def _worth(self, name: str, prices: Sequence[Fraction], duals: Sequence[float]) -> Fraction:
        """Return a lower bound on the price of any placement of a service; ``duals`` weigh the inequalities of its cover."""
        needs = [
            (max(Fraction(0), Fraction(dual)) / need, each)
            for dual, (each, need) in zip(duals, self.covers[name].needs, strict=True)
        ]
        share = None
        for use, row in enumerate(self.table[name].tolist()):
            asked = sum(dual * int(each[use]) for dual, each in needs)
            if asked > 0:
                paid = sum(price * amount for price, amount in zip(prices, row, strict=True)) / asked
                share = paid if share is None else min(share, paid)
        return Fraction(0) if share is None else share * sum(max(Fraction(0), Fraction(dual)) for dual in duals)

    def solve(self, demand: Mapping[str, float], kind_gpus: Integers, fibres: Integers) -> Future:
        """Solve the program for this many free GPUs of each kind and free fibres of each link.

        Raises
        ------
        InputError
            The demand names an unknown service, or asks for none.
        """
        from ortools.math_opt.python import mathopt

        unknown = demand.keys() - self.services.keys()
        if unknown or not sum(demand.values()) > 0:
            raise InputError(
                f"demand is {dict(demand)}; probabilities of some of {', '.join(self.services)} are allowed"
            )
        total = sum(demand.values())
        for name, constraints in self._served.items():
            for constraint in constraints:
                constraint.set_coefficient(self._count, demand.get(name, 0.0) / total)
        for constraint, amount in zip(self._rows, self.free(kind_gpus, fibres), strict=True):
            constraint.upper_bound = float(amount)
        some = mathopt.SparseVectorFilter[Any](skip_zero_values=True)  # most are 0, and reading them takes longest
        none = mathopt.SparseVectorFilter[Any](filtered_items=[])
        wanted = mathopt.ModelSolveParameters(
            variable_values_filter=some, dual_values_filter=some, reduced_costs_filter=none
        )
        result = mathopt.solve(self._model, mathopt.SolverType.GLOP, model_params=wanted)
        if result.termination.reason is not mathopt.TerminationReason.OPTIMAL:
            raise SchedulerError(
                f"the linear program over mixes was not solved: {result.termination}; please report this"
            )
        values, duals = result.variable_values(), result.dual_values()
        prices = np.array([duals.get(row, 0.0) for row in self._rows])
        return Future(
            values.get(self._count, 0.0),
            {name: np.array([values.get(use, 0.0) for use in uses]) for name, uses in self._uses.items()},
            {name: table @ prices for name, table in self.table.items()},
            prices.tolist(),
            {name: [duals.get(row, 0.0) for row in rows] for name, rows in self._served.items()},
        )

    @cached_property
    def _crossing(self) -> Integers:
        """For each cut and link, 1 if the link crosses the cut."""
        cluster = self.search.cluster
        ends = np.array([[cluster.switch_id[s] for s in link.switches] for link in cluster.links], dtype=np.int64)
        rows = np.zeros((len(self.cuts), len(ends)), dtype=np.int64)
        for row, cut in zip(rows, self.cuts, strict=True):
            inside = np.isin(ends, list(set.union(*(self._switches[k] for k in cut))))
            row[:] = inside.sum(axis=1) == 1 if len(ends) else 0
        return rows

    def free(self, kind_gpus: Integers, fibres: Integers) -> list[int]:
        """Right-hand sides, in the order of `table`'s columns."""
        return [*kind_gpus.tolist(), *(self._crossing @ fibres).tolist(), int(fibres.sum())]


def least_tree(mix: Integers, hops: Integers) -> int:
    """Return the fewest fibres of a placement on a mix (Lemma 3): the lightest tree over its kinds and any further ones.

    With many kinds, the distance of the two kinds that are farthest apart is used instead.
    """
    used = [int(k) for k in np.flatnonzero(mix)]
    others = [k for k in range(len(mix)) if not mix[k]]
    if len(mix) > _MOST_KINDS_CUT:
        return int(hops[np.ix_(used, used)].max())
    return min(_tree([*used, *more], hops) for size in range(len(others) + 1) for more in combinations(others, size))


def _tree(kinds: Sequence[int], hops: Integers) -> int:
    """Return the weight of a minimum spanning tree over kinds of GPUs."""
    joined, left, weight = [kinds[0]], list(kinds[1:]), 0
    while left:
        nearest = min(left, key=lambda k: hops[joined, k].min())
        weight += int(hops[joined, nearest].min())
        left.remove(nearest)
        joined.append(nearest)
    return weight


def bound_of_demand(search: ClusterSearch, services: Sequence[Service], demand: Mapping[str, float]) -> float:
    """Return an upper bound on how many services, in these proportions, any allocator places on the empty cluster.

    Raises
    ------
    InputError
        As `MixProgram.solve`.
    """
    fibres = np.array([link.fibres for link in search.cluster.links], dtype=np.int64)
    return float(MixProgram(search, services, any_cover).proved(demand, search.kind_gpus, fibres))


def bound_of_requests(search: ClusterSearch, services: Sequence[Service], requests: Sequence[ServiceRequest]) -> int:
    """Return an upper bound on how many of these requests any allocator places before its first failure.

    The bound also holds for an allocator that knows all requests in advance.

    Raises
    ------
    InputError
        A request for a service that is not there.
    """
    program = MixProgram(search, services, any_cover)
    fibres = np.array([link.fibres for link in search.cluster.links], dtype=np.int64)

    def fits(count: int) -> bool:
        demand = Counter(request.service for request in requests[:count])
        return program.proved(demand, search.kind_gpus, fibres) >= count

    low, high = 0, len(requests)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
