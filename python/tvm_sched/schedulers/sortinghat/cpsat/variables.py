"""Variables of a submodel's program for CP-SAT, and their values in an assignment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ortools.sat.python import cp_model

from ..program import leads_to
from ..strengthening import start_times
from ..submodel import Submodel, Times, copies_into
from ..symmetry import used_so_far


@dataclass
class Variables:
    """Variables by the numbers of `Submodel`, named as those of the mixed-integer program.

    Times are nanoseconds from `Submodel.base`; those of the submodel are whole (`model.in_nanoseconds`).

    Attributes
    ----------
    horizon : int
        Latest relevant time.
    within, leads, edge_in, copy_in, used : dict
        As in the mixed-integer program; ``within`` has only allowed places.
    load_end, start, end : dict of subgraph
    ready : dict of node
    begin : dict of operator
    total : IntVar
    """

    s: Submodel
    model: cp_model.CpModel
    horizon: int
    total: cp_model.IntVar
    within: dict[tuple[int, int], cp_model.IntVar] = field(default_factory=dict)
    leads: dict[tuple[int, int], cp_model.IntVar] = field(default_factory=dict)
    edge_in: dict[tuple[int, int], cp_model.IntVar] = field(default_factory=dict)
    copy_in: dict[tuple[int, int, int], cp_model.IntVar] = field(default_factory=dict)
    load_end: dict[int, cp_model.IntVar] = field(default_factory=dict)
    start: dict[int, cp_model.IntVar] = field(default_factory=dict)
    end: dict[int, cp_model.IntVar] = field(default_factory=dict)
    ready: dict[int, cp_model.IntVar] = field(default_factory=dict)
    begin: dict[int, cp_model.IntVar] = field(default_factory=dict)
    used: dict[tuple[int, int], cp_model.IntVar] = field(default_factory=dict)

    @staticmethod
    def of(model: cp_model.CpModel, s: Submodel, latest: float) -> Variables:
        """Create all variables of a submodel that must end by ``latest`` nanoseconds."""
        horizon = int(max([latest, *s.transfers_end, *s.device_end]) - s.base)
        v = Variables(s, model, horizon, model.new_int_var(0, horizon, "total"))
        for node in s.nodes:
            for j in s.places(node):
                v.within[node, j] = model.new_bool_var(f"x{node},{j}")
            for j in s.subgraphs:
                v.leads[node, j] = model.new_bool_var("")
                if s.readers[node]:
                    v.edge_in[node, j] = model.new_bool_var("")
                    for d in s.devices:
                        if d != s.device_of(j):
                            v.copy_in[node, d, j] = model.new_bool_var("")
            v.ready[node] = v.moment()
        for j in s.subgraphs:
            v.load_end[j], v.start[j], v.end[j] = v.moment(), v.moment(), v.moment()
        for node in range(s.operators):
            v.begin[node] = v.moment()
        return v

    def moment(self) -> cp_model.IntVar:
        """Create a variable for a time."""
        return self.model.new_int_var(0, self.horizon, "")

    def at(self, when: float) -> int:
        """Convert a moment of `Submodel` to this clock."""
        return int(when - self.s.base)

    @cached_property
    def places(self) -> dict[int, list[int]]:
        """Allowed subgraphs of each node."""
        return {node: self.s.places(node) for node in self.s.nodes}

    def inside(self, node: int, d: int) -> cp_model.LinearExprT:
        """Return whether a node is in a subgraph of device ``d``."""
        mine = self.s.of_device(d)
        return sum(self.within[node, j] for j in self.places[node] if j in mine)

    def hint(self, assignment: list[int], times: Times) -> None:
        """Start the solver from an assignment."""
        values: dict[cp_model.IntVar, int] = dict.fromkeys(
            (*self.within.values(), *self.edge_in.values(), *self.copy_in.values()), 0
        )
        leads = leads_to(self.s, assignment)
        values |= {variable: int(leads[key]) for key, variable in self.leads.items()}
        for node, j in enumerate(assignment):
            values[self.within[node, j]] = 1
            ends = times.load_end if node in self.s.parameter_nodes else times.end
            values[self.ready[node]] = self.at(ends[j]) if j else 0
        for a, b in self.s.edges:
            if assignment[a] != assignment[b]:
                values[self.edge_in[a, assignment[b]]] = 1
        for j in self.s.subgraphs:
            members = [node for node in range(self.s.operators + self.s.placeholders) if assignment[node] == j]
            for node, source in copies_into(self.s, assignment, j, members):
                values[self.copy_in[node, source, j]] = 1
        moments: tuple[tuple[Mapping[int, cp_model.IntVar], Mapping[int, float]], ...] = (
            (self.load_end, dict(enumerate(times.load_end))), (self.start, dict(enumerate(times.start))),
            (self.end, dict(enumerate(times.end))), (self.begin, start_times(self.s, assignment, times)),
        )  # fmt: skip
        for variables, known in moments:
            values |= {variable: self.at(known[key]) for key, variable in variables.items()}
        values |= {variable: int(used_so_far(self.s, assignment, *key)) for key, variable in self.used.items()}
        values[self.total] = self.at(times.total)
        for variable, value in values.items():
            self.model.add_hint(variable, value)
