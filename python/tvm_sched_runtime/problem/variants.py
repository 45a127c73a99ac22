"""Variants: groups of operators with alternatives, of which a schedule chooses one for each group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

import msgspec

from ..errors import ProblemError
from .costs import Costs, concatenate_costs
from .graph import Operator, OpGraph, Tensor


class Alternative(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A form of a group other than the one in the graph.

    Examples
    --------
    >>> again.operators[0].outputs
    ('y',)
    >>> varied.variants.groups[0].alternative_names
    ('fused', 'again')
    """

    name: str
    """Unique in its group, such as ``"apart"`` or ``"columns/4"``."""
    operators: tuple[Operator, ...]
    """They produce, under the same names, the tensors of the group that other operators read. From outside they read
    only activations that the group reads in the graph."""
    tensors: tuple[Tensor, ...] = ()
    """Tensors that only this alternative has: activations between its operators, and parts of parameters."""


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Operators of a graph that have alternatives.

    Examples
    --------
    >>> Group("join", operators=("join",), alternatives=(again,)).alternative_names
    ('fused', 'again')
    """

    name: str
    """Unique in the problem."""
    operators: tuple[str, ...]
    """Operators of the graph; no other group has them."""
    alternatives: tuple[Alternative, ...]
    graph_alternative: str = "fused"
    """Name of the form in the graph."""

    def __post_init__(self) -> None:
        names = [self.graph_alternative, *(alternative.name for alternative in self.alternatives)]
        if not self.operators or not self.alternatives:
            raise ProblemError(
                f"group {self.name!r} has no operators or no alternatives; it needs one of each at least"
            )
        if len(set(names)) < len(names) or not all(names):
            raise ProblemError(f"the alternatives of group {self.name!r} are named {names}; each has a name of its own")

    @property
    def alternative_names(self) -> tuple[str, ...]:
        """Names of the form in the graph and then of the alternatives, in their order."""
        return (self.graph_alternative, *(alternative.name for alternative in self.alternatives))


class Variants:
    """The groups of a problem, and the costs of the operators of their alternatives.

    Parameters
    ----------
    groups : iterable of Group
    costs : Costs
        Shape (operators of all alternatives in their order, devices).

    Examples
    --------
    >>> variants = Variants([Group("join", operators=("join",), alternatives=(again,))], Costs([[500, 500]]))
    >>> solve(Problem(graph, topology, problem.costs, variants)).choice
    {'join': 'again'}
    """

    __slots__ = ("costs", "groups")

    def __init__(self, groups: Iterable[Group], costs: Costs) -> None:
        self.groups, self.costs = tuple(groups), costs

    @staticmethod
    def split(groups: Iterable[Group], operators: int, costs: Costs) -> tuple[Costs, Variants]:
        """Split the costs of `all_alternatives` into those of the graph's ``operators`` and the variants."""
        rows = range(costs.operator_ns.shape[0])
        return costs.rows(rows[:operators]), Variants(groups, costs.rows(rows[operators:]))

    def only(self, possible: Sequence[bool]) -> Variants:
        """Keep the alternatives whose operators are all ``possible``, which has a value for each row of the costs."""
        groups: list[Group] = []
        rows: list[int] = []
        end = 0
        for group in self.groups:
            kept = []
            for alternative in group.alternatives:
                own = range(end, end := end + len(alternative.operators))
                if all(possible[row] for row in own):
                    kept.append(alternative)
                    rows += own
            if kept:
                groups.append(msgspec.structs.replace(group, alternatives=tuple(kept)))
        return Variants(groups, self.costs.rows(rows))

    def of_groups(self, kept: Sequence[bool]) -> Variants:
        """Keep some groups; ``kept`` has a value for each."""
        rows: list[int] = []
        end = 0
        for group, keep in zip(self.groups, kept, strict=True):
            begin, end = end, end + sum(len(alternative.operators) for alternative in group.alternatives)
            rows += range(begin, end) if keep else ()
        groups = [group for group, keep in zip(self.groups, kept, strict=True) if keep]
        return Variants(groups, self.costs.rows(rows))

    def to_builtins(self) -> dict[str, Any]:
        """Return plain data for a problem file."""
        return {"groups": msgspec.to_builtins(self.groups), "costs": self.costs.to_builtins()}

    def choose(self, graph: OpGraph, costs: Costs, choice: Mapping[str, str]) -> tuple[OpGraph, Costs]:
        """Return the graph and the costs that result from a choice (`choose_graph`)."""
        chosen, rows = choose_graph(graph, self.groups, choice)
        return chosen, concatenate_costs([costs, self.costs]).rows(rows)

    def check(self, graph: OpGraph, costs: Costs) -> None:
        """Raise `ProblemError` if the groups do not fit the graph, or the costs do not fit the groups."""
        count = sum(len(a.operators) for group in self.groups for a in group.alternatives)
        if self.costs.operator_ns.shape != (count, costs.operator_ns.shape[1]):
            raise ProblemError(
                f"costs of the variants are {self.costs.operator_ns.shape}; there are {count} operators in the alternatives "
                f"and {costs.operator_ns.shape[1]} devices"
            )
        if costs.concurrency is not None or self.costs.concurrency is not None:
            raise ProblemError("a problem has variants, or costs with concurrency, not both; leave the variants out")
        taken: dict[str, str] = {}
        for group in self.groups:
            for name in group.operators:
                if name not in graph.index.operator_id:
                    raise ProblemError(f"group {group.name!r} names operator {name!r}, which the graph does not have")
                if name in taken:
                    raise ProblemError(f"operator {name!r} is in groups {taken[name]!r} and {group.name!r}")
                taken[name] = group.name
        if len({group.name for group in self.groups}) < len(self.groups):
            raise ProblemError("two groups have one name; each has its own")
        _check_convex(graph, taken)
        for group in self.groups:
            _check_interfaces(graph, group)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Variants) and (self.groups, self.costs) == (other.groups, other.costs)

    __hash__ = None  # type: ignore[assignment]


