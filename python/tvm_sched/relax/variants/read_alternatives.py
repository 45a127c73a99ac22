"""Find which bindings of ``main`` belong to the alternatives that `OfferVariants` added."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax

from tvm_sched_runtime.problem import Alternative, Group, Operator, Tensor

from ...execution_plan import KernelCall

CALL = "tvm_sched.variants"
"""The packed function that stands for a choice. Arguments: the graph's result, the alternatives' results, all names."""


@dataclass(frozen=True)
class OfferedVariants:
    """A choice in ``main``: the names and result variables of the graph's kernels and of the alternatives."""

    names: tuple[str, ...]
    results: tuple[relax.Var, ...]


@dataclass(frozen=True)
class AlternativeBinding:
    """A binding that only an alternative needs."""

    choice: OfferedVariants
    number: int  # position of the alternative in the choice, from 1
    last: bool  # it computes the alternative's result


@dataclass
class AlternativeCollector:
    """Collects the operators, calls and tensors of alternatives, and makes groups of them."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    _of_graph: dict[relax.Var, list[str]] = field(default_factory=dict)
    _choices: dict[str, OfferedVariants] = field(default_factory=dict)
    _operators: dict[tuple[str, int], list[tuple[Operator, KernelCall]]] = field(default_factory=dict)
    _own: dict[tuple[str, int], list[Tensor]] = field(default_factory=dict)

    def add_of_graph(self, choice: OfferedVariants, operator: str) -> None:
        """Add an operator of the graph that no alternative of a choice needs."""
        self._of_graph.setdefault(choice.results[0], []).append(operator)

    def add(self, group: str, binding: AlternativeBinding, operator: Operator, call: KernelCall) -> None:
        """Add an operator of an alternative of a group."""
        self._choices[group] = binding.choice
        self._operators.setdefault((group, binding.number), []).append((operator, call))

    def add_tensor(self, group: str, binding: AlternativeBinding, tensor: Tensor) -> None:
        """Add a tensor that only an alternative of a group has."""
        self.tensors[tensor.name] = tensor
        self._own.setdefault((group, binding.number), []).append(tensor)

    def finish(self) -> tuple[tuple[Group, ...], tuple[KernelCall, ...]]:
        """Return the groups, and the calls of their alternatives' operators in order."""
        groups, calls = [], []
        for name, choice in self._choices.items():
            alternatives = []
            for number, label in enumerate(choice.names[1:], 1):
                members = self._operators[name, number]
                operators = tuple(operator for operator, _ in members)
                alternatives.append(Alternative(label, operators, tuple(self._own.get((name, number), ()))))
                calls += [call for _, call in members]
            groups.append(Group(name, tuple(self._of_graph[choice.results[0]]), tuple(alternatives), choice.names[0]))
        return tuple(groups), tuple(calls)


def as_choice(value: Any) -> OfferedVariants | None:
    """Return the choice that a call stands for, or None."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
        return None
    if value.op.name != "relax.call_pure_packed" or str(getattr(value.args[0], "global_symbol", "")) != CALL:
        return None
    names = tuple("".join(str(a.value)) for a in value.args[1:] if isinstance(a, tvm.ir.StringImm))
    return OfferedVariants(names, tuple(value.args[1 : 1 + len(names)]))


def alternative_bindings(bindings: Sequence[relax.Binding], result: relax.Expr) -> dict[relax.Var, AlternativeBinding]:
    """Return the bindings that only alternatives need, by the variable that they bind."""
    definitions = {binding.var: binding.value for binding in bindings}
    choices = [choice for binding in bindings if (choice := as_choice(binding.value)) is not None]
    if not choices:
        return {}
    graph = _needed([result], definitions, set())
    members: dict[relax.Var, AlternativeBinding] = {}
    for choice in choices:
        for number, last in enumerate(choice.results[1:], 1):
            for variable in _needed([last], definitions, graph | members.keys()):
                members[variable] = AlternativeBinding(choice, number, variable.same_as(last))
    return members


def graph_bindings(bindings: Sequence[relax.Binding], result: relax.Expr) -> dict[relax.Var, OfferedVariants]:
    """Return the bindings of the graph that no alternative of a choice needs, by the variable that they bind."""
    choices = {c.results[0]: (binding.var, c) for binding in bindings if (c := as_choice(binding.value)) is not None}
    users: dict[relax.Var, list[relax.Var | None]] = {}
    for binding in bindings:
        for used in relax.analysis.free_vars(binding.value):
            users.setdefault(used, []).append(binding.var)
    for used in relax.analysis.free_vars(result):
        users.setdefault(used, []).append(None)
    owned: dict[relax.Var, OfferedVariants] = {}
    for binding in reversed(bindings):
        after = users.get(binding.var, [])
        if binding.var in choices and all(user is not None and user.same_as(choices[binding.var][0]) for user in after):
            owned[binding.var] = choices[binding.var][1]
            continue
        owners = {id(owned[user]) if user is not None and user in owned else None for user in after}
        if len(owners) == 1 and None not in owners and as_choice(binding.value) is None:
            owned[binding.var] = next(owned[user] for user in after if user is not None)
    return owned


def _needed(exprs: Iterable[Any], definitions: dict[Any, Any], known: set[Any]) -> set[Any]:
    """Return the bound variables that expressions need besides ``known``; a choice needs only the graph's kernels."""
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
