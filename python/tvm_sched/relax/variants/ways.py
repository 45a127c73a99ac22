"""Assign the bindings of ``main`` to the ways of computing groups that `offer_variants` added."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax

from ...execution_plan import KernelCall
from ...problem import Alternative, Group, Operator, Tensor

CALL = "tvm_sched.variants"
"""The packed function that stands for a choice: it takes the result of each way, then their names."""


@dataclass(frozen=True)
class Choice:
    """A choice in ``main``: the names of its ways, and the variable that each of them makes, the graph's first."""

    names: tuple[str, ...]
    results: tuple[relax.Var, ...]


@dataclass(frozen=True)
class Member:
    """The way to which a binding belongs that is not the graph's, and whether it makes the way's result."""

    choice: Choice
    way: int
    last: bool


@dataclass
class WayCollector:
    """The operators, calls and tensors of alternatives, as they are found."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    _of_graph: dict[relax.Var, list[str]] = field(default_factory=dict)
    _choices: dict[str, Choice] = field(default_factory=dict)
    _found: dict[tuple[str, int], list[tuple[Operator, KernelCall]]] = field(default_factory=dict)
    _own: dict[tuple[str, int], list[Tensor]] = field(default_factory=dict)

    def add_of_graph(self, choice: Choice, operator: str) -> None:
        """An operator of the graph that only the graph's way of a choice has."""
        self._of_graph.setdefault(choice.results[0], []).append(operator)

    def add(self, group: str, member: Member, operator: Operator, call: KernelCall) -> None:
        """An operator of a way of a group."""
        self._choices[group] = member.choice
        self._found.setdefault((group, member.way), []).append((operator, call))

    def add_tensor(self, group: str, member: Member, tensor: Tensor) -> None:
        """A tensor that only a way of a group has."""
        self.tensors[tensor.name] = tensor
        self._own.setdefault((group, member.way), []).append(tensor)

    def finish(self) -> tuple[tuple[Group, ...], tuple[KernelCall, ...]]:
        """The groups, and the calls of their alternatives' operators in order."""
        groups, calls = [], []
        for name, choice in self._choices.items():
            alternatives = []
            for way, label in enumerate(choice.names[1:], 1):
                found = self._found[name, way]
                operators = tuple(operator for operator, _ in found)
                alternatives.append(Alternative(label, operators, tuple(self._own.get((name, way), ()))))
                calls += [call for _, call in found]
            groups.append(Group(name, tuple(self._of_graph[choice.results[0]]), tuple(alternatives), choice.names[0]))
        return tuple(groups), tuple(calls)


def as_choice(value: Any) -> Choice | None:
    """The choice that a call stands for, or None."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
        return None
    if value.op.name != "relax.call_pure_packed" or str(getattr(value.args[0], "global_symbol", "")) != CALL:
        return None
    names = tuple("".join(str(a.value)) for a in value.args[1:] if isinstance(a, tvm.ir.StringImm))
    return Choice(names, tuple(value.args[1 : 1 + len(names)]))


def members(bindings: Sequence[relax.Binding], result: relax.Expr) -> dict[relax.Var, Member]:
    """The bindings that only alternatives need, by the variable that they bind."""
    definitions = {binding.var: binding.value for binding in bindings}
    choices = [choice for binding in bindings if (choice := as_choice(binding.value)) is not None]
    if not choices:
        return {}
    graph = _needed([result], definitions, set())
    found: dict[relax.Var, Member] = {}
    for choice in choices:
        for way, last in enumerate(choice.results[1:], 1):
            for variable in _needed([last], definitions, graph | found.keys()):
                found[variable] = Member(choice, way, variable.same_as(last))
    return found


def graph_bindings(bindings: Sequence[relax.Binding], result: relax.Expr) -> dict[relax.Var, Choice]:
    """The bindings that only the graph's way of a choice needs, by the variable that they bind."""
    choices = {c.results[0]: (binding.var, c) for binding in bindings if (c := as_choice(binding.value)) is not None}
    users: dict[relax.Var, list[relax.Var | None]] = {}
    for binding in bindings:
        for used in relax.analysis.free_vars(binding.value):
            users.setdefault(used, []).append(binding.var)
    for used in relax.analysis.free_vars(result):
        users.setdefault(used, []).append(None)
    found: dict[relax.Var, Choice] = {}
    for binding in reversed(bindings):
        after = users.get(binding.var, [])
        if binding.var in choices and all(user is not None and user.same_as(choices[binding.var][0]) for user in after):
            found[binding.var] = choices[binding.var][1]
            continue
        owners = {id(found[user]) if user is not None and user in found else None for user in after}
        if len(owners) == 1 and None not in owners and as_choice(binding.value) is None:
            found[binding.var] = next(found[user] for user in after if user is not None)
    return found


def _needed(exprs: Iterable[Any], definitions: dict[Any, Any], known: set[Any]) -> set[Any]:
    """Bound variables that expressions need besides ``known``, of each choice those of the graph's way."""
    needed: set[Any] = set()
    stack = [variable for expr in exprs for variable in relax.analysis.free_vars(expr)]
    while stack:
        variable = stack.pop()
        if variable in needed or variable in known or variable not in definitions:
            continue
        needed.add(variable)
        value = definitions[variable]
        choice = as_choice(value)
        stack.extend([choice.results[0]] if choice else relax.analysis.free_vars(value))
    return needed