def choose_graph(graph: OpGraph, groups: Sequence[Group], choice: Mapping[str, str]) -> tuple[OpGraph, list[int]]:
    """Replace the chosen groups by their alternatives; a group that ``choice`` does not name stays as it is.

    An alternative's operators take the position of the group's first operator. Unused activations and parameters are
    dropped.

    Returns
    -------
    (OpGraph, list of int)
        For each operator its position in `all_alternatives`.

    Raises
    ------
    ProblemError
        The choice names an unknown group or alternative.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import choose_graph
    >>> chosen, rows = choose_graph(graph, varied.variants.groups, {"join": "again"})
    >>> [operator.name for operator in chosen.operators], rows
    (['left', 'right', 'again'], [0, 1, 3])
    """
    first: dict[str, tuple[Alternative, int]] = {}
    replaced: set[str] = set()
    tensors: list[Tensor] = []
    count = len(graph.operators)
    for group, position in zip(groups, _chosen_positions(groups, choice), strict=True):
        for k, alternative in enumerate(group.alternatives, 1):
            if k == position:
                first[group.operators[0]] = alternative, count
                replaced.update(group.operators)
                tensors += alternative.tensors
            count += len(alternative.operators)
    operators: list[Operator] = []
    rows: list[int] = []
    for o, operator in enumerate(graph.operators):
        if operator.name in first:
            alternative, begin = first[operator.name]
            operators += alternative.operators
            rows += range(begin, begin + len(alternative.operators))
        elif operator.name not in replaced:
            operators.append(operator)
            rows.append(o)
    used = {name for operator in operators for name in (*operator.inputs, *operator.outputs)} | set(graph.outputs)
    gone = {n for o in graph.operators if o.name in replaced for n in (*o.inputs, *o.outputs)} - used
    kept = tuple(tensor for tensor in graph.tensors if tensor.name not in gone or tensor.kind == "input")
    return OpGraph(graph.name, tuple(operators), (*kept, *tensors), graph.outputs, graph.models), rows


def _chosen_positions(groups: Sequence[Group], choice: Mapping[str, str]) -> list[int]:
    """Return for each group the position of the chosen name in `Group.alternative_names`."""
    known = {group.name: group for group in groups}
    for name, alternative in choice.items():
        if name not in known:
            raise ProblemError(f"the choice names group {name!r}; {_list_known(known)}")
        if alternative not in known[name].alternative_names:
            raise ProblemError(
                f"the choice names {alternative!r} for group {name!r}, whose alternatives are: "
                f"{_list_known(known[name].alternative_names)}"
            )
    return [group.alternative_names.index(choice.get(group.name, group.graph_alternative)) for group in groups]


