"""Break the symmetry of equal buses: keep one of the assignments that differ only by an exchange of buses."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ortools.math_opt.python import mathopt

from .submodel import Submodel
from .variables import Variables


def equal_buses(s: Submodel) -> list[list[int]]:
    """Return classes of two or more buses that can be exchanged, with their devices, without changing any time.

    Devices of one bus are never equal: they load in turn. After the first submodel, only unused buses are equal.
    """
    classes: list[list[int]] = []
    for bus in range(len(s.buses)):
        for members in classes:
            if _exchangeable(s, members[0], bus):
                members.append(bus)
                break
        else:
            classes.append([bus])
    return [members for members in classes if len(members) > 1]


def _exchangeable(s: Submodel, one: int, other: int) -> bool:
    """Return whether exchanging two buses leaves the constants of a submodel unchanged."""
    a, b = s.buses[one], s.buses[other]
    if len(a) != len(b) or s.transfers_end[one] != s.transfers_end[other] or {*a, *b} & set(s.fixed.values()):
        return False
    image = [*s.devices]
    for d, e in zip(a, b, strict=True):
        image[d], image[e] = e, d
    rows: list[Sequence[float]] = [s.memory, s.memory_used, s.device_end, *s.size, *s.kernel, *s.direct, *s.load]
    return all(row[d] == row[image[d]] for row in rows for d in a) and all(
        copies[d][e] == copies[image[d]][image[e]] for copies in s.copy for d in s.devices for e in s.devices
    )


def relabelled(s: Submodel, assignment: list[int]) -> list[int]:
    """Exchange equal buses so that their first operators are in the order of the buses."""
    image = [*s.devices]
    for buses in equal_buses(s):
        first = {bus: _first_use(s, assignment, bus) for bus in buses}
        for new, old in zip(buses, sorted(buses, key=lambda bus: (first[bus], bus)), strict=True):
            for d, e in zip(s.buses[old], s.buses[new], strict=True):
                image[d] = e
    return [j and j + (image[s.device_of(j)] - s.device_of(j)) * s.q for j in assignment]


def _first_use(s: Submodel, assignment: Sequence[int], bus: int) -> int:
    used = (v for v in range(s.operators) if s.device_of(assignment[v]) in s.buses[bus])
    return next(used, s.operators)


def equal_buses_are_used_in_order(program: mathopt.Model, s: Submodel, v: Variables) -> None:
    """Allow an operator on a bus only if an earlier operator uses the preceding equal bus.

    Each assignment has an equivalent one that obeys this (`relabelled`).
    """
    for buses in equal_buses(s):
        for before, bus in pairwise(buses):
            used: mathopt.LinearTypes = 0.0  # whether an operator so far uses the preceding bus
            for node in range(s.operators):
                program.add_linear_constraint(_on_bus(s, v, node, bus) <= used)
                known, used = used, program.add_variable(lb=0, ub=1)
                v.used[before, node] = used
                program.add_linear_constraint(used <= _on_bus(s, v, node, before) + known)


def _on_bus(s: Submodel, v: Variables, node: int, bus: int) -> mathopt.LinearSum:
    return mathopt.fast_sum(v.inside(s, node, d) for d in s.buses[bus])


def used_so_far(s: Submodel, assignment: Sequence[int], bus: int, node: int) -> bool:
    """Return whether an operator up to a node is on the devices of a bus."""
    return _first_use(s, assignment, bus) <= node