def all_alternatives(graph: OpGraph, groups: Iterable[Group]) -> OpGraph:
    """Join the operators of the graph and then those of all alternatives in one graph, for cost models.

    A tensor that an alternative produces for other operators gets the alternative's name as a suffix, so that each
    tensor has one producer.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import all_alternatives
    >>> [operator.name for operator in all_alternatives(graph, varied.variants.groups).operators]
    ['left', 'right', 'join', 'again']
    """
    operators, tensors = list(graph.operators), list(graph.tensors)
    known = {tensor.name: tensor for tensor in graph.tensors}
    for group in groups:
        for alternative in group.alternatives:
            own = {tensor.name for tensor in alternative.tensors}
            renamed = {n: f"{n} ({alternative.name})" for o in alternative.operators for n in o.outputs if n not in own}
            tensors += alternative.tensors
            tensors += [msgspec.structs.replace(known[n], name=new) for n, new in renamed.items() if n in known]
            for operator in alternative.operators:
                inputs = tuple(renamed.get(n, n) for n in operator.inputs)
                outputs = tuple(renamed.get(n, n) for n in operator.outputs)
                parts = operator.read_bytes and {renamed.get(n, n): size for n, size in operator.read_bytes.items()}
                operators.append(msgspec.structs.replace(operator, inputs=inputs, outputs=outputs, read_bytes=parts))
    return OpGraph(graph.name, tuple(operators), tuple(tensors), graph.outputs, graph.models)


def _check_convex(graph: OpGraph, group_of: Mapping[str, str]) -> None:
    """Check that each group could be one operator: no path leaves it and returns, and no groups wait for each other."""
    keys = [(o.name in group_of, group_of.get(o.name, o.name)) for o in graph.operators]
    before: dict[tuple[bool, str], set[tuple[bool, str]]] = {key: set() for key in keys}
    for key, predecessors in zip(keys, graph.index.predecessors, strict=True):
        before[key].update(keys[p] for p in predecessors if keys[p] != key)
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        names = sorted({name for grouped, name in error.args[1] if grouped})
        raise ProblemError(
            f"groups {names} wait for each other, or one waits for itself through operators outside it; no path may leave "
            "a group and come back to it"
        ) from None


def _check_interfaces(graph: OpGraph, group: Group) -> None:
    """Check that each alternative has the group's inputs and outputs."""
    index = graph.index
    members = {index.operator_id[name] for name in group.operators}
    produced = {t for o in members for t in index.outputs[o]}
    needed = {t for t in produced if t in index.graph_outputs or any(o not in members for o in index.consumers[t])}
    activations = {t for o in members for t in index.inputs[o] if index.producer[t] >= 0} - produced
    names = {graph.tensors[t].name for t in activations}
    names |= {tensor.name for tensor in graph.tensors if tensor.kind != "activation"}
    outputs = {graph.tensors[t].name for t in needed}
    for alternative in group.alternatives:
        own = {tensor.name for tensor in alternative.tensors}
        where = f"alternative {alternative.name!r} of group {group.name!r}"
        written = {name for operator in alternative.operators for name in operator.outputs}
        if missing := outputs - written:
            raise ProblemError(f"{where} does not make {sorted(missing)}, which operators outside of the group read")
        if spurious := written - outputs - own:
            raise ProblemError(
                f"{where} makes {sorted(spurious)}, which is neither its own nor read outside of the group"
            )
        for operator in alternative.operators:
            for name in operator.inputs:
                if name not in names | own | outputs:
                    raise ProblemError(
                        f"{where}: operator {operator.name!r} reads {name!r}, which is no tensor of its own, no input or "
                        "parameter of the graph, and no activation that the group reads in the graph"
                    )


def _list_known(names: Iterable[str]) -> str:
    names = list(names)
    return (
        f"there are {', '.join(map(repr, names[:8]))}{', ...' if len(names) > 8 else ''}" if names else "there are none"
    )
